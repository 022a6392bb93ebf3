"""A real JupyterLab and a real Chromium for the tests in this folder. Nothing may leave the loopback interface.

Needs the packages `playwright` and `nbconvert`, and Debian's `chromium` (or CHROMIUM=/path/to/it). Screenshots go to
the folder named by E2E_SHOTS, if there is one.
"""

import contextlib
import json
import os
import secrets
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[2]  # kernels import the package that is tested, wherever another is installed

CHROMIUM_FLAGS = [
    "--no-sandbox",  # root in a container
    "--disable-gpu",
    "--disable-quic",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]

# The news toast would cover the lower right corner and take clicks.
SETTINGS = {"@jupyterlab/apputils-extension:notification": {"fetchNews": "false", "checkForUpdates": False}}

CELLS = [
    "from nanovllm.viz import *\nstory = load_trace('story')",
    "bt, tl = BlockTable(story), Timeline(story)\ntl.follow(bt)\nbt",
    "tl",
    "predicting = BlockTable(story, predict=True)\npredicting",
    "explorer = PrefixExplorer()\nexplorer",
    "sizes = BlockSizeExplorer()\nsizes",
    "simulation = PrefixSimulation(num_requests=40)\nsimulation",
    "life = SequenceView(story, 'C')\nlife",
    "budget = MemoryBudget()\nbudget",
]


def find_chromium():
    """Path of the browser; its absence is a failure, not a reason to skip."""
    found = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")
    if not found:
        pytest.fail("these tests need Chromium: apt-get install -y chromium, or set CHROMIUM=/path/to/it")
    return found


@pytest.fixture(scope="session")
def browser():
    """One browser for all tests."""
    from playwright.sync_api import sync_playwright

    path = find_chromium()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, headless=True, args=CHROMIUM_FLAGS)
        yield browser
        browser.close()


def expect(target):
    """Playwright's assertions, which wait; imported late, so that tests that are not run need no browser."""
    from playwright.sync_api import expect

    expect.set_options(timeout=30_000)  # milliseconds; the usual five seconds are not enough for a busy machine
    return expect(target)


@contextlib.contextmanager
def open_page(browser, color_scheme="light"):
    """A page that refuses every request to another machine; `page.refused` and `page.errors` say what happened."""
    context = browser.new_context(viewport={"width": 1200, "height": 900}, color_scheme=color_scheme)
    page = context.new_page()
    page.refused, page.errors = [], []

    def gate(route):
        if route.request.url.startswith(("http://127.0.0.1", "ws://127.0.0.1", "data:", "blob:", "file:")):
            route.continue_()
        else:
            page.refused.append(route.request.url)
            route.abort()

    page.route("**/*", gate)
    page.on("console", lambda message: page.errors.append(message.text) if message.type == "error" else None)
    page.on("pageerror", lambda error: page.errors.append(str(error)))
    page.set_default_timeout(30_000)
    try:
        yield page
    finally:
        context.close()


def take_screenshot(target, name):
    """Keep a picture for people to look at, if E2E_SHOTS says where."""
    folder = os.environ.get("E2E_SHOTS")
    if folder:
        Path(folder).mkdir(parents=True, exist_ok=True)
        target.screenshot(path=Path(folder) / f"{name}.png")


def write_notebook(path, cells=CELLS):
    """A notebook with these cells and a kernel, at `path`."""
    import nbformat

    notebook = nbformat.v4.new_notebook(
        cells=[nbformat.v4.new_code_cell(source) for source in cells],
        metadata={"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}},
    )
    nbformat.write(notebook, path)
    return path


@pytest.fixture(scope="session")
def executed_notebook(tmp_path_factory):
    """The notebook with all outputs and no widget state, as a course publishes it."""
    import nbformat
    from nbclient import NotebookClient

    path = write_notebook(tmp_path_factory.mktemp("executed") / "widgets.ipynb")
    notebook = nbformat.read(path, as_version=4)
    client = NotebookClient(notebook, timeout=100, kernel_name="python3", store_widget_state=False)
    client.execute(env=os.environ | {"PYTHONPATH": str(ROOT)})
    nbformat.write(notebook, path)
    return path


@pytest.fixture(scope="session")
def lab(tmp_path_factory, executed_notebook):
    """Address and token of a JupyterLab that knows nothing of the user's settings; its folder holds two notebooks."""
    home = tmp_path_factory.mktemp("lab")
    root = home / "root"
    root.mkdir()
    write_notebook(root / "live.ipynb")
    shutil.copy(executed_notebook, root / "untrusted.ipynb")
    with run_lab(home, root) as (address, token):
        yield Lab(address, token, root)


class Lab(NamedTuple):
    """A running JupyterLab."""

    address: str
    token: str
    folder: Path


@contextlib.contextmanager
def run_lab(home, root, **variables):
    """A JupyterLab for the folder `root`, with everything of its own in `home`; gives its address and token."""
    settings = home / "settings"
    settings.mkdir()
    (settings / "overrides.json").write_text(json.dumps(SETTINGS), encoding="utf-8")
    token = secrets.token_hex(16)
    folders = {"CONFIG": "config", "DATA": "data", "RUNTIME": "runtime"}
    env = os.environ | {f"JUPYTER_{key}_DIR": str(home / name) for key, name in folders.items()}
    env |= {"IPYTHONDIR": str(home / "ipython"), "JUPYTER_TOKEN": token, "PYTHONPATH": str(ROOT)} | variables
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root", "--expose-app-in-browser"]
    command += ["--ServerApp.ip=127.0.0.1", f"--ServerApp.port={port}", "--ServerApp.port_retries=0"]
    command += [f"--ServerApp.root_dir={root}", f"--LabApp.app_settings_dir={settings}"]
    command += [f"--LabApp.workspaces_dir={home / 'workspaces'}", f"--LabApp.user_settings_dir={home / 'user'}"]
    with open(home / "lab.log", "wb") as log:
        process = subprocess.Popen(command, env=env, cwd=root, stdout=log, stderr=subprocess.STDOUT)
    address = f"http://127.0.0.1:{port}"
    try:
        wait_for_server(process, address, token, home / "lab.log")
        yield address, token
    finally:
        process.terminate()
        try:
            process.wait(15)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def wait_for_server(process, address, token, log):
    request = urllib.request.Request(f"{address}/api/status", headers={"Authorization": f"token {token}"})
    for _ in range(300):
        if process.poll() is not None:
            pytest.fail(f"JupyterLab ended:\n{log.read_text()}")
        try:
            urllib.request.urlopen(request, timeout=5).close()
            return
        except OSError:
            time.sleep(0.2)
    pytest.fail(f"JupyterLab does not answer:\n{log.read_text()}")


def open_notebook(page, lab, name):
    """Open a notebook and wait until its kernel is idle."""
    address, token = lab[:2]
    page.goto(f"{address}/lab/workspaces/e2e/tree/{name}?reset&token={token}")
    page.locator("#jupyterlab-splash").wait_for(state="detached", timeout=90_000)
    page.locator(".jp-NotebookPanel:not(.lm-mod-hidden) .jp-Notebook").wait_for(timeout=90_000)
    page.wait_for_function(
        """() => { const session = window.jupyterapp?.shell?.currentWidget?.sessionContext;
        return session?.isReady && session.session?.kernel?.status === 'idle'; }""",
        timeout=90_000,
    )


def run_all(page):
    """Run all cells; a cell that raises is a failure."""
    assert page.evaluate("() => window.jupyterapp.commands.execute('notebook:run-all-cells')") is not False


def active_cell(page):
    """The number of the cell that the notebook's own keys are about."""
    return page.evaluate("() => window.jupyterapp.shell.currentWidget.content.activeCellIndex")


def run_code(page, code):
    """Let the notebook's kernel run some code, beside all cells, until it is done."""
    page.evaluate(
        """async (code) => { const kernel = window.jupyterapp.shell.currentWidget.sessionContext.session.kernel;
        await kernel.requestExecute({ code }).done; }""",
        code,
    )
