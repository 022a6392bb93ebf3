"""The public interface (DESIGN, Public API), as a script uses it."""

import gc
import itertools
import re
import shutil
import subprocess
import sys
import threading
import time
import weakref
from pathlib import Path

import pytest
import torch

import nanovllm
from nanovllm import LLM, BeamSearchParams, RequestOutput, SamplingParams
from nanovllm.progress import ProgressBar

from .conftest import in_turn, make_tiny_model
from .interrupts import InterruptAtLine
from .reference import assert_clean, drain

ROOT = Path(__file__).resolve().parents[2]
GREEDY = SamplingParams(temperature=0.0, max_tokens=6, ignore_eos=True)
PROMPTS = [[11, 12, 13], [21, 22, 23, 24, 25], [31]]


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return make_tiny_model(tmp_path_factory.mktemp("api") / "model", with_tokenizer=True, max_position_embeddings=128)


def make_llm(path, **options):
    return LLM(path, **({"kvcache_block_size": 4, "num_kvcache_blocks": 64} | options))


@pytest.fixture(scope="module")
def llm(path):
    with make_llm(path) as llm:
        llm.expected = [llm.generate(prompt, GREEDY, use_tqdm=False)[0]["token_ids"] for prompt in PROMPTS]
        yield llm


def generate(llm, *args, **options):
    return llm.generate(*args, use_tqdm=False, **options)


# Prompts and results.


def test_names():
    for name in ("LLM", "SamplingParams", "BeamSearchParams", "RequestOutput"):
        assert name in nanovllm.__all__ and getattr(nanovllm, name)
    assert isinstance(nanovllm.__version__, str)


def test_every_form_of_prompt(llm):
    text = "The quick brown fox"
    token_ids = llm.tokenizer.encode(text)
    expected = generate(llm, [token_ids], GREEDY)[0]["token_ids"]
    assert len(token_ids) > 1
    forms = [text, [text], token_ids, [token_ids], tuple(token_ids), [tuple(token_ids)], (text,)]
    for prompts in forms:
        outputs = generate(llm, prompts, GREEDY)
        assert len(outputs) == 1 and outputs[0]["token_ids"] == expected, prompts
    mixed = generate(llm, [text, token_ids, PROMPTS[0]], GREEDY)
    assert [output["token_ids"] for output in mixed] == [expected, expected, llm.expected[0]]


def test_no_prompts(llm):
    assert generate(llm, [], GREEDY) == []
    assert generate(llm, [], []) == []
    assert generate(llm, [], None) == []


def test_results_come_in_the_order_of_the_prompts(llm):
    params = [SamplingParams(temperature=0.0, max_tokens=count, ignore_eos=True) for count in (6, 1, 3)]
    outputs = generate(llm, PROMPTS, params)
    assert [output["token_ids"] for output in outputs] == [
        tokens[:count] for tokens, count in zip(llm.expected, (6, 1, 3), strict=True)
    ]
    assert [output["num_prompt_tokens"] for output in outputs] == [3, 5, 1]


def test_default_sampling_params(llm):
    output = generate(llm, PROMPTS[0])[0]
    assert 1 <= len(output["token_ids"]) <= 64
    assert len(output["token_ids"]) == 64 or output["token_ids"][-1] in llm.config.eos


def test_a_result_is_a_dict_and_an_object(path):
    with make_llm(path) as llm:
        start = time.perf_counter()
        first, second = (generate(llm, [7] * 9, GREEDY)[0] for _ in range(2))
        wall = time.perf_counter() - start
        decoded = llm.tokenizer.decode(first["token_ids"], skip_special_tokens=True)
    assert isinstance(first, dict) and isinstance(first, RequestOutput)
    keys = {"text", "token_ids", "finish_reason", "num_prompt_tokens", "num_cached_tokens", "metrics"}
    assert set(first) == keys
    (completion,) = first.outputs
    assert completion.text == first["text"] == decoded
    assert completion.token_ids == first["token_ids"] and len(completion.token_ids) == 6
    assert all(type(token_id) is int for token_id in completion.token_ids)
    assert completion.finish_reason == first["finish_reason"] == "length"
    assert completion.index == 0 and completion.logprobs is None and completion.stop_reason is None
    assert first.prompt_token_ids == [7] * 9 and first.prompt is None and first.finished is True
    assert isinstance(first.request_id, str) and first.request_id != second.request_id
    assert first["num_prompt_tokens"] == 9
    assert first["num_cached_tokens"] == first.num_cached_tokens == 0
    # Nine tokens are two blocks of four and one more.
    assert second["num_cached_tokens"] == second.num_cached_tokens == 8
    metrics = first["metrics"]
    assert set(metrics) == {"queue_time", "time_to_first_token", "time_per_output_token"}
    assert 0 <= metrics["queue_time"] <= metrics["time_to_first_token"] <= wall
    assert 0 < metrics["time_per_output_token"] * 5 + metrics["time_to_first_token"] <= wall


def test_the_prompt_is_in_the_result(llm):
    output = generate(llm, "The lazy dog", GREEDY)[0]
    assert output.prompt == "The lazy dog" and output.prompt_token_ids == llm.tokenizer.encode("The lazy dog")


def test_metrics_of_one_token_have_no_time_per_token(llm):
    output = generate(llm, PROMPTS[0], SamplingParams(max_tokens=1))[0]
    assert output["metrics"]["time_per_output_token"] is None
    assert output["metrics"]["time_to_first_token"] > 0


def test_queue_time_is_the_time_in_the_queue(path):
    with make_llm(path, max_num_seqs=1) as llm:
        first, second = generate(llm, [PROMPTS[0]] * 2, SamplingParams(max_tokens=20, ignore_eos=True))
    decoding = first["metrics"]["time_per_output_token"] * 19
    assert second["metrics"]["queue_time"] >= first["metrics"]["time_to_first_token"] + decoding - 1e-3
    assert first["metrics"]["queue_time"] < second["metrics"]["queue_time"] / 2


def test_a_progress_bar(llm, capsys):
    llm.generate(PROMPTS, GREEDY, use_tqdm=True)
    assert "3/3" in capsys.readouterr().err
    llm.generate(PROMPTS, GREEDY, use_tqdm=False)
    assert capsys.readouterr().err == ""


def slow_down(llm, patch, seconds):
    """Every step takes so long."""
    launch = llm.llm_engine.model_runner.launch

    def slow_launch(*args):
        time.sleep(seconds)
        return launch(*args)

    patch.setattr(llm.llm_engine.model_runner, "launch", slow_launch)


def test_the_progress_bar_shows_tokens_and_averages_while_requests_are_under_way(llm, monkeypatch, capsys):
    params = [SamplingParams(temperature=0.0, max_tokens=count, ignore_eos=True) for count in (20, 60)]
    looks, look = [], ProgressBar.look
    with monkeypatch.context() as patch:
        slow_down(llm, patch, 0.02)
        patch.setattr(ProgressBar, "look", lambda bar: looks.append(look(bar)))
        start = time.perf_counter()
        llm.generate(PROMPTS[:2], params, use_tqdm=True)
        seconds = time.perf_counter() - start
    drawn = re.split(r"[\r\n]+", capsys.readouterr().err.strip())
    assert len(drawn) <= seconds / 0.1 + 2, "not more often than tqdm draws by itself"
    assert len(looks) <= len(drawn), "and in between nothing is counted"
    seen = [
        tuple(map(int, re.search(r"(\d)/2 .* (\d+) tokens, (\d+) read and (\d+) written a second", line).groups()))
        for line in drawn[1:]  # the first one is drawn before anything is known
    ]
    for before, now in itertools.pairwise(seen):
        assert before[0] <= now[0] and before[1] <= now[1]
    assert len({num_tokens for finished, num_tokens, *_ in seen if finished == 0}) >= 3, "it does not stand still"
    assert {finished for finished, *_ in seen} == {0, 1, 2}
    finished, num_tokens, read, written = seen[-1]
    assert (finished, num_tokens) == (2, 80), "the last word is what came of it"
    # Averages over the whole time, of 8 tokens of prompts and 80 generated ones.
    assert 0.7 * 80 / seconds - 1 <= written <= 80 / seconds * 1.3 + 1 and written >= 8 * read > 0


def test_an_interrupted_progress_bar_is_closed(llm, monkeypatch, capsys):
    from tqdm import tqdm

    with monkeypatch.context() as patch:
        patch.setattr(llm.llm_engine.model_runner, "launch", lambda *args: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            llm.generate(PROMPTS, GREEDY, use_tqdm=True)
    assert not [bar for bar in tqdm._instances if type(bar).__name__ == "ProgressBar"]
    assert "0/3" in capsys.readouterr().err
    assert_clean(llm)


# Chat.


def test_chat_applies_the_template(llm):
    messages = [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "A cat"}]
    text = "<|im_start|>system\nBe kind.<|im_end|>\n<|im_start|>user\nA cat<|im_end|>\n<|im_start|>assistant\n"
    token_ids = llm.tokenizer.encode(text, add_special_tokens=False)
    expected = generate(llm, token_ids, GREEDY)[0]
    output = llm.chat(messages, GREEDY, use_tqdm=False)[0]
    assert output.prompt_token_ids == token_ids
    assert output["token_ids"] == expected["token_ids"] and output["text"] == expected["text"]
    other = [{"role": "user", "content": "Again"}]
    several = llm.chat([messages, other], GREEDY, use_tqdm=False)
    assert len(several) == 2 and several[0]["token_ids"] == expected["token_ids"]
    assert several[1].prompt_token_ids != token_ids


@pytest.mark.parametrize(
    "template, messages",
    [
        ("{{ raise_exception('no system prompt here') }}", [{"role": "user", "content": "hi"}]),
        ("{{ 1 / 0 }}", [{"role": "user", "content": "hi"}]),
        ("{{ messages[0].content + 'x' }}", [{"role": "user", "content": None}]),
    ],
)
def test_what_a_chat_template_does_not_take(llm, monkeypatch, template, messages):
    monkeypatch.setattr(llm.tokenizer, "chat_template", template)
    with pytest.raises(ValueError, match="chat template does not take messages"):
        llm.chat(messages)


def test_chat_passes_options_to_the_template(path, tmp_path):
    own = tmp_path / "model"
    shutil.copytree(path, own)
    with make_llm(own) as llm:
        llm.tokenizer.chat_template = "{{ 'think' if enable_thinking else 'answer' }}"
        messages = [{"role": "user", "content": "x"}]
        output = llm.chat(messages, GREEDY, use_tqdm=False, chat_template_kwargs={"enable_thinking": True})[0]
        assert output.prompt_token_ids == llm.tokenizer.encode("think")


# Step by step.


def test_add_request_and_step(llm):
    assert llm.is_finished() and llm.step() == ([], 0)
    ids = [llm.add_request(prompt, GREEDY) for prompt in PROMPTS]
    assert all(type(seq_id) is int for seq_id in ids) and len(set(ids)) == 3
    assert not llm.is_finished() and len(llm.scheduler.waiting) == 3
    results, counts = {}, []
    while not llm.is_finished():
        finished, num_tokens = llm.step()
        results.update(finished)
        counts.append(num_tokens)
    assert [results[i] for i in ids] == llm.expected
    assert counts[0] > 0 and counts[0] <= 9 and all(count < 0 for count in counts if count and count != counts[0])
    # Five more tokens for each of three requests, however the steps overlap.
    assert -sum(counts[1:]) >= 15
    assert llm.step() == ([], 0)
    assert_clean(llm)


def test_add_request_takes_text(llm):
    seq_id = llm.add_request("The quick brown fox", GREEDY)
    assert drain(llm) == {seq_id: generate(llm, "The quick brown fox", GREEDY)[0]["token_ids"]}


def test_generate_while_other_requests_are_in_flight(llm):
    ids = [llm.add_request(prompt, GREEDY) for prompt in PROMPTS]
    results = dict(llm.step()[0])
    outputs = generate(llm, [PROMPTS[1], [5, 6]], GREEDY)
    assert len(outputs) == 2 and outputs[0]["token_ids"] == llm.expected[1]
    results.update(drain(llm))
    assert [results[i] for i in ids] == llm.expected
    assert_clean(llm)


def test_results_that_finish_during_a_generate_come_from_the_next_step(llm):
    seq_id = llm.add_request(PROMPTS[0], SamplingParams(temperature=0.0, max_tokens=1))
    outputs = generate(llm, PROMPTS[1], GREEDY)
    assert len(outputs) == 1 and outputs[0]["token_ids"] == llm.expected[1]
    assert not llm.is_finished()
    finished, _ = llm.step()
    assert finished == [(seq_id, llm.expected[0][:1])]
    assert llm.is_finished()


@pytest.mark.parametrize("steps", [0, 1, 3])
def test_abort(llm, steps):
    ids = [llm.add_request(prompt, GREEDY) for prompt in PROMPTS]
    for _ in range(steps):
        llm.step()
    output = llm.abort(ids[1])
    assert output["finish_reason"] == "abort"
    assert output["token_ids"] == llm.expected[1][: len(output["token_ids"])]
    assert len(output["token_ids"]) <= steps
    assert llm.abort(ids[1]) is None and llm.abort(10**9) is None
    results = drain(llm)
    assert set(results) == {ids[0], ids[2]} and results[ids[0]] == llm.expected[0]
    assert llm.abort(ids[0]) is None
    assert_clean(llm)


def test_abort_of_a_prompt_that_is_cut(path):
    with make_llm(path, max_num_batched_tokens=4) as llm:
        seq_id = llm.add_request(list(range(1, 20)), GREEDY)
        llm.step()
        assert llm.abort(seq_id)["token_ids"] == []
        assert_clean(llm)


# Streams.


def result_of(stream):
    pieces = []
    try:
        while True:
            pieces.append(next(stream))
    except StopIteration as stop:
        return "".join(pieces), stop.value


def test_streams_interleave(llm):
    texts = [generate(llm, prompt, GREEDY)[0]["text"] for prompt in PROMPTS]
    streams = [llm.stream(prompt, GREEDY) for prompt in PROMPTS]
    shown = [""] * 3
    open_streams = set(range(3))
    while open_streams:
        for i in sorted(open_streams):
            try:
                shown[i] += next(streams[i])
            except StopIteration:
                open_streams.remove(i)
    assert shown == texts
    assert_clean(llm)


def test_streams_run_as_one_batch(llm):
    streams = [llm.stream(prompt, GREEDY) for prompt in PROMPTS]
    assert llm.is_finished(), "a stream starts when it is read"
    for stream in streams:
        next(stream)
    assert len(llm.llm_engine.requests) == 3
    assert len(llm.scheduler.running) == 3
    for stream in streams:
        stream.close()
    assert_clean(llm)


def test_closing_a_stream_aborts_its_request(llm):
    seq_id = llm.add_request(PROMPTS[0], GREEDY)
    stream = llm.stream(PROMPTS[1], SamplingParams(temperature=0.0, max_tokens=100, ignore_eos=True))
    next(stream)
    assert len(llm.llm_engine.requests) == 2
    stream.close()
    assert len(llm.llm_engine.requests) == 1
    assert drain(llm) == {seq_id: llm.expected[0]}
    assert_clean(llm)


def test_a_stream_that_is_dropped_aborts_its_request(llm):
    for _ in llm.stream(PROMPTS[1], SamplingParams(temperature=0.0, max_tokens=100, ignore_eos=True)):
        break
    gc.collect()
    assert_clean(llm)


def test_a_stream_that_is_never_read_leaves_nothing(llm):
    llm.stream(PROMPTS[1], GREEDY).close()
    assert_clean(llm)


def test_a_stream_goes_on_while_generate_runs(llm):
    text, _ = result_of(llm.stream(PROMPTS[0], GREEDY))
    stream = llm.stream(PROMPTS[0], GREEDY)
    shown = next(stream)
    assert generate(llm, PROMPTS[1], GREEDY)[0]["token_ids"] == llm.expected[1]
    rest, output = result_of(stream)
    assert shown + rest == text and output["token_ids"] == llm.expected[0]
    assert_clean(llm)


# Interrupted calls.


@pytest.mark.parametrize("after_steps", [1, 2, 4])
def test_an_interrupted_generate_leaves_a_clean_engine(llm, monkeypatch, after_steps):
    seq_id = llm.add_request(PROMPTS[2], GREEDY)
    steps = [0]
    schedule = llm.scheduler.schedule

    def interrupted():
        steps[0] += 1
        if steps[0] > after_steps:
            raise KeyboardInterrupt
        return schedule()

    with monkeypatch.context() as patch:
        patch.setattr(llm.scheduler, "schedule", interrupted)
        with pytest.raises(KeyboardInterrupt):
            generate(llm, PROMPTS[:2], GREEDY)
    assert list(llm.llm_engine.requests) == [seq_id]
    outputs = generate(llm, PROMPTS[:2], GREEDY)
    assert [output["token_ids"] for output in outputs] == llm.expected[:2], "its own results only"
    assert drain(llm) == {seq_id: llm.expected[2]}
    assert_clean(llm)


def test_a_real_interrupt(llm):
    # Python delivers Ctrl-C as KeyboardInterrupt in the main thread, wherever it is.
    import _thread

    for delay in (0.001, 0.003, 0.01, 0.02, 0.05):
        timer = threading.Timer(delay, _thread.interrupt_main)
        with pytest.raises(KeyboardInterrupt):
            timer.start()
            while True:
                generate(llm, PROMPTS, SamplingParams(max_tokens=100, ignore_eos=True))
        timer.join()
        assert_clean(llm)
        assert [output["token_ids"] for output in generate(llm, PROMPTS, GREEDY)] == llm.expected


# Life of an engine.


def test_exit_is_idempotent_and_comes_with_the_block(path):
    with make_llm(path) as llm:
        assert generate(llm, PROMPTS[0], GREEDY)
    llm.exit()
    llm.exit()
    with pytest.raises(RuntimeError, match="closed"):
        llm.generate(PROMPTS[0], GREEDY)


def test_an_exception_in_the_block_is_not_swallowed(path):
    with pytest.raises(ZeroDivisionError), make_llm(path):
        raise ZeroDivisionError


@pytest.mark.parametrize("how", ["exit", "del"])
def test_what_an_engine_held_is_freed_at_once(path, how):
    llm = make_llm(path)
    generate(llm, PROMPTS[0], GREEDY)
    parameters = [weakref.ref(parameter) for parameter in llm.llm_engine.model_runner.model.parameters()]
    cache = weakref.ref(llm.llm_engine.model_runner.kv_cache)
    model = weakref.ref(llm.llm_engine.model_runner.model)
    if how == "exit":
        llm.exit()
    else:
        engine = weakref.ref(llm)
        del llm
        gc.collect()
        assert engine() is None
    assert cache() is None and model() is None
    assert not any(parameter() is not None for parameter in parameters)


def test_two_engines_with_different_block_sizes(path, tmp_path):
    other_path = make_tiny_model(tmp_path, seed=9, num_attention_heads=6, num_key_value_heads=3)
    options = [(path, 4, 64), (path, 7, 20), (other_path, 16, 9)]
    expected = []
    for model, block_size, num_blocks in options:
        with make_llm(model, kvcache_block_size=block_size, num_kvcache_blocks=num_blocks) as llm:
            expected.append([output["token_ids"] for output in generate(llm, PROMPTS, GREEDY)])
    assert expected[0] == expected[1] != expected[2]
    engines = [make_llm(m, kvcache_block_size=size, num_kvcache_blocks=count) for m, size, count in options]
    ids = [[llm.add_request(prompt, GREEDY) for prompt in PROMPTS] for llm in engines]
    assert ids[0] == ids[1] == ids[2], "numbers of requests count from the start of each engine"
    results = [{} for _ in engines]
    while not all(llm.is_finished() for llm in engines):
        for llm, result in zip(engines, results, strict=True):
            result.update(llm.step()[0])
    assert [[result[i] for i in own] for result, own in zip(results, ids, strict=True)] == expected
    engines[0].exit()
    assert [output["token_ids"] for output in generate(engines[1], PROMPTS, GREEDY)] == expected[1]
    for llm in engines:
        llm.exit()


def test_engines_in_different_threads(path):
    with make_llm(path) as llm:
        expected = [output["token_ids"] for output in generate(llm, PROMPTS, GREEDY)]
    results = {}

    def work(number):
        with make_llm(path, kvcache_block_size=number + 2) as llm:
            results[number] = [[out["token_ids"] for out in generate(llm, PROMPTS, GREEDY)] for _ in range(3)]

    threads = [threading.Thread(target=work, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == {number: [expected] * 3 for number in range(3)}


def test_an_engine_may_move_between_threads(llm):
    results = []
    thread = threading.Thread(target=lambda: results.extend(generate(llm, PROMPTS, GREEDY)))
    thread.start()
    thread.join()
    assert [output["token_ids"] for output in results] == llm.expected


def test_the_process_is_left_as_it_was(path):
    import signal

    handlers = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    threads = threading.active_count()
    with make_llm(path) as llm:
        generate(llm, PROMPTS, GREEDY)
        assert torch.empty(0).device.type == "cpu" and torch.get_default_dtype() == torch.float32
        assert torch.is_grad_enabled() and not torch.is_inference_mode_enabled()
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == handlers
    assert threading.active_count() == threads


@pytest.mark.slow
def test_two_copies_of_the_package_in_one_process(path, tmp_path):
    for name in ("firstvllm", "secondvllm"):
        shutil.copytree(
            ROOT / "nanovllm", tmp_path / name, ignore=shutil.ignore_patterns("__pycache__", "assets", "viz")
        )
    code = f"""
import sys
import firstvllm, secondvllm
from firstvllm.engine.sequence import Sequence

def run(package, block_size):
    llm = package.LLM({str(path)!r}, kvcache_block_size=block_size, num_kvcache_blocks=64)
    params = package.SamplingParams(temperature=0.0, max_tokens=6, ignore_eos=True)
    return llm, lambda: [out["token_ids"] for out in llm.generate({PROMPTS!r}, params, use_tqdm=False)]

first, run_first = run(firstvllm, 4)
second, run_second = run(secondvllm, 7)
results = [run_first(), run_second(), run_first(), run_second()]
assert type(first) is not type(second) and type(first.scheduler) is not type(second.scheduler)
# Changing one does not change the other.
Sequence.append_token = None
try:
    first.generate([1, 2], use_tqdm=False)
    raise SystemExit("the first copy must feel the change")
except TypeError:
    pass
results.append(run_second())
assert "nanovllm" not in sys.modules
first.exit(), second.exit()
print(results)
"""
    command = [sys.executable, "-c", code]
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=100)
    assert result.returncode == 0, result.stderr
    with make_llm(path) as llm:
        expected = [output["token_ids"] for output in generate(llm, PROMPTS, GREEDY)]
    assert result.stdout.strip().splitlines()[-1] == str([expected] * 5)


def test_params_are_read_by_their_fields(llm):
    # A learner's package has its own class with the same fields; a subclass must do at the least.
    class OwnParams(SamplingParams):
        pass

    output = generate(llm, PROMPTS[0], OwnParams(temperature=0.0, max_tokens=6, ignore_eos=True))[0]
    assert output["token_ids"] == llm.expected[0]


def test_beam_search_is_there(llm):
    (output,) = llm.beam_search(["The quick"], BeamSearchParams(beam_width=2, max_tokens=3))
    scores = [beam.cum_logprob for beam in output.sequences]
    assert len(scores) == 2 and all(beam.text is not None for beam in output.sequences)


# Ctrl-C at any line of the engine.


CALLS = {
    "generate": lambda llm, params: llm.generate([*PROMPTS[1:], PROMPTS[1] + [9]], params, use_tqdm=False),
    "step": lambda llm, params: drain(llm),
    "stream": lambda llm, params: list(llm.stream(PROMPTS[1], params)),
}


def check_interrupts(path, call, lines):
    """Requests that were there before go on, with their tokens and text; nothing is left of those interrupted."""
    params = SamplingParams(temperature=0.0, max_tokens=6, ignore_eos=True, logprobs=0, stop="\x00")
    with make_llm(path, kvcache_block_size=2, max_num_batched_tokens=6) as llm:
        expected = generate(llm, PROMPTS[0], params)[0]
        others = [output["token_ids"] for output in generate(llm, PROMPTS, GREEDY)]
        for line in lines:
            own_id = llm.add_request(PROMPTS[0], GREEDY)
            stream = llm.stream(PROMPTS[0], params)
            text = next(stream)
            results = {}
            with InterruptAtLine(line) as interrupt:
                try:
                    CALLS[call](llm, params)
                    pytest.fail(f"line {line} was not reached")
                except KeyboardInterrupt:
                    pass
            text += (rest := result_of(stream))[0]
            output = rest[1]
            results |= drain(llm)
            note = f"interrupted in {call} at line {line}, {interrupt.where}"
            assert text == expected["text"], note
            assert output["token_ids"] == expected["token_ids"], note
            assert [list(token) for token in output["logprobs"]] == [list(token) for token in expected["logprobs"]], (
                note
            )
            if call != "step":  # an interrupted `drain` may have taken the result
                assert results == {own_id: others[0]}, note
            assert_clean(llm)
            again = generate(llm, PROMPTS, GREEDY)
            assert [output["token_ids"] for output in again] == others, note


def count_lines(path, call):
    params = SamplingParams(temperature=0.0, max_tokens=6, ignore_eos=True, logprobs=0, stop="\x00")
    with make_llm(path, kvcache_block_size=2, max_num_batched_tokens=6) as llm:
        generate(llm, PROMPTS, GREEDY)
        llm.add_request(PROMPTS[0], GREEDY)
        stream = llm.stream(PROMPTS[0], params)
        next(stream)
        with InterruptAtLine(0) as interrupt:
            CALLS[call](llm, params)
    return interrupt.lines


@pytest.mark.parametrize("call", CALLS)
def test_an_interrupt_at_any_line(path, call):
    count = count_lines(path, call)
    check_interrupts(path, call, range(1, count // 2, count // 30))


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("call", CALLS)
def test_an_interrupt_at_every_line(path, call):
    count = count_lines(path, call)
    # All of the first steps, in which requests come, and a part of the others, which are alike.
    lines = [*range(1, count // 5), *range(count // 5, count * 9 // 10, 11)]
    check_interrupts(path, call, in_turn(lines, list(CALLS).index(call), len(CALLS)))
