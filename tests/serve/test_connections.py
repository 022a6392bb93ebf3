"""Many connections, and such as break, stall or send anything: none of them harms another."""

import contextlib
import json
import socket
import threading
import time

import pytest

from nanovllm import LLM, SamplingParams
from nanovllm.serve import answers
from nanovllm.serve.server import Server

from .conftest import OPTIONS, address_of, ask, nothing_left, slow_down, wait_until

HEAD = b"POST /v1/completions HTTP/1.1\r\nHost: here\r\nContent-Type: application/json\r\n"
LONG = {"prompt": "Once upon a time", "max_tokens": 200, "ignore_eos": True, "temperature": 0}


@contextlib.contextmanager
def send(url, body, route="/v1/completions", **headers):
    """A bare connection on which a request has been sent."""
    data = json.dumps(body).encode()
    lines = [f"POST {route} HTTP/1.1", "Host: here", "Content-Type: application/json", f"Content-Length: {len(data)}"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    with socket.create_connection(address_of(url), timeout=30) as connection:
        connection.sendall("\r\n".join([*lines, "", ""]).encode() + data)
        yield connection


def read_until(connection, *wanted):
    """What comes until one of these is in it, or the end."""
    data = b""
    while not any(one in data for one in wanted):
        with contextlib.suppress(ConnectionResetError):
            if new := connection.recv(65536):
                data += new
                continue
        break
    return data


def num_running(llm):
    return len(llm.scheduler.running)


# A client that goes away.


@pytest.mark.parametrize("stream", [True, False])
def test_who_hangs_up_is_aborted_before_the_next_step(server, llm, monkeypatch, stream):
    begun = slow_down(monkeypatch, llm, 0.05)
    with send(server.url, LONG | {"stream": stream}) as connection:
        if stream:
            assert b"data: " in read_until(connection, b"data: ")
        else:
            wait_until(lambda: num_running(llm) == 1 and len(begun) > 3)
        assert llm.scheduler.block_manager.used_block_ids
    count = len(begun)
    wait_until(lambda: nothing_left(llm))
    assert len(begun) <= count + 1, "it may go away while a step begins, but no later step computes for it"


def test_the_client_closes_a_stream(client, llm, monkeypatch):
    slow_down(monkeypatch, llm, 0.01)
    options = {"max_tokens": 200, "stream": True, "extra_body": {"ignore_eos": True}}
    with client.completions.create(model="tiny", prompt="Once upon a time", **options) as stream:
        assert next(iter(stream)).choices
    wait_until(lambda: nothing_left(llm))


def test_one_of_several_who_hangs_up_does_not_disturb_the_others(server, llm, monkeypatch):
    params = SamplingParams(temperature=0, max_tokens=40, ignore_eos=True)
    expected = llm.generate("Once upon a time", params, use_tqdm=False)
    slow_down(monkeypatch, llm, 0.01)
    answers = []

    def ask_once():
        answers.append(ask(server.url, "POST", "/v1/completions", LONG | {"max_tokens": 40}))

    threads = [threading.Thread(target=ask_once) for _ in range(4)]
    for thread in threads:
        thread.start()
    for _ in range(3):
        with send(server.url, LONG | {"stream": True, "n": 2}) as connection:
            read_until(connection, b"data: ")
    for thread in threads:
        thread.join()
    assert [answer[2]["choices"][0]["text"] for answer in answers] == [expected[0]["text"]] * 4


# A client that does not read.


def test_a_slow_reader_is_dropped_and_holds_up_nobody(path, monkeypatch):
    from nanovllm.serve import engine_loop
    from nanovllm.serve import server as module

    monkeypatch.setattr(engine_loop, "MAX_UNREAD", 16)
    monkeypatch.setattr(module, "SLOW_SECONDS", 0)
    with LLM(path, **OPTIONS | {"max_model_len": 512}) as llm, Server(llm, max_waiting=600) as server:
        server.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)  # those that are accepted have it, too
        body = LONG | {"stream": True, "max_tokens": 500, "n": 2, "logprobs": 20, "temperature": 1, "seed": 1}
        slow = socket.socket()
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        slow.connect(address_of(server.url))
        data = json.dumps(body).encode()
        slow.sendall(HEAD + b"Content-Length: %d\r\n\r\n" % len(data) + data)
        wait_until(lambda: num_running(llm) == 2)
        start = time.monotonic()
        assert ask(server.url, "POST", "/v1/completions", LONG | {"max_tokens": 10})[0] == 200
        assert time.monotonic() - start < 5
        wait_until(lambda: nothing_left(llm))
        wait_until(lambda: not server.uvicorn.server_state.connections)
        assert b"[DONE]" not in read_until(slow, b"[DONE]")
        slow.close()


def test_a_slow_reader_who_goes_on_gets_what_there_is_and_hears_why(server, llm, monkeypatch):
    from nanovllm.serve import engine_loop

    monkeypatch.setattr(engine_loop, "MAX_UNREAD", -1)
    events = ask(server.url, "POST", "/v1/completions", LONG | {"stream": True})[2].split("\n\n")
    assert '"finish_reason": "abort"' in events[-3] and events[-2] == "data: [DONE]"


# Readers that take the time of the steps.


def test_many_readers_get_several_tokens_at_once(server, llm, monkeypatch):
    expected = llm.generate("Once upon a time", SamplingParams(temperature=0, max_tokens=120, ignore_eos=True), False)
    write = answers.event

    def write_slowly(content):
        end = time.thread_time() + 0.005  # eight of them take longer than a step
        while time.thread_time() < end:
            pass
        return write(content)

    monkeypatch.setattr(answers, "event", write_slowly)
    body = LONG | {"max_tokens": 120, "n": 8, "stream": True, "logprobs": 0}  # with these, no token is without an event
    _, _, response = ask(server.url, "POST", "/v1/completions", body)
    events = [json.loads(line.removeprefix("data: ")) for line in response.split("\n\n")[:-2]]
    for index in range(8):
        pieces = [choice for event in events for choice in event["choices"] if choice["index"] == index]
        assert "".join(piece["text"] for piece in pieces) == expected[0]["text"]
        assert sum(len(piece["logprobs"]["tokens"]) for piece in pieces) == 120
        assert 2 <= len(pieces) < 60, "not an event for each token, and not one for all"


# Too many.


def test_a_full_queue_says_when_to_come_again(server, llm, client, monkeypatch):
    import openai

    slow_down(monkeypatch, llm, 0.02)
    with contextlib.ExitStack() as stack:
        for _ in range(4):  # of four answers each: eight run, eight wait
            stack.enter_context(send(server.url, LONG | {"n": 4, "stream": True, "max_tokens": 100}))
        wait_until(lambda: len(llm.added) == 16 and num_running(llm) == 8)
        status, headers, content = ask(server.url, "POST", "/v1/completions", LONG)
        assert status == 429 and int(headers["Retry-After"]) >= 1
        assert content["error"]["type"] == "rate_limit_error" and content["error"]["code"] == "queue_full"
        with pytest.raises(openai.RateLimitError):
            client.completions.create(model="tiny", prompt="a", max_tokens=1)
        gauges = metrics_of(server.url)
        assert gauges["vllm:num_requests_running"] == 8 and gauges["vllm:num_requests_waiting"] == 8
        assert 0 < gauges["vllm:kv_cache_usage_perc"] <= 1
        assert ask(server.url, "GET", "/health")[0] == 200
    wait_until(lambda: nothing_left(llm))
    assert ask(server.url, "POST", "/v1/completions", LONG)[0] == 200


def test_more_answers_than_ever_fit_are_a_bad_request(server):
    status, _, content = ask(server.url, "POST", "/v1/completions", LONG | {"n": 17})
    assert status == 400 and "16" in content["error"]["message"]


def metrics_of(url):
    """Values by name, those of labels beside the model's name left out."""
    text = ask(url, "GET", "/metrics")[2]
    lines = [line.rpartition(" ") for line in text.splitlines() if not line.startswith("#")]
    return {name.partition("{")[0]: float(value) for name, _, value in lines if "finished_reason" not in name}


def test_metrics_count_what_was_done(server, llm):
    before = metrics_of(server.url)
    for _ in range(2):
        ask(server.url, "POST", "/v1/completions", LONG | {"prompt": [9] * 21, "max_tokens": 5})
    ask(server.url, "GET", "/health")  # asks for a token of its own, which is not counted
    after = metrics_of(server.url)
    new = {name: after[name] - before.get(name, 0) for name in after}
    assert new["vllm:prompt_tokens_total"] == 42 and new["vllm:generation_tokens_total"] == 10
    assert new["vllm:prefix_cache_queries_total"] == 42 and new["vllm:prefix_cache_hits_total"] == 20
    assert new["vllm:inter_token_latency_seconds_count"] == 8, "between two tokens each, of five in each answer"
    for name in ("time_to_first_token_seconds", "request_time_per_output_token_seconds", "request_queue_time_seconds"):
        assert new[f"vllm:{name}_count"] == 2 and 0 <= new[f"vllm:{name}_sum"] < 10
    assert after["vllm:num_requests_running"] == 0 and after["vllm:kv_cache_usage_perc"] == 0


# Requests that never end, or are none.


def test_half_open_sockets_delay_nobody(server):
    with contextlib.ExitStack() as stack:
        for i in range(200):
            connection = stack.enter_context(socket.create_connection(address_of(server.url), timeout=10))
            connection.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Length: 50\r\n"[: i % 70])
        start = time.monotonic()
        assert ask(server.url, "POST", "/v1/completions", LONG | {"max_tokens": 5})[0] == 200
        assert time.monotonic() - start < 3


@pytest.mark.slow
def test_requests_that_never_end_are_given_up(path, monkeypatch):
    from nanovllm.serve import server as module

    monkeypatch.setattr(module, "SLOW_SECONDS", 0)
    with LLM(path, **OPTIONS) as llm, Server(llm) as server:
        with socket.create_connection(address_of(server.url), timeout=10) as silent:
            begin = time.monotonic()
            assert read_until(silent, b"nothing") == b"" and time.monotonic() - begin < 5
        with socket.create_connection(address_of(server.url), timeout=10) as slow:
            begin = time.monotonic()
            with contextlib.suppress(OSError):
                for byte in b"GET /health HTTP/1.1\r\nX: " + b"a" * 1000:
                    slow.sendall(bytes([byte]))
                    time.sleep(0.02)
            assert time.monotonic() - begin < 5
        with socket.create_connection(address_of(server.url), timeout=10) as half:  # a body that never ends
            begin = time.monotonic()
            half.sendall(HEAD + b"Content-Length: 99\r\n\r\n{")
            assert read_until(half, b"nothing") == b"" and time.monotonic() - begin < 5
        with socket.create_connection(address_of(server.url), timeout=10) as second:  # after a good one
            second.sendall(b"GET /v1/models HTTP/1.1\r\nHost: a\r\n\r\n")
            assert b"200 OK" in read_until(second, b"max_model_len")
            begin = time.monotonic()
            with contextlib.suppress(OSError):
                for byte in b"GET /health HTTP/1.1\r\nX: " + b"a" * 1000:
                    second.sendall(bytes([byte]))
                    time.sleep(0.02)
            assert time.monotonic() - begin < 5
        with send(server.url, LONG | {"stream": True, "max_tokens": 100}) as long:  # longer than that, and complete
            slow_down(monkeypatch, llm, 0.03)
            assert b"[DONE]" in read_until(long, b"[DONE]")


def test_a_body_without_end_is_cut(server):
    with socket.create_connection(address_of(server.url), timeout=1) as endless:
        endless.sendall(HEAD + b"Transfer-Encoding: chunked\r\n\r\n")
        sent = 0
        with contextlib.suppress(OSError):
            while sent < 10**8:
                endless.sendall(b"10000\r\n" + b" " * 65536 + b"\r\n")
                sent += 65536
        assert sent < 10**8


def test_a_body_that_is_too_long_is_told_so(server):
    """However its length is told."""
    text, chunk = b" " * 10**6, b"F4240\r\n" + b" " * 10**6 + b"\r\n"
    for more in (b"Content-Length: 1000000\r\n\r\n" + text, b"Transfer-Encoding: chunked\r\n\r\n" + chunk):
        with socket.create_connection(address_of(server.url), timeout=10) as long:
            with contextlib.suppress(OSError):  # nobody reads to the end
                long.sendall(HEAD + more)
            head, _, content = read_until(long, b"}}").partition(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 413 ") and b"connection: close" in head.lower()
            error = json.loads(content)["error"]
            assert error["type"] == "invalid_request_error" and "bytes" in error["message"]


@pytest.mark.parametrize("text", [b"nonsense\r\n\r\n", b"GET / HTTP/1.1\r\nHost\r\n\r\n", b"\x16\x03\x01\r\n\r\n"])
def test_what_is_no_http_is_told_so(server, text):
    with socket.create_connection(address_of(server.url), timeout=10) as connection:
        connection.sendall(text)
        head, _, content = read_until(connection, b"received.").partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 400 ") and b"content-type: text/plain" in head.lower()
    assert content.startswith(b"Invalid HTTP request")
    assert ask(server.url, "GET", "/health")[0] == 200


def test_a_head_of_megabytes_is_cut(server):
    with socket.create_connection(address_of(server.url), timeout=10) as endless, contextlib.suppress(OSError):
        endless.sendall(b"GET / HTTP/1.1\r\nX: ")
        sent = 0
        while sent < 10**8:
            endless.sendall(b"a" * 65536)
            sent += 65536
        raise AssertionError("nobody stopped this")


# Who may ask.


def test_a_key_is_needed_for_all_but_health(shared_llm, llm):
    import base64

    import openai

    with Server(llm, api_key="secret") as server:
        for route in ("/", "/metrics", "/blocks", "/v1/models"):
            status, headers, content = ask(server.url, "GET", route)
            assert status == 401 and content["error"]["code"] == "invalid_api_key" and headers["WWW-Authenticate"]
        wrong = ("", "Bearer", "Bearer x", "Bearer secre", "Basic", "Basic x", "Basic !!!!", "secret")
        for shown in (*wrong, "Bearer secret2", "Bearer secret secret"):
            headers = {"Authorization": shown}
            assert ask(server.url, "POST", "/v1/completions", LONG, **headers)[0] == 401, shown
        assert ask(server.url, "GET", "/health")[0] == 200
        password = base64.b64encode(b"anybody:secret").decode()
        for shown in ("Bearer secret", f"Basic {password}", "bearer secret"):
            assert ask(server.url, "GET", "/v1/models", Authorization=shown)[0] == 200
        client = openai.OpenAI(base_url=server.url + "/v1", api_key="wrong", max_retries=0)
        with client, pytest.raises(openai.AuthenticationError):
            client.models.list()


def test_it_listens_at_the_loopback_address_only(server):
    assert server.socket.getsockname()[0] == "127.0.0.1" and server.url.startswith("http://127.0.0.1:")


# What the page shows.


def test_the_block_table_says_who_shares(server, llm, monkeypatch):
    slow_down(monkeypatch, llm, 0.02)
    body = LONG | {"prompt": [7] * 40, "stream": True}
    with send(server.url, body) as first, send(server.url, body) as second:
        for connection in (first, second):
            read_until(connection, b"data: ")
        state = ask(server.url, "GET", "/blocks")[2]
    assert state["block_size"] == 4 and state["num_blocks"] == 256
    one, other = (table["blocks"] for table in state["tables"])
    assert one[:9] == other[:9], "the prefix is shared"
    assert all(state["used"][str(i)] == 2 for i in one[:9]) and state["used"][str(one[-1])] == 1
    assert all(table["id"].startswith("cmpl-") for table in state["tables"])


def test_two_servers_and_the_notebook_share_one_process(path, shared_llm, llm, server):
    with LLM(path, **OPTIONS) as other, Server(other) as second:
        params, results = SamplingParams(temperature=0, max_tokens=30), []
        thread = threading.Thread(target=lambda: results.extend(llm.generate("a b c", params, use_tqdm=False)))
        thread.start()
        answers = [ask(one.url, "POST", "/v1/completions", LONG | {"max_tokens": 30})[2] for one in (server, second)]
        thread.join()
        assert answers[0]["choices"] == answers[1]["choices"] and results


def test_a_server_that_was_stopped_is_gone_and_its_engine_is_not(llm):
    with Server(llm) as server:
        assert ask(server.url, "GET", "/health")[0] == 200
    with pytest.raises(OSError):
        ask(server.url, "GET", "/health")
    assert llm.generate("a", SamplingParams(max_tokens=1), use_tqdm=False)
    with Server(llm) as server:
        assert ask(server.url, "GET", "/health")[0] == 200


# Errors of the engine.


def test_a_step_that_fails_once_is_made_again(server, llm, monkeypatch):
    expected = ask(server.url, "POST", "/v1/completions", LONG)[2]["choices"]
    step, count = llm.step, iter(range(1000))

    def failing():
        if next(count) in (3, 4, 20):
            raise RuntimeError("planted")
        return step()

    monkeypatch.setattr(llm, "step", failing)
    assert ask(server.url, "POST", "/v1/completions", LONG)[2]["choices"] == expected


def test_an_engine_that_fails_again_and_again_is_dead(llm, monkeypatch):
    with Server(llm) as server, send(server.url, LONG | {"stream": True}) as streaming:
        slow_down(monkeypatch, llm, 0.01)
        assert b"data: " in read_until(streaming, b"data: ")

        def fail():
            raise RuntimeError("planted")

        monkeypatch.setattr(llm, "step", fail)
        rest = read_until(streaming, b"[DONE]")
        assert b'"error"' in rest and b"planted" in rest
        for method, route in (("GET", "/health"), ("POST", "/v1/completions")):
            status, _, content = ask(server.url, method, route, LONG if method == "POST" else None)
            assert status == 503 and "planted" in content["error"]["message"]
            assert content["error"]["code"] == "engine_dead"


def test_an_engine_that_is_closed_under_the_server_is_dead(path):
    llm = LLM(path, **OPTIONS)
    with Server(llm) as server:
        llm.exit()
        assert ask(server.url, "POST", "/v1/completions", LONG)[0] == 503
        assert ask(server.url, "GET", "/health")[0] == 503
