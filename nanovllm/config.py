"""Everything an engine is told at its start, checked once.

Sources of the names: vLLM's engine arguments (vllm/engine/arg_utils.py) and Hugging Face's
`config.json`.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from .devices import (
    ATTENTION_BACKENDS,
    DEVICES,
    resolve_attention_backend,
    resolve_device,
    resolve_dtype,
)
from .model_files import load_eos_token_ids, load_hf_config, resolve_model
from .validation import check_bool, check_choice, check_float, check_int

# The least that these options may be.
INTEGERS = {"max_num_batched_tokens": 1, "max_num_seqs": 1, "max_model_len": 1, "seed": 0}
INTEGERS |= {"kvcache_block_size": 1, "tensor_parallel_size": 1, "num_kvcache_blocks": -1}


@dataclass(slots=True)
class Config:
    """Options of one engine. The last three fields are filled in, not given.

    Args:
        model: a directory, a hub id such as "Qwen/Qwen3-0.6B", or the name of a bundled model
            ("qwen3-tiny").
        max_num_batched_tokens: most tokens computed in one step; longer prompts are cut into
            chunks.
        max_num_seqs: most sequences running at once.
        max_model_len: most tokens of one sequence, prompt and answer; cut to the model's own limit.
        gpu_memory_utilization: share of the GPU's memory the engine may use, in (0, 1].
        tensor_parallel_size: number of ranks the model is split over, 1 to 8.
        enforce_eager: never use CUDA graphs (they are not used on a CPU anyway).
        kvcache_block_size: tokens a KV-cache block holds.
        num_kvcache_blocks: size of the KV-cache pool in blocks; -1 sizes it from the free memory.
        enable_prefix_caching: share the blocks of equal prefixes.
        device: "auto" takes CUDA if there is a GPU, else the CPU.
        dtype: of weights and KV cache, a torch.dtype or its name; "auto" is float32 on a CPU, else
            the model's own, or float16 where the GPU lacks bfloat16.
        attention_backend: "sdpa" (plain PyTorch), "triton", "flash_attn", or "auto" for the fastest
            that works.
        load_format: "dummy" fills the weights with random numbers instead of reading them.
        seed: from which requests without a seed of their own draw theirs.
        disabled_optimizations: names of faster paths (`nanovllm.levers.LEVERS`) not to take; "all"
            for the plain engine.
        quantization: "int8" keeps the weights of linear layers as bytes: less memory, slower
            products, and slightly other results. None keeps them as they are.

    Raises:
        TypeError, ValueError: an argument has the wrong type, is out of range, or does not fit the
            model.
    """

    model: str
    max_num_batched_tokens: int = 16384
    max_num_seqs: int = 512
    max_model_len: int = 4096
    gpu_memory_utilization: float = 0.9
    tensor_parallel_size: int = 1
    enforce_eager: bool = False
    kvcache_block_size: int = 256
    num_kvcache_blocks: int = -1
    enable_prefix_caching: bool = True
    device: str = "auto"
    dtype: Any = "auto"
    attention_backend: str = "auto"
    load_format: str = "auto"
    seed: int = 0
    disabled_optimizations: str | tuple[str, ...] = ()
    quantization: str | None = None
    model_path: Path = field(init=False)
    hf_config: Any = field(init=False)
    eos: tuple[int, ...] = field(init=False)

    def __post_init__(self) -> None:
        self._check_fields()
        self.model_path = resolve_model(self.model)
        self.hf_config = load_hf_config(self.model_path)
        self.eos = load_eos_token_ids(self.model_path, self.hf_config)
        self.max_model_len = min(self.max_model_len, self.hf_config.max_position_embeddings)
        self.device = resolve_device(self.device)
        self._check_tensor_parallel_size()
        self.dtype = resolve_dtype(self.dtype, self.device, self.hf_config.stored_dtype)
        self.attention_backend = resolve_attention_backend(self)

    @property
    def num_kvcache_tokens(self) -> int:
        """Tokens that the whole KV cache holds."""
        return self.num_kvcache_blocks * self.kvcache_block_size

    def _check_fields(self) -> None:
        for name, minimum in INTEGERS.items():
            setattr(self, name, check_int(name, getattr(self, name), minimum))
        if self.num_kvcache_blocks == 0:
            raise ValueError("num_kvcache_blocks must be at least 1, or -1 to size the pool, got 0")
        share = check_float("gpu_memory_utilization", self.gpu_memory_utilization, maximum=1.0)
        if share == 0.0:
            raise ValueError("gpu_memory_utilization must be in (0, 1], got 0")
        self.gpu_memory_utilization = share
        check_bool("enforce_eager", self.enforce_eager)
        check_bool("enable_prefix_caching", self.enable_prefix_caching)
        check_choice("device", self.device, DEVICES)
        check_choice("attention_backend", self.attention_backend, ATTENTION_BACKENDS)
        check_choice("load_format", self.load_format, ("auto", "dummy"))
        names = self.disabled_optimizations
        is_list = isinstance(names, list | tuple) and all(isinstance(name, str) for name in names)
        if not is_list and not (isinstance(names, str) and names == "all"):
            raise TypeError(f'disabled_optimizations must be "all" or a list, got {names!r}')

    def _check_tensor_parallel_size(self) -> None:
        size, config = self.tensor_parallel_size, self.hf_config
        name = f"tensor_parallel_size={size}"
        heads, kv_heads = config.num_attention_heads, config.num_key_value_heads
        problem = None
        if size > 8:
            problem = f"{name} is too large; it must be at most 8"
        elif heads % kv_heads:
            problem = f"num_key_value_heads={kv_heads} does not divide num_attention_heads={heads}"
        elif heads % size:
            problem = f"{name} does not divide the {heads} attention heads"
        elif kv_heads % size and size % kv_heads:
            problem = f"{name} neither divides the {kv_heads} KV heads nor is a multiple of them"
        elif config.intermediate_size % size:
            problem = f"{name} does not divide the intermediate size {config.intermediate_size}"
        elif self.device == "cuda" and size > torch.cuda.device_count():
            problem = f"{name} needs as many GPUs, and there are {torch.cuda.device_count()}"
        if problem:
            raise ValueError(problem)
