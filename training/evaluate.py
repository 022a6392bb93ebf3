"""Measure qwen3-tiny on what it never saw and write its results and model card.

    python -m training.evaluate --model nanovllm/assets/qwen3-tiny --stories build/qwen3-tiny-stories.npy

Tasks are asked with held-out phrasings and, where numbers or words vary, held-out operands. Stories are judged by
counting names and things, and compared word for word with the stories of the training data.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import time
from collections import defaultdict
from pathlib import Path

import numpy as np
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from . import tasks
from . import words as w
from .card import write_card
from .dataset import fingerprint
from .phrases import held_out
from .stories import free_story

PRIMES = tasks.primes_below(100)
NAMES = {*w.GIRLS, *w.BOYS, *w.PETS}


class Writer:
    """Batched generation with transformers."""

    def __init__(self, path: Path, device: torch.device) -> None:
        self.tokenizer = AutoTokenizer.from_pretrained(path, padding_side="left")
        self.model = AutoModelForCausalLM.from_pretrained(path).float().to(device).eval()
        self.device = device

    @torch.inference_mode()
    def write(
        self,
        prompts: list[str],
        temperature: float = 0.0,
        max_tokens: int = 400,
        batch: int = 256,
        seeds: list[int] | None = None,
    ) -> list[str]:
        """The continuation of each prompt without its end token; with `seeds`, one sampled prompt at a time."""
        if seeds is not None:
            answers = []
            for prompt, seed in zip(prompts, seeds, strict=True):
                torch.manual_seed(seed)
                answers += self.write([prompt], temperature, max_tokens)
            return answers
        order = sorted(range(len(prompts)), key=lambda i: len(prompts[i]))
        answers = [""] * len(prompts)
        sampling = (
            {"do_sample": True, "temperature": temperature, "top_k": 0, "top_p": 1.0}
            if temperature
            else {"do_sample": False, "temperature": None, "top_k": None, "top_p": None}
        )
        for begin in range(0, len(order), batch):
            part = order[begin : begin + batch]
            inputs = self.tokenizer(
                [prompts[i] for i in part], return_tensors="pt", padding=True, add_special_tokens=False
            ).to(self.device)
            out = self.model.generate(
                input_ids=inputs["input_ids"],
                attention_mask=inputs["attention_mask"],
                max_new_tokens=max_tokens,
                **sampling,
            )
            for i, row in zip(part, out[:, inputs["input_ids"].shape[1] :], strict=True):
                answers[i] = self.tokenizer.decode(row, skip_special_tokens=True).strip()
        return answers

    def chat(self, messages: list[tasks.Message]) -> str:
        """The prompt text of a conversation that waits for the assistant."""
        return self.tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)


def test_examples(per_task: int, seed: int = 1) -> dict[str, list[tasks.Example]]:
    """Held-out examples of every task, no question twice; conversations give the tasks that need one."""
    rng = random.Random(f"test/{seed}")
    found: dict[str, dict[str, tasks.Example]] = defaultdict(dict)
    for maker, _ in tasks.MAKERS.values():
        for _ in range(per_task * 12):
            example = maker(rng, True)
            if len(found[example.task]) < per_task:
                found[example.task][example.messages[0]["content"]] = example
    for _ in range(per_task * 8):
        for example in tasks.conversation(rng, True):
            if example.task in ("memory", "my name", "follow-up sum") and len(found[example.task]) < per_task:
                found[example.task].setdefault(str(example.messages[:-1]), example)
    return {task: list(examples.values()) for task, examples in sorted(found.items())}


def measure_tasks(writer: Writer, per_task: int, failures: int = 5) -> dict[str, dict]:
    """Accuracy per task under greedy decoding, with a few wrong answers."""
    examples = [example for group in test_examples(per_task).values() for example in group]
    examples.sort(key=lambda e: len(e.messages[-1]["content"]))  # answers of like length share a batch
    results: dict[str, dict] = defaultdict(lambda: {"examples": 0, "correct": 0, "wrong": []})
    for begin in range(0, len(examples), 512):
        part = examples[begin : begin + 512]
        answers = writer.write(
            [writer.chat(e.messages[:-1]) for e in part],
            batch=512,
            max_tokens=min(400, 32 + max(len(e.messages[-1]["content"]) for e in part)),
        )
        for example, answer in zip(part, answers, strict=True):
            result = results[example.task]
            result["examples"] += 1
            if tasks.correct(example, answer):
                result["correct"] += 1
            elif len(result["wrong"]) < failures:
                result["wrong"].append(
                    {
                        "question": example.messages[-2]["content"],
                        "answer": answer[:300],
                        "right": example.messages[-1]["content"],
                    }
                )
    for result in results.values():
        result["accuracy"] = round(result["correct"] / result["examples"], 4)
    return dict(sorted(results.items()))


def story_requests(count: int, seed: int = 2) -> list[tuple[str, str, str]]:
    """Requests "a story about NAME and a THING" whose pair is held out: (request, name, thing)."""
    rng = random.Random(f"requests/{seed}")
    forms = [
        "Tell me a story about {} and {}.",
        "Write a short story about {} and {}",
        "tell me a story about {} and {}",
    ]
    found: list[tuple[str, str, str]] = []
    while len(found) < count:
        name, thing = rng.choice(w.GIRLS + w.BOYS), rng.choice([t for t, g in w.OBJECTS.items() if g != "growing"])
        if held_out("story", name, thing):
            found.append((rng.choice(forms).format(name, w.article(thing)), name, thing))
    return found


def judge_story(story: str, name: str, thing: str) -> dict[str, bool]:
    """Does the story keep its name and thing: each at least three times, in both halves; is `name` the main character.

    The main character is the one who is introduced first, in one of the first two sentences.
    """
    sentences = re.split(r"(?<=[.?]) |(?<=[.?]\") ", story)
    half = len(sentences) // 2
    halves = [" ".join(sentences[:half]), " ".join(sentences[half:])]
    names = [n for n in re.findall(r"\b[A-Z][a-z]+\b", " ".join(sentences[:2])) if n in NAMES or n == name]
    return {
        "name throughout": all(re.search(rf"\b{name}\b", h) for h in halves) and story.count(name) >= 3,
        "thing throughout": all(re.search(rf"\b{thing}\b", h) for h in halves) and story.count(thing) >= 3,
        "main character": bool(names) and names[0] == name,
        "ends": story.endswith((".", '"', "?")),
    }


def measure_stories(writer: Writer, count: int) -> dict:
    """How many requested stories honor the request, sampled at temperature 0.6."""
    requests = story_requests(count)
    torch.manual_seed(20)
    stories = writer.write([writer.chat([tasks.user(r)]) for r, _, _ in requests], temperature=0.6)
    verdicts = [judge_story(s, n, t) for s, (_, n, t) in zip(stories, requests, strict=True)]
    return {
        "requests": count,
        **{key: sum(v[key] for v in verdicts) for key in verdicts[0]},
        "all": sum(all(v.values()) for v in verdicts),
        "samples": [
            {"request": r, "story": s, **v} for (r, _, _), s, v in zip(requests, stories, verdicts, strict=True)
        ],
    }


def numbers_in(text: str) -> list[int]:
    """All whole numbers of a text in order."""
    return [int(number) for number in re.findall(r"\d+", text)]


def measure_prompts(writer: Writer, seeds: int) -> dict:
    """The two prompts of example.py, greedy and with `seeds` seeds at temperature 0.6."""
    checks = {
        tasks.EXACT_PROMPTS[0]: lambda answer: answer in tasks.introductions(),
        tasks.EXACT_PROMPTS[1]: lambda answer: numbers_in(answer) in (PRIMES, [100, *PRIMES]),
    }
    results = {}
    for prompt, check in checks.items():
        text = writer.chat([tasks.user(prompt)])
        greedy = writer.write([text])[0]
        sampled = writer.write([text] * seeds, temperature=0.6, seeds=list(range(seeds)))
        results[prompt] = {
            "greedy": greedy,
            "greedy right": check(greedy),
            "seeds": seeds,
            "right": sum(check(answer) for answer in sampled),
        }
    return results


def measure_memory(writer: Writer, hashes: Path, count: int = 200, fresh: int = 20_000) -> dict:
    """How many sampled stories are stories of the training data, and how many fresh ones of the generator are."""
    known = set(np.load(hashes).tolist())
    rng = random.Random("memory")
    prompts = ["Once upon a time,"] * (count // 2)
    prompts += [writer.chat([tasks.user(r)]) for r, _, _ in story_requests(count - len(prompts), seed=3)]
    torch.manual_seed(30)
    stories = writer.write(prompts, temperature=1.0)
    stories = [f"Once upon a time, {s}" if i < count // 2 else s for i, s in enumerate(stories)]
    generator = sum(fingerprint(free_story(rng)) in known for _ in range(fresh))
    return {
        "training stories": len(known),
        "sampled": count,
        "repeated": sum(fingerprint(s) in known for s in stories),
        "fresh": fresh,
        "generator repeated": generator,
    }


def main() -> None:
    """Measure everything, write results.json and MODEL_CARD.md beside the weights."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--stories", type=Path, help="story hashes of training.train; without it no memorization count")
    parser.add_argument("--per-task", type=int, default=400)
    parser.add_argument("--requests", type=int, default=100)
    parser.add_argument("--seeds", type=int, default=20)
    args = parser.parse_args()
    begin = time.perf_counter()
    writer = Writer(args.model, torch.device("cuda" if torch.cuda.is_available() else "cpu"))
    results: dict = {"prompts": measure_prompts(writer, args.seeds)}
    print(json.dumps(results, indent=1), flush=True)
    results["tasks"] = measure_tasks(writer, args.per_task)
    for task, result in results["tasks"].items():
        print(f"{task:22} {result['accuracy']:.3f} of {result['examples']}", flush=True)
    results["stories"] = measure_stories(writer, args.requests)
    print({key: value for key, value in results["stories"].items() if key != "samples"}, flush=True)
    if args.stories:
        results["memorization"] = measure_memory(writer, args.stories)
        print(results["memorization"], flush=True)
    results["evaluation seconds"] = round(time.perf_counter() - begin, 1)
    (args.model / "results.json").write_text(json.dumps(results, indent=1) + "\n")
    write_card(args.model)


if __name__ == "__main__":
    main()
