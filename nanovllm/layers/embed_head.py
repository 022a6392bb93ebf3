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
        """Copy this rank's rows; rows beyond the vocabulary are zero."""
        if loaded_weight.shape != (self.num_embeddings, param.shape[1]):
            expected = [self.num_embeddings, param.shape[1]]
            raise ValueError(f"expected shape {expected}, got {list(loaded_weight.shape)}")
        rows = loaded_weight[self.vocab_start : self.vocab_end]
        param.data[: len(rows)].copy_(rows)
        param.data[len(rows) :].zero_()

    def forward(self, token_ids: Tensor) -> Tensor:
        """[num_tokens] -> [num_tokens, embedding_dim], complete on every rank.

        A rank looks up the tokens it holds and contributes zeros for the others.
        """
        if self.group.size == 1:
            return F.embedding(token_ids, self.weight)
        is_mine = (token_ids >= self.vocab_start) & (token_ids < self.vocab_end)
        local_ids = torch.where(is_mine, token_ids - self.vocab_start, 0)
        embeddings = F.embedding(local_ids, self.weight) * is_mine.unsqueeze(-1)
        return self.group.all_reduce(embeddings)


class ParallelLMHead(VocabParallelEmbedding):
    """Logits over the vocabulary, for the last token of each sequence only, to sample from."""

    def forward(  # type: ignore[override]
        self, hidden_states: Tensor
    ) -> Tensor | None:
        """[num_tokens, hidden_size] -> [num_seqs, vocab_size] on rank 0, None on the others."""
        context = get_context()
        if context.cu_seqlens_q is not None:
            hidden_states = hidden_states[context.cu_seqlens_q[1:] - 1]
        logits = self.group.gather(F.linear(hidden_states, self.weight))
        return None if logits is None else logits[:, : self.num_embeddings]
