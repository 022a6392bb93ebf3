"""A server with a tiny model for all tests in this folder, and the real client of OpenAI."""

import http.client
import json
import time

import pytest

from nanovllm import LLM

from ..engine.conftest import make_tiny_model

OPTIONS = {"kvcache_block_size": 4, "num_kvcache_blocks": 256, "max_model_len": 256, "max_num_seqs": 8}


@pytest.fixture(scope="session")
def path(tmp_path_factory):
    return make_tiny_model(tmp_path_factory.mktemp("serve") / "tiny", with_tokenizer=True)


@pytest.fixture(scope="session")
def shared_llm(path):
    with LLM(path, **OPTIONS) as llm:
        llm.config.model = "tiny"  # the name that clients see
        yield llm


@pytest.fixture
def llm(shared_llm):
    """An engine in which nothing is left of the test before, and nothing may be left of this one."""
    yield shared_llm
    wait_until(lambda: nothing_left(shared_llm))


@pytest.fixture(scope="session")
def shared_server(shared_llm):
    from nanovllm.serve.server import Server

    with Server(shared_llm, max_waiting=8) as server:
        yield server


@pytest.fixture
def server(shared_server, llm):
    return shared_server


@pytest.fixture(scope="session")
def shared_client(shared_server):
    from openai import OpenAI

    with OpenAI(base_url=shared_server.url + "/v1", api_key="any", max_retries=0, timeout=60) as client:
        yield client


@pytest.fixture
def client(shared_client, server):
    return shared_client


def nothing_left(llm):
    manager = llm.scheduler.block_manager
    return llm.is_finished() and not manager.used_block_ids and not llm.llm_engine.requests


def wait_until(condition, seconds=10.0):
    """Fails if the condition does not hold in time."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "this did not happen in time"
        time.sleep(0.005)


def address_of(url):
    host, _, port = url.removeprefix("http://").partition(":")
    return host, int(port)


def ask(url, method, route, body=None, **headers):
    """Status, headers and body of one request; the body as JSON if it is that."""
    host, port = address_of(url)
    connection = http.client.HTTPConnection(host, port, timeout=60)
    try:
        data = json.dumps(body).encode() if isinstance(body, dict) else body
        given = {"Content-Type": "application/json"} | {k.replace("_", "-"): v for k, v in headers.items()}
        connection.request(method, route, data, given)
        response = connection.getresponse()
        text = response.read()
    finally:
        connection.close()
    is_json = response.headers.get("content-type", "").startswith("application/json")
    return response.status, response.headers, json.loads(text) if is_json else text.decode()


def slow_down(monkeypatch, llm, seconds):
    """Every step takes so long. Returns a list that grows by one with each step that begins."""
    step, begun = llm.step, []

    def slow_step():
        begun.append(time.monotonic())
        time.sleep(seconds)
        return step()

    monkeypatch.setattr(llm, "step", slow_step)
    return begun
