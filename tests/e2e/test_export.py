"""The notebook as a web page: it steps without kernel and network, and without scripts there is a picture."""

import subprocess
import sys

import pytest

from .conftest import CELLS, expect, open_page, take_screenshot

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def exported(executed_notebook):
    command = [sys.executable, "-m", "jupyter", "nbconvert", "--to", "html", str(executed_notebook)]
    subprocess.run(command, check=True, capture_output=True, text=True, timeout=120)
    return executed_notebook.with_suffix(".html")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_players_step_with_the_network_refused(browser, exported, scheme):
    with open_page(browser, scheme) as page:
        page.goto(exported.as_uri())
        players = page.locator(".nv-player")
        expect(players).to_have_count(len(CELLS) - 1)
        table, timeline = players.nth(0), players.nth(1)
        table.get_by_role("button", name="jump to: preemption").click()
        expect(table).to_have_attribute("data-step", "9")
        expect(timeline).to_have_attribute("data-step", "9")
        sizes = players.nth(4)
        sizes.get_by_role("slider").press("Home")
        expect(sizes.locator(".nv-caption")).to_contain_text("Blocks of 1:")
        take_screenshot(table, f"export_block_table_{scheme}")
        for live in (players.nth(3), players.nth(5), players.nth(7)):  # no controls without a kernel, but their frames
            live.get_by_role("slider").press("Home")
            expect(live).to_have_attribute("data-step", "0")
        assert page.get_by_text("Error displaying widget").count() == 0
        # What nbconvert itself asks for; the widgets ask for nothing.
        assert all("mathjax" in url.lower() or "require" in url for url in page.refused), page.refused


def test_outputs_are_small_and_keep_their_stills(executed_notebook):
    import nbformat

    notebook = nbformat.read(executed_notebook, as_version=4)
    assert "widgets" not in notebook.metadata
    view = "application/vnd.jupyter.widget-view+json"
    outputs = [output for cell in notebook.cells for output in cell.outputs if view not in output.data]
    assert len(outputs) == len(CELLS) - 1
    for output in outputs:
        assert {"text/html", "image/png", "text/plain"} <= set(output.data)
        assert sum(len(str(value)) for value in output.data.values()) < 300_000
    assert executed_notebook.stat().st_size < 1_000_000
