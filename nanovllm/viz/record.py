"""Record a run of an engine, or of its scheduler alone; `python -m nanovllm.viz.record` re-makes the shipped traces."""

import argparse
import hashlib
import random
import tomllib
from collections.abc import Callable
from collections.abc import Sequence as SequenceOf
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from ..config import Config
from ..engine.block_manager import BlockManager
from ..engine.scheduler import Scheduler
from ..engine.sequence import Sequence
from ..engine.trace import TraceRecorder
from ..llm import LLM
from ..measure import git_commit
from ..sampling_params import SamplingParams
from .trace import Trace, check_trace, complete_events, save_trace

DATA = Path(__file__).parent / "data"


def record(
    llm: LLM,
    prompts: SequenceOf[str | list[int]],
    params: SamplingParams | SequenceOf[SamplingParams],
    arrive: SequenceOf[int] | None = None,
    made_by: str = "interactive",
    max_steps: int = 1000,
    keep_error: bool = False,
) -> Trace:
    """Run prompts through an engine, a learner's too, and return the trace of all steps.

    Args:
        llm: an idle engine, on a GPU one with `disabled_optimizations=("step_ahead",)`; what its prefix cache holds
            stays in it.
        prompts: strings or lists of token ids.
        params: one for all, or one a prompt.
        arrive: the step before which each prompt is added, not decreasing; None adds all before the first.
        made_by: provenance; ends up in the picture's footer.
        max_steps: an engine that has not finished by then is left alone, so that a wrong one can still be drawn.
        keep_error: an exception of the engine ends the trace instead of being raised.

    Raises:
        ValueError: the lists differ in length, or the engine begins a step before the last one has ended.
    """
    arrivals = _arrivals(prompts, params, arrive)  # checked before the recorder attaches itself
    recorder = TraceRecorder(llm, made_by=made_by, commit=git_commit())
    _note_policy(recorder)
    _drive(recorder, arrivals, llm.add_request, llm.step, llm.is_finished, max_steps, keep_error)
    for seq in recorder.trace["seqs"].values():
        seq["texts"] = token_texts(llm.tokenizer, [*seq["prompt_ids"], *seq["output_ids"]])
    return complete_events(recorder.trace)


def record_scheduler(
    scheduler: Scheduler,
    config: Config,
    prompts: SequenceOf[list[int]],
    params: SamplingParams | SequenceOf[SamplingParams],
    arrive: SequenceOf[int] | None = None,
    seed: int = 0,
    made_by: str = "interactive",
    max_steps: int = 1000,
    keep_error: bool = False,
) -> Trace:
    """Run prompts through a scheduler and its block manager without any model: random numbers stand for the tokens.

    Args:
        scheduler: an idle `Scheduler(config)`, or a learner's.
        prompts: lists of token ids.
        seed: of the scripted tokens.
        params, arrive, made_by, max_steps, keep_error: as for `record`.

    Raises:
        ValueError: the lists differ in length.
    """
    arrivals = _arrivals(prompts, params, arrive)
    engine: Any = SimpleNamespace(config=config, scheduler=scheduler)
    recorder = TraceRecorder(engine, made_by, git_commit(), kind="real-scheduler+scripted-tokens")
    _note_policy(recorder)
    rng, seq_ids = random.Random(seed), count()

    def add(prompt: Any, prompt_params: SamplingParams) -> None:
        scheduler.add(Sequence(prompt, prompt_params, config.kvcache_block_size, next(seq_ids)))

    def step() -> None:
        run_step(scheduler, recorder, rng)

    _drive(recorder, arrivals, add, step, scheduler.is_finished, max_steps, keep_error)
    return complete_events(recorder.trace)


def _arrivals(
    prompts: SequenceOf[Any], params: SamplingParams | SequenceOf[SamplingParams], arrive: SequenceOf[int] | None
) -> list[tuple[int, Any, SamplingParams]]:
    params = [params] * len(prompts) if isinstance(params, SamplingParams) else params
    arrive = [0] * len(prompts) if arrive is None else arrive
    if not len(prompts) == len(params) == len(arrive):
        raise ValueError(f"got {len(prompts)} prompts, {len(params)} params and {len(arrive)} arrivals")
    return list(zip(arrive, prompts, params, strict=True))


def _note_policy(recorder: TraceRecorder) -> None:
    """Say in the trace that somebody's own rule chooses who is preempted, so that none is wrong."""
    scheduler_class: Any = type(recorder.scheduler)
    plain = scheduler_class.__mro__[-2]
    if "choose_victim" in vars(recorder.scheduler) or scheduler_class.choose_victim is not plain.choose_victim:
        recorder.trace["config"]["own_victims"] = True


def _drive(
    recorder: TraceRecorder,
    arrivals: list[tuple[int, Any, SamplingParams]],
    add: Callable[[Any, SamplingParams], Any],
    step: Callable[[], Any],
    is_finished: Callable[[], bool],
    max_steps: int,
    keep_error: bool,
) -> None:
    """Add what has arrived, make a step, and so on until all is done; an idle engine does not wait for arrivals."""
    try:
        for i in range(max_steps):
            while arrivals and (arrivals[0][0] <= i or is_finished()):
                _, prompt, params = arrivals.pop(0)
                add(prompt, params)
            if is_finished():
                break
            step()
    except Exception as error:
        if not keep_error:
            raise
        recorder.trace["error"] = f"{type(error).__name__}: {error}"
        recorder.end_step("error", [], None)
    finally:
        recorder.detach()


def run_step(scheduler: Scheduler, recorder: TraceRecorder | None, rng: random.Random) -> int:
    """One step of a scheduler with scripted tokens; returns the number of tokens it computed."""
    seqs, is_prefill = scheduler.schedule()
    counts = [(seq.seq_id, seq.num_scheduled_tokens) for seq in seqs]
    scheduler.postprocess(seqs, [None if seq.is_cut else rng.randrange(1, 1000) for seq in seqs])
    if recorder:
        recorder.end_step("prefill" if is_prefill else "decode", counts, None)
    return sum(count for _, count in counts)


def token_texts(tokenizer: Any, token_ids: list[int]) -> list[str]:
    """Each token as text; its id where there is no tokenizer."""
    if tokenizer is None:
        return [str(token_id) for token_id in token_ids]
    return [tokenizer.decode([token_id]) for token_id in token_ids]


# The shipped traces.


def record_shipped(plan: dict[str, Any], model: str, device: str = "cpu") -> Trace:
    """Run one of the plans in data/plans.toml, greedily."""
    # A trace shows each step with its tokens, so none may begin before the last one has ended.
    options = plan["config"] | {"max_model_len": 256, "disabled_optimizations": ("step_ahead",)}
    with LLM(model, device=device, **options) as llm:
        for prompt in ("One", "Two", "Sun"):
            llm.generate(prompt, SamplingParams(temperature=0, max_tokens=2), use_tqdm=False)
        llm.scheduler.reset([])  # an empty cache, but the lengths of the answers are remembered
        llm.seq_ids = count()  # the sequences of the trace start at 0
        params = [
            SamplingParams(temperature=0, max_tokens=n, ignore_eos=plan["ignore_eos"]) for n in plan["max_tokens"]
        ]
        command = "python -m nanovllm.viz.record" + (f" --device {device}" if device != "cpu" else "")
        trace = record(llm, plan["prompts"], params, plan["arrive"], made_by=command)
        weights = (llm.config.model_path / "model.safetensors").read_bytes()
    trace["made"]["weights_sha256"] = hashlib.sha256(weights).hexdigest()
    for seq, prompt in zip(trace["seqs"].values(), plan["prompts"], strict=True):
        seq["prompt_text"] = prompt
    return trace


def main() -> None:
    """Record the plans, refuse what breaks a rule, and write the files."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("plans", nargs="*", help="names of plans; without any, all are run")
    parser.add_argument("--model", default="qwen3-tiny", help="a directory, a hub id, or a bundled model")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu", help="times of steps differ, for example")
    parser.add_argument("--out", type=Path, default=DATA, help="where the files go")
    parser.add_argument("--suffix", default="", help="of the files' names, such as _h200")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    known = tomllib.loads((DATA / "plans.toml").read_text(encoding="utf-8"))
    for name in args.plans or known:
        plan = known[name]
        trace = record_shipped(plan, args.model, args.device)
        problems = check_trace(trace, compute_hash=BlockManager.compute_hash)
        events = [event for step in trace["steps"] for event in step["events"]]
        if any(event.get("reason") == "stop" for event in events):
            problems.append("an answer ended early, so that the run is not what is told of it; give it other prompts")
        if problems:
            raise SystemExit(f"the trace {name!r} cannot be shipped:\n" + "\n".join(problems))
        path = args.out / f"{name}{args.suffix}.trace.json"
        save_trace(trace, path)
        print(f"{path}: {len(trace['steps'])} steps, {path.stat().st_size} bytes")


if __name__ == "__main__":
    main()
