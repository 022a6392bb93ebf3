"""An engine that works one step ahead on a CPU, too, where this gains nothing but can be tested.

The tokens are there at once, but the engine looks at them one step late, so that all of its bookkeeping of pending
tokens is the same as on a GPU.
"""

from contextlib import contextmanager

import pytest

from nanovllm import LLM, levers
from nanovllm.config import Config
from nanovllm.levers.step_ahead import LLMEngineLever

is_enabled_on_gpu = levers.is_enabled


class AheadConfig(Config):
    """Importable, so that ranks can unpickle it; they import this file then."""


def is_enabled(config, name):
    return (name == "step_ahead" and isinstance(config, AheadConfig)) or is_enabled_on_gpu(config, name)


levers.is_enabled = is_enabled


@contextmanager
def one_step_ahead(is_on=True):
    """Engines that are made in this block work one step ahead."""
    with pytest.MonkeyPatch.context() as patch:
        if is_on:
            patch.setattr("nanovllm.llm.Config", AheadConfig)
        yield


def make_llm(path, runs_ahead=True, **options):
    """An engine that works one step ahead, or one that does not (on a CPU)."""
    with one_step_ahead(runs_ahead):
        llm = LLM(path, **options)
    assert runs_ahead <= works_ahead(llm)
    return llm


def works_ahead(llm):
    """Whether it is one that works one step ahead."""
    return isinstance(llm.llm_engine, LLMEngineLever)
