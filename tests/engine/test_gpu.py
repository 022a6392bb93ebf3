"""The engine on a CUDA device: every backend against float32, CUDA graphs against eager, and memory.

In float32 a GPU gives the tokens of the CPU, so that most of these tests compare tokens exactly. In bfloat16 the
bar is Hugging Face's own bfloat16: the engine may be no further from float32 than that.

With `-n`, several processes share the GPU, and the tests that measure its memory as a whole are skipped. For these:
pytest tests/engine -m gpu -k "share_of_the_memory or gpu_memory_comes_back"
"""

import gc
import inspect
from collections import Counter

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from nanovllm import LLM, SamplingParams
from nanovllm import config as engine_config
from nanovllm.levers import LEVERS
from nanovllm.utils.context import get_context, reset_context

from .conftest import alone_on_the_gpu, load_hf_model, make_tiny_model
from .reference import Reference, assert_clean, drain, heavy, make_smooth_model
from .test_invariance import engine_options, run_requests, workloads

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(300)]

VOCAB_SIZE = 320
GREEDY = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True)
# head_dim 64 is what all backends take.
SHAPE = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "max_position_embeddings": 1024,
}
FP32_BACKENDS = ["sdpa", "triton"]
BF16_BACKENDS = ["sdpa", "triton", "flash_attn"]


def need(backend):
    if backend != "sdpa":
        pytest.importorskip(backend)


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return make_tiny_model(tmp_path_factory.mktemp("gpu") / "model", seed=6, with_tokenizer=True, **SHAPE)


@pytest.fixture(scope="module")
def bf16_path(tmp_path_factory):
    return make_smooth_model(tmp_path_factory.mktemp("gpu") / "bf16", seed=7, dtype=torch.bfloat16, **SHAPE)


@pytest.fixture(scope="module")
def reference(path):
    return Reference(path)


def make_llm(path, **options):
    defaults = {"device": "cuda", "dtype": "float32", "kvcache_block_size": 16, "num_kvcache_blocks": 256}
    return LLM(path, **(defaults | {"max_num_seqs": 16, "max_model_len": 512} | options))


def runner_of(llm):
    return llm.llm_engine.model_runner


def num_graph_replays(llm):
    return getattr(runner_of(llm), "num_graph_replays", 0)  # the runner without graphs does not count them


def prompts_of(lengths, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(1, VOCAB_SIZE, (length,), generator=generator).tolist() for length in lengths]


def tokens(outputs):
    return [output["token_ids"] for output in outputs]


def cpu_tokens(path, prompts, params, **options):
    with LLM(path, device="cpu", kvcache_block_size=16, num_kvcache_blocks=512, **options) as llm:
        return tokens(llm.generate(prompts, params, use_tqdm=False))


# Float32: the tokens of the CPU.


@pytest.mark.parametrize("backend", FP32_BACKENDS)
@pytest.mark.parametrize("enforce_eager", [True, False])
def test_tokens_in_float32_are_those_of_the_cpu(path, reference, backend, enforce_eager):
    need(backend)
    prompts = prompts_of([1, 2, 15, 16, 17, 100, 300])
    expected = cpu_tokens(path, prompts, GREEDY)
    with make_llm(path, attention_backend=backend, enforce_eager=enforce_eager) as llm:
        assert llm.config.device == "cuda" and llm.config.attention_backend == backend
        assert tokens(llm.generate(prompts, GREEDY, use_tqdm=False)) == expected
        if backend != "sdpa" and llm.config.disabled_optimizations != "all":
            assert (num_graph_replays(llm) > 0) is not enforce_eager
        assert tokens(llm.generate(prompts, GREEDY, use_tqdm=False)) == expected, "with cached prefixes"
        assert_clean(llm)
    for prompt, token_ids in zip(prompts, expected, strict=True):
        reference.assert_greedy(prompt, token_ids)


@pytest.mark.parametrize("backend", FP32_BACKENDS)
def test_seeded_tokens_are_those_of_the_cpu(path, backend):
    need(backend)
    prompts = prompts_of([3, 40, 7, 9])
    params = [
        SamplingParams(
            temperature=0.8, seed=seed, max_tokens=12, ignore_eos=True, top_p=top_p, top_k=top_k, min_p=min_p
        )
        for seed, top_p, top_k, min_p in [
            (0, 1.0, -1, 0.0),
            (1, 0.9, -1, 0.0),
            (2**40, 1.0, 20, 0.0),
            (5, 0.9, 50, 0.01),
        ]
    ]
    expected = cpu_tokens(path, prompts, params)
    for enforce_eager in (True, False):
        with make_llm(path, attention_backend=backend, enforce_eager=enforce_eager) as llm:
            assert tokens(llm.generate(prompts, params, use_tqdm=False)) == expected
            alone = [tokens(llm.generate(p, q, use_tqdm=False))[0] for p, q in zip(prompts, params, strict=True)]
            assert alone == expected


def test_unseeded_tokens_are_those_of_the_cpu(path):
    need("triton")
    prompts, params = prompts_of([3, 40, 7]), SamplingParams(temperature=1.0, max_tokens=12, ignore_eos=True)
    expected = cpu_tokens(path, prompts, params, seed=3)
    with make_llm(path, attention_backend="triton", seed=3) as llm:
        assert tokens(llm.generate(prompts, params, use_tqdm=False)) == expected


@pytest.mark.parametrize("backend", FP32_BACKENDS)
@heavy(max_examples=25)
@given(data=st.data())
def test_tokens_do_not_depend_on_how_they_are_computed(path, reference, backend, data):
    need(backend)
    requests = data.draw(workloads())
    options = data.draw(engine_options(requests))
    arrivals = [data.draw(st.integers(0, 12)) for _ in requests]
    ignore_eos = data.draw(st.booleans())
    params = [SamplingParams(temperature=0.0, max_tokens=count, ignore_eos=ignore_eos) for _, count in requests]
    with make_llm(path, **options, attention_backend=backend, enforce_eager=data.draw(st.booleans())) as llm:
        results = run_requests(llm, requests, params, arrivals, data.draw(st.sampled_from([0, 3, 7])))
        assert_clean(llm)
    for (prompt, _), token_ids in zip(requests, results, strict=True):
        reference.assert_greedy(prompt, token_ids, note=f"{options}, arrivals {arrivals}")


def test_tokens_of_a_model_with_biases_are_those_of_the_cpu(tmp_path):
    # Norms cannot be folded into projections that have one.
    need("triton")
    path = make_tiny_model(tmp_path / "model", seed=8, attention_bias=True, **SHAPE)
    prompts = prompts_of([1, 15, 100])
    with make_llm(path, attention_backend="triton") as llm:
        assert tokens(llm.generate(prompts, GREEDY, use_tqdm=False)) == cpu_tokens(path, prompts, GREEDY)


# CUDA graphs.


@pytest.mark.lever
@pytest.mark.parametrize("max_num_seqs", [1, 2, 3, 5, 9, 12, 17, 33, 100])
def test_any_number_of_sequences(path, max_num_seqs):
    need("triton")
    prompts = prompts_of([3 + i % 7 for i in range(max_num_seqs + 3)])
    params = [SamplingParams(temperature=0.0, max_tokens=2 + i % 9, ignore_eos=True) for i in range(len(prompts))]
    expected = cpu_tokens(path, prompts, params)
    with make_llm(path, attention_backend="triton", max_num_seqs=max_num_seqs) as llm:
        assert tokens(llm.generate(prompts, params, use_tqdm=False)) == expected
        assert num_graph_replays(llm) > 0


@pytest.mark.lever
def test_prefill_and_decode_alternate_around_graph_sizes(path):
    # Batches grow by one and shrink by one through 1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17 and 18 sequences.
    need("triton")
    prompts = prompts_of([2 + i % 5 for i in range(18)], seed=3)
    params = [SamplingParams(temperature=0.0, max_tokens=20, ignore_eos=True)] * 18
    expected = cpu_tokens(path, prompts, params)
    with make_llm(path, attention_backend="triton", max_num_seqs=18) as llm:
        requests = [(prompt, 20) for prompt in prompts]
        assert run_requests(llm, requests, params, arrivals=range(18)) == expected
        sizes, runner = set(), runner_of(llm)
        run_model, num_replays = runner.run_model, runner.num_graph_replays

        def recording_run_model(input_ids, positions):
            if not get_context().is_prefill:
                sizes.add(len(input_ids))
            return run_model(input_ids, positions)

        runner.run_model = recording_run_model
        assert run_requests(llm, requests, params, arrivals=[2 * i for i in range(18)]) == expected
        del runner.run_model
        assert sizes == set(range(1, 19)) and runner.num_graph_replays - num_replays >= 18


def test_tables_grow_to_max_model_len_under_graphs(path):
    need("triton")
    params = SamplingParams(temperature=0.0, max_tokens=1000, ignore_eos=True)
    prompts = prompts_of([90, 3])
    expected = cpu_tokens(path, prompts, params, max_model_len=130)
    with make_llm(path, attention_backend="triton", max_model_len=130, kvcache_block_size=16) as llm:
        outputs = llm.generate(prompts, params, use_tqdm=False)
        assert tokens(outputs) == expected
        assert [output["finish_reason"] for output in outputs] == ["length", "length"]
        assert [len(output["token_ids"]) for output in outputs] == [40, 127]


def test_padded_rows_write_to_no_block_of_a_request(path):
    # A pool without a spare block: a padded row that wrote into it would change somebody's keys.
    need("triton")
    prompts = prompts_of([15, 14, 13])
    expected = cpu_tokens(path, prompts, GREEDY)
    with make_llm(path, attention_backend="triton", num_kvcache_blocks=6, max_num_seqs=8) as llm:
        assert tokens(llm.generate(prompts, GREEDY, use_tqdm=False)) == expected


@pytest.mark.lever
@pytest.mark.parametrize("backend", ["triton", "flash_attn"])
def test_graphs_give_what_eager_gives_in_bfloat16(bf16_path, backend):
    # Four sequences are a graph of their own, so that both ways run the same kernels on the same shapes.
    need(backend)
    prompts = prompts_of([20, 300, 5, 77])
    params = SamplingParams(temperature=0.0, max_tokens=40, ignore_eos=True)
    results = []
    for enforce_eager in (True, False):
        options = {"kvcache_block_size": 256, "num_kvcache_blocks": 20, "dtype": "bfloat16", "max_num_seqs": 4}
        with make_llm(bf16_path, attention_backend=backend, enforce_eager=enforce_eager, **options) as llm:
            results.append(tokens(llm.generate(prompts, params, use_tqdm=False)))
            assert (num_graph_replays(llm) > 0) is not enforce_eager
    assert results[0] == results[1]


# Bfloat16 and float16 against float32.


@pytest.mark.parametrize(
    "backend, enforce_eager, dtype",
    [(backend, eager, torch.bfloat16) for backend in BF16_BACKENDS for eager in (True, False)]
    + [(backend, False, torch.float16) for backend in ("sdpa", "triton")],  # a T4 computes in it
)
def test_half_precision_is_as_near_to_float32_as_that_of_hugging_face(bf16_path, backend, enforce_eager, dtype):
    need(backend)
    prompts = prompts_of([1, 30, 256, 257, 400])
    params = SamplingParams(temperature=0.0, max_tokens=20, ignore_eos=True, logprobs=VOCAB_SIZE)
    options = {"kvcache_block_size": 256, "num_kvcache_blocks": 40, "dtype": dtype}
    with make_llm(bf16_path, attention_backend=backend, enforce_eager=enforce_eager, **options) as llm:
        outputs = llm.generate(prompts, params, use_tqdm=False)
        outputs += llm.generate(prompts, params, use_tqdm=False)  # with cached prefixes
        assert outputs[-1]["num_cached_tokens"] == 256
    exact = load_hf_model(bf16_path, dtype=torch.float32)
    rounded = load_hf_model(bf16_path, dtype=dtype).cuda()
    ours, theirs = [], []
    for prompt, output in zip(prompts * 2, outputs, strict=True):
        token_ids = torch.tensor([prompt + output["token_ids"]])
        with torch.inference_mode():
            expected = exact(token_ids).logits[0, len(prompt) - 1 : -1].log_softmax(dim=-1)
            other = rounded(token_ids.cuda()).logits[0, len(prompt) - 1 : -1].float().cpu().log_softmax(dim=-1)
        got = torch.tensor([[row[i] for i in range(VOCAB_SIZE)] for row in output["logprobs"]])
        ours.append((got - expected).abs().flatten())
        theirs.append((other - expected).abs().flatten())
    ours, theirs = torch.cat(ours), torch.cat(theirs)
    assert ours.mean() <= 1.5 * theirs.mean(), (ours.mean(), theirs.mean())
    assert ours.max() <= 3.0 * theirs.max(), (ours.max(), theirs.max())


@pytest.mark.parametrize("backend", BF16_BACKENDS)
def test_chunks_and_prefixes_in_bfloat16(bf16_path, backend):
    need(backend)
    (stem,) = prompts_of([600], seed=9)
    prompts = [stem, stem[:300], [*stem[:520], 5, 6], [*stem[:256], 9]]
    params = SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True, logprobs=VOCAB_SIZE)
    options = {"kvcache_block_size": 256, "num_kvcache_blocks": 40, "dtype": "bfloat16", "max_model_len": 1024}
    rows = []
    for budget in (2000, 190):
        with make_llm(bf16_path, attention_backend=backend, max_num_batched_tokens=budget, **options) as llm:
            outputs = llm.generate(prompts, params, use_tqdm=False)
        # The first token's distribution: what follows may differ after a close call.
        rows.append(torch.tensor([[output["logprobs"][0][i] for i in range(VOCAB_SIZE)] for output in outputs]))
    exact = load_hf_model(bf16_path, dtype=torch.float32)
    with torch.inference_mode():
        expected = torch.stack([exact(torch.tensor([p])).logits[0, -1].log_softmax(dim=-1) for p in prompts])
        rounded = load_hf_model(bf16_path, dtype=torch.bfloat16).cuda()
        theirs = torch.stack([rounded(torch.tensor([p]).cuda()).logits[0, -1].float().cpu() for p in prompts])
    bar = (theirs.log_softmax(dim=-1) - expected).abs().max()
    for row in rows:
        assert (row - expected).abs().max() <= 3.0 * bar


# One step ahead: what ends a request shows only after the next step was launched.


def test_stops_streams_and_aborts_while_the_next_step_runs(path):
    need("triton")
    prompts = prompts_of([5, 6, 7, 8], seed=4)
    full = cpu_tokens(path, prompts, GREEDY)
    stop_ids = [token_ids[i] for i, token_ids in enumerate(full)]
    params = [
        SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True, stop_token_ids=[stop]) for stop in stop_ids
    ]
    expected = [token_ids[: token_ids.index(stop) + 1] for token_ids, stop in zip(full, stop_ids, strict=True)]
    with make_llm(path, attention_backend="triton") as llm:
        outputs = llm.generate(prompts, params, use_tqdm=False)
        assert tokens(outputs) == expected
        assert [output["finish_reason"] for output in outputs] == ["stop"] * 4
        texts = [output["text"] for output in llm.generate(prompts, GREEDY, use_tqdm=False)]
        streams = [llm.stream(prompt, GREEDY) for prompt in prompts]
        assert ["".join(stream) for stream in streams] == texts
        for steps in range(5):
            ids = [llm.add_request(prompt, GREEDY) for prompt in prompts]
            results = {}
            for _ in range(steps):
                results.update(llm.step()[0])
            aborted = llm.abort(ids[1])
            assert aborted["token_ids"] == full[1][: len(aborted["token_ids"])]
            results.update(drain(llm))
            assert results == {ids[i]: full[i] for i in (0, 2, 3)}
            assert_clean(llm)
        follow_up = [prompt + token_ids for prompt, token_ids in zip(prompts, full, strict=True)]
        again = llm.generate(follow_up, GREEDY, use_tqdm=False)
        assert any(output["num_cached_tokens"] for output in again)
        assert tokens(again) == cpu_tokens(path, follow_up, GREEDY), "no token that was dropped is in the cache"


def test_a_step_that_raises_loses_no_other_request(path, monkeypatch):
    need("triton")
    prompts = prompts_of([5, 6], seed=4)
    full = cpu_tokens(path, prompts, GREEDY)
    with make_llm(path, attention_backend="triton") as llm:
        for when in range(1, 8):
            seq_id = llm.add_request(prompts[0], GREEDY)
            calls = [0]
            schedule = llm.scheduler.schedule

            def failing_schedule(calls=calls, schedule=schedule, when=when):
                calls[0] += 1
                if calls[0] == when:
                    raise KeyboardInterrupt
                return schedule()

            with monkeypatch.context() as patch:
                patch.setattr(llm.scheduler, "schedule", failing_schedule)
                with pytest.raises(KeyboardInterrupt):
                    llm.generate(prompts[1], GREEDY, use_tqdm=False)
            assert tokens(llm.generate(prompts[1], GREEDY, use_tqdm=False)) == [full[1]]
            assert drain(llm) == {seq_id: full[0]}
            assert_clean(llm)


# The levers are on: facts about the kernels of a decode step, as the GPU runs it.

LAYERS = 8  # more than any kernel outside of the layers is launched
DEEP = {"dtype": "bfloat16", "attention_backend": "triton"}
KERNELS_OF_LEVERS = ["small_linear", "qk_norm_rope_store", "silu_and_mul", "rms_norm", "sample_chunk"]
OUR_KERNELS = [*KERNELS_OF_LEVERS, "paged_decode", "paged_prefill", "store_kvcache"]


@pytest.fixture(scope="module")
def deep_path(tmp_path_factory):
    directory = tmp_path_factory.mktemp("gpu") / "deep"
    return make_smooth_model(directory, seed=7, dtype=torch.bfloat16, num_hidden_layers=LAYERS, **SHAPE)


def is_on(name, off):
    """Whether a lever that works here is on if these are turned off."""
    return name not in off and all(is_on(base, off) for base in LEVERS[name].builds_on)


def expected_kernels(num_seqs, off):
    """How often each of our kernels runs in a decode step, if these levers are turned off."""
    count = dict.fromkeys(OUR_KERNELS, 0) | {"paged_decode": LAYERS}
    has_small_products = is_on("small_batch", off) and num_seqs <= 2
    if has_small_products:  # QKV, output, gate and up, down: with the norms before and the additions after them
        count["small_linear"] = 4 * LAYERS
    elif is_on("fused_activation", off):
        count["silu_and_mul"] = LAYERS
    count["qk_norm_rope_store" if is_on("fused_qkv", off) else "store_kvcache"] = LAYERS
    if is_on("fused_norm", off):
        in_layers = not has_small_products and not is_on("folded_norm", off)
        count["rms_norm"] = 1 + 2 * LAYERS * in_layers + 2 * LAYERS * (not is_on("fused_qkv", off))
    count["sample_chunk"] = int(is_on("fused_sampler", off))
    return count


def kernels_of(run):
    """Names of the kernels that a function starts on the GPU, and how often."""
    from torch.profiler import ProfilerActivity, profile

    for _ in range(2):  # the first time, the profiler may be about to get ready
        torch.cuda.synchronize()
        with profile(activities=[ProfilerActivity.CUDA]) as profiler:
            run()
            torch.cuda.synchronize()
    on_gpu = [e.name for e in profiler.events() or [] if e.device_type == torch.autograd.DeviceType.CUDA]
    return Counter(name for name in on_gpu if not name.startswith(("Memcpy", "Memset")))


def split_kernels(kernels):
    """Ours by their short names, and the rest, those of torch and cuBLAS."""
    ours = {name: sum(n for k, n in kernels.items() if k.startswith(f"{name}_kernel")) for name in OUR_KERNELS}
    return ours, Counter({k: n for k, n in kernels.items() if not k.startswith(tuple(f"{o}_kernel" for o in ours))})


@pytest.mark.lever
@pytest.mark.parametrize("num_seqs", [1, 64])
def test_the_recorded_step_holds_the_kernels_of_all_levers_and_little_else(deep_path, num_seqs):
    need("triton")
    with make_llm(deep_path, max_num_seqs=64, **DEEP) as llm:
        graphs = runner_of(llm).graphs
        assert {1, 2, 4, 8, 16, 64} <= set(graphs)
        kernels = kernels_of(graphs[num_seqs].replay)
        with torch.inference_mode():
            launched = kernels_of(lambda: runner_of(llm).run_in_buffers(num_seqs))
        reset_context()
    ours, others = split_kernels(kernels)
    story = "\n".join(f"{count:4} {name}" for name, count in kernels.most_common())
    assert ours == expected_kernels(num_seqs, ()), story
    # Outside of the layers: embedding, position of the next token, logits, two for the best of all chunks, and the
    # copy of the tokens; a product or a reduction may come in two parts.
    outside = 12
    # Inside of them: four products, each of which may be followed by the sum of its parts.
    products = 0 if num_seqs == 1 else 4 * LAYERS
    assert products + 3 <= others.total() <= 2 * products + outside, story
    # Nothing is added, multiplied or copied by a kernel of its own in any layer.
    plain = [name for name in others if "elementwise" in name and others[name] >= LAYERS]
    assert not plain, story
    assert split_kernels(launched)[0] == ours, "a graph holds what is launched without one"


@pytest.mark.lever
@pytest.mark.parametrize("off", ["", *(name for name in LEVERS if name.startswith(("fused", "folded", "small")))])
def test_without_a_lever_its_kernels_are_gone_and_those_of_the_others_stay(deep_path, off):
    need("triton")
    off = [off] if off else []
    with make_llm(deep_path, max_num_seqs=4, disabled_optimizations=off, **DEEP) as llm:
        for num_seqs in (1, 2, 4):
            kernels = kernels_of(runner_of(llm).graphs[num_seqs].replay)
            story = "\n".join(f"{count:4} {name}" for name, count in kernels.most_common())
            assert split_kernels(kernels)[0] == expected_kernels(num_seqs, off), story


@pytest.mark.lever
@pytest.mark.parametrize("off", [(), ("overlapped_launch",)])
def test_launches_overlap_while_graphs_are_recorded_and_in_prefills(deep_path, monkeypatch, off):
    """The flag is easily lowered too early, and then a decode step of one sequence is slower by a tenth."""
    need("triton")
    from triton.runtime.jit import JITFunction

    launches, run = [], JITFunction.run

    def recording_run(kernel, *args, **kwargs):
        if "OVERLAP" in kernel.arg_names:
            overlaps = bool(kwargs.get("launch_pdl")), bool(kwargs["OVERLAP"])
            launches.append((kernel.__name__, overlaps, torch.cuda.is_current_stream_capturing()))
        return run(kernel, *args, **kwargs)

    monkeypatch.setattr(JITFunction, "run", recording_run)
    params = SamplingParams(temperature=0.5, seed=1, max_tokens=3, ignore_eos=True)
    with make_llm(deep_path, max_num_seqs=4, disabled_optimizations=off, **DEEP) as llm:
        recorded = [(name, overlaps) for name, overlaps, is_recorded in launches if is_recorded]
        launches.clear()
        llm.generate(prompts_of([5, 30]), params, use_tqdm=False)
        in_prefill = [(name, overlaps) for name, overlaps, _ in launches]
    every = {f"{name}_kernel" for name in KERNELS_OF_LEVERS}
    assert {name for name, _ in recorded} == every | {"paged_decode_kernel"}
    assert {name for name, _ in in_prefill} == every - {"small_linear_kernel"}, "decode steps are replayed"
    expected = not off and torch.cuda.get_device_capability() >= (9, 0)
    wrong = {(name, overlaps) for name, overlaps in recorded + in_prefill if overlaps != (expected, expected)}
    assert not wrong


@pytest.mark.lever
@pytest.mark.parametrize("off", [(), ("step_ahead",)])
def test_a_step_is_under_way_when_the_last_one_is_reported(path, off):
    need("triton")
    is_ahead = not off
    with make_llm(path, attention_backend="triton", disabled_optimizations=off) as llm:
        seq_id = llm.add_request([1, 2, 3], GREEDY)
        for _ in range(4):
            llm.step()
        (seq,) = llm.scheduler.running
        assert (seq.last_token == -1) is is_ahead, "its last token has been computed, and is not known yet"
        assert (getattr(llm.llm_engine, "in_flight", None) is not None) is is_ahead
        assert drain(llm) == {seq_id: cpu_tokens(path, [[1, 2, 3]], GREEDY)[0]}


@pytest.mark.lever
def test_without_any_lever_nothing_of_ours_but_attention_is_launched(deep_path):
    need("triton")
    with make_llm(deep_path, disabled_optimizations="all", **DEEP) as llm:
        assert not hasattr(runner_of(llm), "graphs")
        llm.add_request([1, 2, 3], GREEDY)
        llm.step()
        ours, others = split_kernels(kernels_of(llm.step))
    assert ours == dict.fromkeys(OUR_KERNELS, 0) | {"paged_decode": LAYERS, "store_kvcache": LAYERS}
    assert others.total() > 20 * LAYERS, "what the levers save"


# Memory.


@pytest.mark.parametrize("off", [(), "all"])
def test_a_step_that_does_not_fit_into_memory_is_made_smaller(path, off):
    need("triton")
    prompts = prompts_of([100, 90, 80])
    expected = cpu_tokens(path, prompts, GREEDY)
    options = {"attention_backend": "triton", "max_num_batched_tokens": 256, "disabled_optimizations": off}
    with make_llm(path, **options) as llm:
        runner, too_large = runner_of(llm), []
        launch = runner.launch

        def hungry_launch(seqs, is_prefill):
            num_tokens = sum(seq.num_scheduled_tokens for seq in seqs)
            if num_tokens > limit:
                too_large.append(num_tokens)
                torch.empty(2**50, dtype=torch.uint8, device="cuda")  # a million gigabytes
            return launch(seqs, is_prefill)

        runner.launch = hungry_launch
        limit = 150
        assert tokens(llm.generate(prompts, GREEDY, use_tqdm=False)) == expected
        assert too_large and max(too_large) > limit
        limit = 0
        outputs = llm.generate(prompts, GREEDY, use_tqdm=False)
        assert [output["finish_reason"] for output in outputs] == ["error"] * 3
        assert all("memory" in output["error"] for output in outputs)
        del runner.launch
        assert tokens(llm.generate(prompts, GREEDY, use_tqdm=False)) == expected
        assert_clean(llm)


def test_out_of_memory_at_start_says_which_knob(path):
    with pytest.raises(MemoryError, match="gpu_memory_utilization"):
        make_llm(path, num_kvcache_blocks=-1, gpu_memory_utilization=1e-6)
    with pytest.raises(MemoryError, match="num_kvcache_blocks"):
        make_llm(path, num_kvcache_blocks=10**9)
    # What failed has left nothing behind.
    with make_llm(path, attention_backend="sdpa") as llm:
        assert len(llm.generate([1, 2, 3], GREEDY, use_tqdm=False)[0]["token_ids"]) == 12


@alone_on_the_gpu
@pytest.mark.parametrize("utilization", [0.3, 0.8])
def test_the_pool_takes_the_share_of_the_memory_that_it_was_given(path, utilization):
    need("triton")
    torch.cuda.empty_cache()
    free, total = torch.cuda.mem_get_info()
    in_use = total - free
    options = {"num_kvcache_blocks": -1, "gpu_memory_utilization": utilization, "dtype": "bfloat16"}
    options |= {"kvcache_block_size": 256}  # small blocks of a tiny model would be millions
    with make_llm(path, max_num_seqs=64, attention_backend="triton", **options) as llm:
        prompts = prompts_of([200] * 64)
        llm.generate(prompts, GREEDY, use_tqdm=False)
        free, _ = torch.cuda.mem_get_info()
        used = total - free
        assert used <= total * utilization + 2**30, "graphs and kernels may take a little more"
        assert used >= total * utilization * 0.9 - 2**30, "and the pool takes what there is"
    gc.collect()
    torch.cuda.empty_cache()
    free, _ = torch.cuda.mem_get_info()
    assert total - free <= in_use + 2**30, "exit gives it back"


@pytest.mark.parametrize("backend", BF16_BACKENDS)
def test_engines_one_after_the_other_leak_nothing(bf16_path, backend):
    need(backend)
    gc.collect()
    options = {"kvcache_block_size": 256, "num_kvcache_blocks": 64, "dtype": "bfloat16", "attention_backend": backend}
    allocated = []
    for _ in range(4):
        with make_llm(bf16_path, **options) as llm:
            llm.generate([[1, 2, 3]] * 3, GREEDY, use_tqdm=False)
        allocated.append(torch.cuda.memory_allocated())
    assert allocated[-1] <= allocated[0] + 2**20


def test_two_engines_side_by_side(path):
    need("triton")
    prompts = prompts_of([5, 40])
    expected = cpu_tokens(path, prompts, GREEDY)
    with (
        make_llm(path, attention_backend="triton", kvcache_block_size=16) as first,
        make_llm(path, attention_backend="sdpa", kvcache_block_size=5) as second,
    ):
        ids = [[llm.add_request(prompt, GREEDY) for prompt in prompts] for llm in (first, second)]
        results = [{}, {}]
        while not (first.is_finished() and second.is_finished()):
            for llm, result in zip((first, second), results, strict=True):
                result.update(llm.step()[0])
        for own, result in zip(ids, results, strict=True):
            assert [result[i] for i in own] == expected


def test_auto_chooses_a_gpu_and_a_backend_that_runs_there(bf16_path, monkeypatch):
    # What "auto" means outside of the tests, where --device says it.
    monkeypatch.setattr(engine_config, "resolve_device", inspect.unwrap(engine_config.resolve_device))
    with LLM(bf16_path, kvcache_block_size=256, num_kvcache_blocks=8) as llm:
        assert llm.config.device == "cuda" and llm.config.dtype == torch.bfloat16
        assert llm.config.attention_backend in ("triton", "flash_attn")
        assert len(llm.generate([1, 2, 3], GREEDY, use_tqdm=False)[0]["token_ids"]) == 12


def test_the_users_defaults_are_left_alone(path):
    with make_llm(path, attention_backend="sdpa") as llm:
        llm.generate([1, 2, 3], GREEDY, use_tqdm=False)
        assert torch.empty(0).device.type == "cpu" and torch.get_default_dtype() == torch.float32
