"""Attention with our own kernels in Triton: nothing has to be compiled beforehand."""

from torch import Tensor

from ..utils.context import Context
from .attention import Attention
from .kernels.paged_attention import paged_decode, paged_prefill
from .kernels.store_kvcache import store_kvcache_triton


class TritonAttention(Attention):
    """See `Attention`."""

    def store(self, k: Tensor, v: Tensor, slot_mapping: Tensor) -> None:
        """Both in one launch."""
        store_kvcache_triton(k, v, self.k_cache, self.v_cache, slot_mapping)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, context: Context) -> Tensor:
        """All sequences in one launch, which reads the pages itself."""
        if not context.is_prefill:
            return paged_decode(q, self.k_cache, self.v_cache, context, self.scale)
        if context.block_tables is not None:
            k, v = self.k_cache, self.v_cache
        return paged_prefill(q, k, v, context, self.scale)
