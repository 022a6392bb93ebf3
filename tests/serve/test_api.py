"""OpenAI's client against the server: what it gets is what `generate` gives."""

import itertools
import math

import pytest

from nanovllm import SamplingParams

from .conftest import ask

PROMPTS = ["The quick brown fox", "Once upon a time there was", "Zażółć gęślą jaźń 日本語"]
TALK = [{"role": "user", "content": "Who jumps over the lazy dog?"}]
OPEN = {"ignore_eos": True}


def generate(llm, prompts, **params):
    return llm.generate(prompts, SamplingParams(**params), use_tqdm=False)


def complete(client, prompt, **options):
    return client.completions.create(model="tiny", prompt=prompt, **options)


def chat(client, messages, **options):
    return client.chat.completions.create(model="tiny", messages=messages, **options)


def streamed(stream):
    """Texts and finish reasons by index, and the usage of a stream."""
    texts, reasons, usage, num_chunks = {}, {}, None, 0
    for chunk in stream:
        usage = chunk.usage or usage
        num_chunks += 1
        for choice in chunk.choices:
            new = choice.text if hasattr(choice, "text") else choice.delta.content
            texts[choice.index] = texts.get(choice.index, "") + (new or "")
            assert choice.index not in reasons, "something came after the end"
            if choice.finish_reason:
                reasons[choice.index] = choice.finish_reason
    return texts, reasons, usage, num_chunks


def test_the_model_is_listed(client):
    (model,) = client.models.list().data
    assert model.id == "tiny" and model.object == "model" and model.max_model_len == 256


@pytest.mark.parametrize("prompt", PROMPTS)
def test_a_completion_is_what_generate_gives(client, llm, prompt):
    (expected,) = generate(llm, prompt, temperature=0, max_tokens=20, ignore_eos=True)
    answer = complete(client, prompt, temperature=0, max_tokens=20, extra_body=OPEN)
    (choice,) = answer.choices
    assert choice.text == expected["text"] and choice.finish_reason == "length" and choice.index == 0
    assert answer.object == "text_completion" and answer.id.startswith("cmpl-") and answer.model == "tiny"
    assert answer.usage.prompt_tokens == expected["num_prompt_tokens"]
    assert answer.usage.completion_tokens == 20
    assert answer.usage.total_tokens == expected["num_prompt_tokens"] + 20
    assert set(answer.metrics) == set(expected["metrics"])


@pytest.mark.parametrize("seed", range(3))
def test_a_stream_has_the_same_text_however_its_characters_are_cut(client, llm, seed):
    """A tiny random model writes half characters and rare ones: this is where a stream goes wrong."""
    params = {"temperature": 1.0, "seed": seed, "max_tokens": 40}
    *_, expected = [*pieces_of(llm, PROMPTS[2], params)]
    texts, reasons, usage, _ = streamed(complete(client, PROMPTS[2], stream=True, extra_body=OPEN, **params))
    assert texts == {0: expected} and reasons == {0: "length"} and usage is None
    whole = complete(client, PROMPTS[2], extra_body=OPEN, **params)
    assert whole.choices[0].text == generate(llm, PROMPTS[2], **params, ignore_eos=True)[0]["text"]


def pieces_of(llm, prompt, params):
    """What a reader of `LLM.stream` has read after each piece."""
    return itertools.accumulate(llm.stream(prompt, SamplingParams(**params, ignore_eos=True)))


def test_tokens_come_one_by_one(client, llm):
    stream = complete(client, PROMPTS[0], temperature=0, max_tokens=20, stream=True, extra_body=OPEN)
    assert streamed(stream)[3] > 10


def test_a_chat_is_what_chat_gives(client, llm):
    expected = llm.chat(TALK, SamplingParams(temperature=0, max_tokens=12, ignore_eos=True), use_tqdm=False)[0]
    answer = chat(client, TALK, temperature=0, max_tokens=12, extra_body=OPEN)
    (choice,) = answer.choices
    assert choice.message.role == "assistant" and choice.message.content == expected["text"]
    assert answer.object == "chat.completion" and answer.id.startswith("chatcmpl-")
    assert answer.usage.prompt_tokens == expected["num_prompt_tokens"]
    chunks = list(chat(client, TALK, temperature=0, max_tokens=12, extra_body=OPEN, stream=True))
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == expected["text"]
    assert [chunk.choices[0].delta.role for chunk in chunks] == ["assistant"] + [None] * (len(chunks) - 1)
    assert {chunk.object for chunk in chunks} == {"chat.completion.chunk"}
    assert len({chunk.id for chunk in chunks}) == 1


def test_the_clients_own_stream_helper_understands_the_chunks(client, llm):
    expected = llm.chat(TALK, SamplingParams(temperature=0, max_tokens=12, ignore_eos=True), use_tqdm=False)[0]
    options = {"model": "tiny", "messages": TALK, "temperature": 0, "max_tokens": 12, "extra_body": OPEN}
    with client.chat.completions.stream(**options) as stream:
        text = "".join(event.delta for event in stream if event.type == "content.delta")
        message = stream.current_completion_snapshot.choices[0].message
    assert message.content == text == expected["text"] and message.role == "assistant"


def test_a_chat_without_a_limit_ends_with_the_model(client, llm):
    answer = chat(client, TALK, seed=1, extra_body=OPEN)
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage.total_tokens == 256
    new_name = chat(client, TALK, seed=1, max_completion_tokens=3, extra_body=OPEN)
    assert new_name.usage.completion_tokens == 3


def test_a_completion_without_a_limit_has_sixteen_tokens(client):
    assert complete(client, PROMPTS[0], extra_body=OPEN).usage.completion_tokens == 16


def test_several_prompts_and_several_answers_of_each(client, llm):
    params = [SamplingParams(seed=7 + i, max_tokens=8, ignore_eos=True) for i in range(3)]
    outputs = [llm.generate(prompt, each, use_tqdm=False)[0] for prompt in PROMPTS for each in params]
    expected = [output["text"] for output in outputs]
    answer = complete(client, PROMPTS, n=3, seed=7, max_tokens=8, extra_body=OPEN)
    assert [choice.index for choice in answer.choices] == list(range(9))
    assert [choice.text for choice in answer.choices] == expected
    assert len(set(expected)) > 3
    lengths = [len(llm.processor.encode(prompt)) for prompt in PROMPTS]
    assert answer.usage.prompt_tokens == sum(lengths) and answer.usage.completion_tokens == 9 * 8
    stream = complete(
        client, PROMPTS, n=3, seed=7, max_tokens=8, stream=True, extra_body=OPEN, stream_options={"include_usage": True}
    )
    texts, reasons, usage, _ = streamed(stream)
    assert [texts[i] for i in range(9)] == expected
    assert set(reasons.values()) == {"length"} and usage == answer.usage.model_copy(
        update={"prompt_tokens_details": usage.prompt_tokens_details}
    )


def test_prompts_of_token_ids(client, llm):
    token_ids = llm.processor.encode(PROMPTS[0])
    texts = [
        complete(client, prompt, temperature=0, max_tokens=6, extra_body=OPEN).choices[0].text
        for prompt in (PROMPTS[0], token_ids, [token_ids])
    ]
    assert len(set(texts)) == 1
    pair = complete(client, [token_ids, token_ids[:2]], temperature=0, max_tokens=6, extra_body=OPEN)
    assert pair.choices[0].text == texts[0] and len(pair.choices) == 2


def test_a_seed_repeats_an_answer_and_others_do_not(client):
    answers = [complete(client, PROMPTS[0], seed=seed, max_tokens=12, extra_body=OPEN) for seed in (1, 1, 2, None)]
    texts = [answer.choices[0].text for answer in answers]
    assert texts[0] == texts[1] and len(set(texts)) == 3


def test_sampling_parameters_arrive(client, llm):
    for options in ({"top_k": 3}, {"min_p": 0.2}, {"top_p": 0.4}, {"top_k": 1, "temperature": 2.0}):
        params = {"seed": 3, "max_tokens": 10, "temperature": 1.5} | options
        expected = generate(llm, PROMPTS[0], **params, ignore_eos=True)[0]["text"]
        ours = {"top_k", "min_p"} & options.keys()
        more = {name: params.pop(name) for name in ours}
        answer = complete(client, PROMPTS[0], extra_body=OPEN | more, **params)
        assert answer.choices[0].text == expected, options


# Where an answer ends.


def find_stop(llm, params):
    """A string of a few characters in the middle of an answer, over the border of two tokens."""
    output = generate(llm, PROMPTS[0], **params)[0]
    pieces = [llm.tokenizer.decode([token_id]) for token_id in output["token_ids"]]
    for i in range(4, len(pieces) - 1):
        stop = pieces[i][-2:] + pieces[i + 1][:2]
        if "\ufffd" not in stop and len(stop) >= 3 and output["text"].count(stop) == 1:
            return output["text"], stop
    return None


@pytest.fixture(scope="module")
def with_stop(shared_llm):
    """Parameters, the text without a stop string, and one in it that spans two tokens."""
    for seed in range(100):
        params = {"seed": seed, "max_tokens": 40, "ignore_eos": True, "temperature": 0.8}
        if found := find_stop(shared_llm, params):
            return {key: params[key] for key in ("seed", "max_tokens", "temperature")}, *found
    raise AssertionError("no answer has such a string")


def test_a_stop_string_over_two_tokens_is_never_shown(client, with_stop):
    params, text, stop = with_stop
    expected = text[: text.index(stop)]
    for stops in (stop, [stop], ["never in there", stop]):
        whole = complete(client, PROMPTS[0], stop=stops, extra_body=OPEN, **params).choices[0]
        assert whole.text == expected and whole.finish_reason == "stop" and whole.stop_reason == stop
        stream = complete(client, PROMPTS[0], stop=stops, stream=True, extra_body=OPEN, **params)
        read = ""
        for chunk in stream:
            read += chunk.choices[0].text
            assert expected.startswith(read)
        assert read == expected and chunk.choices[0].finish_reason == "stop"


def test_text_that_only_begins_like_a_stop_string_is_shown_at_last(client, with_stop):
    params, text, _ = with_stop
    stream = complete(client, PROMPTS[0], stop=text[-1] + "\x00\x00", stream=True, extra_body=OPEN, **params)
    assert streamed(stream)[:2] == ({0: text}, {0: "length"})


def test_a_stop_token_ends_the_answer_and_is_not_shown(client, llm):
    (output,) = generate(llm, PROMPTS[0], temperature=0, max_tokens=20, ignore_eos=True)
    stop = output["token_ids"][7]
    first = output["token_ids"].index(stop)
    expected = llm.tokenizer.decode(output["token_ids"][:first])
    options = {"temperature": 0, "max_tokens": 20, "extra_body": OPEN | {"stop_token_ids": [stop]}}
    whole = complete(client, PROMPTS[0], **options)
    assert whole.choices[0].text == expected and whole.choices[0].stop_reason == stop
    assert whole.usage.completion_tokens == first + 1
    texts, reasons, _, _ = streamed(complete(client, PROMPTS[0], stream=True, **options))
    assert texts[0].rstrip("\ufffd") == expected.rstrip("\ufffd") and reasons == {0: "stop"}


# Log-probabilities.


def test_logprobs_of_a_completion(client, llm):
    (output,) = generate(llm, PROMPTS[0], temperature=0, max_tokens=6, ignore_eos=True, logprobs=3)
    answer = complete(client, PROMPTS[0], temperature=0, max_tokens=6, logprobs=3, extra_body=OPEN)
    logprobs = answer.choices[0].logprobs
    texts = [llm.tokenizer.decode([token_id]) for token_id in output["token_ids"]]
    assert logprobs.tokens == texts
    chosen = [row[token_id] for row, token_id in zip(output["logprobs"], output["token_ids"], strict=True)]
    assert logprobs.token_logprobs == pytest.approx(chosen, abs=1e-4)  # its prompt may be in the cache
    assert [len(row) for row in logprobs.top_logprobs] == [3] * 6 or "\ufffd" in "".join(texts)
    assert logprobs.text_offset == [0, *itertools.accumulate(map(len, texts))][:-1]
    chunks = [*complete(client, PROMPTS[0], temperature=0, max_tokens=6, logprobs=3, extra_body=OPEN, stream=True)]
    rows = [chunk.choices[0].logprobs for chunk in chunks]
    assert [text for row in rows for text in row.tokens] == texts
    assert [offset for row in rows for offset in row.text_offset] == logprobs.text_offset


def test_logprobs_of_a_chat(client, llm):
    options = {"temperature": 0, "max_tokens": 5, "extra_body": OPEN}
    answer = chat(client, TALK, logprobs=True, top_logprobs=2, **options)
    content = answer.choices[0].logprobs.content
    assert len(content) == 5
    for entry in content:
        assert entry.token.encode() == bytes(entry.bytes)
        top = [likely.logprob for likely in entry.top_logprobs]
        assert top == sorted(top, reverse=True)
        assert len(entry.top_logprobs) == 2 and entry.top_logprobs[0].logprob == entry.logprob
        assert sum(map(math.exp, top)) <= 1 + 1e-6
    only_chosen = chat(client, TALK, logprobs=True, **options).choices[0].logprobs.content
    assert [entry.logprob for entry in only_chosen] == pytest.approx([entry.logprob for entry in content])
    assert all(entry.top_logprobs == [] for entry in only_chosen)
    chunks = [*chat(client, TALK, logprobs=True, top_logprobs=2, stream=True, **options)]
    streamed_entries = [entry for chunk in chunks for entry in chunk.choices[0].logprobs.content]
    assert [entry.token for entry in streamed_entries] == [entry.token for entry in content]
    assert chat(client, TALK, **options).choices[0].logprobs is None


# The prefix cache.


def test_a_second_turn_finds_the_first_in_the_cache(client, llm):
    talk = [{"role": "user", "content": "A question that nobody has asked before, number 4711."}]
    first = chat(client, talk, seed=1, max_tokens=12, extra_body=OPEN)
    assert first.usage.prompt_tokens_details.cached_tokens < 8
    talk += [{"role": "assistant", "content": first.choices[0].message.content}, {"role": "user", "content": "And?"}]
    options = {"seed": 1, "max_tokens": 4, "extra_body": OPEN, "stream": True}
    stream = chat(client, talk, stream_options={"include_usage": True}, **options)
    usage = streamed(stream)[2]
    assert usage.prompt_tokens_details.cached_tokens >= first.usage.prompt_tokens - 4


def test_usage_comes_only_if_it_is_asked_for(client):
    options = {"max_tokens": 3, "stream": True, "extra_body": OPEN}
    chunks = [*complete(client, PROMPTS[0], stream_options={"include_usage": True}, **options)]
    assert [bool(chunk.choices) for chunk in chunks] == [True] * (len(chunks) - 1) + [False]
    assert chunks[-1].usage.completion_tokens == 3 and chunks[-1].metrics["time_to_first_token"] > 0
    for stream_options in ({"include_usage": False}, None):
        chunks = [*complete(client, PROMPTS[0], stream_options=stream_options, **options)]
        assert all(chunk.choices and chunk.usage is None for chunk in chunks)


# What is refused: status 400, in OpenAI's form, with the name of the field.

GOOD = {"prompt": "a", "max_tokens": 2}
GOOD_CHAT = {"messages": TALK, "max_tokens": 2}
BAD = [
    ({"prompt": None}, "prompt"),
    ({"prompt": 7}, "prompt"),
    ({"prompt": ""}, "prompt"),
    ({"prompt": []}, "prompt"),
    ({"prompt": [[]]}, "prompt"),
    ({"prompt": ["a", ""]}, "prompt"),
    ({"prompt": ["a"] * 17}, "prompt"),
    ({"prompt": [1, "a"]}, "prompt"),
    ({"prompt": [1.5]}, "prompt"),
    ({"prompt": [10**9]}, "prompt"),
    ({"prompt": [-1]}, "prompt"),
    ({"max_tokens": 0}, "max_tokens"),
    ({"max_tokens": "5"}, "max_tokens"),
    ({"max_tokens": 1.5}, "max_tokens"),
    ({"max_tokens": True}, "max_tokens"),
    ({"temperature": -1}, "temperature"),
    ({"temperature": "hot"}, "temperature"),
    ({"temperature": float("nan")}, "temperature"),
    ({"temperature": float("inf")}, "temperature"),
    ({"temperature": []}, "temperature"),
    ({"top_p": 0}, "top_p"),
    ({"top_p": 1.1}, "top_p"),
    ({"top_k": -2}, "top_k"),
    ({"top_k": 1.0}, "top_k"),
    ({"min_p": 2}, "min_p"),
    ({"n": 0}, "n"),
    ({"n": 129}, "n"),
    ({"n": "2"}, "n"),
    ({"seed": -1}, "seed"),
    ({"seed": "x"}, "seed"),
    ({"stop": 5}, "stop"),
    ({"stop": ""}, "stop"),
    ({"stop": [""]}, "stop"),
    ({"stop": ["a"] * 1001}, "stop"),
    ({"stop_token_ids": [-1]}, "stop_token_ids"),
    ({"stop_token_ids": "ab"}, "stop_token_ids"),
    ({"stop_token_ids": 3}, "stop_token_ids"),
    ({"ignore_eos": "yes"}, "ignore_eos"),
    ({"stream": "yes"}, "stream"),
    ({"stream_options": []}, "stream_options"),
    ({"logprobs": -1}, "logprobs"),
    ({"logprobs": 21}, "logprobs"),
    ({"model": 3}, "model"),
    ({"echo": True}, "echo"),
    ({"logit_bias": {"5": 1}}, "logit_bias"),
    ({"presence_penalty": 0.5}, "presence_penalty"),
    ({"suffix": "x"}, "suffix"),
    ({"prompt": "a " * 300}, "prompt"),
    ({"prompt": [5] * 257}, "prompt"),
]
BAD_CHATS = [
    ({"messages": None}, "messages"),
    ({"messages": []}, "messages"),
    ({"messages": "hello"}, "messages"),
    ({"messages": [{"role": "user"}]}, "messages"),
    ({"messages": [{"role": "stranger", "content": "a"}]}, "messages"),
    ({"messages": [{"role": "user", "content": 5}]}, "messages"),
    ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]}, "messages"),
    ({"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}]}]}, "messages"),
    ({"messages": [{"role": "user", "content": "a " * 300}]}, "messages"),
    ({"top_logprobs": 21}, "top_logprobs"),
    ({"max_completion_tokens": 0}, "max_completion_tokens"),
    ({"tools": [{"type": "function"}]}, "tools"),
    ({"response_format": {"type": "json_object"}}, "response_format"),
    ({"chat_template_kwargs": {"chat_template": "{{ x }}"}}, "chat_template_kwargs"),
    ({"chat_template_kwargs": {"messages": True}}, "messages"),
]


@pytest.mark.parametrize("route, good, bad", [("completions", GOOD, BAD), ("chat/completions", GOOD_CHAT, BAD_CHATS)])
def test_what_is_refused_names_its_field(server, route, good, bad):
    assert ask(server.url, "POST", f"/v1/{route}", good)[0] == 200
    for change, field in bad:
        status, _, content = ask(server.url, "POST", f"/v1/{route}", good | change)
        assert status == 400, (change, content)
        error = content["error"]
        assert error["type"] == "invalid_request_error" and error["param"] == field, (change, content)
        assert set(error) == {"message", "type", "param", "code"} and field.split()[-1] in error["message"]
    assert ask(server.url, "POST", f"/v1/{route}", good)[0] == 200


def test_what_changes_nothing_is_accepted(client):
    more = {"echo": False, "best_of": 1, "logit_bias": {}, "presence_penalty": 0.0, "user": "me", "suffix": None}
    assert complete(client, "a", max_tokens=2, extra_body=more).choices
    more = {"tools": [], "tool_choice": "none", "unknown_field": 3}
    assert chat(client, TALK, max_tokens=2, extra_body=more).choices


def test_a_prompt_that_is_too_long_says_how_long_it_may_be(server):
    status, _, content = ask(server.url, "POST", "/v1/completions", GOOD | {"prompt": [5] * 300})
    assert status == 400 and content["error"]["code"] == "context_length_exceeded"
    assert "300" in content["error"]["message"] and "256" in content["error"]["message"]
    assert ask(server.url, "POST", "/v1/completions", GOOD | {"prompt": [5] * 256})[0] == 200


def test_the_client_raises_its_own_errors(client):
    import openai

    with pytest.raises(openai.BadRequestError) as caught:
        complete(client, "a", temperature=-1)
    assert caught.value.param == "temperature"
    with pytest.raises(openai.NotFoundError) as caught:
        client.completions.create(model="gpt-4", prompt="a")
    assert caught.value.code == "model_not_found" and caught.value.param == "model"


def test_other_errors_have_the_same_form(server):
    good = b'{"prompt": "a", "max_tokens": 1}'
    cases = [
        (404, ("GET", "/nothing"), {}),
        (405, ("GET", "/v1/completions"), {}),
        (400, ("POST", "/v1/completions", good), {"Content_Type": "text/plain"}),
        (400, ("POST", "/v1/completions", good), {"Content_Type": ""}),
        (400, ("POST", "/v1/completions", b'{"prompt": "a"'), {}),
        (400, ("POST", "/v1/completions", b""), {}),
        (400, ("POST", "/v1/completions", b"[]"), {}),
        (400, ("POST", "/v1/completions", b'{"prompt": "\xff"}'), {}),
        (400, ("POST", "/v1/completions", b'{"prompt": "\\ud800"}'), {}),
        (400, ("POST", "/v1/completions", b'{"prompt": ' + b"[" * 10**4), {}),
        (413, ("POST", "/v1/completions", b" " * 10**6), {}),
    ]
    for expected, request, headers in cases:
        status, _, content = ask(server.url, *request, **headers)
        assert status == expected, (request[:2], content)
        assert set(content["error"]) == {"message", "type", "param", "code"}
    charset = {"Content_Type": "application/json; charset=utf-8"}
    assert ask(server.url, "POST", "/v1/completions", good, **charset)[0] == 200
