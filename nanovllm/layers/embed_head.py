"""Token embedding and language-model head, split over tensor-parallel ranks by vocabulary."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..utils.context import get_context
from ..utils.parallel_state import get_tensor_parallel_group


class VocabParallelEmbedding(nn.Module):
    """Rank r holds the r-th part of the vocabulary, which is padded to divide evenly.

    Args:
        num_embeddings: size of the vocabulary.
        embedding_dim: length of an embedding.
    """

    def __init__(self, num_embeddings: int, embedding_dim: int) -> None:
        super().__init__()
        self.group = get_tensor_parallel_group()
        self.num_embeddings = num_embeddings
        self.num_embeddings_per_rank = -(-num_embeddings // self.group.size)
        self.vocab_start = self.num_embeddings_per_rank * self.group.rank
        self.vocab_end = self.vocab_start + self.num_embeddings_per_rank
        weight = torch.empty(self.num_embeddings_per_rank, embedding_dim)
        self.weight = nn.Parameter(weight, requires_grad=False)
        self.weight.weight_loader = self.weight_loader  # type: ignore[attr-defined]

    def weight_loader(self, param: nn.Parameter, loaded_weight: Tensor) -> None:
        """Copy this rank's rows of the full table into `param`, which stays where it is in memory.

        Row i of `param` is that of token `vocab_start` + i. It has `num_embeddings_per_rank` rows
        on every rank. Where the vocabulary ends before `vocab_end`, fewer of them are left to copy,
        perhaps none; the others are zero, whatever was there before.

        Args:
            param: this rank's part. Other layers may hold the same memory; its dtype stays.
            loaded_weight: [num_embeddings, embedding_dim], as the checkpoint has it; it stays.

        Raises:
            ValueError: `loaded_weight` has another shape, with more rows, say, or wider ones.
        """
        if loaded_weight.shape != (self.num_embeddings, param.shape[1]):
            expected = [self.num_embeddings, param.shape[1]]
            raise ValueError(f"expected shape {expected}, got {list(loaded_weight.shape)}")
        rows = loaded_weight[self.vocab_start : self.vocab_end]
        param.data[: len(rows)].copy_(rows)
        param.data[len(rows) :].zero_()

    def forward(self, token_ids: Tensor) -> Tensor:
        """The row of each token, on every rank.

        This rank holds those of the tokens from `vocab_start` up to, but without, `vocab_end`: row
        i of `self.weight` is that of token `vocab_start` + i. For a token of another rank it has
        zeros to give. All ranks get the same `token_ids`, and all of them call
        `self.group.all_reduce`, once: the sum over the ranks is the row itself.

        `self.group.size` may be 1. Then there is nothing to add up, and an all-reduce does nothing.

        Args:
            token_ids: [num_tokens] int64, each from 0 to `num_embeddings` - 1; it stays as it is.

        Returns:
            [num_tokens, embedding_dim], in the dtype of `self.weight`; a tensor of its own.
        """
        if self.group.size == 1:
            return F.embedding(token_ids, self.weight)
        is_mine = (token_ids >= self.vocab_start) & (token_ids < self.vocab_end)
        local_ids = torch.where(is_mine, token_ids - self.vocab_start, 0)
        embeddings = F.embedding(local_ids, self.weight) * is_mine.unsqueeze(-1)
        return self.group.all_reduce(embeddings)


class ParallelLMHead(VocabParallelEmbedding):
    """Logits over the vocabulary, for the last token of each sequence only, to sample from."""

    def forward(self, hidden_states: Tensor) -> Tensor | None:  # type: ignore[override]
        """The logits of the last token of each sequence, to sample the next one from.

        In a step that has `cu_seqlens_q` (of `get_context()`), sequence i has the rows from
        `cu_seqlens_q[i]` up to, but without, `cu_seqlens_q[i + 1]`. In one that has none (None),
        every row is a sequence with one token. Rows that are not the last of a sequence are not
        multiplied with anything.

        A logit is the dot product of such a row with a row of `self.weight`: each rank has those
        of its own tokens. `self.group.gather(x)`, which all ranks call, once, puts the parts of all
        ranks side by side on rank 0, and returns None on the others. Every part is
        `num_embeddings_per_rank` wide, so they may be more than the vocabulary has tokens.

        Returns:
            [num_seqs, num_embeddings] on rank 0, None on the others.
        """
        context = get_context()
        if context.cu_seqlens_q is not None:
            hidden_states = hidden_states[context.cu_seqlens_q[1:] - 1]
        logits = self.group.gather(F.linear(hidden_states, self.weight))
        return None if logits is None else logits[:, : self.num_embeddings]
