"""What the engine tests compare with: Hugging Face's logits, and small helpers around the engine."""

import atexit
import gc
import json
from pathlib import Path

import torch
import transformers  # noqa: F401 (imported here, so that it is frozen below)
from hypothesis import Phase, settings
from safetensors.torch import load_file, save_file

from .conftest import load_hf_model, make_tiny_model

# Closing an engine collects garbage, which walks through every object of torch and transformers. They stay anyway.
gc.freeze()
atexit.register(gc.unfreeze)

LOGITS_TOLERANCE = 1e-4


def heavy(max_examples):
    """Settings for properties that run models: a failing draw is small anyway, and shrinking it takes minutes."""
    return settings(max_examples=max_examples, phases=[Phase.explicit, Phase.generate], report_multiple_bugs=False)


def make_smooth_model(path, **options):
    """`make_tiny_model` with weights that do not magnify rounding from layer to layer, for comparing logits."""
    path = make_tiny_model(path, **options)
    weights = load_file(path / "model.safetensors")
    for name, tensor in weights.items():
        if name.endswith(("o_proj.weight", "down_proj.weight")):
            tensor /= 4.0
        elif name in ("model.embed_tokens.weight", "lm_head.weight"):
            tensor /= 2.0
    save_file(weights, path / "model.safetensors", metadata={"format": "pt"})
    return path


class Reference:
    """A model directory as Hugging Face runs it, in float32 on the CPU."""

    def __init__(self, path):
        self.model = load_hf_model(path)

    @torch.inference_mode()
    def logits(self, token_ids):
        """[len(token_ids), vocab_size] float32, without any cache."""
        return self.model(torch.tensor([token_ids]), use_cache=False).logits[0]

    def assert_greedy(self, prompt, token_ids, note=""):
        """Every token is the one that Hugging Face finds most likely after those before it.

        Where two tokens are equally likely within the tolerance either may come, because rounding decides.
        """
        logits = self.logits([*prompt, *token_ids])[len(prompt) - 1 : -1]
        best = logits.max(dim=-1).values
        chosen = logits.gather(-1, torch.tensor(token_ids, dtype=torch.int64).unsqueeze(-1)).squeeze(-1)
        wrong = (chosen < best - LOGITS_TOLERANCE).nonzero().flatten().tolist()
        assert not wrong, (
            f"{note} after a prompt of {len(prompt)} tokens, generated {token_ids}: at {wrong} Hugging Face has "
            f"{logits.argmax(dim=-1)[wrong].tolist()}"
        )


def record_logits(llm, monkeypatch):
    """Record the logits that requests are sampled from (on a GPU: with `enforce_eager`); {seq_id: [a row a token]}."""
    runner, recorded, seq_ids = llm.llm_engine.model_runner, {}, []
    run, run_model = runner.run, runner.run_model

    def recording_run(seqs, is_prefill):
        seq_ids[:] = [seq.seq_id for seq in seqs if not seq.is_cut]
        return run(seqs, is_prefill)

    def recording_run_model(input_ids, positions):
        logits = run_model(input_ids, positions)
        for seq_id, row in zip(seq_ids, logits, strict=False):  # a prompt that is cut comes last
            recorded.setdefault(seq_id, []).append(row.float().cpu().clone())
        return logits

    monkeypatch.setattr(runner, "run", recording_run)
    monkeypatch.setattr(runner, "run_model", recording_run_model)
    return recorded


def drain(llm):
    """Step until nothing is left; returns {seq_id: generated tokens}."""
    results = {}
    for _ in range(10_000):
        if llm.is_finished():
            return results
        finished, _ = llm.step()
        for seq_id, token_ids in finished:
            assert seq_id not in results, f"request {seq_id} was reported twice"
            results[seq_id] = token_ids
    raise AssertionError("the engine does not come to an end")


def assert_clean(llm):
    """Nothing is left of the requests that ran: no sequence, no used block."""
    manager = llm.scheduler.block_manager
    assert llm.is_finished() and llm.scheduler.is_finished()
    assert not llm.scheduler.waiting and not llm.scheduler.running
    assert not manager.used_block_ids and len(manager.free_block_ids) == len(manager.blocks)
    assert all(block.ref_count == 0 for block in manager.blocks)


def edit_json(path, remove=(), **changes):
    """Change keys of a JSON file."""
    path = Path(path)
    data = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    for key in remove:
        data.pop(key, None)
    path.write_text(json.dumps(data | changes), encoding="utf-8")


def write_old_spelling(path, rope_theta):
    """Rewrite a config.json of transformers 5 as transformers 4.51 wrote it."""
    edit_json(
        Path(path) / "config.json",
        remove=("rope_parameters", "dtype", "layer_types"),
        rope_theta=rope_theta,
        rope_scaling=None,
        torch_dtype="float32",
    )


def write_new_spelling(path, rope_theta):
    """Rewrite a config.json as transformers 5 writes it."""
    edit_json(
        Path(path) / "config.json",
        remove=("rope_theta", "rope_scaling", "torch_dtype"),
        rope_parameters={"rope_theta": rope_theta, "rope_type": "default"},
        dtype="float32",
    )
