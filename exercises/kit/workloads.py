"""Work for the open exercises: the same requests for everybody, through the real scheduler, without weights."""

import random
from collections.abc import Callable, Iterable
from typing import Any

from nanovllm.engine.sequence import Sequence

NUM_BLOCKS, BLOCK_SIZE = 48, 16
STEPS_BETWEEN = 4  # a request arrives every so many steps
ANSWER_TOKENS = 8
RANDOM_FINDS = 17_356  # prompt tokens found in the cache if a random free block is evicted; the mean of 20 runs
LRU_FINDS = 20_832  # if the one that was freed longest ago is
BAR = 21_600  # LRU and something


def step(scheduler: Any, token_of: Callable[[Any], int]) -> tuple[list[Any], bool]:
    """One step as the engine takes it, without a model: `token_of(seq)` makes a token up.

    Returns:
        what `schedule` returned: the sequences of the step, and whether it was a prefill.
    """
    seqs, is_prefill = scheduler.schedule()
    scheduler.postprocess(seqs, [None if seq.is_cut else token_of(seq) for seq in seqs])
    return seqs, is_prefill


def start(manager: Any, token_ids: Iterable[int]) -> Any:
    """A request arrives, and a step computes its tokens: it gets blocks, and those that it fills get their names."""
    seq = Sequence(list(token_ids), block_size=manager.block_size)
    manager.allocate(seq)
    seq.num_scheduled_tokens = len(seq) - seq.num_cached_tokens
    manager.hash_blocks(seq)
    return seq


def found_again(manager: Any, takes: int | None = None) -> int:
    """A fills a pool of five blocks of 4 and ends; N takes one block and ends; A comes again: the tokens that it finds.

    Args:
        takes: which of A's blocks N takes, counted as in a list; None asks the manager.
    """
    seq = start(manager, range(20))
    block_id = None if takes is None else seq.block_table[takes]
    manager.deallocate(seq)
    if block_id is not None:
        manager.choose_block_to_evict = lambda: block_id
    manager.deallocate(start(manager, [90, 91, 92]))
    vars(manager).pop("choose_block_to_evict", None)
    return int(start(manager, range(20)).num_cached_tokens)


def chat_service(num_requests: int = 400, seed: int = 0) -> list[list[int]]:
    """Prompts of a small chat service, as token ids, in the order in which they arrive.

    Two of five are documents that come once. The others are conversations with one of three assistants, which have a
    system prompt of 96 tokens each; one of the assistants is asked most. A prompt is the whole conversation so far.
    """
    rng = random.Random(seed)

    def text(length: int) -> list[int]:
        return [rng.randrange(2000) for _ in range(length)]

    assistants = [text(96) for _ in range(3)]
    prompts: list[list[int]] = []
    talks: list[list[int]] = []
    while len(prompts) < num_requests:
        kind = rng.random()
        if kind < 0.4:
            prompts.append(text(rng.randint(100, 200)))
            continue
        if kind < 0.65 or not talks:
            talks.append([*rng.choices(assistants, weights=[6, 3, 1])[0], *text(rng.randint(10, 30))])
            talk = talks[-1]
        else:
            talk = rng.choice(talks[-6:])
            talk += text(rng.randint(20, 50))
        prompts.append(list(talk))
        if len(talk) > 300:
            talks.remove(talk)
    return prompts


def tokens_found(engine: Any, seed: int = 0) -> int:
    """Prompt tokens that an engine finds in its prefix cache while it serves `chat_service(seed=seed)`.

    Args:
        engine: `nanovllm`, or a learner's, as `mine()` returns it.
    """
    config = engine.config.Config(
        "qwen3-tiny",
        max_model_len=512,
        kvcache_block_size=BLOCK_SIZE,
        num_kvcache_blocks=NUM_BLOCKS,
        max_num_seqs=4,
        max_num_batched_tokens=512,
        device="cpu",
    )
    scheduler = engine.engine.scheduler.Scheduler(config)
    params = engine.SamplingParams(max_tokens=ANSWER_TOKENS, ignore_eos=True)
    sequence_class = engine.engine.sequence.Sequence
    prompts, rng, num_steps = chat_service(seed=seed), random.Random(seed), 0
    seqs = [sequence_class(prompt, params, BLOCK_SIZE, i) for i, prompt in enumerate(prompts)]
    waiting = list(reversed(seqs))
    while waiting or not scheduler.is_finished():
        if waiting and (num_steps % STEPS_BETWEEN == 0 or scheduler.is_finished()):
            scheduler.add(waiting.pop())
        step(scheduler, lambda seq: rng.randrange(1, 1000))
        num_steps += 1
    return sum(seq.num_prefix_hit_tokens for seq in seqs)


def trust_hashes(llm: Any) -> None:
    """Have an engine take equal hashes for equal content, as no engine does that must never be wrong.

    Ours compares the tokens and the block before as well; without that, everything depends on `compute_hash`.
    """
    manager = llm.scheduler.block_manager

    def find_cached_blocks(seq: Any) -> list[int]:
        found: list[int] = []
        for i in range((seq.num_tokens - 1) // manager.block_size):
            block_id = manager.hash_to_block_id.get(manager._block_hash(seq, i))
            if block_id is None:
                break
            found.append(block_id)
        return found

    manager.find_cached_blocks = find_cached_blocks
