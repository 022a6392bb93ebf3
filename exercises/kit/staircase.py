"""How fast the learner's engine is after each chapter, on one fixed work, on their machine.

Each measurement runs the naive loop of chapter 1 in turn with the engine, and takes the median of three: what the
machine does besides, and how warm it is, falls on both. The engine is the plain one, all levers off.
"""

import html
import statistics
import time
from collections.abc import Callable
from typing import Any

from .assemble import Mine
from .manifest import BUNDLED_MODEL
from .workspace import Workspace

FIRST = "01"
NAIVE_LOOP = "ch01.naive_loop"
RULES = "You are a friendly helper. Keep the sentences short. Never be rude. "
TOPICS = "a cat, a red ball, the sun, a small boat, two friends, a dark wood, an old king, a little bird".split(", ")
NUM_RULES, MAX_TOKENS, ROUNDS = 6, 8, 3
OPTIONS = {
    "kvcache_block_size": 16,
    "num_kvcache_blocks": 128,
    "max_model_len": 256,
    "disabled_optimizations": "all",
    "device": "cpu",
}
WIDTH = 40  # characters of the longest bar
HEAD = "Measured on this machine; bars: how many times as fast as the naive loop, which was timed anew beside each."


class Staircase:
    """The steps so far; what `staircase` returns.

    Args:
        steps: by chapter: tokens per second of the loop ("naive") and of the engine ("engine"), and "functions", how
            many of the engine's were the learner's.
    """

    def __init__(self, steps: dict[str, dict[str, Any]]) -> None:
        self.steps = dict(sorted(steps.items()))

    def rows(self) -> list[tuple[str, str, float]]:
        """What was measured, the result in words, and how many times as fast as the loop it is."""
        naive = statistics.median(step["naive"] for step in self.steps.values())
        rows = [("the naive loop", f"{naive:,.0f} tokens/s", 1.0)]
        for chapter, step in self.steps.items():
            if step.get("engine"):
                times, count = step["engine"] / step["naive"], step["functions"]
                own = f"{count} function{'s' * (count != 1)} of yours in it" if count else "nothing of it is yours yet"
                speeds = f"{step['engine']:,.0f} tokens/s, the loop {step['naive']:,.0f}"
                rows.append((f"after {chapter}", f"{times:.1f}x: {speeds}; {own}", times))
        return rows

    def __repr__(self) -> str:
        rows = self.rows()
        longest, width = max(times for *_, times in rows), max(len(name) for name, *_ in rows)
        lines = [f"{name:{width}}  {'█' * max(1, round(WIDTH * times / longest))} {said}" for name, said, times in rows]
        return "\n".join([f"Your engine, step by step. {HEAD}", *lines])

    def _repr_html_(self) -> str:
        rows = self.rows()
        longest = max(times for *_, times in rows)
        cell = "text-align:left;padding:0.15em 0.8em 0.15em 0;background:none;white-space:nowrap"
        body = "".join(
            f"<tr style='background:none'><td style='{cell}'>{html.escape(name)}</td><td style='{cell};width:100%'>"
            f"<span style='display:inline-block;height:1em;vertical-align:middle;margin-right:0.6em;"
            f"background:{'#E69F00' if name == rows[0][0] else '#009E73'};width:{max(0.4, 35 * times / longest):.1f}%'>"
            f"</span>{html.escape(said)}</td></tr>"
            for name, said, times in rows
        )
        # JupyterLab gives all tables a fixed layout, in which the wide column would cover the names.
        table = f"<table style='table-layout:auto;width:100%;font-size:1em'>{body}</table>"
        return f"<div><b>Your engine.</b> {HEAD}{table}</div>"


def staircase(chapter: str = "") -> Staircase | str:
    """Measure your engine as it is now, and draw how it became faster from chapter to chapter.

    Args:
        chapter: under which step it is noted, for example "05"; "01" measures the naive loop alone. Without it
            nothing is measured.
    """
    workspace = Workspace()
    if chapter:
        workspace.remember("staircase", {chapter: measure(workspace, with_engine=chapter != FIRST)})
    steps = workspace.recall("staircase")
    return Staircase(steps) if steps else 'Nothing has been measured yet: staircase("01") takes the first step.'


def measure(workspace: Workspace, with_engine: bool = True) -> dict[str, Any]:
    """Tokens per second of the loop, and of the engine with what of the learner's has passed.

    On one thread: two would wait for each other whenever another program has one of the cores.
    """
    import torch

    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return _measure(workspace, with_engine)
    finally:
        torch.set_num_threads(num_threads)


def _measure(workspace: Workspace, with_engine: bool) -> dict[str, Any]:
    me = Mine(workspace, open_ids=(NAIVE_LOOP,), only_passed=True)
    naive_loop = me.function("ch01.naive_loop")
    llm = me.LLM("qwen3-tiny", **OPTIONS)
    with llm:
        prompts = [llm.tokenizer.encode(RULES * NUM_RULES + "Tell me about " + topic) for topic in TOPICS]
        params = me.SamplingParams(temperature=0.0, max_tokens=MAX_TOKENS, ignore_eos=True)
        model = plain_model(str(BUNDLED_MODEL))

        def loop() -> None:
            for prompt in prompts:
                naive_loop(model, prompt, MAX_TOKENS, ())

        def engine() -> None:
            llm.llm_engine.scheduler.reset([])  # nothing is cached from the round before
            llm.generate(prompts, params, use_tqdm=False)

        runs = {"naive": loop} | ({"engine": engine} if with_engine else {})
        seconds: dict[str, list[float]] = {name: [] for name in runs}
        model(prompts[0])  # the first run of each is slow
        for _ in range(ROUNDS):
            for name, run in runs.items():
                seconds[name].append(_timed(run))
    num_tokens = MAX_TOKENS * len(prompts)
    speeds = {name: num_tokens / statistics.median(times) for name, times in seconds.items()}
    theirs = sum(answer.exercise.splice for answer in me.answers)
    return {**speeds, "functions": theirs, "when": time.strftime("%Y-%m-%d %H:%M")}


def plain_model(path: str) -> Callable[[Any], Any]:
    """Hugging Face's model, as a function from all token ids to the logits of the next token; nothing is cached."""
    import torch
    from transformers import AutoModelForCausalLM
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)

    def logits(token_ids: Any) -> torch.Tensor:
        with torch.inference_mode():
            return model(torch.tensor([list(token_ids)]), use_cache=False).logits[0, -1]

    return logits


def _timed(run: Callable[[], None]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start
