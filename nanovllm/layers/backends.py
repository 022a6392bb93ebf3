"""The attention layer of each backend."""

from .attention import Attention


def get_attention_class(backend: str) -> type[Attention]:
    """The layer of "sdpa", "triton" or "flash_attn"; `Config` has checked that it works here."""
    if backend == "triton":  # imported only now: a laptop may have neither of the two packages
        from .triton_attention import TritonAttention

        return TritonAttention
    if backend == "flash_attn":
        from .flash_attention import FlashAttention

        return FlashAttention
    return Attention
