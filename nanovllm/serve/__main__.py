"""Serve a model in a terminal: `python -m nanovllm.serve MODEL`."""

import argparse
import ast
import inspect
import os
import sys
from typing import Any

from ..config import Config
from ..llm import LLM

try:
    from .server import Server, Service
except ModuleNotFoundError as error:
    sys.exit(f'install the extra: pip install -c constraints.txt -e ".[serve]" ({error})')

SERVER = {**inspect.signature(Server).parameters, **inspect.signature(Service).parameters}
OPTIONS = {**SERVER, **inspect.signature(Config).parameters}
KINDS: dict[type, Any] = {int: int, float: float, bool: ast.literal_eval}  # others are texts
KEY = "NANOVLLM_API_KEY"


def parse_args(arguments: list[str] | None = None) -> tuple[dict[str, Any], dict[str, Any]]:
    """Options of the server, and of the engine."""
    about = "\n\n".join(inspect.getdoc(kind) or "" for kind in (Server, Service, Config))
    parser = argparse.ArgumentParser("python -m nanovllm.serve", epilog=about, description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.set_defaults(port=8000, api_key=os.environ.get(KEY, ""))
    parser.add_argument("model", help="a directory, a hub id, or the name of a bundled model")
    for name in OPTIONS.keys() - {"llm", "options", "model"}:
        option, kind = "--" + name.replace("_", "-"), KINDS.get(type(OPTIONS[name].default), str)
        parser.add_argument(option, type=kind, default=argparse.SUPPRESS, nargs="?", const=True)
    values = vars(parser.parse_args(arguments))
    return {name: values.pop(name) for name in SERVER if name in values}, values


def main() -> None:
    """Load the model, then serve until a signal comes."""
    server_options, engine_options = parse_args()
    with LLM(**engine_options) as llm:
        server = Server(llm, **server_options)
        print(f"{server.service.model} is served at {server.url}", flush=True)
        server.run()


if __name__ == "__main__":
    main()
