"""What a sampling rule would write: how many choices it leaves in stories, and how sure sums and spellings are.

The open exercise of chapter 14. Nothing is drawn: along texts that the bundled model has written, its logits are given
to the rule, and what comes back is the distribution of the next token. So there is no luck in these numbers.
"""

import json
from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from nanovllm import LLM, SamplingParams
from nanovllm.layers.sampler import apply_temperature, apply_top_k_top_p

# "stories": 16 pairs of a beginning and what qwen3-tiny made of it (temperature 0.7, seeds 0 to 15). "tasks": 50
# questions, forty sums and ten spellings, with its greedy answers, all of them right.
TEXTS: dict[str, list[tuple[str, str]]] = json.loads(
    (Path(__file__).parent / "story_texts.json").read_text(encoding="utf-8")
)
OPTIONS: dict[str, Any] = {"device": "cpu", "kvcache_block_size": 16, "num_kvcache_blocks": 512, "max_model_len": 256}
OPTIONS |= {"max_num_seqs": 64, "max_num_batched_tokens": 8192, "enable_prefix_caching": False}

CHOICES, RIGHT, LIKELIHOOD = 1.75, 0.993, -0.65  # what is asked for

Rule = Callable[[Tensor, Sequence[Sequence[int]]], Tensor]


class Places(NamedTuple):
    """The places in some texts where a token is chosen.

    Args:
        logits: [places, vocab_size] of the model.
        texts: at each place, the tokens of the answer so far.
        token_ids: [places] int64, what was written there.
        text_of: at each place, the number of the text.
    """

    logits: Tensor
    texts: list[list[int]]
    token_ids: Tensor
    text_of: Tensor


class Judged(NamedTuple):
    """What a rule does.

    Args:
        choices: in stories: among how many equally likely tokens it chooses, at an average place.
        likelihood: in stories: log-probability of what it chooses, as the model sees it, at an average place.
        right: of the tasks, the share that it would write right from the first token to the last.
    """

    choices: float
    likelihood: float
    right: float


@lru_cache(maxsize=2)
def places(kind: str) -> Places:
    """All places of the "stories" or of the "tasks"; the model reads each text once."""
    seen: list[Tensor] = []

    def look(hidden: Tensor) -> Tensor:
        seen.append(hidden)
        return compute_logits(hidden)

    with LLM("qwen3-tiny", **OPTIONS) as llm:
        model: Any = llm.llm_engine.model_runner.model
        compute_logits, model.compute_logits = model.compute_logits, look
        starts, ends = list[list[int]](), list[list[int]]()
        for question, answer in TEXTS[kind]:
            prompt = [{"role": "user", "content": question}]
            starts.append(llm.apply_chat_template(prompt) if kind == "tasks" else llm.tokenizer.encode(question))
            ends.append(llm.tokenizer.encode(answer + "<|im_end|>" * (kind == "tasks"), add_special_tokens=False))
        params = SamplingParams(max_tokens=1)
        prompts: list[Any] = [[*start, *end] for start, end in zip(starts, ends, strict=True)]
        llm.generate(prompts, params, use_tqdm=False)
        kept, first = list[int](), 0
        for start, end in zip(starts, ends, strict=True):
            kept += range(first + len(start) - 1, first + len(start) + len(end) - 1)
            first += len(start) + len(end)
        logits = F.linear(torch.cat(seen)[kept], model.lm_head.weight).float()
    texts = [end[:i] for end in ends for i in range(len(end))]
    text_of = [number for number, end in enumerate(ends) for _ in end]
    return Places(logits, texts, torch.tensor([i for end in ends for i in end]), torch.tensor(text_of))


def logits_after(text: str) -> tuple[Tensor, Any]:
    """Logits of the token after a text, [vocab_size], and the tokenizer of the bundled model."""
    seen: list[Tensor] = []
    with LLM("qwen3-tiny", **OPTIONS) as llm:
        model: Any = llm.llm_engine.model_runner.model
        compute_logits = model.compute_logits

        def look(hidden: Tensor) -> Tensor:
            seen.append(compute_logits(hidden).float())
            return seen[-1]

        model.compute_logits = look
        llm.generate(text, SamplingParams(max_tokens=1), use_tqdm=False)
        return seen[0][0], llm.tokenizer


def plain(logits: Tensor, texts: Sequence[Sequence[int]], temperature: float = 0.8, top_p: float = 0.95) -> Tensor:
    """What many people ask for: temperature 0.8 and top-p 0.95."""
    scaled = apply_temperature(logits, torch.full((len(logits),), temperature))
    return apply_top_k_top_p(scaled, None, torch.full((len(logits),), top_p)) if top_p < 1 else scaled


def judge(rule: Rule) -> Judged:
    """How many choices a rule leaves in stories, how likely these are, and how often the tasks come out right."""
    here = places("stories")
    chances = rule(here.logits.clone(), [list(text) for text in here.texts]).double().softmax(-1)
    entropy = -(chances * chances.clamp_min(1e-300).log()).sum(-1)
    likelihood = (chances * here.logits.double().log_softmax(-1)).sum(-1)
    here = places("tasks")
    wanted = rule(here.logits.clone(), [list(text) for text in here.texts]).double().log_softmax(-1)
    sure = wanted.gather(1, here.token_ids.unsqueeze(1)).flatten()
    right = torch.zeros(len(TEXTS["tasks"]), dtype=torch.float64).index_add_(0, here.text_of, sure).exp()
    return Judged(float(entropy.mean().exp()), float(likelihood.mean()), float(right.mean()))
