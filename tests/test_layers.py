"""The package's structure: imports point downwards, are relative, and need neither a GPU nor a compiler."""

import ast
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
MODULES = sorted((ROOT / "nanovllm").rglob("*.py"))


def absolute_self_imports(code, package="nanovllm"):
    """Line numbers of imports that name the package instead of using dots."""
    found = []
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            names = [node.module or ""]
        else:
            continue
        found += [node.lineno for name in names if name.split(".")[0] == package]
    return found


def run_python(code, cwd=ROOT):
    return subprocess.run([sys.executable, "-c", code], cwd=cwd, capture_output=True, text=True)


def test_the_detector_finds_both_spellings_and_no_relative_import():
    code = "from .config import A\nfrom nanovllm.config import A\nimport os, nanovllm\nimport nanovllm_other\n"
    assert absolute_self_imports(code) == [2, 3]


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_within_the_package_are_relative(path):
    # Ruff's banned-api rule resolves relative imports before it compares, so it cannot tell the two apart.
    assert absolute_self_imports(path.read_text(encoding="utf-8")) == []


def lint_imports(root):
    command = [str(Path(sys.executable).parent / "lint-imports"), "--no-cache", "--no-logo"]
    return subprocess.run(command, cwd=root, capture_output=True, text=True)


def test_imports_point_downwards_in_no_circle_and_past_the_levers():
    result = lint_imports(ROOT)
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.parametrize(
    ("path", "line", "contract"),
    [
        pytest.param(
            "layers/linear.py",
            "from ..engine.sequence import Sequence",
            "Imports in the engine point downwards",
            marks=pytest.mark.slow,
        ),
        ("validation.py", "from .config import Config", "Imports in the engine point downwards"),
        ("engine/scheduler.py", "def late(): from ..levers import LEVERS", "Only LLM knows the levers"),
        pytest.param(
            "progress.py",
            "from .levers.cuda_graph import graph_batch_sizes",
            "Only LLM knows the levers",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            "engine/sequence.py", "def late(): from .scheduler import Scheduler", "No circles", marks=pytest.mark.slow
        ),
        ("engine/sequence.py", "if TYPE_CHECKING: from .block_manager import BlockManager", "No circles"),
        pytest.param(
            "levers/fused_norm.py",
            "import matplotlib",
            "The engine knows nothing of the course around it",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_an_import_that_does_not_belong_is_found(tmp_path, path, line, contract):
    for folder in ("nanovllm", "exercises"):
        shutil.copytree(
            ROOT / folder, tmp_path / folder, ignore=shutil.ignore_patterns("__pycache__", "assets", "data")
        )
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    with (tmp_path / "nanovllm" / path).open("a", encoding="utf-8") as file:
        file.write(f"\n{line}\n")
    result = lint_imports(tmp_path)
    assert result.returncode != 0
    assert f"{contract} BROKEN" in result.stdout, result.stdout + result.stderr


def test_the_package_imports_without_triton_flash_attn_or_notebook_packages():
    blocked = ["triton", "flash_attn", "IPython", "ipywidgets", "matplotlib", "jupyterlab"]
    code = f"import sys; sys.modules.update(dict.fromkeys({blocked!r})); import nanovllm; print(nanovllm.LLM)"
    result = run_python(code)
    assert result.stdout.startswith("<class 'nanovllm"), result.stderr


@pytest.mark.slow
def test_a_second_copy_under_another_name_loads_nothing_of_the_first(tmp_path):
    shutil.copytree(
        ROOT / "nanovllm",
        tmp_path / "othervllm",
        ignore=shutil.ignore_patterns("__pycache__", "*.safetensors"),
    )
    names = [".".join(path.relative_to(ROOT).with_suffix("").parts) for path in MODULES]
    copied = [
        name.replace("nanovllm", "othervllm", 1).removesuffix(".__init__")
        for name in names
        if not name.startswith("nanovllm.viz")
    ]
    # What needs packages that only some machines have is left out where they are not installed.
    code = (
        "import importlib, sys\n"
        f"for name in {copied!r}:\n"
        "    try: importlib.import_module(name)\n"
        "    except ModuleNotFoundError as error:\n"
        "        if error.name.split('.')[0] not in ('triton', 'flash_attn'): raise\n"
        "print([name for name in sys.modules if name.split('.')[0] == 'nanovllm'])"
    )
    result = run_python(code, cwd=tmp_path)
    assert result.stdout.strip() == "[]", result.stderr
