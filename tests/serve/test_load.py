"""Many clients for long, and hostile ones beside them. Slow; whole with `--thorough`, else a tenth."""

import asyncio
import json
import math
import random
import statistics
import threading
import time

import psutil
import pytest

from bench import ask_server
from nanovllm import LLM, SamplingParams
from nanovllm.serve.server import Server

from ..engine.conftest import a_tenth
from .conftest import OPTIONS, address_of, ask, nothing_left, wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
PROMPTS = [[i % 300 + 3, *range(20, 20 + i % 40)] for i in range(50)]
MAX_TOKENS = 24


def text_of(content):
    """Of a stream, in chunks."""
    events = [line for line in content.split(b"\n") if line.startswith(b"data: {")]
    pieces = [json.loads(event.removeprefix(b"data: "))["choices"][0]["text"] for event in events]
    return "".join(pieces)


def test_many_clients_with_random_disconnects_get_what_generate_gives(path):
    """Two hundred clients at once, some of whom leave.

    Without packed weights: for these, oneDNN makes code for every number of rows, and keeps it. That ends at some
    hundred rows, but in a test it looks like a leak.
    """
    count = a_tenth(12000)
    options = OPTIONS | {"max_num_seqs": 64, "num_kvcache_blocks": 1024, "disabled_optimizations": ("packed_weights",)}
    params = SamplingParams(temperature=0, max_tokens=MAX_TOKENS, ignore_eos=True)
    with LLM(path, **options) as llm, Server(llm, max_waiting=1000) as server:
        expected = [output["text"] for output in llm.generate(PROMPTS, params, use_tqdm=False)]
        port, first_tokens, memory, draws = address_of(server.url)[1], [], [], random.Random(0)

        async def client(work):
            for i in work:
                body = {"prompt": PROMPTS[i % 50], "temperature": 0, "max_tokens": MAX_TOKENS, "ignore_eos": True}
                leaves = draws.random() < 0.2
                patience = draws.choice((0, 100, 400, 1500)) if leaves else math.inf
                response, first = await ask_server(port, body | {"stream": True}, patience)
                if patience == math.inf:
                    assert b" 200 OK" in response and text_of(response) == expected[i % 50]
                    first_tokens.append(first)
                if i % 100 == 0:
                    memory.append(psutil.Process().memory_info().rss)

        async def clients():
            work = iter(range(count))
            await asyncio.gather(*[client(work) for _ in range(200)])

        start = time.perf_counter()
        asyncio.run(clients())
        seconds = time.perf_counter() - start
        wait_until(lambda: nothing_left(llm))
        assert not server.engine.answers
    first_tokens.sort()
    p50, p99 = statistics.median(first_tokens), first_tokens[int(0.99 * len(first_tokens))]
    print(f"{count} requests in {seconds:.0f} s; time to first token: p50 {p50:.2f} s, p99 {p99:.2f} s")
    print(f"memory, in MB: {[round(size / 2**20) for size in memory]}")
    later = memory[len(memory) // 3 :]
    assert later[-1] - later[0] < 16 * 2**20


def random_json(draws, depth=0):
    """Anything."""
    kind = draws.randrange(9 if depth < 4 else 6)
    if kind == 0:
        return draws.choice([None, True, False])
    if kind == 1:
        return draws.choice([0, -1, 1, 2**31, 2**63, 2**64, -(2**70), 10**400, draws.randrange(1000)])
    if kind == 2:
        return draws.choice([0.5, -0.5, 1e308, -1e308, float("nan"), float("inf"), 1e-320])
    if kind in (3, 4, 5):
        return draws.choice(["", "a", "\x00", "\ud800", "日本", "<|im_end|>", "x" * 2000, "user", "\u202e", "true"])
    if kind in (6, 7):
        return [random_json(draws, depth + 1) for _ in range(draws.randrange(4))]
    return {draws.choice(["role", "content", "type", "text", "x"]): random_json(draws, depth + 1) for _ in range(3)}


FIELDS = (
    "prompt messages model stream stream_options n max_tokens max_completion_tokens temperature top_p top_k min_p seed"
)
FIELDS += (
    " stop stop_token_ids ignore_eos logprobs top_logprobs echo best_of tools logit_bias chat_template_kwargs user"
)


def hostile_body(draws):
    """A body that is bad, or only strange; it never asks for long work."""
    good = {"prompt": "a", "messages": [{"role": "user", "content": "a"}], "max_tokens": 2}
    kind = draws.randrange(10)
    if kind < 6:
        for _ in range(draws.choice([1, 1, 2, 3])):
            good[draws.choice(FIELDS.split())] = random_json(draws)
        if good.get("max_tokens") is None or draws.random() < 0.5:
            good["max_tokens"] = 2
        data = json.dumps(good).encode()
        return data
    data = bytearray(json.dumps(good).encode())
    if kind == 6:
        for _ in range(3):
            data[draws.randrange(len(data))] = draws.randrange(256)
    elif kind == 7:
        data = data[: draws.randrange(len(data))]
    elif kind == 8:
        bracket = draws.choice([b"[", b'{"a":'])
        data = b'{"prompt": ' + bracket * draws.randrange(1, 20000)
    else:
        data = (
            b'{"prompt": "'
            + "日本".encode()[: draws.randrange(6)]
            + b'\x00\xff", "n": '
            + b"9" * draws.randrange(6000)
            + b"}"
        )
    return bytes(data)


def test_hostile_bodies_break_nothing_and_harm_nobody(path):
    count, draws = a_tenth(10000), random.Random(0)
    with LLM(path, **OPTIONS) as llm, Server(llm) as server:
        url, stopped, good, waits = server.url, threading.Event(), [], []
        body = {"prompt": [5, 6, 7], "temperature": 0, "max_tokens": 8, "ignore_eos": True}
        expected = ask(url, "POST", "/v1/completions", body)[2]["choices"]

        def good_client():
            while not stopped.is_set():
                start = time.monotonic()
                good.append(ask(url, "POST", "/v1/completions", body)[2]["choices"] == expected)
                waits.append(time.monotonic() - start)

        thread = threading.Thread(target=good_client)
        thread.start()
        statuses = {}
        try:
            for i in range(count):
                route = draws.choice(["/v1/completions", "/v1/chat/completions"])
                data = hostile_body(draws)
                try:
                    status, _, content = ask(url, "POST", route, data)
                except OSError:
                    status = "closed"
                assert status == "closed" or status < 500, (i, route, data[:2000], content)
                statuses[status] = statuses.get(status, 0) + 1
        finally:
            stopped.set()
            thread.join()
        print(statuses, f"{len(good)} answers of another client, the slowest in {max(waits):.2f} s")
        assert all(good) and len(good) > 3
        wait_until(lambda: nothing_left(llm))
        assert ask(url, "GET", "/health")[0] == 200
