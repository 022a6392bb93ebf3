"""The engine on a CUDA device: every backend against float32, CUDA graphs against eager, and memory.

In float32 a GPU gives the tokens of the CPU, so that most of these tests compare tokens exactly. In bfloat16 the
bar is Hugging Face's own bfloat16: the engine may be no further from float32 than that.

With `-n`, several processes share the GPU, and the tests that measure its memory as a whole are skipped. For these:
pytest tests/engine -m gpu -k "share_of_the_memory or gpu_memory_comes_back"
"""

import gc
import inspect

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from nanovllm import LLM, SamplingParams
from nanovllm import config as engine_config

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
        if backend != "sdpa":
            assert (llm.model_runner.num_graph_replays > 0) is not enforce_eager
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


@pytest.mark.parametrize("max_num_seqs", [1, 2, 3, 5, 9, 12, 17, 33, 100])
def test_any_number_of_sequences(path, max_num_seqs):
    need("triton")
    prompts = prompts_of([3 + i % 7 for i in range(max_num_seqs + 3)])
    params = [SamplingParams(temperature=0.0, max_tokens=2 + i % 9, ignore_eos=True) for i in range(len(prompts))]
    expected = cpu_tokens(path, prompts, params)
    with make_llm(path, attention_backend="triton", max_num_seqs=max_num_seqs) as llm:
        assert tokens(llm.generate(prompts, params, use_tqdm=False)) == expected
        assert llm.model_runner.num_graph_replays > 0


def test_prefill_and_decode_alternate_around_graph_sizes(path):
    # Batches grow by one and shrink by one through 1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17 and 18 sequences.
    need("triton")
    prompts = prompts_of([2 + i % 5 for i in range(18)], seed=3)
    params = [SamplingParams(temperature=0.0, max_tokens=20, ignore_eos=True)] * 18
    expected = cpu_tokens(path, prompts, params)
    with make_llm(path, attention_backend="triton", max_num_seqs=18) as llm:
        requests = [(prompt, 20) for prompt in prompts]
        assert run_requests(llm, requests, params, arrivals=range(18)) == expected
        sizes = set()
        replay = llm.model_runner.replay_cudagraph

        def recording_replay(input_ids, *arguments):
            sizes.add(len(input_ids))
            return replay(input_ids, *arguments)

        llm.model_runner.replay_cudagraph = recording_replay
        assert run_requests(llm, requests, params, arrivals=[2 * i for i in range(18)]) == expected
        del llm.model_runner.replay_cudagraph
        assert sizes == set(range(1, 19))


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
            assert (llm.model_runner.num_graph_replays > 0) is not enforce_eager
    assert results[0] == results[1]


# Bfloat16 against float32.


@pytest.mark.parametrize("backend", BF16_BACKENDS)
@pytest.mark.parametrize("enforce_eager", [True, False])
def test_bfloat16_is_as_near_to_float32_as_that_of_hugging_face(bf16_path, backend, enforce_eager):
    need(backend)
    prompts = prompts_of([1, 30, 256, 257, 400])
    params = SamplingParams(temperature=0.0, max_tokens=20, ignore_eos=True, logprobs=VOCAB_SIZE)
    options = {"kvcache_block_size": 256, "num_kvcache_blocks": 40, "dtype": "bfloat16"}
    with make_llm(bf16_path, attention_backend=backend, enforce_eager=enforce_eager, **options) as llm:
        outputs = llm.generate(prompts, params, use_tqdm=False)
        outputs += llm.generate(prompts, params, use_tqdm=False)  # with cached prefixes
        assert outputs[-1]["num_cached_tokens"] == 256
    exact = load_hf_model(bf16_path, dtype=torch.float32)
    rounded = load_hf_model(bf16_path, dtype=torch.bfloat16).cuda()
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


# Memory.


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
