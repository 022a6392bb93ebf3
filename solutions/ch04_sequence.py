"""Our answers to chapter 04, sequence, cut out of nanovllm/, each with its reason."""

# ruff: noqa
# mypy: ignore-errors
# fmt: off

from __future__ import annotations

from collections.abc import Sequence as SequenceOf
from enum import Enum, auto
from typing import Any
from nanovllm.sampling_params import SamplingParams
from nanovllm.engine.sequence import SequenceStatus, Sequence
import struct
import zlib
from array import array
from collections.abc import Callable


# --- ch04.num_blocks
# Adding block_size - 1 before a division that rounds down makes it round up, with whole numbers only, so it is exact
# at any length. At a full block nothing is left over, and no empty block is counted. As a property it needs no
# bookkeeping: whoever appends a token cannot forget to update it. It counts num_tokens and not the list, because in a
# worker process the list may have stayed at home.
@property
def num_blocks(self) -> int:
    """Blocks that `num_tokens` tokens need (an `int`); the last one may be partly filled.

    It is right in a worker process, too, where `token_ids` may be empty.
    """
    return (self.num_tokens + self.block_size - 1) // self.block_size


# --- ch04.block
# Slices never complain: a slice outside of the list is empty, and a negative number counts from the end. Here both
# would hide a mistake of the caller. The block manager makes names of blocks from these tokens, and an empty or a wrong
# block with a good name would hand one request's memory to another. So the range is checked first. block_table has no
# say in it: logical blocks are there as soon as the tokens are, long before the first physical one.
def block(self, i: int) -> list[int]:
    """Token ids of the i-th logical block: `block_size`, in the last block perhaps fewer.

    Raises:
        IndexError: there is no such block; they are numbered from 0, and never from the end.
    """
    if not 0 <= i < self.num_blocks:
        raise IndexError(f"block {i} does not exist: the sequence has {self.num_blocks} blocks")
    return self.token_ids[i * self.block_size : (i + 1) * self.block_size]


# --- ch04.append_token
# Three attributes tell of the same thing, so they have to change together, in one place. num_cached_tokens stays: the
# model has produced this token, but has not read it yet; its keys and values come in the next step. That is why, between
# two steps, a running sequence has exactly one token that is not cached. Everything else that depends on the length is a
# property and follows by itself.
def append_token(self, token_id: int) -> None:
    """Add a generated token: now it is the last one, and there is one token more.

    Its keys and values are computed in the step after.
    """
    self.token_ids.append(token_id)
    self.last_token = token_id
    self.num_tokens += 1


# --- ch04.__getstate__
# In a decode step a worker computes one token, and that is last_token; thousands of older ones would travel for
# nothing, in every step. What decides is how many tokens have no keys and values yet. The status is RUNNING in the
# last part of a prefill, too; a completion may have been preempted and have to be computed again from the start; and a
# step may compute one token of a prompt that was cut. The copy matters: the attributes of the sequence itself must
# not change because somebody sent it.
def __getstate__(self) -> dict[str, Any]:
    """What pickle sends to a worker: all attributes, with empty lists for what is not needed.

    A worker never looks at `block_hashes`. It reads the tokens that it computes from
    `token_ids`, unless only one is left that has no keys and values yet: that is `last_token`.
    The sequence itself stays as it is.

    Returns:
        the attributes by name; pickle makes them the attributes of the worker's copy.
    """
    state = self.__dict__.copy()
    state["block_hashes"] = []
    if self.num_cached_tokens == self.num_tokens - 1:
        state["token_ids"] = []
    return state


# --- ch04.codec
# Both sides know what the numbers mean, so only the numbers travel. In decode that is one token, three small numbers and
# the block table, which is then the largest part. What is not needed is not sent: of a prompt that is cut, the tokens of
# this step are enough. One could go on: the worker has seen most of the table in the step before, and vLLM sends only the
# new entries. The price is a worker that has to remember, and a protocol that must never miss a step.
def codec() -> tuple[Callable[[Any], bytes], Callable[[bytes], dict[str, Any]]]:
    """Two functions: `pack` makes bytes of what a worker needs of a sequence, `unpack` reads them.

    The goal: few bytes. Over the steps that the check plays (prompts in one piece and in several,
    decode, preemption, short and long texts, large and small ids) at most a tenth of what
    `pickle.dumps(vars(seq))` takes.

    `pack(seq)` gives bytes and leaves the sequence as it is. `unpack(data)` runs in another process
    and has nothing but these bytes. It gives a dict:

    - "seq_id": its number;
    - "tokens": ids of the tokens that the step computes (`seq.scheduled_token_ids`), a list;
    - "start": the position of the first of them, `seq.num_cached_tokens`;
    - "is_cut": whether tokens are left for a later step, `True` or `False`;
    - "block_table": as it is, a list.

    Ids of sequences are below 2**63, positions and ids of tokens and blocks below 2**31.

    Returns:
        `pack` and `unpack`.
    """

    def pack(seq: Any) -> bytes:
        tokens = seq.scheduled_token_ids
        head = struct.pack("<QII?", seq.seq_id, seq.num_cached_tokens, len(tokens), seq.is_cut)
        return zlib.compress(head + array("i", [*tokens, *seq.block_table]).tobytes(), 1)

    def unpack(data: bytes) -> dict[str, Any]:
        whole = zlib.decompress(data)
        size = struct.calcsize("<QII?")
        seq_id, start, num_tokens, is_cut = struct.unpack("<QII?", whole[:size])
        ids = array("i", whole[size:]).tolist()
        tokens, table = ids[:num_tokens], ids[num_tokens:]
        state = {"seq_id": seq_id, "tokens": tokens, "start": start, "is_cut": is_cut}
        return {**state, "block_table": table}

    return pack, unpack
