"""Recorder of what scheduler and block manager do, step by step; the widgets draw from it.

Nothing is recorded, and nothing costs time, unless a recorder is attached.
"""

import platform
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import torch

from .block_manager import NO_HASH
from .sequence import Sequence

if TYPE_CHECKING:
    from .llm_engine import LLMEngine

FORMAT, VERSION = "nanovllm-trace", 1
HASHES = {"hash", "parent"}


def letters(n: int) -> str:
    """Name of the n-th sequence of a trace: A to Z, then AA, AB and so on."""
    return (letters(n // 26 - 1) if n >= 26 else "") + chr(ord("A") + n % 26)


def as_hex(hash_value: int) -> str | None:
    """A hash as text, because JSON's numbers are not exact beyond 53 bits; None for "no hash"."""
    return None if hash_value == NO_HASH else f"{hash_value:016x}"


class TraceRecorder:
    """Collects the events and states of an engine's steps as plain JSON data.

    Args:
        engine: the engine to watch; the recorder attaches itself.
        made_by: what makes the trace, for its provenance.
        commit: revision of the engine, if known.
        kind: "real-model", or "real-scheduler+scripted-tokens" where no model chooses the tokens; then `engine`
            is anything with a `config` and a `scheduler`.
    """

    def __init__(
        self,
        engine: "LLMEngine",
        made_by: str = "interactive",
        commit: str = "unknown",
        kind: str = "real-model",
    ) -> None:
        self.engine = engine
        self.scheduler = engine.scheduler
        self.events: list[dict[str, Any]] = []
        self.free: set[int] = set()  # when it was looked at last
        config = engine.config
        self.trace: dict[str, Any] = {
            "format": FORMAT,
            "version": VERSION,
            "made": {
                "engine_commit": commit,
                "when": datetime.now(UTC).isoformat(timespec="seconds"),
                "by": made_by,
                "kind": kind,
                "model": str(config.model),
                "device": torch.cuda.get_device_name() if config.device == "cuda" else platform.machine(),
                "torch": torch.__version__,
            },
            "config": {
                "block_size": config.kvcache_block_size,
                "num_blocks": config.num_kvcache_blocks,
                "max_num_seqs": config.max_num_seqs,
                "max_num_batched_tokens": config.max_num_batched_tokens,
                "enable_prefix_caching": config.enable_prefix_caching,
            },
            "seqs": {},
            "steps": [],
        }
        self.attach()

    def attach(self) -> None:
        """Start recording, or begin anew after an interrupted step; the first entry is the state as it is now."""
        self.scheduler.recorder = self.scheduler.block_manager.recorder = self
        self.end_step("init", [], None)

    def detach(self) -> None:
        """Stop recording."""
        self.scheduler.recorder = self.scheduler.block_manager.recorder = None

    def event(self, kind: str, seq: Sequence, **data: Any) -> None:
        """Note that something happened to `seq` in the step that is being made; `hash` and `parent` become hex."""
        self._take_tokens(seq)
        released = self._newly_free()
        if kind in ("preempt", "finish"):  # deallocate itself reports nothing: what it does shows in the free list
            self.events.append({"event": "release", "seq": seq.seq_id, "blocks": released})
        for name in HASHES & data.keys():
            data[name] = as_hex(data[name])
        self.events.append({"event": kind, "seq": seq.seq_id, **data})

    def _newly_free(self) -> list[int]:
        """Blocks that have been freed since this was asked last, in order."""
        free = self.scheduler.block_manager.free_block_ids
        released = [block_id for block_id in free if block_id not in self.free]
        self.free = set(free)
        return released

    def end_step(self, kind: str, scheduled: list[tuple[int, int]], ms: float | None) -> None:
        """Close a step: `scheduled` are pairs of sequence id and number of tokens computed."""
        self._newly_free()
        self.trace["steps"].append(
            {
                "i": len(self.trace["steps"]),
                "kind": kind,
                "scheduled": [{"seq": seq_id, "n": n} for seq_id, n in scheduled],
                "events": self.events,
                "after": self._state(),
                "ms": ms,
            }
        )
        self.events = []

    def _take_tokens(self, seq: Sequence) -> None:
        """Keep the tokens of `seq`: all of them are in the trace once, and each step says how many there were."""
        entry = self.trace["seqs"].get(str(seq.seq_id))
        if entry is None:
            entry = self.trace["seqs"][str(seq.seq_id)] = {
                "name": letters(len(self.trace["seqs"])),
                "prompt_ids": list(seq.prompt_token_ids),
                "output_ids": [],
                "arrive": len(self.trace["steps"]),
            }
        known = len(entry["prompt_ids"]) + len(entry["output_ids"])
        # One step ahead, the last token may not be known yet; it is taken in a later step.
        entry["output_ids"].extend(token_id for token_id in seq.token_ids[known:] if token_id >= 0)

    def _state(self) -> dict[str, Any]:
        manager = self.scheduler.block_manager
        live = [*self.scheduler.waiting, *self.scheduler.running]
        for seq in live:
            self._take_tokens(seq)
        return {
            "waiting": [seq.seq_id for seq in self.scheduler.waiting],
            "running": [seq.seq_id for seq in self.scheduler.running],
            "free": list(manager.free_block_ids),
            "ref": {str(b.block_id): b.ref_count for b in manager.blocks if b.ref_count},
            "hash": {str(b.block_id): as_hex(b.hash) for b in manager.blocks if b.hash != -1},
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
