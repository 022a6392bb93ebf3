"""Attention with the flash-attn package (Dao, 2023): its kernels read the pages themselves."""

from flash_attn import flash_attn_varlen_func, flash_attn_with_kvcache
from torch import Tensor

from ..utils.context import Context
from .attention import Attention
from .kernels.store_kvcache import store_kvcache_triton


class FlashAttention(Attention):
    """See `Attention`."""

    def store(self, k: Tensor, v: Tensor, slot_mapping: Tensor) -> None:
        """Both in one launch."""
        store_kvcache_triton(k, v, self.k_cache, self.v_cache, slot_mapping)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, context: Context) -> Tensor:
        """All sequences in one launch, which reads the pages itself."""
        options = {"softmax_scale": self.scale, "causal": True, "block_table": context.block_tables}
        if not context.is_prefill:
            output = flash_attn_with_kvcache(
                q.unsqueeze(1),
                self.k_cache,
                self.v_cache,
                cache_seqlens=context.context_lens,
                **options,
            )
            return output.squeeze(1)
        if context.block_tables is not None:
            k, v = self.k_cache, self.v_cache
        lengths = (
            context.cu_seqlens_q,
            context.cu_seqlens_k,
            context.max_seqlen_q,
            context.max_seqlen_k,
        )
        return flash_attn_varlen_func(q, k, v, *lengths, **options)
