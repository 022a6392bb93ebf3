"""Several ranks give what one rank gives: tokens, log-probabilities, beams and text, whatever the scheduler does."""

import os
import pickle
import signal
import subprocess
import sys
import threading
import time

import psutil
import pytest
import torch

from nanovllm import LLM, BeamSearchParams, SamplingParams
from nanovllm.config import Config
from nanovllm.engine.scheduler import Scheduler
from nanovllm.engine.sequence import Sequence
from nanovllm.engine.worker import (
    MAIN_GUARD_HINT,
    TensorParallelRunner,
    as_picklable,
    describe_exit_code,
    make_store,
)
from nanovllm.levers import make_runner

from .ahead import make_llm
from .conftest import device_of_ranks, make_tiny_model
from .leaks import leaves_nothing_behind, private_temp_dir, wait_until
from .misbehave import LittleMemory
from .reference import Reference, assert_clean, drain

# Neither the vocabulary nor the KV heads divide by two ranks.
MODEL = {"vocab_size": 323, "num_attention_heads": 4, "num_key_value_heads": 1, "attention_bias": True}
# Prompts are cut, and the pool holds a few requests only.
OPTIONS = {"kvcache_block_size": 4, "num_kvcache_blocks": 24, "max_num_batched_tokens": 16, "max_model_len": 90}
OPTIONS |= {"device": device_of_ranks(2)}
GREEDY = SamplingParams(temperature=0.0, max_tokens=16)
STEM = [(7 * i) % 319 + 1 for i in range(40)]
PROMPTS = [[5], STEM[:9], STEM, [*STEM[:20], 300, 322], [321, 322], STEM[:21]]


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return make_tiny_model(tmp_path_factory.mktemp("ranks") / "model", seed=5, with_tokenizer=True, **MODEL)


@pytest.fixture(scope="module")
def reference(path):
    return Reference(path)


@pytest.fixture(scope="module")
def one_rank(path):
    with LLM(path, **OPTIONS) as llm:
        yield llm


@pytest.fixture(scope="module")
def two_ranks(path, tmp_path_factory):
    with (
        private_temp_dir(tmp_path_factory.mktemp("tmp")),
        leaves_nothing_behind(),
        LLM(path, tensor_parallel_size=2, **OPTIONS) as llm,
    ):
        yield llm


def tokens(llm, prompts, params):
    return [output["token_ids"] for output in llm.generate(prompts, params, use_tqdm=False)]


def test_greedy_tokens_are_those_of_hugging_face(two_ranks, reference):
    """Chunked prefill, shared prefixes and blocks that run out included."""
    # Short answers before let the engine expect short ones, so that it admits more than fits.
    tokens(two_ranks, [[1]] * 60, SamplingParams(temperature=0.0, max_tokens=1))
    preemptions = two_ranks.scheduler.num_preemptions
    for prompt, token_ids in zip(PROMPTS, tokens(two_ranks, PROMPTS, GREEDY), strict=True):
        reference.assert_greedy(prompt, token_ids)
    assert two_ranks.scheduler.num_preemptions > preemptions
    assert_clean(two_ranks)


def test_seeded_tokens_and_logprobs_are_those_of_one_rank(one_rank, two_ranks):
    params = [
        SamplingParams(temperature=1.3, top_p=0.9, top_k=100, min_p=0.01, seed=i, max_tokens=12, logprobs=i % 4)
        for i in range(len(PROMPTS))
    ]
    expected = one_rank.generate(PROMPTS, params, use_tqdm=False)
    outputs = two_ranks.generate(PROMPTS, params, use_tqdm=False)
    for output, other in zip(outputs, expected, strict=True):
        assert output["token_ids"] == other["token_ids"] and output["finish_reason"] == other["finish_reason"]
        for row, other_row in zip(output["logprobs"], other["logprobs"], strict=True):
            assert row.keys() == other_row.keys()
            assert [row[i] for i in row] == pytest.approx([other_row[i] for i in row], abs=1e-4)


def test_the_padding_of_the_vocabulary_does_not_show(one_rank, two_ranks):
    """The second rank's part is one row longer than what is left for it."""
    params = SamplingParams(temperature=0.0, max_tokens=3, logprobs=1000)
    for llm in (one_rank, two_ranks):
        (output,) = llm.generate([5, 6], params, use_tqdm=False)
        for row in output["logprobs"]:
            assert sorted(row) == list(range(MODEL["vocab_size"]))


def test_requests_without_a_seed_draw_the_same_on_any_number_of_ranks(path, two_ranks):
    two_ranks.seq_ids, before = iter(range(10**6, 2 * 10**6)), two_ranks.seq_ids
    with LLM(path, **OPTIONS) as llm:
        llm.seq_ids = iter(range(10**6, 2 * 10**6))
        assert tokens(llm, PROMPTS, SamplingParams(max_tokens=8)) == tokens(
            two_ranks, PROMPTS, SamplingParams(max_tokens=8)
        )
    two_ranks.seq_ids = before


def test_prefix_cache(one_rank, two_ranks):
    prompt = [9, 8, 7, 6, 5, 4, 3, 2, 1, 10, 11, 12, 13]
    for llm in (one_rank, two_ranks):
        first, second = (llm.generate(prompt, GREEDY, use_tqdm=False)[0] for _ in range(2))
        assert (first["num_cached_tokens"], second["num_cached_tokens"]) == (0, 12)
        assert first["token_ids"] == second["token_ids"]
    assert tokens(one_rank, prompt, GREEDY) == tokens(two_ranks, prompt, GREEDY)


def test_beam_search(one_rank, two_ranks):
    params = BeamSearchParams(beam_width=3, max_tokens=5)
    for ours, theirs in zip(
        two_ranks.beam_search(PROMPTS[:3], params), one_rank.beam_search(PROMPTS[:3], params), strict=True
    ):
        assert [beam.tokens for beam in ours.sequences] == [beam.tokens for beam in theirs.sequences]
        scores = [beam.cum_logprob for beam in theirs.sequences]
        assert [beam.cum_logprob for beam in ours.sequences] == pytest.approx(scores, abs=1e-3)


def test_streams_and_chat(one_rank, two_ranks):
    params = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True)
    texts = []
    for llm in (one_rank, two_ranks):
        streams = [llm.stream(prompt, params) for prompt in ("the little cat", "again and")]
        pieces = ["", ""]
        while streams:
            for i, stream in list(enumerate(streams))[::-1]:
                piece = next(stream, None)
                if piece is None:
                    streams.pop(i)
                else:
                    pieces[i] += piece
        texts.append([*pieces, llm.chat([{"role": "user", "content": "cats"}], params, use_tqdm=False)[0]["text"]])
    assert texts[0] == texts[1] and all(texts[0])


def test_messages_of_any_size(two_ranks):
    """Far more than a pipe buffers, both ways."""
    seq = Sequence(list(range(400_000)), block_size=two_ranks.config.kvcache_block_size)
    seq.block_table = list(range(100_000))
    assert len(pickle.dumps(seq)) > 2**20
    assert two_ranks.llm_engine.model_runner.call("slots", seq, 0, 400_000) == list(range(400_000))


def test_abort_and_requests_beside(two_ranks, reference):
    ids = [two_ranks.add_request(prompt, GREEDY) for prompt in PROMPTS]
    for _ in range(6):
        two_ranks.step()
    partial = two_ranks.abort(ids[2])
    results = drain(two_ranks)
    assert partial is None or partial["finish_reason"] == "abort"
    assert sorted(results) == sorted(set(ids) - ({ids[2]} if partial else set()))
    for seq_id, token_ids in results.items():
        reference.assert_greedy(PROMPTS[ids.index(seq_id)], token_ids)
    assert_clean(two_ranks)


def test_interrupted_calls_do_not_mix_with_later_ones(two_ranks, reference):
    """Ctrl-C strikes at many different moments; what was asked for is gone, and the next answers are right."""
    num_interrupted = 0
    for i in range(25):
        timer = threading.Timer(0.003 * i, os.kill, (os.getpid(), signal.SIGINT))
        try:
            timer.start()
            two_ranks.generate(PROMPTS, GREEDY, use_tqdm=False)
            timer.join()
            time.sleep(0.01)  # let the interrupt strike here
        except KeyboardInterrupt:
            num_interrupted += 1
        timer.join()
        assert_clean(two_ranks)
        if i % 5 == 4:
            prompt = PROMPTS[i // 5]
            reference.assert_greedy(prompt, tokens(two_ranks, prompt, GREEDY)[0])
            assert_clean(two_ranks)
    assert num_interrupted == 25


@pytest.mark.slow
def test_two_engines_with_ranks_and_one_without(path, two_ranks, one_rank):
    """Side by side with different block sizes, each undisturbed by the end of another."""
    expected = tokens(one_rank, PROMPTS, GREEDY)
    options = {"max_model_len": 90, "kvcache_block_size": 7, "num_kvcache_blocks": 60, "device": OPTIONS["device"]}
    with LLM(path, tensor_parallel_size=2, **options) as other:
        ports = {engine.llm_engine.model_runner.ranks.store.port for engine in (two_ranks, other)}
        assert len(ports) == 2
        assert tokens(other, PROMPTS, GREEDY) == tokens(two_ranks, PROMPTS, GREEDY) == expected
    assert tokens(two_ranks, PROMPTS, GREEDY) == expected
    with pytest.raises(RuntimeError, match="closed"):
        other.generate([1], use_tqdm=False)
    other.exit()


def test_the_store_is_reachable_from_this_machine_only():
    """It has no password, so no other network may see it; its port is free again when it is gone."""
    with leaves_nothing_behind():
        stores = [make_store() for _ in range(3)]
        listening = [c.laddr for c in psutil.Process().net_connections() if c.status == psutil.CONN_LISTEN]
        for store in stores:
            assert [address.ip for address in listening if address.port == store.port] == ["127.0.0.1"]
        del stores, store


@pytest.mark.parametrize("error", [ValueError("text"), KeyError("key"), MemoryError("full"), OSError(2, "no", "f")])
def test_exceptions_cross_the_pipe_as_they_are(error):
    error.add_note("note")
    copy = pickle.loads(pickle.dumps(as_picklable(error)))
    assert type(copy) is type(error) and str(copy) == str(error) and copy.__notes__ == ["note"]


class AwkwardError(Exception):
    def __init__(self, one, two):
        super().__init__(f"{one} and {two}")


def test_exceptions_that_cannot_cross_are_told_by_their_text():
    error = AwkwardError(1, 2)
    error.add_note("note")
    copy = pickle.loads(pickle.dumps(as_picklable(error)))
    assert "AwkwardError: 1 and 2" in str(copy) and copy.__notes__ == ["note"]


@pytest.mark.parametrize("code, text", [(1, "exit code 1"), (-9, "SIGKILL"), (-15, "SIGTERM"), (-6, "SIGABRT")])
def test_exit_codes_are_explained(code, text):
    assert text in describe_exit_code(code)


# Larger draws: each starts an engine.


@pytest.mark.slow
@pytest.mark.timeout(180)
@pytest.mark.parametrize(
    "size, kv_heads, options",
    [
        (2, 4, {"kvcache_block_size": 1, "num_kvcache_blocks": 100}),
        (4, 2, {"kvcache_block_size": 16, "num_kvcache_blocks": 8, "max_num_batched_tokens": 5}),
        (4, 4, {"kvcache_block_size": 256, "max_num_seqs": 2}),
        (3, 1, {"enable_prefix_caching": False, "kvcache_block_size": 5, "num_kvcache_blocks": 30}),
    ],
)
def test_sizes_of_ranks_heads_and_blocks(tmp_path, size, kv_heads, options):
    heads = {2: 8, 3: 3, 4: 4}[size]
    model = {"num_attention_heads": heads, "num_key_value_heads": kv_heads, "vocab_size": 331}
    path = make_tiny_model(tmp_path / "model", **model, tie_word_embeddings=size != 4)
    reference = Reference(path)
    options = options | {"tensor_parallel_size": size, "device": device_of_ranks(size), "max_model_len": 90}
    with leaves_nothing_behind(), LLM(path, **options) as llm:
        for prompt, token_ids in zip(PROMPTS, tokens(llm, PROMPTS, GREEDY), strict=True):
            reference.assert_greedy(prompt, token_ids, note=f"{size} ranks, {kv_heads} KV heads, {options}")


@pytest.mark.slow
@pytest.mark.timeout(180)
@pytest.mark.parametrize("poor_rank", [0, 1])
def test_the_rank_with_the_least_memory_sizes_the_pool(path, poor_rank):
    """The scheduler must not hand out a block that one of the ranks lacks."""
    config = Config(path, tensor_parallel_size=2, max_model_len=90, kvcache_block_size=4, device="cpu")
    block_bytes = 2 * config.hf_config.num_hidden_layers * 4 * config.hf_config.head_dim * 4  # one KV head, float32
    config.eos = LittleMemory(config.eos, poor_rank, 2 * 4 * block_bytes * 30)  # two ranks; a quarter of what is free
    with leaves_nothing_behind():
        runner = TensorParallelRunner(config, make_runner)
        try:
            assert config.num_kvcache_blocks == 30
            # On every rank, or the call fails: the last block exists, and there is none after it.
            seq = Sequence([1, 2], block_size=4)
            seq.num_scheduled_tokens = 2
            seq.block_table = [29]
            assert len(runner.run([seq], True)[0]) == 1
            seq.block_table = [30]
            with pytest.raises(RuntimeError, match="rank"):
                runner.run([seq], True)
        finally:
            runner.exit()


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_the_pool_of_several_ranks_is_sized_from_free_memory(path):
    options = {"tensor_parallel_size": 2, "max_model_len": 90, "kvcache_block_size": 4, "device": "cpu"}
    with leaves_nothing_behind(), LLM(path, **options) as llm:
        assert llm.config.num_kvcache_blocks == len(llm.scheduler.block_manager.blocks) == 64 * 90 // 4


SCRIPT = f"""
import sys
from nanovllm import LLM, SamplingParams

def main():
    with LLM(sys.argv[1], tensor_parallel_size=2, max_model_len=90, device={OPTIONS["device"]!r}) as llm:
        output = llm.generate([1, 2, 3], SamplingParams(temperature=0.0, max_tokens=5), use_tqdm=False)
    print("tokens:", output[0]["token_ids"])
"""
GUARDED = SCRIPT + '\nif __name__ == "__main__":\n    main()\n'
UNGUARDED = SCRIPT + "\nmain()\n"


def run_script(arguments, path, **kwargs):
    environment = os.environ | {"PYTHONPATH": os.getcwd(), "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [sys.executable, *arguments, str(path)], capture_output=True, text=True, timeout=120, env=environment, **kwargs
    )


@pytest.mark.slow
@pytest.mark.timeout(150)
@pytest.mark.parametrize("way", ["guarded script", "-c", "stdin", "module", "notebook"])
def test_ways_to_run_a_program(path, tmp_path, one_rank, way):
    if way == "notebook":
        text = run_notebook(path, tmp_path)
    else:
        file = tmp_path / "program.py"
        file.write_text(GUARDED if way in ("guarded script", "module") else UNGUARDED)
        arguments = {"guarded script": [file], "-c": ["-c", UNGUARDED], "stdin": ["-"], "module": ["-m", "program"]}
        stdin = {"input": UNGUARDED} if way == "stdin" else {"stdin": subprocess.DEVNULL}
        if way == "module":
            stdin["cwd"] = tmp_path
        done = run_script(arguments[way], path, **stdin)
        assert done.returncode == 0, done.stderr
        assert "Traceback" not in done.stderr and "Warning" not in done.stderr, done.stderr
        text = done.stdout
    expected = tokens(one_rank, [1, 2, 3], SamplingParams(temperature=0.0, max_tokens=5))[0]
    assert f"tokens: {expected}" in text


def run_notebook(path, tmp_path):
    """Cells as in Jupyter, in a kernel of its own, which is killed at the end with the engine still open."""
    pytest.importorskip("nbclient")
    nbformat = pytest.importorskip("nbformat")
    cells = [
        "from nanovllm import LLM, SamplingParams",
        f"llm = LLM({str(path)!r}, tensor_parallel_size=2, max_model_len=90, device={OPTIONS['device']!r})",
        "params = SamplingParams(temperature=0.0, max_tokens=5)",
        "print('tokens:', llm.generate([1, 2, 3], params, use_tqdm=False)[0]['token_ids'])",
        "import psutil; print('ranks', *[child.pid for child in psutil.Process().children()])",
    ]
    file = tmp_path / "notebook.ipynb"
    nbformat.write(nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells]), file)
    program = (
        "import sys, nbclient, nbformat; notebook = nbformat.read(sys.argv[1], 4);"
        "nbclient.NotebookClient(notebook, timeout=100, kernel_name='python3').execute();"
        "nbformat.write(notebook, sys.argv[1])"
    )
    done = run_script(["-c", program], file)
    assert done.returncode == 0, done.stderr
    notebook = nbformat.read(file, 4)
    texts = ["".join(output.get("text", "") for output in cell.outputs) for cell in notebook.cells]
    pids = [int(pid) for pid in texts[-1].split()[1:]]
    assert len(pids) >= 2
    assert wait_until(lambda: not any(os.path.exists(f"/proc/{pid}") for pid in pids), 10), "ranks outlive the kernel"
    return "\n".join(texts)


@pytest.mark.slow
@pytest.mark.timeout(150)
def test_a_script_without_a_main_guard_is_told(path, tmp_path):
    file = tmp_path / "program.py"
    file.write_text(UNGUARDED)
    done = run_script([file], path)
    assert done.returncode != 0
    assert f"died (exit code 1); {MAIN_GUARD_HINT}" in done.stderr.splitlines()[-1], done.stderr


def test_a_scheduler_takes_the_ranks_config(path):
    """`tensor_parallel_size` changes nothing that the scheduler decides."""
    one, two = (Scheduler(Config(path, tensor_parallel_size=size, **OPTIONS)) for size in (1, 2))
    for scheduler in (one, two):
        for i, prompt in enumerate(PROMPTS):
            scheduler.add(Sequence(prompt, GREEDY, 4, i))
    steps = [[(s.seq_id, s.num_scheduled_tokens) for s in scheduler.schedule()[0]] for scheduler in (one, two)]
    assert steps[0] == steps[1]


@pytest.mark.slow
def test_one_step_ahead_with_ranks(path, one_rank, monkeypatch):
    """The same tokens, whatever ends a request, and nothing of an interrupted step comes back."""
    full = tokens(one_rank, PROMPTS, GREEDY)
    stops = [SamplingParams(temperature=0.0, max_tokens=16, stop_token_ids=[ids[i]]) for i, ids in enumerate(full)]
    sampled = [SamplingParams(temperature=0.9, seed=i, top_p=0.9 if i % 2 else 1.0, max_tokens=9) for i in range(6)]
    expected = [tokens(one_rank, PROMPTS, params) for params in (stops, sampled)]
    logprobs = SamplingParams(temperature=0.0, max_tokens=5, logprobs=2)
    with make_llm(path, tensor_parallel_size=2, **OPTIONS | {"device": "cpu"}) as llm:
        runner = llm.llm_engine.model_runner
        assert isinstance(runner, TensorParallelRunner)
        call, calls = runner.call, []
        runner.call = lambda *args: calls.append(args) or call(*args)
        assert tokens(llm, PROMPTS, GREEDY) == full
        launches = [args[1] for args in calls if args[0] == "launch_and_collect"]  # whether they have one before
        assert len(launches) > 20 and sum(launches) > len(launches) // 2, "the ranks do not work ahead"
        assert [tokens(llm, PROMPTS, params) for params in (stops, sampled)] == expected
        for ours, theirs in zip(*(x.generate(PROMPTS, logprobs, use_tqdm=False) for x in (llm, one_rank)), strict=True):
            assert [list(row) for row in ours["logprobs"]] == [list(row) for row in theirs["logprobs"]]
        for steps in range(1, 6):  # interrupted with a step under way
            seq_id = llm.add_request(PROMPTS[1], GREEDY)
            for _ in range(steps):
                llm.step()
            with monkeypatch.context() as patch:
                patch.setattr(llm.scheduler, "schedule", lambda: (_ for _ in ()).throw(KeyboardInterrupt))
                with pytest.raises(KeyboardInterrupt):
                    llm.step()
            assert drain(llm) == {seq_id: full[1]}
        assert_clean(llm)


@pytest.mark.gpu
@pytest.mark.slow
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
@pytest.mark.parametrize(
    "backend, enforce_eager, attention_bias",
    [("triton", False, True), ("triton", False, False), ("triton", True, False), ("sdpa", True, True)],
)
def test_two_gpus(tmp_path, backend, enforce_eager, attention_bias):
    """CUDA graphs with collectives inside, one step ahead; norms folded where there are no biases."""
    path = make_tiny_model(tmp_path, seed=5, **MODEL | {"attention_bias": attention_bias})
    reference = Reference(path)
    options = OPTIONS | {"device": "cuda", "kvcache_block_size": 16, "dtype": "float32", "attention_backend": backend}
    with leaves_nothing_behind(), LLM(path, tensor_parallel_size=2, enforce_eager=enforce_eager, **options) as llm:
        for prompt, token_ids in zip(PROMPTS, tokens(llm, PROMPTS, GREEDY), strict=True):
            reference.assert_greedy(prompt, token_ids)
