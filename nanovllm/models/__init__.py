"""The models that the engine can run, by the name under `architectures` in config.json."""

from typing import Any

from torch import nn

from .llama import LlamaForCausalLM
from .qwen3 import Qwen3ForCausalLM

MODELS: dict[str, type[nn.Module]] = {m.__name__: m for m in (Qwen3ForCausalLM, LlamaForCausalLM)}


def get_model_class(hf_config: Any) -> type[nn.Module]:
    """Model class for a Hugging Face config.

    Raises:
        ValueError: none of the config's architectures is supported; names those that are.
    """
    architectures = hf_config.architectures or []
    for architecture in architectures:
        if architecture in MODELS:
            return MODELS[architecture]
    raise ValueError(f"architectures={architectures} is not supported, only {', '.join(MODELS)}")
