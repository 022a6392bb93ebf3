"""The set-up files agree with each other, and nothing tracked belongs to one machine only."""

import json
import os
import re
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
# triton belongs to the build of torch that gets installed; see constraints.txt.
UNPINNED = {"triton"}
# What a reader of environment.yml or pyproject.toml should find by name.
NAMED = {"torch", "triton", "transformers", "xxhash", "safetensors", "jupyterlab", "matplotlib", "ipywidgets"}
LARGEST_FILE = 16 * 2**20


def lines_of(name):
    lines = (line.strip() for line in (ROOT / name).read_text().splitlines())
    return [line for line in lines if line and not line.startswith("#")]


def requirements_of(*extras):
    lines = list(PROJECT["dependencies"])
    for extra in extras:
        lines += PROJECT["optional-dependencies"][extra]
    return {canonicalize_name(r.name): r for r in map(Requirement, lines)}


def pins():
    return {canonicalize_name(r.name): r for r in map(Requirement, lines_of("constraints.txt"))}


def conda_and_pip_lines():
    environment = yaml.safe_load((ROOT / "environment.yml").read_text())
    conda = [entry for entry in environment["dependencies"] if isinstance(entry, str)]
    (pip,) = (entry["pip"] for entry in environment["dependencies"] if isinstance(entry, dict))
    return conda, pip


def tracked_files():
    try:
        listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True, text=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("not a git checkout")
    return [path for name in listed.stdout.split("\0") if name and (path := ROOT / name).is_file()]


def test_requirements_are_the_constraints_and_the_editable_install():
    assert lines_of("requirements.txt") == ["-c constraints.txt", "-e .[notebooks,serve,dev]"]


def test_every_direct_dependency_is_pinned_exactly_once():
    direct = set(requirements_of("notebooks", "serve", "dev")) - UNPINNED
    assert set(pins()) == direct
    assert len(lines_of("constraints.txt")) == len(direct)
    for name, pin in pins().items():
        assert re.fullmatch(r"==[\w.]+", str(pin.specifier)), f"{name} is not pinned exactly"


def test_pyproject_gives_lower_bounds_that_the_pins_satisfy():
    requirements = requirements_of("notebooks", "serve", "dev", "gpu")
    for name, requirement in requirements.items():
        assert all(spec.operator == ">=" for spec in requirement.specifier), f"{name}: pins belong in constraints.txt"
    for name, pin in pins().items():
        (spec,) = pin.specifier
        assert requirements[name].specifier.contains(spec.version), f"{name}=={spec.version} is below its bound"


def test_environment_yml_is_python_plus_named_packages_plus_requirements():
    conda, pip = conda_and_pip_lines()
    assert conda == ["python=3.11", "pip"]
    assert SpecifierSet(PROJECT["requires-python"]).contains("3.11")
    assert pip[-1] == "-r requirements.txt"
    named = {canonicalize_name(r.name): r for r in map(Requirement, pip[:-1])}
    assert set(named) == NAMED
    declared = requirements_of("notebooks")
    for name, requirement in named.items():
        assert not requirement.specifier, f"{name}: its version belongs in constraints.txt"
        assert str(requirement.marker) == str(declared[name].marker)


def test_a_plain_install_has_no_server_and_no_client():
    assert not {"fastapi", "uvicorn", "prometheus-client", "openai"} & set(requirements_of())


def test_no_plain_install_needs_flash_attn_or_triton_off_linux():
    assert "flash-attn" not in requirements_of("notebooks", "dev")
    triton = requirements_of()["triton"]
    assert triton.marker is not None
    assert triton.marker.evaluate({"platform_system": "Linux"})
    assert not triton.marker.evaluate({"platform_system": "Windows"})
    assert not triton.marker.evaluate({"platform_system": "Darwin"})


def test_what_is_installed_satisfies_pyproject():
    for name, requirement in requirements_of("notebooks", "serve", "dev").items():
        if requirement.marker is None or requirement.marker.evaluate():
            assert requirement.specifier.contains(metadata.version(name), prereleases=True), name


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no make")
def test_make_lab_and_make_test_run_what_the_readme_says():
    readme = (ROOT / "README.md").read_text()
    for target, command in [("test", "-m pytest -m"), ("lab", "-m jupyterlab")]:
        shown = subprocess.run(
            ["make", "--dry-run", "--assume-old=.venv/.installed", target],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        assert f".venv/bin/python {command}" in shown
        assert f"python {command}" in readme
        assert f"make {target}" in readme
    # The address that `--no-browser` prints opens the first notebook, too.
    (address,) = re.findall(r"--LabApp.default_url=/lab/tree/(\S+)", shown)
    assert address in readme and (ROOT / address).is_file()


def spin_count(arguments, **environment):
    """How long threads wait actively, as libgomp says when it is loaded."""
    clean = {name: value for name, value in os.environ.items() if name not in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")}
    result = subprocess.run(
        [sys.executable, *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        env=clean | environment | {"OMP_DISPLAY_ENV": "VERBOSE"},
    )
    assert result.returncode == 0, result.stderr
    found = re.search(r"GOMP_SPINCOUNT = '(\w+)'", result.stderr)
    if found is None:
        pytest.skip("this build of torch does not use libgomp")
    return found[1]


@pytest.mark.parametrize(
    "arguments",
    [
        pytest.param(["-c", "import nanovllm"], marks=pytest.mark.slow),
        pytest.param(["-c", "from nanovllm.viz import BlockTable"], marks=pytest.mark.slow),
        pytest.param(["example.py", "--help"], marks=pytest.mark.slow),
        pytest.param(["bench.py", "--help"], marks=pytest.mark.slow),
        pytest.param(
            [
                "-c",
                "from IPython import InteractiveShell as Shell; Shell().run_cell('%load_ext exercises\\nimport torch')",
            ],
            marks=pytest.mark.slow,
        ),
        pytest.param(
            ["-m", "pytest", "--collect-only", "-qs", "-p", "no:cacheprovider", "tests/engine/test_sequence.py"],
            marks=pytest.mark.slow,
        ),
    ],
    ids=["import", "viz", "example", "bench", "notebook", "pytest"],
)
def test_threads_wait_actively_for_a_moment_only(arguments):
    assert spin_count(arguments) == "20000"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [("OMP_WAIT_POLICY", "PASSIVE", "0"), ("GOMP_SPINCOUNT", "7", "7")],
)
def test_how_threads_wait_is_the_users_to_set(name, value, expected):
    assert spin_count(["-c", "import nanovllm"], **{name: value}) == expected


def test_nothing_else_sets_how_threads_wait():
    names = re.compile(rb"OMP_WAIT_POLICY|GOMP_SPINCOUNT")
    files = [path for path in tracked_files() if path.suffix not in (".md", ".ipynb", ".safetensors")]
    comment = re.compile(rb"^#.*$", re.MULTILINE)  # what a chapter says of them
    found = {path.relative_to(ROOT).as_posix() for path in files if names.search(comment.sub(b"", path.read_bytes()))}
    assert found - {"tests/test_setup.py"} == {"nanovllm/__init__.py"}


@pytest.mark.slow
def test_the_readmes_five_lines_run():
    code, *_ = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    environment = os.environ | {"OMP_NUM_THREADS": "1"}  # other tests run beside it
    command = [sys.executable, "-c", code]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=environment)
    assert result.returncode == 0, result.stderr
    assert len(result.stdout.split()) > 40  # two stories of at most 80 tokens


@pytest.mark.skipif(not (ROOT / ".ci").is_dir(), reason="a release for a class has no .ci")
def test_tests_that_ci_names_exist():
    named = re.findall(r"\btests/[\w./]+", (ROOT / ".ci" / "run").read_text())
    assert {"tests/engine", "tests/e2e"} <= set(named)
    assert [name for name in named if not (ROOT / name).exists()] == []


PAGES = [*sorted(path.name for path in ROOT.glob("*.md")), "exercises/README.md"]


def anchors_of(page):
    titles = re.findall(r"^#+ (.*)$", re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("name", PAGES)
def test_links_lead_somewhere(name):
    page = ROOT / name
    links = re.findall(r"\]\((?!https?://)([^)#\s]*)(?:#([^)\s]+))?\)", page.read_text())
    targets = [(page.parent / path if path else page, anchor) for path, anchor in links]
    assert [path for path, _ in targets if not path.exists()] == []
    assert [anchor for path, anchor in targets if anchor and anchor not in anchors_of(path)] == []


def test_the_readmes_chapters_are_the_notebooks():
    readme, notebooks = (ROOT / "README.md").read_text(), sorted(ROOT.glob("notebooks/*.ipynb"))
    rows = re.findall(r"^\| (\d\d) \| \[(.*)\]\((.*)\) \|.*\| \d+ \|$", readme, re.MULTILINE)
    assert [path for _, _, path in rows] == [f"notebooks/{path.name}" for path in notebooks]
    for number, title, path in rows:
        first = json.loads((ROOT / path).read_text())["cells"][0]["source"]
        assert "".join(first).startswith(f"# {int(number)} · {title}\n")


def test_the_readmes_speed_is_what_was_measured():
    measured = json.loads((ROOT / "nanovllm/viz/data/peers_h200.json").read_text())
    readme = (ROOT / "README.md").read_text()
    rows = [row for row in measured["rows"] if row["work"] in ("benchmark", "batch 1") and "ours" not in row["peer"]]
    assert len(rows) == 4
    for row in rows:
        ratio = f"{row['ours'] / row['theirs']:.2f}"
        assert f"| {row['ours']:,} | {row['theirs']:,} | {ratio} |" in readme
    assert measured["date"] in readme and measured["commit"] in readme


def test_the_changelog_begins_with_this_version():
    import nanovllm

    versions = re.findall(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert versions[0] == nanovllm.__version__


def test_no_tracked_file_names_a_path_of_one_machine():
    # Spelled in pieces, so that this file does not find itself.
    patterns = [b"/" + folder + b"/" for folder in (b"work", b"farm")]
    patterns += [b"/" + folder + rb"/[a-z][\w.-]*/" for folder in (b"home", b"Users")] + [b"/" + rb"root/\."]
    pattern = re.compile(rb"(?<![\w.)}>-])(?:" + b"|".join(patterns) + b")")
    found = [
        f"{path.relative_to(ROOT)}: {match[0].decode()}"
        for path in tracked_files()
        if path.suffix != ".safetensors" and (match := pattern.search(path.read_bytes()))
    ]
    assert found == []


def test_no_tracked_file_is_too_large_to_review_or_clone():
    assert [path.name for path in tracked_files() if path.stat().st_size > LARGEST_FILE] == []
