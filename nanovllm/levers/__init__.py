"""Faster paths around the plain engine: each is one file of this folder.

The engine knows none of them. A lever's file holds a class that overrides some methods of the
engine, the scheduler or the runner (`LLMEngineLever`, `SchedulerLever`, `ModelRunnerLever`), or a
function `install(model, sampler)` that gives modules of the loaded model another `forward`, or
both.
"""

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from types import ModuleType

import torch

from ..config import Config
from ..devices import HAS_TRITON
from ..engine.llm_engine import LLMEngine
from ..engine.model_runner import ModelRunner
from ..engine.scheduler import Scheduler
from ..models import get_model_class
from ..models.llama import LlamaForCausalLM
from ..tiles import is_power_of_two
from ..utils.parallel_state import TensorParallelGroup


@dataclass(frozen=True)
class Lever:
    """One faster path.

    Args:
        name: of its file, and to turn it off by (`Config.disabled_optimizations`).
        sentence: what it does.
        works: whether it can be used with a config, on this machine.
        builds_on: levers without which it is off.
        reads_weights: whether it takes the weights of linear layers for floats; if they are
            quantized, it is off.
    """

    name: str
    sentence: str
    works: Callable[[Config], bool]
    builds_on: tuple[str, ...] = ()
    reads_weights: bool = False


def works_everywhere(config: Config) -> bool:
    """On any device."""
    return True


def works_on_gpu(config: Config) -> bool:
    """On NVIDIA's GPUs."""
    return config.device == "cuda"


def works_in_triton(config: Config) -> bool:
    """On GPUs that Triton compiles for, where it is installed."""
    if not works_on_gpu(config) or importlib.util.find_spec("triton") is None:
        return False
    return torch.cuda.get_device_capability() >= HAS_TRITON


def works_with_onednn(config: Config) -> bool:
    """On a CPU whose build of torch multiplies with weights that oneDNN has laid out beforehand."""
    has_layouts = hasattr(torch.ops.mkldnn, "_reorder_linear_weight")
    is_float32_on_cpu = config.device == "cpu" and config.dtype == torch.float32
    return is_float32_on_cpu and torch.backends.mkldnn.is_available() and has_layouts


def works_in_graph(config: Config) -> bool:
    """On GPUs, but for plain attention, which looks at lengths on the CPU."""
    return works_on_gpu(config) and not config.enforce_eager and config.attention_backend != "sdpa"


def works_with_qk_norm(config: Config) -> bool:
    """Where queries and keys are normalized, and halves of heads have a power of two of features.

    A Llama does not normalize them.
    """
    has_qk_norm = not issubclass(get_model_class(config.hf_config), LlamaForCausalLM)
    return works_in_triton(config) and has_qk_norm and is_power_of_two(config.hf_config.head_dim)


def works_folded(config: Config) -> bool:
    """Not in float16, which could not hold what is projected from a stream of large numbers.

    And not with a bias, which is added to what has been normalized already.
    """
    has_bias = getattr(config.hf_config, "attention_bias", False)
    return works_in_triton(config) and config.dtype != torch.float16 and not has_bias


# In this order they are put around the plain classes, the last one outermost, and installed: what
# changes weights comes before what copies them.
LEVERS: dict[str, Lever] = {
    lever.name: lever
    for lever in (
        Lever(
            "fused_norm",
            "A norm is one kernel, and the product before it adds to the residual stream.",
            works_in_triton,
            reads_weights=True,
        ),
        Lever("fused_activation", "SiLU and product are one kernel.", works_in_triton),
        Lever(
            "fused_qkv",
            "Split, QK-norm, rotation and storing in the cache are one kernel.",
            works_with_qk_norm,
        ),
        Lever("fused_sampler", "Sampling is one pass over the logits.", works_in_triton),
        Lever(
            "folded_norm",
            "A norm needs no kernel: the product after it has its weight, what follows its factor.",
            works_folded,
            ("fused_norm", "fused_qkv", "fused_activation"),
            reads_weights=True,
        ),
        Lever(
            "packed_weights",
            "On a CPU, a copy of the weights in the layout that oneDNN multiplies fastest.",
            works_with_onednn,
            reads_weights=True,
        ),
        Lever(
            "small_batch",
            "For one or two tokens, products that read their weights at the speed of the memory.",
            works_in_triton,
            reads_weights=True,
        ),
        Lever(
            "cuda_graph",
            "A decode step is recorded once, and then launched by one call.",
            works_in_graph,
        ),
        Lever(
            "overlapped_launch",
            "A kernel is set up while the one before it still runs.",
            works_in_triton,
        ),
        Lever(
            "expected_length",
            "A request is admitted only if the pool is expected to last until others have ended.",
            works_everywhere,
        ),
        Lever(
            "step_ahead",
            "A step is launched before the tokens of the last one have been looked at.",
            works_on_gpu,
            ("cuda_graph",),
        ),
    )
}
# Unlike those above, these change results, so that they are off unless `Config.quantization` names
# them. They are put on last.
QUANTIZATIONS: dict[str, Lever] = {
    "int8": Lever(
        "weight_int8",
        "Weights of linear layers are bytes, and each product makes floats of them again.",
        works_everywhere,
    )
}


def is_enabled(config: Config, name: str) -> bool:
    """Whether a lever is on: where it works, unless it or what it builds on was turned off.

    Raises:
        ValueError: there is no lever of this name.
    """
    if name not in LEVERS:
        raise ValueError(
            f"disabled_optimizations must be names of {', '.join(LEVERS)}, got {name!r}"
        )
    disabled = config.disabled_optimizations
    if disabled == "all" or name in disabled:
        return False
    lever = LEVERS[name]
    if lever.reads_weights and config.quantization is not None:
        return False
    return lever.works(config) and all(is_enabled(config, base) for base in lever.builds_on)


def make_engine(config: Config) -> LLMEngine:
    """An engine with all levers that are on.

    Raises:
        ValueError: `disabled_optimizations` holds a name that no lever has, or `quantization` is
            unknown.
    """
    if config.quantization not in (None, *QUANTIZATIONS):
        choices = ", ".join(map(repr, (None, *QUANTIZATIONS)))
        raise ValueError(f"quantization must be one of {choices}, got {config.quantization!r}")
    for name in () if config.disabled_optimizations == "all" else config.disabled_optimizations:
        is_enabled(config, name)
    modules = enabled_modules(config)
    engine_class, scheduler_class = compose(LLMEngine, modules), compose(Scheduler, modules)
    return engine_class(config, scheduler_class, make_runner)


def make_runner(config: Config, group: TensorParallelGroup = TensorParallelGroup()) -> ModelRunner:
    """One rank's runner, with all levers that are on."""
    modules = enabled_modules(config)
    runner_class = compose(ModelRunner, modules)
    installs = [module.install for module in modules if hasattr(module, "install")]
    if not installs:
        return runner_class(config, group)

    class Installing(runner_class):  # type: ignore[misc, valid-type]
        def build_model(self) -> torch.nn.Module:
            model = super().build_model()
            for install in installs:
                install(model, self.sampler)
            return model

    return Installing(config, group)


def enabled_modules(config: Config) -> list[ModuleType]:
    """The files of the levers that are on, innermost first."""
    names = [name for name in LEVERS if is_enabled(config, name)]
    if config.quantization is not None:
        names.append(QUANTIZATIONS[config.quantization].name)
    return [import_module(f".{name}", __name__) for name in names]


def compose(base: type, modules: list[ModuleType]) -> type:
    """`base` with the methods that each lever's class for it overrides, the last one outermost."""
    name = f"{base.__name__}Lever"
    overrides = [getattr(module, name) for module in modules if hasattr(module, name)]
    return type(base.__name__, (*reversed(overrides), base), {}) if overrides else base
