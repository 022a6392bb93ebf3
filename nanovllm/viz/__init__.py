"""Pictures of what the engine does, drawn from its own runs. The engine never imports this package.

The widgets need the extra `notebooks`; traces and their checks need nothing beyond the engine.
"""

from importlib import import_module
from typing import Any

from .trace import check_trace, load_trace, save_trace

_LAZY = {
    "BlockSizeExplorer": "widgets",
    "BlockTable": "widgets",
    "MemoryBudget": "memory",
    "PrefixExplorer": "widgets",
    "PrefixSimulation": "widgets",
    "Timeline": "widgets",
    "record": "record",
    "record_scheduler": "record",
}

__all__ = ["check_trace", "load_trace", "save_trace", *_LAZY]


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{_LAZY[name]}", __name__), name)
