"""Faults on purpose, for chapter 7: they are planted around an engine from outside, and its code stays as it is."""

from collections.abc import Callable
from itertools import count
from typing import Any


def at_most(num_steps: int, llm: Any, prompts: list[Any], params: Any) -> Any:
    """Make so many steps and no more, also where nothing ever ends. Returns the engine, to look at."""
    for prompt in prompts:
        llm.add_request(prompt, params)
    made = [llm.step()[1] for _ in range(num_steps) if not llm.is_finished()]
    print(f"{len(made)} steps; tokens computed: {made[:6]}{' ...' if len(made) > 6 else ''}")
    return llm


def plant(llm: Any, error: BaseException, when: Callable[[int, int], bool]) -> Any:
    """Before each run of the model: raise the error if `when(number of the run, its tokens)` says so."""
    runner, numbers = llm.llm_engine.model_runner, count(1)
    run = runner.run

    def planted(seqs: list[Any], is_prefill: bool) -> Any:
        if when(next(numbers), sum(seq.num_scheduled_tokens for seq in seqs)):
            raise error
        return run(seqs, is_prefill)

    runner.run = planted
    return llm


def try_again(llm: Any, times: int = 1) -> Any:
    """After a step that has raised an error, the caller makes another one, at most so many times in a row."""
    step = llm.step

    def step_again() -> Any:
        for _ in range(times):
            try:
                return step()
            except RuntimeError as error:
                print("the caller hears:", error, "... and makes another step")
        return step()

    llm.step = step_again
    return llm


def count_steps(llm: Any) -> list[int]:
    """A list that gets an entry with each step that anybody makes."""
    made: list[int] = []
    step = llm.llm_engine.step

    def counted() -> Any:
        made.append(len(made) + 1)
        return step()

    llm.llm_engine.step = counted
    return made
