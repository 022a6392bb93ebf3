"""What a step gives: a token for each sequence, and log-probabilities where they were asked for."""

import torch
from torch import Tensor

from ..layers.sampler import compute_logprobs
from .sequence import Sequence

# A token and the log-probabilities for each sequence of a step, None where there are none.
StepResult = tuple[list[int | None], list[dict[int, float] | None]]
# How many log-probabilities each sequence asked for, then values and token ids,
# [num_seqs, most asked for + 1] each: the most likely tokens, and behind them the chosen one.
Logprobs = tuple[list[int | None], Tensor, Tensor]


class StepOutput:
    """`token_ids` on the device, and, after `wait`, everything as Python's numbers.

    Args:
        seqs: of the step; one that was cut stands last and gets no token.
        token_ids: [num_seqs that were not cut] int64.
        logprobs: what `top_logprobs` returned.
    """

    def __init__(self, seqs: list[Sequence], token_ids: Tensor, logprobs: Logprobs | None) -> None:
        self.seqs, self.token_ids, self.logprobs = seqs, token_ids, logprobs

    def wait(self) -> StepResult:
        """A token and the log-probabilities for each sequence, None where there are none."""
        cut = [None] * (len(self.seqs) - len(self.token_ids))
        token_ids = self.token_ids.tolist()
        if self.logprobs is None:
            return token_ids + cut, [None] * len(self.seqs)
        asked, values, ids = self.logprobs
        rows: list[dict[int, float] | None] = []
        for num, row_values, row_ids in zip(asked, values.tolist(), ids.tolist(), strict=True):
            chosen = {row_ids[-1]: row_values[-1]}
            most_likely = dict(zip(row_ids[:num], row_values[:num], strict=True))
            rows.append(None if num is None else most_likely | chosen)
        return token_ids + cut, rows + cut


def top_logprobs(logits: Tensor | None, token_ids: Tensor, seqs: list[Sequence]) -> Logprobs | None:
    """The most likely tokens of each row, and the chosen one; None if nobody has asked."""
    asked = [seq.sampling_params.logprobs for seq in seqs]
    if logits is None or all(num is None for num in asked):
        return None
    table = compute_logprobs(logits)
    values, ids = table.topk(min(max(num or 0 for num in asked), table.shape[-1]), dim=-1)
    chosen = token_ids.unsqueeze(-1)
    values = torch.cat((values, table.gather(-1, chosen)), dim=-1)
    return asked, values, torch.cat((ids, chosen), dim=-1)
