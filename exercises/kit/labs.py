"""Our answers to the exercises that are no part of the engine: small programs around it, and experiments in it.

An open exercise has many right answers; here is one. Some take the place of a function of the engine on request
(`replaces` in the manifest): `mine("ch05.choose_block_to_evict")`.
"""

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from typing import Any

import torch

# Chapter 01.


def naive_loop(
    model: Callable[[Sequence[int]], torch.Tensor], token_ids: Sequence[int], max_tokens: int, eos: Collection[int]
) -> list[int]:
    """Continue a text greedily, without a cache: every new token reads the whole text again.

    Args:
        model: takes the ids of all tokens so far; returns the logits of the next token, float [vocabulary size].
        token_ids: ids of the prompt's tokens; the list stays as it is.
        max_tokens: the most tokens to write, at least 1.
        eos: ids of the end tokens. One of them ends the text, and is part of the answer.

    Returns:
        the ids of the new tokens, without those of the prompt.
    """
    answer: list[int] = []
    while len(answer) < max_tokens and (not answer or answer[-1] not in eos):
        logits = model([*token_ids, *answer])
        answer.append(int(logits.argmax()))
    return answer


# Chapter 05.


def choose_block_to_evict(self: Any) -> int:
    """Id of the free block that is taken next; what it holds is lost.

    The goal: of the prompt tokens of `exercises.kit.workloads.chat_service()`, the cache shall find
    as many as possible. A random free block finds 17,356 of them in 48 blocks of 16 tokens; at
    least 19,100 are asked for.

    It is called only when a block is free. It takes nothing itself and changes nothing of the pool,
    but it may keep attributes of its own on the manager, which is new at the start of a run. After
    an error the engine calls `reset()`: then all blocks are free, nothing is cached, and content
    ids begin at 0 again.

    Returns:
        a key of `self.free_block_ids`.
    """
    if not hasattr(self, "visits"):
        self.visits, self.in_use = Counter(), set()
    # A content that is in use now and was not when we looked last has been computed or found: a visit.
    in_use = {self.blocks[block_id].content_id for block_id in self.used_block_ids}
    self.visits.update(in_use - self.in_use)
    self.in_use = in_use

    def worth(block_id: int) -> int:
        block = self.blocks[block_id]
        is_findable = self.hash_to_block_id.get(block.hash) == block_id
        return self.visits[block.content_id] if is_findable else -1

    return min(self.free_block_ids, key=worth)  # of equal ones the first, which was freed longest ago


# Chapter 06.


def choose_victim(self: Any, seq: Any) -> Any:
    """Which running sequence gives up its blocks, so that `seq` can go on.

    The goal: of the work in `exercises.kit.mixed_work`, as few tokens as possible shall be computed
    again. When the newest goes it is 3,121 tokens; at most 2,960 are asked for.

    It is called while the blocks do not suffice, and then again. It only says who goes, and changes
    nothing. With any work, every request has to get to its end.

    Args:
        seq: the running sequence that needs a block.

    Returns:
        one of `self.running`, oldest first; `seq` is one of them, too.
    """

    def cost(other: Any) -> int:
        # What it would compute again, and for it: what it will still write, and want room for, if it stays.
        return other.num_tokens - (other.sampling_params.max_tokens - other.num_completion_tokens)

    return min(self.running, key=cost)
