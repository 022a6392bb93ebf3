"""Serve a model in a terminal: `python -m nanovllm.serve MODEL`."""

import argparse
import inspect
import os
import sys
from typing import Any

from ..config import Config
from ..llm import LLM

try:
    from .server import Server
except ModuleNotFoundError as error:
    sys.exit(f'install the extra: pip install -c constraints.txt -e ".[serve]" ({error})')


def parse_args(arguments: list[str] | None = None) -> tuple[dict[str, Any], dict[str, Any]]:
    """Options of the server, and of the engine."""
    about = f"{inspect.getdoc(Server)}\n\n{inspect.getdoc(Config)}"
    parser = argparse.ArgumentParser("python -m nanovllm.serve", description=__doc__, epilog=about)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("model", help="a directory, a hub id, or the name of a bundled model")
    server, engine = inspect.signature(Server).parameters, inspect.signature(Config).parameters
    for name, parameter in {**server, **engine}.items():
        kind: Any = type(parameter.default)
        how = {"action": argparse.BooleanOptionalAction} if kind is bool else {"type": str}
        how = {"type": kind} if kind in (int, float) else how
        if name not in ("llm", "model"):
            parser.add_argument("--" + name.replace("_", "-"), default=argparse.SUPPRESS, **how)
    parser.set_defaults(port=8000, api_key=os.environ.get("NANOVLLM_API_KEY", ""))
    values = vars(parser.parse_args(arguments))
    return {name: values.pop(name) for name in server if name in values}, values


def main() -> None:
    """Load the model, then serve until a signal comes."""
    server_options, engine_options = parse_args()
    with LLM(**engine_options) as llm:
        server = Server(llm, **server_options)
        print(f"{server.model} is served at {server.url}", flush=True)
        server.run()


if __name__ == "__main__":
    main()
