"""The levers: all combinations of them give the plain engine's tokens, and each is where the table says it is.

Without a GPU the kernels run in Triton's interpreter, in processes of their own, and a stand-in replays a CUDA graph by
running its step again on the same buffers. test_gpu.py shows that a lever is on where it counts.
"""

import dataclasses
import importlib
import itertools
import subprocess
import sys
import tomllib
from collections import Counter, defaultdict
from contextlib import contextmanager
from functools import partial

import pytest
import torch
from transformers import Qwen3Config

from nanovllm import LLM, SamplingParams, levers
from nanovllm.config import Config
from nanovllm.engine.llm_engine import LLMEngine
from nanovllm.engine.model_runner import ModelRunner
from nanovllm.engine.scheduler import Scheduler
from nanovllm.layers.sampler import Sampler
from nanovllm.levers import LEVERS, compose
from nanovllm.models.qwen3 import Qwen3ForCausalLM
from nanovllm.utils.context import get_context, set_context

from .conftest import in_turn, make_tiny_model
from .test_kernels import ROOT, needs_interpreted_loops, needs_triton, run_interpreted

pytestmark = pytest.mark.lever

# The interpreter takes a millisecond for a program of a kernel: a small model, with few of them.
SHAPE = {
    "vocab_size": 90,
    "hidden_size": 16,
    "intermediate_size": 8,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
}
# Few blocks, so that sequences are preempted, and few tokens a step, so that prompts are cut.
OPTIONS = {
    "device": "cpu",
    "kvcache_block_size": 4,
    "num_kvcache_blocks": 8,
    "max_num_batched_tokens": 16,
    "max_model_len": 32,
    "max_num_seqs": 4,
}
PROMPTS = [[5, 6, 7], [*[5, 6, 7, 8, 9, 10] * 3], [80, 81], [5, 6, 7, 4]]
# Batches shrink from four to one, past sizes that have no graph of their own.
SAMPLING = [
    {"max_tokens": 6, "temperature": 0.0, "logprobs": 2},
    {"max_tokens": 4, "temperature": 1.0},
    {"max_tokens": 2, "temperature": 0.0},
    {"max_tokens": 5, "temperature": 5.0, "top_k": 4, "top_p": 0.9, "min_p": 0.01},
]


# What the runner never sees: it says when an answer ends.
STOPPING = {"max_tokens", "ignore_eos", "stop", "stop_token_ids"}


def test_the_work_uses_every_parameter_that_chooses_tokens():
    """Else a lever could leave one out, and give other tokens than the plain engine."""
    used = set().union(*SAMPLING) | {"seed"}
    assert {field.name for field in dataclasses.fields(SamplingParams)} == used | STOPPING


def sampling_params():
    return [SamplingParams(ignore_eos=True, seed=3 + i, **options) for i, options in enumerate(SAMPLING)]


# Combinations.


def with_bases(names):
    """These levers and those that they build on, i.e. what is on if all others are turned off."""
    found = set(names)
    while more := {base for name in found for base in LEVERS[name].builds_on} - found:
        found |= more
    return frozenset(found)


def without_heirs(names):
    """What is on if these levers are turned off."""
    on = set(LEVERS) - set(names)
    while heirs := {name for name in on if not on.issuperset(LEVERS[name].builds_on)}:
        on -= heirs
    return frozenset(on)


EXTREMES = [frozenset(), frozenset(LEVERS)]
ALONE = [with_bases([name]) for name in LEVERS]
LEFT_OUT = [without_heirs([name]) for name in LEVERS]
SOME_LEFT_OUT = in_turn(LEFT_OUT, 0, 3)


def pairwise():
    """A few combinations in which every pair of levers is on, is off, and is on and off, wherever that can be."""
    candidates = sorted({*ALONE, *LEFT_OUT, *(a | b for a, b in itertools.combinations(ALONE, 2))}, key=sorted)
    candidates += [a & b for a, b in itertools.combinations(LEFT_OUT, 2)]
    candidates = [c for c in candidates if with_bases(c) == c]
    chosen = list(EXTREMES)
    wanted = set().union(*map(pairs, candidates)).difference(*map(pairs, chosen))
    while wanted:
        chosen.append(max(candidates, key=lambda c: len(pairs(c) & wanted)))
        wanted -= pairs(chosen[-1])
    return chosen


def pairs(on):
    return {(a, a in on, b, b in on) for a, b in itertools.combinations(LEVERS, 2)}


# The stand-ins for a GPU, in a process that is interpreted.


class GraphStandIn:
    """In place of torch.cuda.CUDAGraph: a replay runs the step again."""

    recording, is_replaying = None, False

    def pool(self):
        return 0, 0

    def replay(self):
        GraphStandIn.is_replaying = True
        self.step()
        GraphStandIn.is_replaying = False


@contextmanager
def record(graph, pool, capture_error_mode):
    GraphStandIn.recording = graph
    yield
    GraphStandIn.recording = None


def stand_in_for_a_gpu():
    """What the levers of a GPU ask of one."""
    from nanovllm.levers import cuda_graph

    run_in_buffers = cuda_graph.ModelRunnerLever.run_in_buffers

    def run_or_record(self, batch_size):
        if GraphStandIn.recording is None:
            run_in_buffers(self, batch_size)
        else:  # nothing runs while it is recorded
            GraphStandIn.recording.step = partial(rerun, self, batch_size)

    def rerun(self, batch_size):
        context = get_context()
        run_in_buffers(self, batch_size)
        set_context(**{field.name: getattr(context, field.name) for field in dataclasses.fields(context)})

    cuda_graph.ModelRunnerLever.run_in_buffers = run_or_record
    make_tensor = torch.tensor
    torch.tensor = lambda *args, pin_memory=False, **options: make_tensor(*args, **options)
    torch.cuda.CUDAGraph, torch.cuda.graph = GraphStandIn, record
    torch.cuda.synchronize = lambda device: None
    torch.cuda.mem_get_info = lambda device: (10**9, 10**9)
    for name, lever in LEVERS.items():
        if name != "packed_weights":  # that one works on a CPU, or does not
            LEVERS[name] = dataclasses.replace(lever, works=levers.works_everywhere)


def make_llm(path, on, backend, **options):
    disabled = [name for name in LEVERS if name not in on]
    options = OPTIONS | {"disabled_optimizations": disabled, "attention_backend": backend} | options
    llm = LLM(path, **options)
    is_on = {name for name in LEVERS if levers.is_enabled(llm.config, name)}
    assert is_on == set(on) - ({"packed_weights"} - is_on), "packed weights need a torch with oneDNN"
    return llm


def generate(llm):
    """All prompts together, then one alone: with a cached prefix, in a batch for which there are kernels of its own."""
    outputs = llm.generate(PROMPTS, sampling_params(), use_tqdm=False)
    outputs += llm.generate(PROMPTS[1], sampling_params()[1], use_tqdm=False)
    return [output["token_ids"] for output in outputs]


def check_combinations(directory, combinations, backend, **config):
    """Greedy and seeded tokens with each combination of levers against those with none."""
    path = make_tiny_model(directory, seed=4, **SHAPE, **config)
    stand_in_for_a_gpu()
    with make_llm(path, (), "sdpa") as llm:
        preempted, preempt = [], llm.scheduler.preempt
        llm.scheduler.preempt = lambda seq: (preempted.append(seq), preempt(seq))
        expected = generate(llm)
        assert preempted, "the work must have something to show"
    assert len({tuple(token_ids) for token_ids in expected}) >= len(PROMPTS)
    for on in combinations:
        with make_llm(path, on, backend) as llm:
            got = generate(llm)
            assert got == expected, f"with {sorted(on)}: {got}, not {expected}"
            replays = getattr(llm.llm_engine.model_runner, "num_graph_replays", 0)
            assert (replays > 0) is ("cuda_graph" in on)


@needs_interpreted_loops
@pytest.mark.timeout(300)
@pytest.mark.slow
@pytest.mark.parametrize("part", ["[:1]", "[1:6]", "[6:]"])
def test_every_pair_of_levers_gives_the_tokens_of_the_plain_engine(tmp_path, part):
    run_levers(f"check_combinations({str(tmp_path)!r}, pairwise(){part}, 'triton')", timeout=280)


@needs_interpreted_loops
@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("combinations, backend", [("ALONE", "sdpa"), ("SOME_LEFT_OUT", "triton")])
def test_each_lever_alone_and_each_left_out(tmp_path, combinations, backend):
    """Left out are only some, but with `--thorough`: the pairs above have each off beside each other that is on."""
    run_levers(f"check_combinations({str(tmp_path)!r}, {combinations}, {backend!r})", timeout=1180)


def test_the_few_combinations_hold_every_pair():
    possible = [on for r in range(4) for names in itertools.combinations(LEVERS, r) for on in [without_heirs(names)]]
    possible += [with_bases(names) for r in range(4) for names in itertools.combinations(LEVERS, r)]
    assert set().union(*map(pairs, pairwise())) == set().union(*map(pairs, possible))
    assert len(pairwise()) <= len(LEVERS) + 1, "each combination takes seconds"


def run_levers(code, timeout=100):
    run_interpreted(f"from tests.engine.test_levers import *\n{code}", timeout)


# What goes around what.


def calls(path, on, backend="sdpa"):
    """How often the plain engine's functions are called while the levers are on, by module:name."""
    counts = Counter()

    def profile(frame, event, arg):
        module = frame.f_globals.get("__name__", "")
        if event != "call" or not module.startswith("nanovllm.") or module.startswith("nanovllm.levers"):
            return
        # A graph holds kernels: those of the layers were recorded, but what the runner does is not done again.
        if not (GraphStandIn.is_replaying and module.startswith("nanovllm.engine")):
            counts[f"{module}:{frame.f_code.co_qualname}"] += 1

    with make_llm(path, on, backend, num_kvcache_blocks=64) as llm:  # enough for all: the steps are the same
        sys.setprofile(profile)
        generate(llm)
        sys.setprofile(None)
    return counts


def check_bypassed(directory):
    """The manifest's table of what goes around a function, against the calls that a lever saves."""
    path = make_tiny_model(directory, seed=4, **SHAPE)
    stand_in_for_a_gpu()
    around, seen = defaultdict(set), {}
    for name in LEVERS:
        on = with_bases([name])
        for names in (on, on - {name}):
            seen[names] = seen.get(names) or calls(path, names)
        for function, count in seen[on - {name}].items():
            if seen[on][function] < count:
                around[function].add(name)
    plain, triton = calls(path, ()), calls(path, (), "triton")
    manifest = tomllib.loads((ROOT / "exercises/exercises.toml").read_text(encoding="utf-8"))
    table = manifest["bypassed_by"]
    for function in {*table, *(exercise["symbol"] for exercise in manifest["exercise"])}:
        disabled = table.get(function, {}).get("disabled_optimizations", [])
        assert set(disabled) <= around[function], f"{function}: {disabled}, but around it go {around[function]}"
        assert not around[function] & without_heirs(disabled), f"{function}: {around[function]} go around it"
        bypassed = triton[function] < plain[function]
        assert (table.get(function, {}).get("attention_backend") == "sdpa") is bypassed, function


@needs_interpreted_loops
@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_the_manifest_knows_what_goes_around_a_function(tmp_path):
    run_levers(f"check_bypassed({str(tmp_path)!r})", timeout=1180)


# Where each lever is.


def test_a_file_is_a_lever_and_a_lever_is_a_file():
    files = {path.stem for path in (ROOT / "nanovllm" / "levers").glob("*.py")}
    quantizing = {lever.name for lever in levers.QUANTIZATIONS.values()}
    assert files - {"__init__", "norm_factor", "table"} == set(LEVERS) | quantizing and not quantizing & set(LEVERS)


@needs_triton
@pytest.mark.parametrize("name", LEVERS)
def test_a_lever_says_what_it_does_and_takes_hold_somewhere(name):
    lever, module = LEVERS[name], importlib.import_module(f"nanovllm.levers.{name}")
    assert lever.name == name and lever.sentence.endswith(".") and module.__doc__.split("\n")[0].endswith(".")
    seams = ("LLMEngineLever", "SchedulerLever", "ModelRunnerLever", "install")
    assert any(hasattr(module, seam) for seam in seams)
    # What it builds on is put on before it.
    assert all(list(LEVERS).index(base) < list(LEVERS).index(name) for base in lever.builds_on)


def lineage(cls):
    """Names of the classes of the package that a class is made of, but for those that only put others together."""
    classes = [c for c in cls.__mro__ if c.__module__.startswith("nanovllm.")]
    names = [f"{c.__module__.rpartition('.')[2]}.{c.__name__}" for c in classes]
    return [name for name in names if not name.startswith(("levers.", "swap."))]


def all_levers():
    return [importlib.import_module(f"nanovllm.levers.{name}") for name in LEVERS]


@needs_triton
@pytest.mark.parametrize(
    "base, order",
    [
        (LLMEngine, ["step_ahead.LLMEngineLever", "llm_engine.LLMEngine"]),
        (Scheduler, ["step_ahead.SchedulerLever", "expected_length.SchedulerLever", "scheduler.Scheduler"]),
        (
            ModelRunner,
            [
                "step_ahead.ModelRunnerLever",
                "overlapped_launch.ModelRunnerLever",  # around the recording of the graphs
                "cuda_graph.ModelRunnerLever",
                "model_runner.ModelRunner",
            ],
        ),
    ],
)
def test_the_order_in_which_levers_are_put_around_a_class(base, order):
    assert lineage(compose(base, all_levers())) == order


ORDER_OF_MODULES = {
    "Qwen3DecoderLayer": ["small_batch.SmallBatchLayer", "folded_norm.FoldedLayer", "fused_norm.AddingLayer"],
    "Qwen3Attention": ["fused_qkv.FusedQKV"],
    "RMSNorm": ["fused_norm.FusedNorm"],
    "SiluAndMul": ["fused_activation.FusedSiluAndMul"],
    "QKVParallelLinear": ["packed_weights.PackedLinear"],
    "MergedColumnParallelLinear": ["packed_weights.PackedLinear"],
    "RowParallelLinear": ["packed_weights.PackedLinear"],
    "ParallelLMHead": ["cuda_graph.HeadIntoBuffer"],
    "Sampler": ["fused_sampler.FusedSampler"],
}


@needs_triton
def test_the_order_in_which_levers_are_put_around_a_module():
    if not hasattr(torch.ops.mkldnn, "_reorder_linear_weight"):
        pytest.skip("packed weights need a torch with oneDNN")
    model, sampler = tiny_modules()
    plain = {module: type(module) for module in [*model.modules(), sampler]}
    for lever in all_levers():
        if hasattr(lever, "install"):
            lever.install(model, sampler)
    seen = set()
    for module, cls in plain.items():
        order = ORDER_OF_MODULES.get(cls.__name__, [])
        assert lineage(type(module)) == order + lineage(cls)
        seen.update([cls.__name__] if order else [])
    assert seen == set(ORDER_OF_MODULES)


def tiny_modules():
    config = Qwen3Config(
        num_hidden_layers=2,
        hidden_size=8,
        intermediate_size=4,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=4,
        vocab_size=10,
        max_position_embeddings=8,
    )
    config.rope_theta = 100.0
    return Qwen3ForCausalLM(config), Sampler()


@needs_triton
@pytest.mark.parametrize("bias", [False, True])
def test_norms_are_not_folded_into_projections_with_a_bias(tmp_path, monkeypatch, bias):
    """What a norm does before a bias is added cannot be done after it."""
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (9, 0))
    config = Config(make_tiny_model(tmp_path, attention_bias=bias), device="cpu")
    config.device, config.attention_backend = "cuda", "triton"
    assert levers.is_enabled(config, "folded_norm") is not bias
    assert levers.is_enabled(config, "fused_qkv") and levers.is_enabled(config, "fused_norm")


PLAIN = """
import sys
from nanovllm import LLM, SamplingParams
from nanovllm.levers import LEVERS

with LLM("qwen3-tiny", device="cpu", num_kvcache_blocks=4, disabled_optimizations="all") as llm:
    llm.generate([1, 2, 3], SamplingParams(max_tokens=2), use_tqdm=False)
    engine = llm.llm_engine
    runner = engine.model_runner
    objects = [engine, engine.scheduler, engine.scheduler.block_manager, runner]
    classes = [base for o in [*objects, runner.sampler, *runner.model.modules()] for base in type(o).__mro__]
    print({cls for cls in classes if cls.__module__.startswith("nanovllm.levers")})
print([name for name in LEVERS if f"nanovllm.levers.{name}" in sys.modules], "triton" in sys.modules)
"""


@pytest.mark.slow
def test_with_all_levers_off_none_of_them_is_even_imported():
    result = subprocess.run([sys.executable, "-c", PLAIN], cwd=ROOT, capture_output=True, text=True, timeout=100)
    # Where torch finds a GPU, it loads Triton by itself.
    allowed = ["[] False", "[] True"] if torch.cuda.is_available() else ["[] False"]
    classes, modules = result.stdout.split("\n")[:2]
    assert classes == "set()" and modules in allowed, result.stdout + result.stderr
