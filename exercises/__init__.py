"""The learner's side of the course: exercises, and the kit that builds and checks them.

In a notebook: `%load_ext exercises`. Anywhere else: `from exercises import check, hint, mine`, or on the command
line `python -m exercises`.
"""

from typing import Any

__all__ = ["check", "hint", "load_ipython_extension", "mine", "reset", "show", "solution"]


def __getattr__(name: str) -> Any:
    # Loaded on first use: the engine and its libraries take a second, and `python -m exercises --help` needs none.
    if name in __all__:
        from .kit import actions

        return getattr(actions, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
