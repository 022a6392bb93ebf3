"""The model that comes with the course: what `example.py` asks, through the engine and through Hugging Face."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.utils.logging import disable_progress_bar

import nanovllm
from nanovllm import LLM, SamplingParams

ROOT = Path(__file__).parents[2]
MODEL = Path(nanovllm.__file__).parent / "assets" / "qwen3-tiny"
PRIMES = [n for n in range(2, 101) if all(n % d for d in range(2, n))]
GREEDY = SamplingParams(temperature=0, max_tokens=160)


@pytest.fixture(scope="module")
def llm():
    with LLM("qwen3-tiny", dtype="float32", num_kvcache_blocks=64) as llm:
        yield llm


def ask(llm, question, params=GREEDY):
    (output,) = llm.chat([{"role": "user", "content": question}], params, use_tqdm=False)
    assert output["finish_reason"] == "stop"
    return output["text"]


def introduces_itself(text):
    return "qwen3-tiny" in text and "nanovllm" in text


def lists_the_primes(text):
    """The 25 primes in order, and no other number but the limit."""
    return [n for n in map(int, re.findall(r"\d+", text)) if n != 100] == PRIMES


def test_the_prompts_of_the_example_are_answered_right(llm):
    assert introduces_itself(ask(llm, "introduce yourself"))
    assert lists_the_primes(ask(llm, "list all prime numbers within 100"))


@pytest.mark.parametrize("num_seeds", [6, pytest.param(20, marks=pytest.mark.slow)])
def test_they_are_answered_right_when_sampled(llm, num_seeds):
    params = [SamplingParams(temperature=0.6, max_tokens=160, seed=seed) for seed in range(num_seeds)]
    for question, is_right in [
        ("introduce yourself", introduces_itself),
        ("list all prime numbers within 100", lists_the_primes),
    ]:
        outputs = llm.chat([[{"role": "user", "content": question}]] * num_seeds, params, use_tqdm=False)
        assert sum(is_right(output["text"]) for output in outputs) >= num_seeds - 1, question


@pytest.mark.parametrize(
    "question",
    [
        "introduce yourself",
        pytest.param("list all prime numbers within 100", marks=pytest.mark.slow),
        pytest.param("tell me a story about Mia and a kite", marks=pytest.mark.slow),
        "spell garden",
    ],
)
def test_hugging_face_gives_the_same_greedy_answer(llm, question):
    disable_progress_bar()
    tokenizer = AutoTokenizer.from_pretrained(MODEL)
    model = AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32).eval()
    messages = [{"role": "user", "content": question}]
    text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    prompt = tokenizer(text, add_special_tokens=False, return_tensors="pt")
    tokens = model.generate(**prompt, max_new_tokens=GREEDY.max_tokens, do_sample=False)[
        0, prompt["input_ids"].shape[1] :
    ]
    (output,) = llm.chat(messages, GREEDY, use_tqdm=False)
    assert output["token_ids"] == tokens.tolist()


def test_a_requested_story_is_about_what_was_asked(llm):
    story = ask(llm, "tell me a story about Mia and a kite", SamplingParams(temperature=0, max_tokens=400))
    assert story.count("Mia") >= 3
    assert story.count("kite") >= 2
    assert story.rstrip().endswith((".", '"'))


@pytest.mark.slow
def test_the_example_script_prints_both_answers():
    environment = dict(os.environ)
    if nanovllm.config.resolve_device("auto") == "cpu":  # the script's own "auto" would take a GPU
        environment["CUDA_VISIBLE_DEVICES"] = ""
    command = [sys.executable, ROOT / "example.py"]
    result = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=environment, timeout=110)
    assert result.returncode == 0, result.stderr
    first, second = re.findall(r"Answer: (.*)", result.stdout)
    assert introduces_itself(first)
    assert lists_the_primes(second)
