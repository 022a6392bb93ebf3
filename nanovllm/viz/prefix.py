"""What the prefix cache finds: for a few prompts block by block, for a hundred requests as a whole, and what the
block size has to do with it.

Chained hashes of full blocks are vLLM's automatic prefix caching. Everything here asks the real `BlockManager` and
`Scheduler`, or a learner's; nothing is computed a second time.
"""

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from ..config import Config
from ..engine.block_manager import NO_HASH, BlockManager
from ..engine.scheduler import Scheduler
from ..engine.sequence import Sequence as EngineSequence
from ..engine.trace import as_hex, letters
from ..sampling_params import SamplingParams
from .drawing import BORDER, SMALL, VERMILION, Drawing, color_of
from .record import run_step
from .shapes import FREE, SLOT_HEIGHT, Style, badge, block, table_html

HashFunction = Callable[[list[int], int], int]


# A few prompts, block by block.


@dataclass
class ExplainedBlock:
    """One block of a prompt and what the cache made of it.

    `state` is "hit"; "miss"; "last" (its content is known, but the last token has to be computed); "partial" (not
    full, so never hashed); or "false hit" (only without chaining: the same tokens after a different prefix).
    """

    token_ids: list[int]
    state: str
    block_id: int
    hash: str | None


@dataclass
class ExplainedPrompt:
    """One prompt: `num_cached_tokens` is what the engine would not compute again."""

    token_ids: list[int]
    blocks: list[ExplainedBlock]
    num_cached_tokens: int
    first_difference: int | None  # position at which it leaves the earlier prompt that it follows longest


def explain(
    prompts: Sequence[list[int]],
    block_size: int,
    compute_hash: HashFunction | None = None,
    manager_class: type[BlockManager] = BlockManager,
    chained: bool = True,
) -> list[ExplainedPrompt]:
    """Admit prompts one after the other, in a pool that is large enough, and say what each found in the cache.

    Args:
        prompts: token ids, each at least one.
        block_size: tokens a block holds.
        compute_hash: `(token_ids, prefix) -> int`, in place of the block manager's.
        manager_class: a learner's `BlockManager`.
        chained: False shows what a cache would do that hashes each block by itself; no engine does that.

    Raises:
        ValueError: a prompt is empty.
    """
    hash_function = compute_hash or manager_class.compute_hash
    attributes = {"compute_hash": staticmethod(hash_function)}
    manager = type("BlockManager", (manager_class,), attributes)(
        1 + sum(len(prompt) // block_size + 1 for prompt in prompts), block_size
    )
    explained: list[ExplainedPrompt] = []
    known: dict[int, list[int]] = {}  # hash of a block by itself: the tokens up to its end
    for seq_id, prompt in enumerate(prompts):
        seq = EngineSequence(list(prompt), SamplingParams(), block_size, seq_id)
        manager.allocate(seq)
        blocks = _explain_blocks(seq, hash_function, explained)
        num_cached_tokens = seq.num_cached_tokens
        seq.num_scheduled_tokens = seq.num_tokens - seq.num_cached_tokens
        manager.hash_blocks(seq)
        if not chained:
            num_cached_tokens = _unchain(blocks, seq, hash_function, known)
        difference = first_difference(prompt, [other.token_ids for other in explained])
        explained.append(ExplainedPrompt(list(prompt), blocks, num_cached_tokens, difference))
    return explained


def _explain_blocks(
    seq: EngineSequence, compute_hash: HashFunction, earlier: list[ExplainedPrompt]
) -> list[ExplainedBlock]:
    blocks, chain = [], NO_HASH
    seen = {block.hash for prompt in earlier for block in prompt.blocks}
    for i, block_id in enumerate(seq.block_table):
        token_ids = seq.block(i)
        is_full = len(token_ids) == seq.block_size
        chain = compute_hash(token_ids, chain) if is_full else chain
        known = as_hex(chain) if is_full else None
        state = "hit" if i < seq.num_cached_blocks else "miss" if is_full else "partial"
        if state == "miss" and known in seen and (i + 1) * seq.block_size == seq.num_tokens:
            state = "last"
        blocks.append(ExplainedBlock(token_ids, state, block_id, known))
    return blocks


def _unchain(
    blocks: list[ExplainedBlock], seq: EngineSequence, compute_hash: HashFunction, known: dict[int, list[int]]
) -> int:
    """Change the blocks to what a cache of unchained hashes would say; returns the tokens it would skip."""
    cached = 0
    for i, entry in enumerate(blocks):
        end = i * seq.block_size + len(entry.token_ids)
        if len(entry.token_ids) < seq.block_size:
            continue
        value = compute_hash(entry.token_ids, NO_HASH)
        entry.hash = as_hex(value)
        if value in known and end < seq.num_tokens:
            entry.state = "hit" if known[value] == seq.token_ids[:end] else "false hit"
            cached += seq.block_size
        else:
            entry.state = "last" if value in known else "miss"
        known.setdefault(value, seq.token_ids[:end])
    return cached


def first_difference(prompt: list[int], earlier: list[list[int]]) -> int | None:
    """Where a prompt leaves the earlier one that it follows longest; None if it never does."""
    longest = -1
    for other in earlier:
        n = next((n for n, (a, b) in enumerate(zip(prompt, other, strict=False)) if a != b), None)
        longest = max(longest, min(len(prompt), len(other)) if n is None else n)
    return longest if 0 <= longest < len(prompt) else None


def describe_prompts(explained: list[ExplainedPrompt]) -> str:
    """What each prompt but the first saved, in sentences."""
    sentences = []
    for n, prompt in enumerate(explained):
        full = [block for block in prompt.blocks if block.hash]
        hits = sum(block.state in ("hit", "false hit") for block in full)
        saved, total = prompt.num_cached_tokens, len(prompt.token_ids)
        text = f"{letters(n)}: {saved} of {total} tokens from the cache ({100 * saved / total:.0f} %), "
        sentences.append(text + f"{hits} of {len(full)} full blocks hit")
        if any(block.state == "false hit" for block in full):
            sentences.append(f"{letters(n)} would read keys and values of another prefix: wrong answers")
    return ". ".join(sentences) + "."


WIDTH = 632.0
TOKEN_WIDTH = 47.0
PER_LINE = 12
NOTES = {
    "hit": "hit",
    "false hit": "FALSE HIT",
    "miss": "miss",
    "last": "known, but last",
    "partial": "not full: no hash",
}


def draw_prompts(
    explained: list[ExplainedPrompt], texts: list[list[str]], block_size: int, chained: bool = True
) -> Drawing:
    """Tokens in blocks, with the chain of hashes below and what the cache says of each block.

    Args:
        texts: each prompt's tokens as text.
        block_size, chained: as given to `explain`.
    """
    picture = Drawing(WIDTH, 22, "prompts in blocks, with hashes and cache hits")
    title = "each block's hash is made of its tokens and of the hash before it" if chained else "each block by itself"
    picture.text(4, 14, "Chained hashes" if chained else "Unchained hashes", bold=True)
    picture.text(140, 14, title, SMALL)
    for n, (prompt, words) in enumerate(zip(explained, texts, strict=True)):
        badge(picture, 4, picture.height + 1, letters(n), color_of(n))
        with picture.group(prompt=letters(n), cached=prompt.num_cached_tokens, chained=int(chained)):
            picture.height = _draw_prompt(picture, prompt, words, block_size, color_of(n), chained)
    return picture


def _draw_prompt(
    picture: Drawing, prompt: ExplainedPrompt, words: list[str], block_size: int, fill: str, chained: bool
) -> float:
    """Blocks from left to right, wrapped; a block wider than a line shows its first and last tokens."""
    x, line = 36.0, picture.height
    for i, part in enumerate(prompt.blocks):
        tokens, first = words[i * block_size : i * block_size + len(part.token_ids)], i * block_size
        parts_at = -1 if prompt.first_difference is None else prompt.first_difference - first
        shown = tokens if len(tokens) <= PER_LINE else [*tokens[:6], f"…{len(tokens) - 11}…", *tokens[-5:]]
        width = max(2, len(shown)) * TOKEN_WIDTH
        if x > 36 and x + width > WIDTH:
            x, line = 36.0, line + 64
        hit = part.state in ("hit", "false hit")
        style = Style(VERMILION if part.state == "false hit" else fill if hit else None)
        style = FREE if part.state in ("partial", "last") else style
        with picture.group(
            f"block {i}: {part.state}, hash {part.hash or 'none'}",
            block=i,
            state=part.state.replace(" ", "-"),
            physical=part.block_id,
        ):
            block(picture, x, line, TOKEN_WIDTH * len(shown), [(style, len(shown))], shown)
            if 0 <= parts_at < len(tokens):
                at = parts_at if len(shown) == len(tokens) else min(parts_at, 6)
                _mark_difference(picture, x + at * TOKEN_WIDTH, line, max(x + 160, x + TOKEN_WIDTH * len(shown)))
            where = {"hit": f" #{part.block_id}", "miss": f" → #{part.block_id}"}.get(part.state, "")
            picture.text(x, line + 35, NOTES[part.state] + where, SMALL, bold=hit)
            if part.hash:
                picture.text(x, line + 50, f"{'→ ' if i and chained else ''}{part.hash[:6]}", SMALL, mono=True)
        x += width + 14
    return line + 66


def _mark_difference(picture: Drawing, x: float, y: float, right: float) -> None:
    """Where a prompt leaves the earlier ones: a thick frame around the token, and a word."""
    with picture.group("here it leaves the earlier texts", parts="here"):
        picture.rect(x + 1, y + 1, TOKEN_WIDTH - 2, SLOT_HEIGHT - 2, None, VERMILION, 3)
        picture.text(right, y + 35, "parts here", SMALL, None, "end", bold=True)


# The block size.


@dataclass
class Waste:
    """What one block size costs: of `slots` reserved, `wasted` hold no token; `reused` tokens came from the cache."""

    block_size: int
    blocks: int
    slots: int
    wasted: int
    table_entries: int
    reused: int
    cached: list[int]  # tokens that each sequence found


def measure_waste(lengths: Sequence[int], shared_prefix: int, block_sizes: Sequence[int]) -> list[Waste]:
    """Blocks that sequences of these lengths need, for each block size.

    Args:
        lengths: tokens of each sequence, prompt and answer.
        shared_prefix: that many first tokens are the same in all of them.
    """
    rows = []
    for block_size in block_sizes:
        prompts = [
            [*range(shared_prefix)][:length] + [10_000 * (n + 1) + k for k in range(max(0, length - shared_prefix))]
            for n, length in enumerate(lengths)
        ]
        explained = explain(prompts, block_size)
        blocks = len({block.block_id for prompt in explained for block in prompt.blocks})
        entries = sum(len(prompt.blocks) for prompt in explained)
        # A shared block is full, so only what is stored once counts on both sides.
        reused = sum(prompt.num_cached_tokens for prompt in explained)
        wasted = blocks * block_size - (sum(lengths) - reused)
        cached = [prompt.num_cached_tokens for prompt in explained]
        rows.append(Waste(block_size, blocks, blocks * block_size, wasted, entries, reused, cached))
    return rows


def describe_waste(row: Waste) -> str:
    """One block size in a sentence."""
    share = 100 * row.wasted / row.slots
    return (
        f"Blocks of {row.block_size}: {row.blocks} blocks with {row.slots} slots, {row.wasted} of them empty "
        f"({share:.1f} %); {row.table_entries} entries in block tables; {row.reused} tokens shared."
    )


STORED, SHARED, ENTRIES = "#56B4E9", "#009E73", BORDER  # one meaning each, in all pictures of the block size


def draw_last_blocks(rows: list[Waste], current: int, lengths: Sequence[int]) -> Drawing:
    """Each sequence in blocks of the current size: tokens that it shares, its own, and empty slots."""
    picture, row = Drawing(WIDTH, 24, "sequences in blocks"), rows[current]
    picture.text(4, 13, "Each sequence", bold=True)
    picture.text(120, 13, "blue: tokens; green: found in the cache, stored once; hatched: reserved and empty", SMALL)
    scale = 420 / max(-(-length // r.block_size) * r.block_size for length in lengths for r in rows)
    for n, (length, cached) in enumerate(zip(lengths, row.cached, strict=True)):
        y, reserved = picture.height, -(-length // row.block_size) * row.block_size
        title = f"{length} tokens in {reserved // row.block_size} blocks of {row.block_size}: {reserved - length} empty"
        with picture.group(title, seq=letters(n), reserved=reserved, cached=cached):
            picture.text(4, y + 13, f"{letters(n)}: {length} tokens", SMALL, mono=True)
            for start, end, fill in ((0, cached, SHARED), (cached, length, STORED), (length, reserved, None)):
                picture.rect(120 + start * scale, y, (end - start) * scale, 16, fill, hatch=fill is None)
            for k in range(1, reserved // row.block_size if row.block_size * scale >= 4 else 0):
                x = 120 + k * row.block_size * scale
                picture.line(x, y, x, y + 16, "#000", 0.5)
            picture.text(126 + reserved * scale, y + 13, f"{reserved - length} empty", SMALL)
        picture.height += 21
    return picture


def draw_waste(rows: list[Waste], current: int) -> Drawing:
    """All block sizes: the empty share of the slots, entries in block tables, and tokens shared, a chart each."""
    picture = Drawing(WIDTH, 150, "waste by block size")
    charts: list[tuple[str, list[float], float, Style, str]] = [
        ("slots empty, %", [100 * r.wasted / r.slots for r in rows], 100.0, FREE, "{:.0f}"),
        ("entries in block tables", [r.table_entries for r in rows], 0, Style(ENTRIES), "{}"),
        ("tokens shared", [r.reused for r in rows], 0, Style(SHARED), "{}"),
    ]
    pitch = 196 / len(rows)
    for k, (name, values, most, style, form) in enumerate(charts):
        left, top = 4 + k * 216, 34.0
        picture.text(left, 13, name, bold=True)
        for n, (r, value) in enumerate(zip(rows, values, strict=True)):
            height = 84 * value / (most or max(1, *values))
            x = left + n * pitch
            with picture.group(describe_waste(r), size=r.block_size, wasted=r.wasted, chart=k):
                picture.rect(x + 1, top + 84 - height, pitch - 4, height, style.fill, hatch=style.hatch)
                if n == current:
                    picture.rect(x - 1, top - 4, pitch, 90, None, VERMILION, 3)
                    picture.text(x + pitch / 2, top - 7, form.format(value), SMALL, anchor="middle", bold=True)
                if n == current or (n % 2 == 0 and abs(n - current) > 1):
                    text, bold = str(r.block_size), n == current
                    picture.text(x + pitch / 2 - 1, top + 100, text, SMALL, anchor="middle", bold=bold)
    return picture


# A hundred requests.


@dataclass
class SimulatedRequest:
    """One request of a simulation: whether its prompt starts with the common prefix, and what the cache saved."""

    shares: bool
    prompt_tokens: int
    cached_tokens: int


@dataclass
class Simulation:
    """A run of the real scheduler and block manager; tokens are scripted, so that no weights are needed."""

    requests: list[SimulatedRequest]
    prefill_tokens: int
    prefill_tokens_without_cache: int
    steps: int
    steps_without_cache: int
    preemptions: int
    preemptions_without_cache: int
    settings: dict[str, Any] = field(default_factory=dict)

    def hit_rate(self, n: int | None = None) -> float:
        """Share of the first `n` requests' prompt tokens that came from the cache, 0 to 1."""
        requests = self.requests[:n]
        total = sum(request.prompt_tokens for request in requests)
        return sum(request.cached_tokens for request in requests) / total if total else 0.0


DEFAULTS: dict[str, Any] = {
    "num_requests": 100, "share": 0.7, "prefix_tokens": 64, "own_tokens": 32, "output_tokens": 16,
    "num_blocks": 64, "block_size": 16, "seed": 0, "model": "qwen3-tiny",
}  # fmt: skip


def simulate(**settings: Any) -> Simulation:
    """Send requests, of which a share starts with the same prefix, through the real scheduler, with and without cache.

    One request arrives before each second step. Own parts and answers vary in length around the given means.

    Args:
        **settings: `num_requests`; `share`, 0 to 1, of those with the common prefix; `prefix_tokens`; `own_tokens` and
            `output_tokens` of each; `num_blocks` and `block_size` of the pool; `seed`; `model`. See `DEFAULTS`.

    Raises:
        TypeError: there is no such setting.
        ValueError: a prompt does not fit the pool.
    """
    if unknown := settings.keys() - DEFAULTS.keys():
        raise TypeError(f"no such setting: {', '.join(sorted(unknown))}; there are {', '.join(DEFAULTS)}")
    s = DEFAULTS | settings
    pool = {"kvcache_block_size": s["block_size"], "num_kvcache_blocks": s["num_blocks"]}
    pool |= {"max_model_len": s["num_blocks"] * s["block_size"], "max_num_seqs": 16, "max_num_batched_tokens": 512}
    config = Config(s["model"], device="cpu", **pool)
    requests, counts = _run_simulation(config, s)
    config.enable_prefix_caching = False
    _, without = _run_simulation(config, s)
    (tokens, steps, preempted), (tokens_2, steps_2, preempted_2) = counts, without
    return Simulation(requests, tokens, tokens_2, steps, steps_2, preempted, preempted_2, s)


def _run_simulation(config: Config, s: dict[str, Any]) -> tuple[list[SimulatedRequest], tuple[int, int, int]]:
    """The requests, and how many tokens were prefilled in how many steps with how many preemptions."""
    rng = random.Random(s["seed"])
    prefix, own = [rng.randrange(1000) for _ in range(s["prefix_tokens"])], s["own_tokens"]
    sharing = [n < round(s["share"] * s["num_requests"]) for n in range(s["num_requests"])]
    rng.shuffle(sharing)
    scheduler, seqs, steps = Scheduler(config), [], 0
    for seq_id, shares in enumerate(sharing):
        rest = [rng.randrange(1000, 2000) for _ in range(own + rng.randint(-own // 2, own // 2))]
        start = prefix if shares else [rng.randrange(1000, 2000) for _ in range(s["prefix_tokens"])]
        most = max(1, rng.randint(s["output_tokens"] // 2, s["output_tokens"] * 3 // 2))
        params = SamplingParams(max_tokens=most, ignore_eos=True)
        seqs.append(EngineSequence(start + (rest or [seq_id]), params, config.kvcache_block_size, seq_id))
    lengths, token_rng, pending = [len(seq.token_ids) for seq in seqs], random.Random(s["seed"] + 1), list(seqs)
    while pending or not scheduler.is_finished():
        if pending and (steps % 2 == 0 or scheduler.is_finished()):
            scheduler.add(pending.pop(0))
        run_step(scheduler, None, token_rng)
        steps += 1
    cached = [seq.num_prefix_hit_tokens or 0 for seq in seqs]
    requests = [SimulatedRequest(*request) for request in zip(sharing, lengths, cached, strict=True)]
    return requests, (scheduler.num_prefill_tokens, steps, scheduler.num_preemptions)


def describe_simulation(simulation: Simulation, n: int) -> str:
    """The first `n` requests, and the whole, in sentences."""
    requests = simulation.requests[:n]
    hits = sum(request.cached_tokens > 0 for request in requests)
    text = f"After {n} of {len(simulation.requests)} requests: {sum(r.shares for r in requests)} start with the common "
    text += f"prefix, {hits} found something in the cache, {100 * simulation.hit_rate(n):.0f} % of all prompt tokens. "
    saved = 1 - simulation.prefill_tokens / simulation.prefill_tokens_without_cache
    return text + (
        f"All requests: {simulation.prefill_tokens} prefill tokens instead of "
        f"{simulation.prefill_tokens_without_cache} ({100 * saved:.0f} % saved), {simulation.steps} steps instead of "
        f"{simulation.steps_without_cache}."
    )


def draw_requests(simulation: Simulation, n: int) -> tuple[Drawing, Drawing]:
    """A cell a request, filled by the share of its prompt that was cached; and the hit rate as it develops."""
    cells = Drawing(WIDTH, 0, f"prefix cache after {n} requests")
    cells.text(4, 14, "Requests in order of arrival", bold=True)
    cells.text(210, 14, "P: starts with the common prefix; filled: share that was cached", SMALL)
    for k, request in enumerate(simulation.requests):
        x, y = 4 + k % 20 * 31.3, 20 + k // 20 * 42
        title = f"request {k + 1}: {request.cached_tokens} of {request.prompt_tokens} prompt tokens from the cache"
        with cells.group(title if k < n else "", request=k, shares=int(request.shares), cached=request.cached_tokens):
            cells.rect(x, y + 14, 29, 24, dashed=k >= n)
            if k < n:
                height = 24 * request.cached_tokens / request.prompt_tokens
                cells.rect(x, y + 38 - height, 29, height, STORED)
                cells.text(x + 14, y + 12, "P" if request.shares else "", SMALL, anchor="middle", bold=True)
                if request.cached_tokens:
                    ink = "#000" if height >= 12 else None
                    cells.text(x + 14, y + 35, str(request.cached_tokens), SMALL, ink, "middle", mono=True)
    cells.height = 24.0 + math.ceil(len(simulation.requests) / 20) * 42
    rate = Drawing(WIDTH, 130, "hit rate")
    rate.text(4, 14, "Hit rate so far", bold=True)
    rate.text(130, 14, "share of prompt tokens from the cache; dashed: share of requests with the prefix", SMALL)
    left, width, height, top = 44.0, 580.0, 90.0, 28.0
    for percent in (0, 50, 100):
        level = top + height * (1 - percent / 100)
        rate.line(left, level, left + width, level, BORDER, 0.7)
        rate.text(left - 6, level + 4, f"{percent}%", SMALL, anchor="end", mono=True)
    level = top + height * (1 - simulation.settings.get("share", 0.0))
    rate.line(left, level, left + width, level, VERMILION, 1.5, dashed=True)
    xs = [left + width * k / len(simulation.requests) for k in range(n + 1)]
    ys = [top + height * (1 - simulation.hit_rate(k)) for k in range(n + 1)]
    for (x1, y1), (x2, y2) in pairwise(zip(xs, ys, strict=True)):
        rate.line(x1, y1, x2, y2, STORED, 2.5)
    return cells, rate


def simulation_table(simulation: Simulation) -> str:
    """With and without cache, as an HTML table."""
    rows = (
        ("prefill tokens computed", simulation.prefill_tokens, simulation.prefill_tokens_without_cache),
        ("steps", simulation.steps, simulation.steps_without_cache),
        ("preemptions, which compute tokens again", simulation.preemptions, simulation.preemptions_without_cache),
    )
    return table_html(("", "with prefix cache", "without"), rows)
