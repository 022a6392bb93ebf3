"""The kernels compiled for every GPU that learners have, without one: their tiles fit, and they use what it knows.

The launchers themselves run, on tensors without memory, and what they launch is compiled for another GPU. So whatever
chooses a tile or an option here is what chooses it there.
"""

import importlib.util
import json
from types import SimpleNamespace

import pytest
import torch

from nanovllm import config as engine_config
from nanovllm import devices, tiles
from nanovllm.config import Config
from nanovllm.utils.context import Context

from .conftest import in_turn

# Compute capability: bytes of shared memory that a program may have (CUDA C++ Programming Guide, table "Technical
# Specifications per Compute Capability"). T4; A100; RTX 30; RTX 40; H100; B200; RTX 50.
SHARED_MEMORY = {75: 64, 80: 163, 86: 99, 89: 99, 90: 227, 100: 227, 120: 99}
SHARED_MEMORY = {capability: kilobytes * 1024 for capability, kilobytes in SHARED_MEMORY.items()}
HEAD_DIMS = (16, 32, 64, 128, 256)
FLOAT16, BFLOAT16, FLOAT32 = torch.float16, torch.bfloat16, torch.float32

needs_triton = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed")
not_interpreted = pytest.mark.skipif(devices.is_interpreted(), reason="kernels are interpreted")


def dtypes_of(capability):
    return (FLOAT32, FLOAT16, *((BFLOAT16,) if capability >= 80 else ()))


# What is asked of a GPU.


@pytest.fixture
def pretend(monkeypatch):
    """Makes torch say that there is a GPU of this capability."""

    def make(capability):
        properties = SimpleNamespace(shared_memory_per_block_optin=SHARED_MEMORY[capability])
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device=None: divmod(capability, 10))
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device=None: properties)
        monkeypatch.setattr(torch.version, "cuda", "13.0")
        monkeypatch.setattr(engine_config, "resolve_device", devices.resolve_device)
        tiles.gpu_shared_memory.cache_clear()

    tiles.gpu_shared_memory.cache_clear()
    yield make
    tiles.gpu_shared_memory.cache_clear()


@pytest.fixture
def model_of(tmp_path):
    """A directory with the config.json of a model; weights are not asked for."""

    def make(dtype="bfloat16", **shape):
        heads = {"head_dim": 128, "num_attention_heads": 4, "num_key_value_heads": 2}
        sizes = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 1, "vocab_size": 320}
        rest = {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "max_position_embeddings": 512}
        config = {**heads, **sizes, **rest, "rope_theta": 1e6, "torch_dtype": dtype, **shape}
        (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
        return tmp_path

    return make


def installed(monkeypatch, *names):
    find_spec = importlib.util.find_spec
    fake = {name: object() if name in names else None for name in ("triton", "flash_attn")}
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *args: fake[name] if name in fake else find_spec(name, *args)
    )


@pytest.mark.parametrize("dtype", [FLOAT32, FLOAT16, BFLOAT16])
@pytest.mark.parametrize("head_dim", HEAD_DIMS)
@pytest.mark.parametrize("group", [1, 2, 5, 8, 16])
def test_the_tiles_of_a_gpu_with_much_memory_are_those_that_were_measured_as_fastest(dtype, head_dim, group):
    memory = SHARED_MEMORY[90]
    expected = 16, min(128, 2**15 // (head_dim * dtype.itemsize))
    assert tiles.decode_tile(head_dim, group, dtype, memory) == expected
    is_wide = head_dim * dtype.itemsize > 256
    assert tiles.prefill_tile(head_dim, dtype, memory) == ((64, 32, 2) if is_wide else (64, 64, 3))


@pytest.mark.parametrize("capability", SHARED_MEMORY)
def test_tiles_are_powers_of_two_and_smaller_where_there_is_less_memory(capability):
    memory = SHARED_MEMORY[capability]
    for dtype in dtypes_of(capability):
        for head_dim in HEAD_DIMS:
            for group in (1, 3, 16, 17, 64):
                rows, *most = tiles.decode_tile(head_dim, group, dtype, SHARED_MEMORY[90])
                found = tiles.decode_tile(head_dim, group, dtype, memory)
                if group <= 16 or found:
                    assert found[0] == rows >= group and 16 <= found[1] <= most[0]
                    assert all(tiles.is_power_of_two(number) for number in found)
            assert tiles.prefill_tile(head_dim, dtype, memory) is not None
    assert tiles.decode_tile(256, 64, FLOAT16, SHARED_MEMORY[75]) is None


def test_on_a_t4_a_model_runs_by_default_with_triton_in_float16(pretend, monkeypatch, model_of):
    pretend(75)
    installed(monkeypatch, "triton", "flash_attn")
    path = model_of()
    config = Config(path)
    assert (config.device, config.dtype, config.attention_backend) == ("cuda", FLOAT16, "triton")
    assert Config(path, dtype="float32").dtype == FLOAT32
    for dtype in ("bfloat16", BFLOAT16):
        with pytest.raises(ValueError, match=r"bfloat16.*8\.0.*7\.5.*float16"):
            Config(path, dtype=dtype)
    with pytest.raises(ValueError, match=r"flash_attn.*8\.0.*7\.5"):
        Config(path, attention_backend="flash_attn")
    installed(monkeypatch, "flash_attn")
    assert Config(path).attention_backend == "sdpa"
    assert Config(model_of(dtype="float16")).dtype == FLOAT16
    assert Config(model_of(dtype="float32")).dtype == FLOAT32


@pytest.mark.parametrize("capability", [c for c in SHARED_MEMORY if c >= 80])
def test_from_an_a100_on_the_models_own_dtype_is_used(pretend, monkeypatch, model_of, capability):
    pretend(capability)
    installed(monkeypatch, "triton", "flash_attn")
    path = model_of()
    assert Config(path).dtype == Config(path, dtype="bfloat16").dtype == BFLOAT16
    assert Config(path).attention_backend == "triton"
    assert Config(path, attention_backend="flash_attn").attention_backend == "flash_attn"


def test_a_gpu_that_triton_does_not_compile_for_runs_plain_attention(pretend, monkeypatch, model_of):
    pretend(75)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device=None: (6, 1))
    installed(monkeypatch, "triton", "flash_attn")
    path = model_of()
    assert Config(path).attention_backend == "sdpa"
    with pytest.raises(ValueError, match=r"triton.*7\.5.*6\.1"):
        Config(path, attention_backend="triton")


@pytest.mark.parametrize(
    "shape, sentence",
    [
        ({"head_dim": 256, "num_attention_heads": 64, "num_key_value_heads": 1}, r"256.*64 query heads.*64 KB"),
        ({"head_dim": 96}, "256, and the model's is 96"),
        ({"head_dim": 512}, "256, and the model's is 512"),
        ({"head_dim": 8}, "256, and the model's is 8"),
    ],
)
def test_heads_that_do_not_fit_are_refused_with_a_sentence_or_computed_plainly(
    pretend, monkeypatch, model_of, shape, sentence
):
    pretend(75)
    installed(monkeypatch, "triton", "flash_attn")
    path = model_of(**shape)
    assert Config(path).attention_backend == "sdpa"
    with pytest.raises(ValueError, match=sentence):
        Config(path, attention_backend="triton")


@pytest.mark.parametrize("head_dim, fits", [(8, True), (96, True), (256, True), (20, False), (512, False)])
def test_heads_of_flash_attention(pretend, monkeypatch, model_of, head_dim, fits):
    pretend(90)
    installed(monkeypatch, "flash_attn")
    path = model_of(head_dim=head_dim)
    assert Config(path).attention_backend == ("flash_attn" if fits else "sdpa")
    if not fits:
        with pytest.raises(ValueError, match=f"head_dim.*{head_dim}"):
            Config(path, attention_backend="flash_attn")


# What is compiled.


class Driver:
    """In place of Triton's driver: a GPU that can be compiled for."""

    def __init__(self, capability):
        self.capability = capability

    def get_current_target(self):
        from triton.backends.compiler import GPUTarget

        return GPUTarget("cuda", self.capability, 32)

    def get_current_device(self):
        return f"sm_{self.capability}"  # Triton keeps what it has compiled a device

    def get_current_stream(self, device):
        return 0


@pytest.fixture
def compiled(pretend, monkeypatch):
    """Kernels that a function would launch on a GPU of some capability: (name, kernel as Triton compiled it)."""
    import triton
    from torch._subclasses.fake_tensor import FakeTensorMode
    from triton.runtime.jit import JITFunction, MockTensor

    from nanovllm.layers.kernels import overlap, paged_attention

    launch = JITFunction.run
    kernels = []

    def without_memory(value):
        return MockTensor(value.dtype) if isinstance(value, torch.Tensor) else value

    def compile_only(self, *args, grid, warmup, **kwargs):
        args, kwargs = map(without_memory, args), {name: without_memory(value) for name, value in kwargs.items()}
        kernels.append((self.__name__, launch(self, *args, grid=grid, warmup=True, **kwargs)))

    def run(capability, function, *args):
        pretend(capability)
        clear()
        kernels.clear()
        monkeypatch.setattr(triton.runtime.driver, "_active", Driver(capability))
        monkeypatch.setattr(JITFunction, "run", compile_only)
        with FakeTensorMode():
            function(*args)
        return list(kernels)

    def clear():  # what was found out about a GPU that is not there
        overlap.can_overlap.cache_clear()
        paged_attention.chunk_counters.cache_clear()

    yield run
    clear()


def empty(*shape, dtype=FLOAT16):
    return torch.empty(shape, dtype=dtype, device="cuda")


def integers(*shape):
    return empty(*shape, dtype=torch.int32)


def decode(head_dim, dtype, group):
    from nanovllm.layers.kernels.paged_attention import paged_decode

    cache = empty(9, 256, 2, head_dim, dtype=dtype)
    context = Context(is_prefill=False, context_lens=integers(64), block_tables=integers(64, 16))
    paged_decode(empty(64, 2 * group, head_dim, dtype=dtype), cache, cache, context, 0.1)


def prefill(head_dim, dtype, is_paged):
    from nanovllm.layers.kernels.paged_attention import paged_prefill

    keys = empty(9, 256, 2, head_dim, dtype=dtype) if is_paged else empty(64, 2, head_dim, dtype=dtype)
    context = Context(True, integers(3), integers(3), 64, 64, block_tables=integers(2, 16) if is_paged else None)
    paged_prefill(empty(64, 4, head_dim, dtype=dtype), keys, keys, context, 0.1)


def store(dtype):
    from nanovllm.layers.kernels.store_kvcache import store_kvcache_triton

    cache, keys = empty(9, 256, 8, 256, dtype=dtype), empty(64, 8, 256, dtype=dtype)
    store_kvcache_triton(keys, keys, cache, cache, empty(64, dtype=torch.int64))


def levers(dtype):
    """All kernels of the levers, on the shapes of the largest model that there is (Qwen3-32B)."""
    from nanovllm.levers.fused_activation import silu_and_mul
    from nanovllm.levers.fused_norm import rms_norm
    from nanovllm.levers.fused_qkv import qk_norm_rope_store
    from nanovllm.levers.fused_sampler import sample
    from nanovllm.levers.small_batch import small_linear

    hidden_size, intermediate_size, heads, kv_heads, head_dim = 5120, 25600, 64, 8, 128
    stream, weight = empty(64, hidden_size, dtype=dtype), empty(head_dim, dtype=dtype)
    rms_norm(stream, empty(hidden_size, dtype=dtype), 1e-6)
    silu_and_mul(empty(64, 2 * intermediate_size, dtype=dtype), stream, 1e-6)
    qkv, cache = empty(64, (heads + 2 * kv_heads) * head_dim, dtype=dtype), empty(9, 256, kv_heads, 128, dtype=dtype)
    positions, table = empty(64, dtype=torch.int64), empty(4096, 1, head_dim, dtype=FLOAT32)
    qk_norm_rope_store(qkv, weight, weight, 1e-6, table, positions, positions, cache, cache, stream)
    sample(empty(64, 151_936, dtype=dtype), empty(64, dtype=FLOAT32), positions, positions)
    two, norm = empty(2, hidden_size, dtype=dtype), SimpleNamespace(weight=empty(hidden_size, dtype=dtype), eps=1e-6)
    small_linear(two, empty(2 * intermediate_size, hidden_size, dtype=dtype), norm=norm, is_gated=True)
    weight, bias = empty(hidden_size, intermediate_size, dtype=dtype), empty(hidden_size, dtype=dtype)
    small_linear(empty(2, intermediate_size, dtype=dtype), weight, bias, stream=two)


NUM_KERNELS = {decode: 1, prefill: 1, store: 1, levers: 6}
# By what a compilation takes: a second or two, but up to 20 for the last ones.
FEW = [
    (75, decode, 128, FLOAT16, 2),
    (86, decode, 128, FLOAT16, 16),
    (90, prefill, 128, BFLOAT16, False),
]
MANY = [
    case
    for capability in (75, 80, 86, 90, 100)
    for case in [
        *[(capability, decode, head_dim, dtype, 16) for head_dim in HEAD_DIMS[2:] for dtype in (FLOAT16, FLOAT32)],
        *[(capability, prefill, head_dim, dtype, False) for head_dim in HEAD_DIMS[2:] for dtype in (FLOAT16, FLOAT32)],
        (capability, prefill, 128, FLOAT16, True),
        (capability, decode, 64, FLOAT16, 64),
        (capability, store, FLOAT32),
        (capability, levers, FLOAT16),
        (capability, levers, FLOAT32),
    ]
]
MANY += [(c, kernel, 128, BFLOAT16, last) for c in (80, 90, 100) for kernel, last in ((decode, 2), (prefill, False))]
MANY += [(c, kernel, 256, FLOAT32, last) for c in (89, 120) for kernel, last in ((decode, 2), (prefill, False))]
MANY += [(80, levers, BFLOAT16), (90, levers, BFLOAT16)]
# Each kernel on each GPU once, and a quarter of the others; all, with `--thorough`.
ONCE = {case[:2]: case for case in reversed(MANY)}.values()
SOME = [case for case in MANY if case in ONCE or case in in_turn(MANY, 0, 4)]


def case_id(case):
    capability, launcher, *options = case
    words = [str(option).removeprefix("torch.") for option in options]
    return f"sm_{capability}-{launcher.__name__}-{'-'.join(words)}"


@needs_triton
@not_interpreted
@pytest.mark.parametrize(
    "case",
    [
        *[pytest.param(case, id=case_id(case)) for case in FEW],
        *[pytest.param(case, id=case_id(case), marks=pytest.mark.slow) for case in SOME if case not in FEW],
    ],
)
def test_kernels_fit_into_the_shared_memory_of_every_gpu(compiled, case):
    capability, launcher, *options = case
    kernels = compiled(capability, launcher, *options)
    assert len(kernels) == NUM_KERNELS[launcher]
    for name, kernel in kernels:
        assert kernel.metadata.target.arch == capability
        assert kernel.metadata.shared <= SHARED_MEMORY[capability], name


@needs_triton
@not_interpreted
@pytest.mark.slow
def test_a_tile_that_is_too_large_would_be_noticed(compiled, monkeypatch):
    """What a T4 got before tiles were chosen by its memory."""
    from nanovllm.layers.kernels import paged_attention

    monkeypatch.setattr(paged_attention, "shared_memory", lambda device: SHARED_MEMORY[90])
    [(_, kernel)] = compiled(75, decode, 128, FLOAT16, 2)
    assert kernel.metadata.shared > SHARED_MEMORY[75]


@needs_triton
@not_interpreted
@pytest.mark.parametrize("capability", [75, *[pytest.param(c, marks=pytest.mark.slow) for c in (80, 86, 90, 100, 120)]])
def test_launches_overlap_only_where_the_gpu_can_do_that(compiled, capability):
    from nanovllm.levers.overlapped_launch import overlapped

    def small(dtype):
        from nanovllm.levers.fused_norm import rms_norm

        rms_norm(empty(2, 64, dtype=dtype), empty(64, dtype=dtype), 1e-6)
        decode(64, dtype, 2)

    for is_on in (False, True):
        if is_on:
            with overlapped():
                kernels = compiled(capability, small, FLOAT16)
        else:
            kernels = compiled(capability, small, FLOAT16)
        for name, kernel in kernels:
            overlaps = is_on and capability >= 90
            assert kernel.metadata.launch_pdl is overlaps, name
            assert ("griddepcontrol.wait" in kernel.asm["ptx"]) is overlaps, name
            assert ("griddepcontrol.launch_dependents" in kernel.asm["ptx"]) is overlaps, name
