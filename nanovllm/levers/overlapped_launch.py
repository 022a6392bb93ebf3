"""Kernels of this package start while the one before them still runs.

How: see `nanovllm.layers.kernels.overlap`, which the kernels use.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ..engine.model_runner import ModelRunner
from ..layers.kernels.overlap import launches


class ModelRunnerLever(ModelRunner):
    """Launches with overlap, in the recorded graphs and in prefills."""

    def start(self) -> None:
        """See `ModelRunner`."""
        with overlapped():
            super().start()

    def launch(self, *args: Any) -> Any:
        """See `ModelRunner`."""
        with overlapped():
            return super().launch(*args)


@contextmanager
def overlapped() -> Iterator[None]:
    """Inside of this, kernels overlap; what was before is restored, because steps are nested."""
    before, launches.overlap = launches.overlap, True
    try:
        yield
    finally:
        launches.overlap = before
