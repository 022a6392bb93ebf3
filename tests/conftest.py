"""Settings for all tests: quiet libraries, no network, few threads, and how hypothesis searches."""

import functools
import gc
import inspect
import os
import shutil
import signal
import tempfile
from multiprocessing.util import Finalize

# Before torch and transformers are imported: they read these once.
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import nanovllm.config  # isort: skip - before torch, which reads what it sets when it is loaded

import pytest
import torch
from hypothesis import HealthCheck, settings

resolve_device = nanovllm.config.resolve_device

# "repeatable" draws the same examples in every run; HYPOTHESIS_PROFILE=random searches on.
_common = {
    "deadline": None,
    "suppress_health_check": [
        HealthCheck.too_slow,
        HealthCheck.data_too_large,
        HealthCheck.filter_too_much,
        HealthCheck.function_scoped_fixture,
    ],
}
settings.register_profile("repeatable", derandomize=True, database=None, **_common)
settings.register_profile("random", print_blob=True, **_common)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "repeatable"))


def pytest_addoption(parser):
    parser.addoption("--device", default="cpu", help='what device="auto" means in the tests (cpu or cuda)')
    parser.addoption(
        "--disabled-optimizations",
        choices=["", "all"],
        default="",
        help="levers that engines have off unless a test says otherwise: none of them, or all (the plain engine)",
    )

    parser.addoption("--thorough", action="store_true", help="searches, walks and soaks whole; otherwise a tenth")


def pytest_configure(config):
    if config.getoption("--thorough"):
        os.environ["NANOVLLM_THOROUGH_TESTS"] = "1"  # read by `a_tenth` when the tests are collected
    # A shell that starts the tests in the background has Ctrl-C ignored, also in processes that they start.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    # A temporary folder of this run's own: some tests look at what is left in it, and the common one is busy.
    # Beside that of a run which started this one, not in it: the path of a socket has room for 107 characters.
    prefix, folder = "pytest-nanovllm-", tempfile.gettempdir()
    folder = os.path.dirname(folder) if os.path.basename(folder).startswith(prefix) else folder
    os.environ["TMPDIR"] = tempfile.tempdir = tempfile.mkdtemp(prefix=prefix, dir=folder)
    # Removed at the end, after multiprocessing has removed its own folder in it (at priority -100).
    Finalize(None, shutil.rmtree, args=(tempfile.tempdir, True), exitpriority=-200)
    # Tiny matrices: more threads only wait for each other.
    torch.set_num_threads(1)
    device = config.getoption("--device")

    @functools.wraps(resolve_device)
    def resolve(name):
        return resolve_device(device if name == "auto" else name)

    nanovllm.config.resolve_device = resolve
    if config.getoption("--disabled-optimizations"):
        set_default(nanovllm.config.Config.__init__, "disabled_optimizations", "all")


def set_default(function, name, value):
    """Change what an argument is if it is not given."""
    parameters = [p for p in inspect.signature(function).parameters.values() if p.default is not p.empty]
    function.__defaults__ = tuple(value if p.name == name else p.default for p in parameters)


def pytest_collection_modifyitems(config, items):
    skips = {}
    if not torch.cuda.is_available():
        skips["gpu"] = pytest.mark.skip(reason="needs a CUDA device")
    if config.getoption("--disabled-optimizations"):
        skips["lever"] = pytest.mark.skip(reason="about a lever, and all of them are off")
    for item in items:
        for name in skips.keys() & item.keywords.keys():
            item.add_marker(skips[name])


@pytest.fixture(scope="module", autouse=True)
def libraries_are_no_garbage():
    """An engine collects garbage when it ends; looking through all that is imported would take ten times as long."""
    gc.collect()
    gc.freeze()


def pytest_unconfigure():
    gc.unfreeze()
