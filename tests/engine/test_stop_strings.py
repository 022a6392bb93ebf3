"""Stop strings, stop tokens and text that grows token by token."""

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from transformers import AutoTokenizer

from nanovllm import LLM, SamplingParams
from nanovllm.outputs import Detokenizer
from nanovllm.utils.context import get_context

from .conftest import TOKENIZER_TEXT, make_tiny_model
from .reference import assert_clean, drain, edit_json

VOCAB_SIZE = 320
PROMPT = [40, 41, 42, 43]


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return make_tiny_model(
        tmp_path_factory.mktemp("stop") / "model", vocab_size=VOCAB_SIZE, with_tokenizer=True, eos_token_id=None, seed=5
    )


@pytest.fixture(scope="module")
def tokenizer(path):
    return AutoTokenizer.from_pretrained(path)


@pytest.fixture(scope="module")
def llm(path):
    with LLM(path, kvcache_block_size=8, num_kvcache_blocks=64) as llm:
        yield llm


# The detokenizer alone.


def earliest_stop(text, stops):
    """Where `text` has to end: (start of the stop string that is complete first, the string), or (len, None)."""
    found = [(text.find(stop) + len(stop), text.find(stop), stop) for stop in stops if stop in text]
    return (min(found)[1], min(found)[2]) if found else (len(text), None)


def check_detokenizer(tokenizer, token_ids, stops):
    detokenizer = Detokenizer(tokenizer, tuple(stops))
    shown = ""
    for token_id in token_ids:
        detokenizer.append(token_id)
        if detokenizer.stopped_by is not None:
            break
        text = detokenizer.text[: detokenizer.visible_length(finished=False)]
        assert text.startswith(shown), "what was shown has changed"
        shown = text
    detokenizer.finish()
    full = tokenizer.decode(token_ids, skip_special_tokens=True)
    end, stop = earliest_stop(full, stops)
    assert detokenizer.stopped_by == stop
    assert detokenizer.text == full[:end]
    assert detokenizer.text[: detokenizer.visible_length(finished=True)] == full[:end]
    assert full[:end].startswith(shown), "a part of a stop string was shown"


TEXTS = st.one_of(
    st.sampled_from(TOKENIZER_TEXT),
    st.text(max_size=30),
    st.text(alphabet="ab é日\U0001f44b\U0001f3fd\u200d\n", max_size=40),
)


@st.composite
def stops_in(draw, text):
    """Strings of which some occur in the text, overlap, or begin alike."""
    stops = []
    for _ in range(draw(st.integers(0, 3))):
        if text and draw(st.booleans()):
            start = draw(st.integers(0, len(text) - 1))
            stops.append(text[start : start + draw(st.integers(1, 6))])
        else:
            stops.append(draw(st.text(alphabet="ab é日\n", min_size=1, max_size=4)))
    return stops


@given(data=st.data(), text=TEXTS)
@settings(max_examples=60)
def test_text_grows_to_what_decoding_at_once_gives(tokenizer, data, text):
    token_ids = tokenizer.encode(text, add_special_tokens=False)
    full = tokenizer.decode(token_ids, skip_special_tokens=True)
    check_detokenizer(tokenizer, token_ids, data.draw(stops_in(full)))


@given(data=st.data(), token_ids=st.lists(st.integers(0, VOCAB_SIZE + 10), max_size=40))
@settings(max_examples=60)
def test_tokens_that_are_no_valid_text(tokenizer, data, token_ids):
    # Halves of characters, special tokens, and ids the tokenizer does not know (the head may be padded).
    full = tokenizer.decode(token_ids, skip_special_tokens=True)
    check_detokenizer(tokenizer, token_ids, data.draw(stops_in(full)))


def test_a_character_of_several_tokens_is_shown_when_it_is_whole(tokenizer):
    token_ids = tokenizer.encode("x\U0001f98a", add_special_tokens=False)  # not in the tokenizer's training text
    assert len(token_ids) >= 4, "the test needs a character that is split"
    detokenizer = Detokenizer(tokenizer, ())
    texts = []
    for token_id in token_ids:
        detokenizer.append(token_id)
        texts.append(detokenizer.text)
    assert set(texts) == {"x", "x\U0001f98a"} and texts[-1] == "x\U0001f98a"


def test_half_a_character_at_the_end_is_shown_as_such(tokenizer):
    token_ids = tokenizer.encode("x\U0001f98a", add_special_tokens=False)[:-1]
    detokenizer = Detokenizer(tokenizer, ())
    for token_id in token_ids:
        detokenizer.append(token_id)
    assert detokenizer.text == "x"
    detokenizer.finish()
    assert detokenizer.text == tokenizer.decode(token_ids) and detokenizer.text.endswith("\ufffd")


@pytest.mark.parametrize(
    "text, stops, end, stopped_by",
    [
        ("one two three", ["two"], "one ", "two"),
        ("one two three", ["three", "two"], "one ", "two"),
        ("abcdef", ["bcde", "cd"], "ab", "cd"),  # the shorter one is complete first
        ("abcdef", ["cd", "bcd"], "a", "bcd"),  # complete at the same time: the one that began first
        ("aaab", ["aab"], "a", "aab"),  # a beginning that comes to nothing
        ("abab", ["ba"], "a", "ba"),
        ("xy", ["xyz"], "xy", None),
        ("héllo wörld", ["wö"], "héllo ", "wö"),
        ("日本語 漢字", ["語 漢"], "日本", "語 漢"),
        ("a\n\nb", ["\n\n"], "a", "\n\n"),
        ("stop", ["stop"], "", "stop"),
        ("stop", ["s"], "", "s"),
    ],
)
def test_which_stop_string_wins(tokenizer, text, stops, end, stopped_by):
    detokenizer = Detokenizer(tokenizer, tuple(stops))
    for token_id in tokenizer.encode(text, add_special_tokens=False):
        if detokenizer.stopped_by is None:
            detokenizer.append(token_id)
    detokenizer.finish()
    assert (detokenizer.text, detokenizer.stopped_by) == (end, stopped_by)


# Through the engine.


def greedy(**options):
    return SamplingParams(**({"temperature": 0.0, "max_tokens": 24, "ignore_eos": True} | options))


def read(stream):
    """Pieces and result of a stream."""
    pieces = []
    while True:
        try:
            pieces.append(next(stream))
        except StopIteration as stop:
            return pieces, stop.value


@given(data=st.data(), prompt=st.lists(st.integers(0, VOCAB_SIZE - 1), min_size=1, max_size=6))
@settings(max_examples=12)
def test_stop_strings_end_the_text_in_generate_and_stream_alike(llm, tokenizer, data, prompt):
    full = llm.generate(prompt, greedy(), use_tqdm=False)[0]
    assert full["text"] == tokenizer.decode(full["token_ids"], skip_special_tokens=True)
    stops = data.draw(stops_in(full["text"]))
    assume(stops)
    output = llm.generate(prompt, greedy(stop=stops), use_tqdm=False)[0]
    end, stop = earliest_stop(full["text"], stops)
    assert output["text"] == full["text"][:end]
    assert output["finish_reason"] == ("stop" if stop else "length")
    assert output.outputs[0].stop_reason == stop
    # No token was generated after the one that completed the stop string.
    count = len(output["token_ids"])
    assert output["token_ids"] == full["token_ids"][:count]
    if stop:
        assert stop in tokenizer.decode(output["token_ids"], skip_special_tokens=True)
        if not tokenizer.decode(output["token_ids"][:-1], skip_special_tokens=True).endswith("\ufffd"):
            assert stop not in tokenizer.decode(output["token_ids"][:-1], skip_special_tokens=True)
    else:
        assert count == 24
    pieces, streamed = read(llm.stream(prompt, greedy(stop=stops)))
    assert "".join(pieces) == output["text"] == streamed["text"]
    assert all(pieces), "an empty piece tells nothing"
    assert streamed["token_ids"] == output["token_ids"] and streamed["finish_reason"] == output["finish_reason"]


@given(prompt=st.lists(st.integers(0, VOCAB_SIZE - 1), min_size=1, max_size=6), count=st.integers(1, 20))
@settings(max_examples=12)
def test_a_stream_gives_the_text_of_generate(llm, prompt, count):
    output = llm.generate(prompt, greedy(max_tokens=count), use_tqdm=False)[0]
    pieces, streamed = read(llm.stream(prompt, greedy(max_tokens=count)))
    assert "".join(pieces) == output["text"] == streamed["text"]
    assert streamed["token_ids"] == output["token_ids"]


# Where no CUDA graph stands in for the script.
SCRIPTED = {"device": "cpu", "kvcache_block_size": 8, "num_kvcache_blocks": 64}


def write_script(llm, monkeypatch, token_ids, prompt_length):
    """Let the model say `token_ids`, whatever it is asked after prompts of that length."""

    def run_model(input_ids, positions):
        assert len(input_ids) == (prompt_length if get_context().is_prefill else 1)
        logits = torch.zeros(1, VOCAB_SIZE)
        logits[0, token_ids[int(positions[-1]) + 1 - prompt_length]] = 1.0
        return logits

    monkeypatch.setattr(llm.llm_engine.model_runner, "run_model", run_model)


@pytest.mark.parametrize(
    "text, stops, end",
    [
        ("A fox \U0001f98a and a cat.", ["\U0001f98a"], "A fox "),
        ("A fox \U0001f98a and a cat.", ["and a", "\U0001f98a a"], "A fox "),
        ("grüße 日本語 end", ["本"], "grüße 日"),
        ("one, two, three", [", th", "ee"], "one, two"),
        ("one, two, three", ["four"], "one, two, three"),
    ],
)
@pytest.mark.parametrize("how", ["generate", "stream"])
def test_text_of_a_scripted_model(path, tokenizer, monkeypatch, text, stops, end, how):
    token_ids = tokenizer.encode(text, add_special_tokens=False)
    params = SamplingParams(temperature=0.0, max_tokens=len(token_ids), stop=stops)
    with LLM(path, enable_prefix_caching=False, **SCRIPTED) as llm:
        write_script(llm, monkeypatch, token_ids, len(PROMPT))
        if how == "generate":
            output = llm.generate(PROMPT, params, use_tqdm=False)[0]
        else:
            pieces, output = read(llm.stream(PROMPT, params))
            assert "".join(pieces) == end
            assert "".join(pieces[:-1]) == "" or len(pieces) > 1
        assert output["text"] == end
        assert output["finish_reason"] == ("length" if end == text else "stop")
        assert_clean(llm)


def test_a_stream_shows_text_while_it_comes(path, tokenizer, monkeypatch):
    text = "The quick brown fox jumps over the lazy dog."
    token_ids = tokenizer.encode(text, add_special_tokens=False)
    with LLM(path, **SCRIPTED) as llm:
        write_script(llm, monkeypatch, token_ids, len(PROMPT))
        stream = llm.stream(PROMPT, SamplingParams(temperature=0.0, max_tokens=len(token_ids), stop=["dog"]))
        shown, seen = "", []
        for piece in stream:
            shown += piece
            (request,) = llm.llm_engine.requests.values() if llm.llm_engine.requests else (None,)
            if request is not None:
                seen.append((len(shown), len(tokenizer.decode(request.seq.completion_token_ids))))
        assert shown == text.removesuffix("dog.")
        # Only the longest possible beginning of a stop string is held back.
        assert seen and all(generated - len_shown <= len("dog") - 1 + 8 for len_shown, generated in seen)
        assert len(seen) > 5


# Stop tokens.


def first_time(token_ids, index):
    """The index at which the token number `index` appears first."""
    return token_ids.index(token_ids[index])


@pytest.mark.parametrize("index", [0, 3, 11])
def test_stop_token_ids(llm, tokenizer, index):
    full = llm.generate(PROMPT, greedy(), use_tqdm=False)[0]["token_ids"]
    index = first_time(full, index)
    output = llm.generate(PROMPT, greedy(stop_token_ids=[full[index], VOCAB_SIZE + 99]), use_tqdm=False)[0]
    assert output["token_ids"] == full[: index + 1], "the stop token is kept"
    assert output["finish_reason"] == "stop" and output.outputs[0].stop_reason == full[index]
    assert output["text"] == tokenizer.decode(full[:index], skip_special_tokens=True), "but not in the text"
    _, streamed = read(llm.stream(PROMPT, greedy(stop_token_ids=[full[index]])))
    assert streamed["text"] == output["text"] and streamed["token_ids"] == output["token_ids"]


@pytest.mark.parametrize(
    "where, index",
    [
        pytest.param("generation_config", 0, marks=pytest.mark.slow),
        ("generation_config_list", 5),
        ("config", 5),
        pytest.param("config_list", 0, marks=pytest.mark.slow),
    ],
)
def test_every_end_of_sequence_id_stops(tmp_path, path, llm, where, index):
    full = llm.generate(PROMPT, greedy(), use_tqdm=False)[0]["token_ids"]
    index = first_time(full, index)
    eos = [VOCAB_SIZE - 1, full[index], VOCAB_SIZE - 2] if where.endswith("list") else full[index]
    own = make_tiny_model(tmp_path / "model", vocab_size=VOCAB_SIZE, with_tokenizer=True, eos_token_id=None, seed=5)
    if where.startswith("generation"):
        edit_json(own / "generation_config.json", eos_token_id=eos)
    else:
        (own / "generation_config.json").unlink()
        edit_json(own / "config.json", eos_token_id=eos)
    with LLM(own, kvcache_block_size=8, num_kvcache_blocks=64) as other:
        output = other.generate(PROMPT, greedy(ignore_eos=False), use_tqdm=False)[0]
        ignored = other.generate(PROMPT, greedy(), use_tqdm=False)[0]
        both = other.generate(PROMPT, greedy(stop_token_ids=[full[index]]), use_tqdm=False)[0]
        tokenizer = other.tokenizer
    assert output["token_ids"] == full[: index + 1] and output["finish_reason"] == "stop"
    assert output["text"] == tokenizer.decode(full[:index], skip_special_tokens=True)
    assert ignored["token_ids"] == full and ignored["finish_reason"] == "length"
    assert both["token_ids"] == full[: index + 1], "ignore_eos does not ignore stop_token_ids"


def test_the_tokenizers_own_end_of_sequence_token_stops(llm, path, tokenizer, monkeypatch):
    assert tokenizer.eos_token_id == 0
    with LLM(path, **SCRIPTED) as other:
        write_script(other, monkeypatch, [70, 71, 0, 72, 73, 74], len(PROMPT))
        output = other.generate(PROMPT, SamplingParams(temperature=0.0, max_tokens=6), use_tqdm=False)[0]
    assert output["token_ids"] == [70, 71, 0] and output["finish_reason"] == "stop"
    assert output["text"] == tokenizer.decode([70, 71])


@pytest.mark.parametrize("max_tokens, reason", [(3, "stop"), (2, "length"), (4, "stop")])
def test_a_stop_at_the_limit_is_a_stop(path, tokenizer, monkeypatch, max_tokens, reason):
    with LLM(path, **SCRIPTED) as llm:
        write_script(llm, monkeypatch, [70, 71, 0, 72, 73, 74], len(PROMPT))
        params = SamplingParams(temperature=0.0, max_tokens=max_tokens)
        assert llm.generate(PROMPT, params, use_tqdm=False)[0]["finish_reason"] == reason
        text = tokenizer.decode([70, 71, 72])
        write_script(llm, monkeypatch, [70, 71, 72, 73, 74], len(PROMPT))
        params = SamplingParams(temperature=0.0, max_tokens=max_tokens, stop=text)
        output = llm.generate([41, 41, 41, 41], params, use_tqdm=False)[0]
        assert output["finish_reason"] == reason and len(output["token_ids"]) == min(3, max_tokens)


def test_requests_with_and_without_stop_strings_run_side_by_side(llm):
    full = [llm.generate([i, i + 1], greedy(), use_tqdm=False)[0] for i in (50, 60, 70)]
    stop = full[1]["text"][3:6]
    params = [greedy(), greedy(stop=stop), greedy(logprobs=1)]
    outputs = llm.generate([[50, 51], [60, 61], [70, 71]], params, use_tqdm=False)
    assert outputs[0]["text"] == full[0]["text"] and outputs[2]["text"] == full[2]["text"]
    assert outputs[1]["text"] == full[1]["text"][: full[1]["text"].index(stop)]
    seq_id = llm.add_request([60, 61], greedy(stop=stop))
    assert drain(llm) == {seq_id: outputs[1]["token_ids"]}
    assert_clean(llm)
