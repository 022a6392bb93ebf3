"""Draw the README's pictures: `python docs/pictures.py`. Needs Chromium; what is shown are recorded runs.

The widgets are the ones of the notebooks, drawn in a page of their own; the check is one of a known mistake.
"""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from playwright.sync_api import sync_playwright

from exercises.kit import actions, checks, manifest
from exercises.kit.workspace import parse
from nanovllm.viz import BlockTable, GraphSpeedup, load_trace

FOLDER = Path(__file__).parent
WIDTH = 1100  # pixels


def pictures() -> Iterator[tuple[str, str]]:
    """Name and HTML of each."""
    yield "block_table", BlockTable(load_trace("story")).html(b"")
    yield "graph_speedup", GraphSpeedup().html(b"")
    exercise = manifest.get("ch05.deallocate")
    (mistake,) = [wrong for wrong in checks.wrong_answers(exercise) if wrong.name == "head_first"]
    result = checks.grade(parse(exercise, mistake.first.text), engine=False)
    message = actions.describe(result)
    message.picture = actions.picture(result)  # as in a notebook
    yield "check", message._repr_html_()


def main() -> None:
    """Take a screenshot of each."""
    chromium = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": WIDTH, "height": 900}, reduced_motion="reduce")
        for name, html in pictures():
            page.set_content(f"<body style='font-family: sans-serif; font-size: 15px'><div>{html}</div></body>")
            page.locator("body > div").screenshot(path=FOLDER / f"{name}.png")
        browser.close()


if __name__ == "__main__":
    main()
