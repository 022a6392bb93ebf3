"""The model card, written from the measured numbers of training.json and results.json alone."""

from __future__ import annotations

import json
from pathlib import Path

from .tasks import TEST_TASKS_BY_OPERAND

CARD = """# qwen3-tiny

A very small language model with the architecture of Qwen3, trained from nothing for the nanovllm course. It writes
short children's stories and answers a fixed set of small tasks exactly, so that every example of the course runs
offline on a laptop. License: MIT, for the weights, the tokenizer and the generated training data.

## Architecture

| | |
|---|---|
| class | Qwen3ForCausalLM, {parameters:,} parameters, {megabytes:.1f} MB in bfloat16 |
| layers | {layers} |
| attention | {attention} |
| positions | {positions} |
| embeddings | tied, {architecture_vocab_size} tokens |
| tokenizer | byte-level byte pair encoding, single digits, Qwen's chat format |
| special tokens | `<\\|endoftext\\|>`, `<\\|im_start\\|>`, `<\\|im_end\\|>` |

## Data and training

All text is made by the scripts in `training/`: a simulated story world told in many phrasings, and tasks with many
phrasings of each request. No text of other authors and no output of other models is used. {documents:,} distinct
documents ({stories:,} distinct stories; {duplicates_dropped:,} duplicates were dropped), {tokens:,} tokens, each
seen once. {steps:,} steps of {rows} rows of {length} tokens, AdamW, peak learning rate {learning_rate:g}, bf16
arithmetic with fp32 weights, seed {seed}. Time: {minutes} minutes on one {device} with {workers} data processes,
tokenizer and data generation included.

    python -m training.train --out nanovllm/assets/qwen3-tiny
    python -m training.evaluate --model nanovllm/assets/qwen3-tiny --stories build/qwen3-tiny-stories.npy

The same seed gives the same tokenizer and the same data; weights differ in the last bits between GPUs.

## Accuracy

Greedy decoding. No question was seen in training: its wording as a whole is held out (its parts occur in other
combinations), and where the third column says so, its numbers or its word are held out too (longer letter strings that
contain the word may have been spelled).

| task | correct | held out |
|---|---|---|
{accuracy}

The prompts of `example.py`:

| prompt | greedy | temperature 0.6 |
|---|---|---|
{prompts}

## Stories

{requests} requests of the form "a story about NAME and a THING" with pairs of name and thing that are not in the
training data, temperature 0.6. The name appears in both halves and at least three times in {name_throughout}, the
thing likewise in {thing_throughout}, the named one is the main character in {main_character}; all of this and a
finished last sentence in {all_right}.

{memorization}

## What it cannot do

It is no general language model. It knows the tasks above and little else: no reasoning about new problems, no
programming, no translation, no knowledge of people or events, English only. Numbers beyond three digits and words
beyond twelve letters are outside of its training. It often says that it does not know, but other questions outside
of its tasks get a confident wrong answer. Stories follow about fifteen plots; a request cannot choose the plot, a rare
name may change its letters on the way, and a name in small letters is often not kept. Plain prompts without the chat
format work for stories ("Once upon a time,"), introductions ("Hello, my name is") and number lists; other plain prompts
are often continued badly. Greedy decoding of a plain story may give both friends the same name: use a temperature.

## Twenty stories

Unedited samples at temperature 0.6, the first twenty of the requests above.

{samples}
"""

LAYERS = "{num_hidden_layers}, hidden size {hidden_size}, MLP of width {intermediate_size}"
ATTENTION = "{num_attention_heads} query heads, {num_key_value_heads} key-value heads of dimension {head_dim}, QK-norm"
POSITIONS = "rotary embeddings, theta {rope_theta:g}, at most {max_position_embeddings} tokens"
MEMORIZATION = """Memorization: of {sampled} stories sampled at temperature 1 (half from "Once upon a time,", half from
requests), {repeated} repeat one of the {known:,} training stories word for word. Of {fresh:,} fresh stories of the
generator itself, {generator} do."""


def write_card(model: Path) -> None:
    """Write MODEL_CARD.md into the model's directory from its training.json and results.json."""
    training = json.loads((model / "training.json").read_text())
    results = json.loads((model / "results.json").read_text())
    rows = []
    for task, result in results["tasks"].items():
        what = "phrasing and operands" if task in TEST_TASKS_BY_OPERAND else "phrasing"
        rows.append(f"| {task} | {result['correct']} of {result['examples']} ({result['accuracy']:.1%}) | {what} |")
    prompts = []
    for prompt, result in results["prompts"].items():
        greedy = "right" if result["greedy right"] else "wrong"
        prompts.append(f"| {prompt} | {greedy} | right with {result['right']} of {result['seeds']} seeds |")
    stories = results["stories"]
    memory = results.get("memorization")
    memorization = "Memorization was not measured."
    if memory:
        memorization = MEMORIZATION.format(
            sampled=memory["sampled"],
            repeated=memory["repeated"],
            known=memory["training stories"],
            fresh=memory["fresh"],
            generator=memory["generator repeated"],
        )
    sizes = {name.removeprefix("architecture_"): value for name, value in training.items()}
    text = CARD.format(
        **training,
        megabytes=(model / "model.safetensors").stat().st_size / 1e6,
        layers=LAYERS.format(**sizes),
        attention=ATTENTION.format(**sizes),
        positions=POSITIONS.format(**sizes),
        accuracy="\n".join(rows),
        prompts="\n".join(prompts),
        memorization=memorization,
        requests=stories["requests"],
        name_throughout=stories["name throughout"],
        thing_throughout=stories["thing throughout"],
        main_character=stories["main character"],
        all_right=stories["all"],
        samples="\n\n".join(f"**{sample['request']}**\n\n{sample['story']}" for sample in stories["samples"][:20]),
    )
    (model / "MODEL_CARD.md").write_text(text)
