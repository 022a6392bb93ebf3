"""`python -m nanovllm.serve` as a process: its options, its end, and what it says without its extra."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time

import psutil
import pytest

from .conftest import ask, wait_until
from .test_connections import LONG, read_until, send


@contextlib.contextmanager
def serve(*arguments, **environment):
    """A server in a process of its own; gives the process and its address."""
    command = [sys.executable, "-m", "nanovllm.serve", *map(str, arguments)]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=os.environ | environment
    )
    try:
        line = process.stdout.readline()
        found = re.search(r"http://\S+", line)
        assert found, line + process.stderr.read()
        yield process, found[0]
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        process.communicate()


ARGUMENTS = ("--port", 0, "--kvcache-block-size", 4, "--num-kvcache-blocks", 256)


def test_options_go_to_the_server_and_to_the_engine(monkeypatch):
    from nanovllm.serve.__main__ import parse_args

    monkeypatch.delenv("NANOVLLM_API_KEY", raising=False)
    assert parse_args(["m"]) == ({"port": 8000, "api_key": ""}, {"model": "m"})
    text = "m --host 0.0.0.0 --port 1 --api-key 007 --max-waiting 3 --drain-seconds 2"
    text += " --kvcache-block-size 16 --gpu-memory-utilization 0.5 --enforce-eager --no-enable-prefix-caching"
    server, engine = parse_args([*text.split(), "--dtype", "float32", "--disabled-optimizations", "all"])
    assert server == {
        "host": "0.0.0.0", "port": 1, "api_key": "007", "max_waiting": 3, "drain_seconds": 2
    }  # fmt: skip
    assert engine == {
        "model": "m", "kvcache_block_size": 16, "gpu_memory_utilization": 0.5, "enforce_eager": True,
        "enable_prefix_caching": False, "dtype": "float32", "disabled_optimizations": "all",
    }  # fmt: skip
    monkeypatch.setenv("NANOVLLM_API_KEY", "from outside")
    assert parse_args(["m"])[0]["api_key"] == "from outside"


def test_help_names_every_option(capsys):
    import dataclasses

    from nanovllm.config import Config
    from nanovllm.serve.__main__ import parse_args

    with pytest.raises(SystemExit):
        parse_args(["--help"])
    shown = capsys.readouterr().out
    for field in dataclasses.fields(Config):
        assert not field.init or field.name.replace("_", "-") in shown
    assert "drain_seconds: how long" in shown and "kvcache_block_size: tokens" in shown


def test_without_the_extra_it_says_what_to_install():
    code = "import sys, runpy; sys.modules['fastapi'] = None; runpy.run_module('nanovllm.serve', run_name='__main__')"
    result = subprocess.run([sys.executable, "-c", code, "qwen3-tiny"], capture_output=True, text=True, timeout=100)
    assert result.returncode == 1 and "[serve]" in result.stderr and "Traceback" not in result.stderr


@pytest.mark.slow
def test_it_serves_and_ends_with_its_running_answers(path):
    with serve(path, *ARGUMENTS) as (process, url):
        assert ask(url, "GET", "/v1/models")[2]["data"][0]["id"] == str(path)
        expected = ask(url, "POST", "/v1/completions", LONG)[2]["choices"][0]["text"]
        with send(url, LONG | {"stream": True}) as streaming:
            first = read_until(streaming, b"data: ")
            process.send_signal(signal.SIGTERM)
            time.sleep(0.15)
            with pytest.raises(OSError):
                ask(url, "GET", "/health")
            events = (first + read_until(streaming, b"[DONE]")).split(b"data: ")[1:]
        texts = [json.loads(event.partition(b"\n")[0])["choices"][0]["text"] for event in events[:-1]]
        assert "".join(texts) == expected
        assert process.wait(10) == 0
        assert process.stderr.read() == ""


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_an_answer_that_takes_too_long_is_cut_at_the_end(path, number):
    with serve(path, *ARGUMENTS, "--drain-seconds", 1) as (process, url):
        with contextlib.ExitStack() as stack:
            for _ in range(64):
                stack.enter_context(send(url, LONG | {"max_tokens": 500, "stream": True, "n": 8}))
            wait_until(lambda: b"vllm:num_requests_running" in ask(url, "GET", "/metrics")[2].encode())
            process.send_signal(number)
            start = time.monotonic()
            assert process.wait(20) == 0 and time.monotonic() - start < 15
        assert "Traceback" not in process.stderr.read()


@pytest.mark.slow
def test_a_second_signal_ends_it_at_once(path):
    with serve(path, *ARGUMENTS) as (process, url), contextlib.ExitStack() as stack:
        for _ in range(64):
            stack.enter_context(send(url, LONG | {"max_tokens": 500, "n": 8}))
        wait_until(lambda: "vllm" in ask(url, "GET", "/metrics")[2])
        process.send_signal(signal.SIGTERM)
        time.sleep(0.5)
        process.send_signal(signal.SIGTERM)
        start = time.monotonic()
        process.wait(10)
        assert time.monotonic() - start < 8


@pytest.mark.slow
@pytest.mark.parametrize("is_idle", [True, False])
def test_a_rank_that_is_killed_is_told(path, is_idle):
    with serve(path, *ARGUMENTS, "--tensor-parallel-size", 2) as (process, url):
        assert ask(url, "GET", "/health")[0] == 200
        answers = []
        asking = threading.Thread(
            target=lambda: answers.append(ask(url, "POST", "/v1/completions", LONG | {"max_tokens": 500}))
        )
        if not is_idle:
            asking.start()
            time.sleep(0.5)
        ranks = [child for child in psutil.Process(process.pid).children() if "spawn_main" in " ".join(child.cmdline())]
        assert len(ranks) == 2
        ranks[1].kill()
        status, _, content = ask(url, "GET", "/health") if is_idle else (None, None, None)
        if not is_idle:
            asking.join(30)
            assert answers[0][0] == 503
            status, _, content = ask(url, "GET", "/health")
        assert status == 503 and "SIGKILL" in content["error"]["message"], content
        assert ask(url, "POST", "/v1/completions", LONG)[0] == 503
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0
