"""A model's directory: where it is, its config.json, its end tokens, its tokenizer."""

import json
import os
from pathlib import Path
from typing import Any

from .validation import check_float, check_int

BUNDLED_MODELS = Path(__file__).parent / "assets"
# Of the model; `config.json` says them, and they are at least 1.
SIZES = """vocab_size hidden_size intermediate_size num_hidden_layers num_attention_heads
    num_key_value_heads head_dim max_position_embeddings""".split()
HUB_FILES = ["*.json", "*.safetensors", "*.txt", "*.jinja"]


def resolve_model(model: str) -> Path:
    """Directory with the model's files: a directory, a bundled model, or a (cached) hub download.

    Raises:
        TypeError: `model` is neither a string nor a path.
        ValueError: there is no such model, or it could not be downloaded.
    """
    if not isinstance(model, str | Path):
        raise TypeError(f"model must be a directory, a hub id or a bundled name, got {model!r}")
    for path in (Path(model), BUNDLED_MODELS / model):
        # Unlike Path.is_dir, this raises nothing, whatever the name.
        if str(model) and os.path.isdir(path):
            return path
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(str(model), allow_patterns=HUB_FILES))
    except Exception as error:
        bundled = ", ".join(sorted(path.name for path in BUNDLED_MODELS.glob("*")))
        raise ValueError(
            f"model={str(model)!r} is not a directory, not a bundled model ({bundled}), and could "
            f"not be fetched from the hub: {error}"
        ) from error


def load_hf_config(model_path: Path) -> Any:
    """Hugging Face config of the model, with `rope_theta` and `stored_dtype` in any spelling.

    transformers 4.51 writes `rope_theta`, 5.x writes `rope_parameters`; each reads the other's file
    wrongly or loses the attribute, so it comes from the JSON itself.

    Raises:
        ValueError: no config.json, an unreadable one, or a rope scaling or attention that is not
            supported; that of Llama 3 is, in a Llama.
    """
    from transformers import AutoConfig

    raw = read_json(model_path / "config.json")
    if not raw:
        raise ValueError(f"{model_path} has no config.json: it is no Hugging Face model directory")
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
    if rope_type != "default" and (rope_type, raw.get("model_type")) != ("llama3", "llama"):
        raise ValueError(f"rope scaling {rope_type!r} in {model_path}/config.json is not supported")
    if raw.get("use_sliding_window"):
        raise ValueError(f"use_sliding_window=true in {model_path}/config.json is not supported")
    theta = raw.get("rope_theta", rope.get("rope_theta"))
    if theta is None or rope.get("rope_theta", theta) != theta:
        what = f"{model_path}/config.json (architectures={raw.get('architectures')})"
        raise ValueError(f"{what} must have one rope_theta, or rope_parameters.rope_theta")
    hf_config.rope_theta = check_float(f"rope_theta in {model_path}/config.json", theta)
    hf_config.stored_dtype = raw.get("torch_dtype", raw.get("dtype"))
    return hf_config


def load_eos_token_ids(model_path: Path, hf_config: Any) -> tuple[int, ...]:
    """All ids that end a generation: those of generation_config.json, else the one of config.json.

    Raises:
        TypeError, ValueError: they are no token ids.
    """
    generation_config = read_json(model_path / "generation_config.json")
    eos = generation_config.get("eos_token_id", hf_config.eos_token_id)
    if eos is None:
        return ()
    token_ids = eos if isinstance(eos, list) else [eos]
    return tuple(check_int("eos_token_id", token_id, minimum=0) for token_id in token_ids)


def load_tokenizer(model_path: Path) -> Any:
    """The model's tokenizer, or None if there is none. Raises `ValueError` for a broken one."""
    names = ("tokenizer.json", "tokenizer_config.json", "vocab.json")
    if not any((model_path / name).is_file() for name in names):
        return None
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(model_path)
    except Exception as error:  # each version of its libraries has exceptions of its own
        raise ValueError(f"the tokenizer in {model_path} cannot be read: {error!r}") from error


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object, empty if there is no such file. Raises `ValueError` for anything else."""
    try:
        content = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    except ValueError as error:
        raise ValueError(f"{path} is not valid JSON: {error}") from error
    if not isinstance(content, dict):
        raise ValueError(f"{path} must hold a JSON object, got {type(content).__name__}")
    return content
