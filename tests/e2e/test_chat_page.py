"""The server's chat page in Chromium: two windows, one engine, nothing from another host."""

import re

import pytest

from nanovllm import LLM
from nanovllm.serve.server import Server

from .conftest import expect, open_page, take_screenshot

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def server():
    options = {"kvcache_block_size": 16, "num_kvcache_blocks": 160, "max_model_len": 1024}
    with LLM("qwen3-tiny", **options) as llm, Server(llm) as server:
        yield server


def say(page, text):
    page.get_by_label("message").fill(text)
    page.keyboard.press("Enter")


def numbers(page, turn):
    """The numbers under an answer, once they are there."""
    note = page.locator(".numbers").nth(turn)
    expect(note).to_contain_text("tokens/s")
    found = re.search(r"prompt (\d+) tokens, (\d+) from the cache · answer (\d+) tokens", note.inner_text())
    return [int(number) for number in found.groups()]


def test_tokens_come_and_a_second_turn_finds_the_first_in_the_cache(server, browser):
    with open_page(browser) as page:
        page.goto(server.url)
        expect(page.locator("#model")).to_contain_text("qwen3-tiny")
        say(page, "My name is Tom. Tell me a story about a fox.")
        answer = page.locator(".assistant").first
        expect(answer).to_contain_text(re.compile(r"\w+ \w+"))
        prompt, cached, _ = numbers(page, 0)
        assert cached < prompt
        say(page, "Who is in the story?")
        second_prompt, second_cached, _ = numbers(page, 1)
        assert second_prompt > prompt and second_cached >= prompt - 16
        page.get_by_role("button", name="New chat").click()
        expect(page.locator(".turn")).to_have_count(0)
        assert page.errors == [] and page.refused == []


def test_the_text_of_an_answer_is_never_read_as_html(server, browser):
    with open_page(browser) as page:
        page.goto(server.url)
        say(page, "<img src=x onerror='document.title=1'><b>bold</b>")
        numbers(page, 0)
        assert page.locator(".turn b, .turn img").count() == 0 and page.title() == "nanovllm chat"


@pytest.mark.parametrize("color_scheme", ["light", "dark"])
def test_two_windows_share_a_prefix_and_see_it(server, browser, monkeypatch, color_scheme):
    import time

    step = server.llm.step
    monkeypatch.setattr(server.llm, "step", lambda: (time.sleep(0.08), step())[1])
    question = "Please tell me a very long story about an old fox who lives in the dark forest with many friends."
    with open_page(browser, color_scheme) as one, open_page(browser, color_scheme) as other:
        for page in (one, other):
            page.goto(server.url)
            page.get_by_label("longest answer").fill("90")
        say(one, question)
        expect(one.locator(".assistant")).to_contain_text(re.compile(r"\w+"))
        say(other, question)
        for page in (one, other):
            expect(page.locator("#grid .shared").first).to_be_visible()
            expect(page.locator("#grid .shared").first).to_have_text("2")
            expect(page.locator("#grid .mine.shared").first).to_be_visible()
            expect(page.locator("#requests")).to_contain_text(re.compile(r"yours: \d+ blocks, [1-9]\d* shared"))
            expect(page.locator("#requests li")).to_have_count(2)
            take_screenshot(page, f"chat-{color_scheme}")
        other.get_by_role("button", name="Stop").click()
        expect(other.locator(".numbers")).to_have_text("stopped")
        expect(one.locator("#requests li")).to_have_count(1)
        numbers(one, 0)
        expect(one.locator("#requests li")).to_have_count(0)
        assert one.errors == [] and one.refused == [] and other.refused == []


def test_an_error_is_shown(server, browser):
    with open_page(browser) as page:
        page.goto(server.url)
        say(page, "again and again " * 400)
        expect(page.locator(".numbers.error")).to_contain_text("max_model_len is 1024")
