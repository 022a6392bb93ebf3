"""The learner's answers are graded only when this folder is named: `pytest tests/exercises -k ch05`."""

from pathlib import Path

FOLDER = Path(__file__).parent


def pytest_ignore_collect(collection_path, config):
    named = [Path(config.invocation_params.dir, str(argument).split("::")[0]).resolve() for argument in config.args]
    if not any(path == FOLDER or FOLDER in path.parents for path in named):
        return True  # `make test` stays green while somebody is at work
    return None
