"""Recorder of what scheduler and block manager do, step by step; the widgets draw from it.

It puts itself around methods of an engine's objects, so that they know nothing of it.
"""

import platform
import time
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from datetime import UTC, datetime
from functools import partial
from typing import Any

import torch

from .block_manager import NO_HASH
from .sequence import Sequence

FORMAT, VERSION = "nanovllm-trace", 1


def letters(n: int) -> str:
    """Name of the n-th sequence of a trace: A to Z, then AA, AB and so on."""
    return (letters(n // 26 - 1) if n >= 26 else "") + chr(ord("A") + n % 26)


def as_hex(hash_value: int) -> str | None:
    """A hash as text, because JSON's numbers are not exact beyond 53 bits; None for "no hash"."""
    return None if hash_value == NO_HASH else f"{hash_value:016x}"


class TraceRecorder:
    """Collects the events and states of an engine's steps as plain JSON data.

    Args:
        engine: the `LLM` or `LLMEngine` to watch; the recorder attaches itself.
        made_by: what makes the trace, for its provenance.
        commit: revision of the engine, if known.
        kind: "real-model", or "real-scheduler+scripted-tokens" where no model chooses the tokens;
            then `engine` is anything with a `config` and a `scheduler`, and who runs the steps
            calls `end_step`.

    Raises:
        ValueError: a step of this engine may begin before the one before it has ended.
    """

    def __init__(
        self,
        engine: Any,
        made_by: str = "interactive",
        commit: str = "unknown",
        kind: str = "real-model",
    ) -> None:
        self.engine = getattr(engine, "llm_engine", engine)
        self.scheduler = engine.scheduler
        self.lock = getattr(self.engine, "lock", nullcontext())
        self.replaced: list[tuple[Any, str, Any]] = []  # objects, names, and what stood there
        self.scheduled: list[tuple[int, int]] = []  # in this step: ids, and numbers of tokens
        self.events: list[dict[str, Any]] = []
        self.free: set[int] = set()  # when it was looked at last
        self.sharer: Sequence | None = None  # who is given blocks at the moment
        check_steps_take_turns(type(self.engine))
        self.trace = empty_trace(engine.config, made_by, commit, kind)
        self.attach()

    # Around the methods.

    def attach(self) -> None:
        """Start recording, from the state as it is now; another recorder of this engine stops."""
        with self.lock:  # not in the middle of a step that another thread makes
            if hasattr(self.engine, "run_step"):
                self.engine.abort_request()  # of nobody, but what was interrupted is made good
            getattr(self.scheduler, "recorder", self).detach()
            self.put(self.scheduler, "recorder", self)
            self.watch_methods(self.scheduler, self.scheduler.block_manager)
            self.end_step("init", [], None)

    def detach(self) -> None:
        """Stop recording, and leave the engine as if nobody had watched."""
        with self.lock:
            for owner, name, previous in reversed(self.replaced):
                vars(owner).pop(name, None)
                if previous is not None:
                    setattr(owner, name, previous)
            self.replaced, self.events = [], []

    def watch_methods(self, scheduler: Any, manager: Any) -> None:
        """Note what an engine's objects do; those of a learner may lack some methods."""
        after, around, event = self.after, self.around, self.event
        after(scheduler, "add", lambda seq: event("arrive", seq))
        after(scheduler, "admit", self.note_admission)
        after(scheduler, "preempt", lambda seq: event("preempt", seq))
        after(scheduler, "finish", lambda seq, reason: event("finish", seq, reason=reason))
        after(manager, "_share", self.note_share)
        around(manager, "allocate", self.note_allocation)
        after(manager, "_register", self.note_hash)
        around(manager, "_append_new_block", self.note_new_block)
        around(scheduler, "reset", self.note_reset)
        around(scheduler, "refusal", self.note_refusal)
        around(scheduler, "schedule", self.note_schedule)
        around(self.engine, "run_step", self.note_step)

    def after(self, owner: Any, name: str, note: Callable[..., Any]) -> None:
        """From now on, `note` is called with the same arguments after each call of the method."""
        self.around(owner, name, lambda method, *a, **kw: (method(*a, **kw), note(*a, **kw))[0])

    def around(self, owner: Any, name: str, call: Callable[..., Any]) -> None:
        """From now on, `call(method, ...)` runs where `method(...)` did."""
        if hasattr(owner, name):
            self.put(owner, name, partial(call, getattr(owner, name)))

    def put(self, owner: Any, name: str, value: Any) -> None:
        """Set an attribute of this one object until `detach`."""
        self.replaced.append((owner, name, vars(owner).get(name)))
        setattr(owner, name, value)

    # What they do.

    def note_admission(self, seq: Sequence) -> None:
        """What of it the cache had."""
        cached = seq.num_cached_tokens
        self.event("admit", seq, cached=cached, new=seq.num_tokens - cached)

    def note_allocation(self, method: Callable[..., Any], seq: Sequence) -> None:
        """For whom blocks are shared meanwhile."""
        self.sharer = seq
        method(seq)

    def note_share(self, block_id: int) -> None:
        """A cached block has one more owner."""
        if self.sharer is not None:
            self.event("share", self.sharer, block=block_id)

    def note_refusal(self, method: Callable[..., Any], seq: Sequence, budget: int) -> str | None:
        """Why a waiting sequence has to wait on."""
        reason: str | None = method(seq, budget)
        if reason is not None:
            self.event("refuse", seq, reason=reason)
        return reason

    def note_new_block(self, method: Callable[..., Any], seq: Sequence) -> None:
        """Which block was taken, and what it had cached."""
        num_blocks = len(seq.block_table)
        hashes = [block.hash for block in self.scheduler.block_manager.blocks]
        method(seq)
        for block_id in seq.block_table[num_blocks:]:
            if hashes[block_id] != NO_HASH:
                self.event("evict", seq, block=block_id, hash=as_hex(hashes[block_id]))
            self.event("append", seq, block=block_id)

    def note_hash(self, seq: Sequence, i: int) -> None:
        """A block can be found now."""
        blocks, table = self.scheduler.block_manager.blocks, seq.block_table
        parent = as_hex(blocks[table[i - 1]].hash) if i else None
        self.event("hash", seq, block=table[i], hash=as_hex(blocks[table[i]].hash), parent=parent)

    def note_reset(self, method: Callable[..., Any], seqs: Iterable[Sequence]) -> None:
        """The engine begins anew, perhaps without some of those that were there."""
        for seq in [*self.scheduler.waiting, *self.scheduler.running]:
            if seq.is_finished:
                self.event("finish", seq, reason=seq.finish_reason)
        method(seqs)
        self.end_step("init", [], None)

    def note_schedule(self, method: Callable[..., Any]) -> tuple[list[Sequence], bool]:
        """Who computes how many tokens."""
        seqs, is_prefill = method()
        self.scheduled = [(seq.seq_id, seq.num_scheduled_tokens) for seq in seqs]
        return seqs, is_prefill

    def note_step(self, method: Callable[..., Any]) -> int:
        """A step of an engine, with its time."""
        start, self.scheduled = time.perf_counter(), []
        num_tokens: int = method()
        ms = (time.perf_counter() - start) * 1e3
        if self.scheduled or self.events:
            self.end_step("prefill" if num_tokens > 0 else "decode", self.scheduled, ms)
        return num_tokens

    # The trace.

    def event(self, kind: str, seq: Sequence, **data: Any) -> None:
        """Note that something happened to `seq` in this step."""
        self._take_tokens(seq)
        free = list(self.scheduler.block_manager.free_block_ids)
        if kind in ("preempt", "finish"):  # what deallocate has done shows in the free list
            blocks = [block_id for block_id in free if block_id not in self.free]
            self.events.append({"event": "release", "seq": seq.seq_id, "blocks": blocks})
        self.free = set(free)
        self.events.append({"event": kind, "seq": seq.seq_id, **data})

    def end_step(self, kind: str, scheduled: list[tuple[int, int]], ms: float | None) -> None:
        """Close a step.

        Args:
            kind: "prefill" or "decode"; "init" where a run begins, and where it begins anew after
                an interrupted step; "error" where it ends with an exception.
            scheduled: who computed how many tokens, as pairs of sequence id and number.
            ms: how long it took.
        """
        counts = [{"seq": seq_id, "n": n} for seq_id, n in scheduled]
        step = {"i": len(self.trace["steps"]), "kind": kind, "scheduled": counts}
        step |= {"events": self.events, "after": self._state(), "ms": ms}
        self.trace["steps"].append(step)
        self.events = []

    def _state(self) -> dict[str, Any]:
        scheduler, manager = self.scheduler, self.scheduler.block_manager
        live = [*scheduler.waiting, *scheduler.running]
        for seq in live:
            self._take_tokens(seq)
        self.free = set(manager.free_block_ids)
        return {
            "waiting": [seq.seq_id for seq in scheduler.waiting],
            "running": [seq.seq_id for seq in scheduler.running],
            "free": list(manager.free_block_ids),
            "ref": {str(b.block_id): b.ref_count for b in manager.blocks if b.ref_count},
            "hash": {str(b.block_id): as_hex(b.hash) for b in manager.blocks if b.hash != NO_HASH},
            "seqs": {
                str(seq.seq_id): {
                    "status": seq.status.name,
                    "len": seq.num_tokens,
                    "kv": seq.num_cached_tokens,
                    "cached": seq.num_prefix_hit_tokens or 0,
                    "table": list(seq.block_table),
                }
                for seq in live
            },
        }

    def _take_tokens(self, seq: Sequence) -> None:
        """Keep the tokens of `seq`: all are in the trace once, and each step says how many."""
        seqs = self.trace["seqs"]
        new = {"name": letters(len(seqs)), "arrive": len(self.trace["steps"])}
        entry = seqs.setdefault(str(seq.seq_id), new)
        entry.update(prompt_ids=seq.prompt_token_ids, output_ids=seq.completion_token_ids)


def empty_trace(config: Any, made_by: str, commit: str, kind: str) -> dict[str, Any]:
    """A trace without sequences and steps: who made it where, and what the scheduler goes by."""
    made = {
        "engine_commit": commit,
        "when": datetime.now(UTC).isoformat(timespec="seconds"),
        "by": made_by,
        "kind": kind,
        "model": str(config.model),
        "device": torch.cuda.get_device_name() if config.device == "cuda" else platform.machine(),
        "torch": torch.__version__,
    }
    sizes = {"block_size": config.kvcache_block_size, "num_blocks": config.num_kvcache_blocks}
    names = ("max_num_seqs", "max_num_batched_tokens", "enable_prefix_caching")
    options = sizes | {name: getattr(config, name) for name in names}
    head = {"format": FORMAT, "version": VERSION, "made": made, "config": options}
    return head | {"seqs": {}, "steps": []}


def check_steps_take_turns(engine_class: type) -> None:
    """Raise `ValueError` if the engine's step is not the plain one, as its package has it."""
    owners = [c for c in engine_class.__mro__ if "run_step" in vars(c)]
    if len(owners) > 1:
        raise ValueError(
            f"a trace needs steps that end before the next begins, unlike {owners[0].__module__}; "
            'make the engine without it: disabled_optimizations takes its name, or "all"'
        )
