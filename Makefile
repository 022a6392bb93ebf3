# Two commands matter: `make lab` opens the course, `make test` runs the quick tests.
# Both create .venv/ in this folder on first use, and refresh it when the requirements change.

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
NEW_ENOUGH := import sys; sys.exit(sys.version_info < (3, 11))
FIRST_NOTEBOOK := notebooks/01_project_overview.ipynb

# The first Python here that is new enough. Another one: make lab PYTHON=/path/to/python3
PYTHON ?= $(or $(shell for p in python3 python3.11 python3.12 python3.13 python3.14 python; do \
	"$$p" -c "$(NEW_ENOUGH)" >/dev/null 2>&1 && { echo "$$p"; break; }; done),python3)
# Jupyter refuses to run as root unless told so; in a container, root is all there is.
AS_ROOT := $(if $(filter 0,$(shell id -u)),--allow-root)
# Yours to set, for example: make lab LAB_FLAGS="--no-browser --port 9000"; make test PYTEST_FLAGS="-k scheduler"
LAB_FLAGS ?=
PYTEST_FLAGS ?=

.PHONY: lab test lint clean help

help:
	@echo "make lab    open the course in JupyterLab"
	@echo "make test   run the quick tests"
	@echo "make lint   check style, types and imports"
	@echo "make clean  remove .venv and all caches"

lab: $(STAMP)
	$(BIN)/python -m jupyterlab --ServerApp.root_dir="$(CURDIR)" $(AS_ROOT) \
		--LabApp.default_url=/lab/tree/$(FIRST_NOTEBOOK) $(LAB_FLAGS)

test: $(STAMP)
	$(BIN)/python -m pytest -m "not slow and not gpu" -n auto --maxprocesses 4 $(PYTEST_FLAGS)

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

clean:
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .hypothesis .mypy_cache .ruff_cache .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# pip's output is cut to what takes time: the large downloads and the installation. Errors go to stderr and stay whole.
# Its exit status is kept in a file because a pipe would hide it (pipefail is not POSIX).
$(STAMP): requirements.txt constraints.txt pyproject.toml
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || { \
		$(PYTHON) -c "$(NEW_ENOUGH)" || { echo "Python 3.11 or newer is needed and was not found." \
			"Say where it is: make PYTHON=/path/to/python3 ..." >&2; exit 1; }; \
		rm -rf $(VENV) && echo "Creating $(VENV)/ with $$($(PYTHON) --version)" && $(PYTHON) -m venv $(VENV); }
	@echo "Installing requirements.txt into $(VENV)/ (minutes the first time, about 2.5 GB; more with CUDA)"
	@{ $(BIN)/python -m pip install --disable-pip-version-check -r requirements.txt; \
		echo $$? > $(VENV)/.pip-status; } | grep --line-buffered -oE \
		'^ *(Downloading|Using cached) .*\([0-9.]+ [MG]B\)|^(Building|Installing) [a-z ]+' || true
	@read status < $(VENV)/.pip-status; test "$$status" = 0 || { echo "pip failed (status $$status)." >&2; exit 1; }
	@touch $@
