"""What this machine can do: which device, which dtype, which attention kernels."""

import importlib.util
import logging
import os
from typing import Any

import torch

from .tiles import head_problem, shared_memory

DEVICES = ("auto", "cpu", "cuda", "mps")
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
ATTENTION_BACKENDS = ("auto", "sdpa", "triton", "flash_attn")
AUTO_BACKENDS = ("triton", "flash_attn", "sdpa")  # fastest first
# Compute capabilities of NVIDIA's first GPUs that can do it: T4 (and RTX 20) 7.5, A100 8.0.
HAS_TRITON = (7, 5)
HAS_BFLOAT16 = HAS_FLASH_ATTENTION = (8, 0)

logger = logging.getLogger(__name__)


def resolve_device(device: str) -> str:
    """The device to run on. Raises `ValueError` if it was asked for and is not there."""
    if device == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cuda" and not torch.cuda.is_available():
        raise ValueError("device='cuda': torch finds no CUDA GPU; use 'auto' or 'cpu'")
    if device == "mps" and not torch.backends.mps.is_available():
        raise ValueError("device='mps': torch finds no Apple GPU; use 'auto' or 'cpu'")
    return device


def resolve_dtype(dtype: Any, device: str, model_dtype: str | None) -> torch.dtype:
    """The torch dtype of weights and KV cache.

    Args:
        dtype: a torch.dtype, its name, or "auto": float32 on a CPU, else the model's own, and
            float16 in place of bfloat16 on a GPU that lacks it.
        model_dtype: what config.json says; None if it does not.

    Raises:
        ValueError: a dtype that is not supported, or not by this GPU.
    """
    lacks_bfloat16 = device == "cuda" and torch.cuda.get_device_capability() < HAS_BFLOAT16
    if isinstance(dtype, str) and dtype == "auto":
        dtype = "float32" if device == "cpu" else model_dtype or "bfloat16"
        if lacks_bfloat16 and dtype == "bfloat16":
            dtype = "float16"
    if isinstance(dtype, str):
        dtype = DTYPES.get(dtype, dtype)
    if not isinstance(dtype, torch.dtype) or dtype not in DTYPES.values():
        raise ValueError(f"dtype (auto: config.json's) must be of {[*DTYPES]}, got {dtype!r}")
    if lacks_bfloat16 and dtype == torch.bfloat16:
        problem = lacks_capability(HAS_BFLOAT16)
        raise ValueError(f"dtype=bfloat16 cannot be used: {problem}; use dtype='float16'")
    return dtype


def resolve_attention_backend(config: Any) -> str:
    """The attention backend that was asked for, or the fastest that works here.

    Args:
        config: the engine's `Config`, with device and dtype resolved.

    Raises:
        ValueError: the backend asked for cannot run here or with these blocks; says what can.
    """
    backend = config.attention_backend
    if backend == "auto":
        # Triton's interpreter, on a CPU, is for looking at kernels and not for speed.
        names = AUTO_BACKENDS if config.device == "cuda" else ("sdpa",)
        backend = next(name for name in names if backend_problem(config, name) is None)
        logger.info("attention_backend='auto' chose %r on %s", backend, config.device)
    elif problem := backend_problem(config, backend):
        raise ValueError(f"attention_backend={backend!r} cannot be used: {problem}")
    return backend


def backend_problem(config: Any, backend: str) -> str | None:
    """Why a backend cannot be used, or None."""
    if backend == "sdpa":
        return None
    device, dtype = config.device, config.dtype
    if device != "cuda" and not (backend == "triton" and device == "cpu" and is_interpreted()):
        return f"it needs a CUDA GPU, and the device is {device!r}; use 'sdpa'"
    if importlib.util.find_spec(backend) is None:
        return f"the package {backend} is not installed"
    needed = HAS_TRITON if backend == "triton" else HAS_FLASH_ATTENTION
    if device == "cuda" and torch.cuda.get_device_capability() < needed:
        return lacks_capability(needed)
    if backend == "triton":
        return head_problem(config.hf_config, dtype, shared_memory(torch.device(device)))
    if dtype == torch.float32:
        return "it computes in bfloat16 or float16, and dtype is float32"
    head_dim = getattr(config.hf_config, "head_dim", None) or 0
    if head_dim > 256 or head_dim % 8:
        return f"it takes a head_dim of multiples of 8 up to 256, and the model's is {head_dim}"
    if config.kvcache_block_size % 256:
        return f"it takes a kvcache_block_size of multiples of 256, got {config.kvcache_block_size}"
    return None


def lacks_capability(needed: tuple[int, int]) -> str:
    """A sentence about a GPU that is too old."""
    needs, has = (".".join(map(str, c)) for c in (needed, torch.cuda.get_device_capability()))
    return f"it needs a GPU of compute capability {needs} or more, and this one has {has}"


def is_interpreted() -> bool:
    """Whether Triton's kernels run on the CPU, to be looked at."""
    return os.environ.get("TRITON_INTERPRET") == "1"
