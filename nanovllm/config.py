"""Everything an engine is told at its start, checked once.

Sources of the names: vLLM's engine arguments (vllm/engine/arg_utils.py) and Hugging Face's `config.json`.
"""

import importlib.util
import json
import logging
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from .validation import check_bool, check_choice, check_float, check_int

logger = logging.getLogger(__name__)

BUNDLED_MODELS = Path(__file__).parent / "assets"
DEVICES = ("auto", "cpu", "cuda", "mps")
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
ATTENTION_BACKENDS = ("auto", "sdpa", "triton", "flash_attn")
# What "auto" tries, in this order. On an H200 (bfloat16, 16 query and 8 KV heads of 128) the Triton kernels decode 256
# sequences of 1100 tokens in 0.26 ms a layer and flash-attn 2.8.3 in 0.31 ms; in prefill both take the same time.
AUTO_BACKENDS = ("triton", "flash_attn", "sdpa")
# The faster paths, by name; the plain path beside each computes the same. All but the last are for a GPU.
KERNELS = ("fused_norm", "fused_qkv", "fused_activation", "folded_norm", "fused_sampler", "small_batch")  # need triton
OPTIMIZATIONS = ("cuda_graph", "step_ahead", "overlapped_launch", *KERNELS, "packed_weights")
# Of the model; `config.json` says them, and they are at least 1.
SIZES = (
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "max_position_embeddings",
)
HUB_FILES = ["*.json", "*.safetensors", "*.txt", "*.jinja"]


@dataclass(slots=True)
class Config:
    """Options of one engine. The fields after `seed` are filled in, not given.

    Args:
        model: a directory, a hub id such as "Qwen/Qwen3-0.6B", or the name of a bundled model ("qwen3-tiny").
        max_num_batched_tokens: most tokens computed in one step; longer prompts are cut into chunks.
        max_num_seqs: most sequences running at once.
        max_model_len: most tokens of one sequence, prompt and answer; cut to the model's own limit.
        gpu_memory_utilization: share of the GPU's memory the engine may use, in (0, 1].
        tensor_parallel_size: number of ranks the model is split over, 1 to 8.
        enforce_eager: never use CUDA graphs (they are not used on a CPU anyway).
        kvcache_block_size: tokens a KV-cache block holds.
        num_kvcache_blocks: size of the KV-cache pool in blocks; -1 sizes it from the free memory.
        enable_prefix_caching: share the blocks of equal prefixes.
        device: "auto" takes CUDA if there is a GPU, else the CPU.
        dtype: of weights and KV cache, a torch.dtype or its name; "auto" is float32 on a CPU, else the model's own.
        attention_backend: "sdpa", "triton", "flash_attn", or "auto" for the fastest that works.
        load_format: "dummy" fills the weights with random numbers instead of reading them.
        seed: from which requests without a seed of their own draw theirs.
        disabled_optimizations: names from `OPTIMIZATIONS` of faster paths not to take.

    Raises:
        TypeError, ValueError: an argument has the wrong type, is out of range, or does not fit the model.
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
    disabled_optimizations: tuple[str, ...] = ()
    model_path: Path = field(init=False)
    hf_config: Any = field(init=False)
    eos: tuple[int, ...] = field(init=False)

    def __post_init__(self) -> None:
        self._check_fields()
        self.model_path = resolve_model(self.model)
        self.hf_config = load_hf_config(self.model_path)
        self.eos = load_eos_token_ids(self.model_path, self.hf_config)
        self.max_model_len = min(self.max_model_len, self.hf_config.max_position_embeddings)
        self._check_tensor_parallel_size()
        self.device = resolve_device(self.device)
        if self.device == "cuda" and self.tensor_parallel_size > torch.cuda.device_count():
            raise ValueError(
                f"tensor_parallel_size={self.tensor_parallel_size} needs as many GPUs, and this machine has "
                f"{torch.cuda.device_count()}"
            )
        self.dtype = resolve_dtype(self.dtype, self.device, self.model_path)
        self.attention_backend = resolve_attention_backend(self)

    def _check_fields(self) -> None:
        for name in ("max_num_batched_tokens", "max_num_seqs", "max_model_len", "kvcache_block_size"):
            setattr(self, name, check_int(name, getattr(self, name), minimum=1))
        self.num_kvcache_blocks = check_int("num_kvcache_blocks", self.num_kvcache_blocks, minimum=-1)
        if self.num_kvcache_blocks == 0:
            raise ValueError("num_kvcache_blocks must be at least 1, or -1 to size the pool, got 0")
        utilization = check_float("gpu_memory_utilization", self.gpu_memory_utilization, maximum=1.0)
        self.gpu_memory_utilization = utilization
        if utilization == 0.0:
            raise ValueError("gpu_memory_utilization must be in (0, 1], got 0")
        check_bool("enforce_eager", self.enforce_eager)
        check_bool("enable_prefix_caching", self.enable_prefix_caching)
        check_choice("device", self.device, DEVICES)
        check_choice("attention_backend", self.attention_backend, ATTENTION_BACKENDS)
        check_choice("load_format", self.load_format, ("auto", "dummy"))
        self.seed = check_int("seed", self.seed, minimum=0)
        if not isinstance(self.disabled_optimizations, list | tuple):
            raise TypeError(f"disabled_optimizations must be a list of names, got {self.disabled_optimizations!r}")
        for name in self.disabled_optimizations:
            check_choice("disabled_optimizations", name, OPTIMIZATIONS)

    def is_enabled(self, optimization: str) -> bool:
        """Whether a faster path is taken: where it can be, unless it was turned off (or what it builds on was)."""
        if optimization in self.disabled_optimizations:
            return False
        if optimization == "packed_weights":
            return self.device == "cpu" and self.dtype == torch.float32 and has_packed_linear()
        if self.device != "cuda" or (optimization in KERNELS and importlib.util.find_spec("triton") is None):
            return False
        if optimization == "cuda_graph":  # the backend sdpa looks at lengths on the CPU
            return not self.enforce_eager and self.attention_backend != "sdpa"
        if optimization == "step_ahead":
            return self.is_enabled("cuda_graph")
        if optimization == "fused_qkv":  # its kernel holds a head in two halves, whose sizes are powers of two
            return is_power_of_two(self.hf_config.head_dim)
        if optimization == "folded_norm":  # float16 could not hold what is projected from a stream of large numbers
            return self.dtype != torch.float16 and self.is_enabled("fused_qkv") and self.is_enabled("fused_activation")
        return True

    def _check_tensor_parallel_size(self) -> None:
        size = self.tensor_parallel_size = check_int("tensor_parallel_size", self.tensor_parallel_size, minimum=1)
        if size > 8:
            raise ValueError(f"tensor_parallel_size must be at most 8, got {size}")
        heads, kv_heads = self.hf_config.num_attention_heads, self.hf_config.num_key_value_heads
        if heads % kv_heads:
            raise ValueError(f"num_key_value_heads={kv_heads} does not divide num_attention_heads={heads}")
        if heads % size:
            raise ValueError(f"tensor_parallel_size={size} does not divide the {heads} attention heads")
        if kv_heads % size and size % kv_heads:
            raise ValueError(
                f"tensor_parallel_size={size} neither divides the {kv_heads} KV heads nor is a multiple of them"
            )
        if self.hf_config.intermediate_size % size:
            raise ValueError(
                f"tensor_parallel_size={size} does not divide the intermediate size {self.hf_config.intermediate_size}"
            )


def is_power_of_two(number: int) -> bool:
    """Whether a positive number is 1, 2, 4, 8 and so on: the sizes that Triton's kernels can hold."""
    return number & (number - 1) == 0


def has_packed_linear() -> bool:
    """Whether this build of torch multiplies with weights that oneDNN has laid out beforehand."""
    return torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_reorder_linear_weight")


def resolve_model(model: str) -> Path:
    """Directory with the model's files: a directory, a bundled model, or a (cached) hub download.

    Raises:
        TypeError: `model` is neither a string nor a path.
        ValueError: there is no such model, or it could not be downloaded.
    """
    if not isinstance(model, str | Path):
        raise TypeError(f"model must be a directory, a hub id or a bundled name, got {model!r}")
    for path in (Path(model), BUNDLED_MODELS / model):
        if str(model) and os.path.isdir(path):  # unlike Path.is_dir, it raises nothing, whatever the name
            return path
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(str(model), allow_patterns=HUB_FILES))
    except Exception as error:
        bundled = ", ".join(sorted(path.name for path in BUNDLED_MODELS.glob("*") if path.is_dir()))
        raise ValueError(
            f"model={str(model)!r} is not a directory, not a bundled model ({bundled}), and could not be fetched "
            f"from the hub: {error}"
        ) from error


def load_hf_config(model_path: Path) -> Any:
    """Hugging Face config of the model, with `rope_theta` set whichever spelling the file has.

    transformers 4.51 writes `rope_theta`, 5.x writes `rope_parameters`; each reads the other's file wrongly or
    loses the attribute, so it comes from the JSON itself.

    Raises:
        ValueError: no config.json, an unreadable one, or a rope scaling or attention that is not supported.
    """
    from transformers import AutoConfig

    raw = _read_json(model_path / "config.json")
    if not raw:
        raise ValueError(f"{model_path} has no config.json, so it is not a Hugging Face model directory")
    try:
        hf_config = AutoConfig.from_pretrained(model_path)
        for name in SIZES:
            if hasattr(hf_config, name):
                check_int(name, getattr(hf_config, name), minimum=1)
    except Exception as error:  # each version of transformers has exceptions of its own
        raise ValueError(f"{model_path}/config.json cannot be read: {error}") from error
    rope = raw.get("rope_parameters") or {}
    scaling = raw.get("rope_scaling") or rope
    rope_type = scaling.get("rope_type", scaling.get("type", "default"))
    if rope_type != "default":
        raise ValueError(f"rope scaling {rope_type!r} in {model_path}/config.json is not supported, only 'default'")
    if raw.get("use_sliding_window"):
        raise ValueError(f"use_sliding_window=true in {model_path}/config.json is not supported")
    theta = raw.get("rope_theta", rope.get("rope_theta"))
    if theta is None:
        raise ValueError(
            f"{model_path}/config.json (architectures={raw.get('architectures')}) has neither rope_theta nor "
            "rope_parameters.rope_theta"
        )
    hf_config.rope_theta = check_float(f"rope_theta in {model_path}/config.json", theta)
    return hf_config


def load_eos_token_ids(model_path: Path, hf_config: Any) -> tuple[int, ...]:
    """All ids that end a generation: those of generation_config.json, else the one of config.json.

    Raises:
        TypeError, ValueError: they are no token ids.
    """
    generation_config = _read_json(model_path / "generation_config.json")
    eos = generation_config.get("eos_token_id", hf_config.eos_token_id)
    if eos is None:
        return ()
    return tuple(
        check_int("eos_token_id", token_id, minimum=0) for token_id in (eos if isinstance(eos, list) else [eos])
    )


def resolve_device(device: str) -> str:
    """The device to run on. Raises `ValueError` if it was asked for and is not there."""
    if device == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cuda" and not torch.cuda.is_available():
        raise ValueError("device='cuda' was asked for, but torch finds no CUDA GPU; use device='auto' or 'cpu'")
    if device == "mps" and not torch.backends.mps.is_available():
        raise ValueError("device='mps' was asked for, but torch finds no Apple GPU; use device='auto' or 'cpu'")
    return device


def resolve_dtype(dtype: Any, device: str, model_path: Path) -> torch.dtype:
    """The torch dtype of weights and KV cache. Raises `ValueError` for one that is not supported."""
    if isinstance(dtype, str) and dtype == "auto":
        raw = _read_json(model_path / "config.json")
        dtype = "float32" if device == "cpu" else raw.get("torch_dtype", raw.get("dtype", "bfloat16"))
    if isinstance(dtype, str):
        dtype = DTYPES.get(dtype, dtype)
    if not isinstance(dtype, torch.dtype) or dtype not in DTYPES.values():
        raise ValueError(f"dtype must be 'auto' or one of {', '.join(DTYPES)}, got {dtype!r}")
    return dtype


def resolve_attention_backend(config: Config) -> str:
    """The attention backend, checked against device, dtype and block size.

    Raises:
        ValueError: the backend asked for cannot run here or with these blocks; says what can.
    """
    backend = config.attention_backend
    problems = {name: _backend_problem(name, config) for name in ATTENTION_BACKENDS[1:]}
    if backend == "auto":
        backend = next(name for name in AUTO_BACKENDS if not problems[name])
        if config.device == "cpu":  # the interpreter is for looking at kernels, not for speed
            backend = "sdpa"
        logger.info("attention_backend='auto' chose %r on %s", backend, config.device)
    if problems[backend]:
        raise ValueError(f"attention_backend={backend!r} cannot be used: {problems[backend]}")
    return backend


def _backend_problem(backend: str, config: Config) -> str | None:
    """Why a backend cannot be used, or None."""
    if backend == "sdpa":
        return None
    package = {"triton": "triton", "flash_attn": "flash_attn"}[backend]
    interpreted = backend == "triton" and config.device == "cpu" and os.environ.get("TRITON_INTERPRET") == "1"
    if config.device != "cuda" and not interpreted:
        return f"it needs a CUDA GPU, and the device is {config.device!r}; use 'sdpa'"
    if importlib.util.find_spec(package) is None:
        return f"the package {package} is not installed"
    # A model that is not supported may have no head_dim; that it is not is said elsewhere.
    head_dim, block_size = getattr(config.hf_config, "head_dim", None), config.kvcache_block_size
    if backend == "triton" and head_dim is not None and (head_dim < 16 or not is_power_of_two(head_dim)):
        return f"it takes a head_dim that is a power of two from 16, and the model's is {head_dim}"
    if backend == "flash_attn" and config.dtype == torch.float32:
        return "it computes in bfloat16 or float16, and dtype is float32"
    if backend == "flash_attn" and block_size % 256:
        return f"it takes a kvcache_block_size that is a multiple of 256, got {block_size}"
    return None


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    except ValueError as error:
        raise ValueError(f"{path} is not valid JSON: {error}") from error
    if not isinstance(content, dict):
        raise ValueError(f"{path} must hold a JSON object, got {type(content).__name__}")
    return content
