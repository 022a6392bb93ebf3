"""The pictures of the notebooks: one style for all of them, and the functions that draw those of each chapter.

Importing this module sets the style, which is right in a light and in a dark theme: nothing is painted behind a
picture, and text, ticks and frames have a gray that is legible on white as well as on JupyterLab's dark background
(both contrasts are at least 4.3 to 1). The colors are those of Okabe and Ito, which people with any kind of color
vision tell apart; black text on each of them is legible.

A function that draws takes numbers, not engines, wherever that is enough: then it works with anybody's engine.
"""

import json
import math
import random
from itertools import groupby
from typing import Any

import matplotlib.pyplot as plt
from matplotlib.collections import PatchCollection
from matplotlib.figure import Figure
from matplotlib.patches import Patch

BLUE, ORANGE, GREEN, PINK, GRAY = "#56B4E9", "#E69F00", "#009E73", "#CC79A7", "#999999"
TEXT = "#797979"  # on the page
INK = "black"  # on one of the colors
FAINT = "#79797955"  # lines of a grid, edges of what is empty; lets the page through

STYLE = {
    "figure.hooks": [f"{__name__}:leave_out_background"],
    "axes.facecolor": "none",
    "savefig.facecolor": "none",
    "figure.figsize": (8, 3),
    "figure.dpi": 110,
    "figure.constrained_layout.use": True,
    **dict.fromkeys(["text.color", "axes.titlecolor", "axes.labelcolor", "xtick.color", "ytick.color"], TEXT),
    "axes.edgecolor": TEXT,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": 11,
    "axes.ymargin": 0.12,
    "axes.prop_cycle": plt.cycler(color=[BLUE, ORANGE, GREEN, PINK, GRAY]),
    "grid.color": FAINT,
    "hatch.color": TEXT,
    "legend.frameon": False,
    "legend.labelcolor": TEXT,
    "lines.linewidth": 2,
}
plt.rcParams.update(STYLE)


def leave_out_background(figure: Figure) -> None:
    """Called by pyplot for every new figure: do not draw its background.

    A background that is see-through would not do: JupyterLab puts white behind a figure that calls itself transparent
    and has dark ticks.
    """
    figure.patch.set_visible(False)


# Chapter 01.


def show_next_tokens(logits: Any, tokenizer: Any, count: int = 8) -> None:
    """Bars of the tokens that are most likely to come next.

    Args:
        logits: a tensor, float [vocabulary size].
        tokenizer: turns ids into text.
        count: how many tokens.
    """
    probabilities, token_ids = logits.float().softmax(-1).topk(count)
    labels = [repr(tokenizer.decode([token_id])) for token_id in token_ids.tolist()]
    _, axis = plt.subplots(figsize=(8, 2.6))
    bars = axis.barh(labels, 100 * probabilities, color=[ORANGE] + [BLUE] * (count - 1))
    axis.bar_label(bars, fmt="%.1f %%", padding=3)
    axis.set(title="What may come next, and how likely it is", xlim=(0, 100), xticks=[])
    axis.spines.bottom.set_visible(False)
    axis.invert_yaxis()
    plt.show()


def show_steps(loop: list[int], engine: list[int]) -> None:
    """Two pictures side by side: the tokens that each step computes, by their place in the text.

    Args:
        loop, engine: how many tokens each step computed, the last ones of the text so far.
    """
    _, axes = plt.subplots(1, 2, sharex=True, sharey=True, figsize=(8, 3.4))
    for axis, computed, color, name in zip(axes, (loop, engine), (ORANGE, BLUE), ("loop", "engine"), strict=True):
        squares = [
            plt.Rectangle((computed[0] + step - k, step + 0.05), 0.85, 0.85)
            for step, count in enumerate(computed)
            for k in range(1, count + 1)
        ]
        axis.add_collection(PatchCollection(squares, facecolor=color, edgecolor="none"))
        axis.set(xlim=(0, computed[0] + len(computed)), ylim=(len(computed), 0))
        axis.set(title=f"{name}: {sum(computed)} tokens computed", xlabel="place in the text")
    axes[0].set(ylabel="step")
    plt.show()


def show_seconds(loop: list[float], engine: list[float]) -> None:
    """Two lines: the time for each new token.

    Args:
        loop, engine: seconds, one number a token.
    """
    _, axis = plt.subplots()
    for seconds, color, name in ((loop, ORANGE, "loop"), (engine, BLUE, "engine")):
        axis.plot([1000 * s for s in seconds], color=color)
        # The last tokens' median: a single one may have been disturbed.
        height = 1000 * sorted(seconds[-15:])[7]
        axis.annotate(name, (len(seconds), height), xytext=(4, 0), textcoords="offset points", va="center")
    axis.set(xlabel="new token", ylabel="milliseconds", ylim=0, title="Time for each new token, measured just now")
    plt.show()


def show_batches(batch_sizes: list[int], seconds: list[float], num_tokens: int) -> None:
    """Two bar charts: the time of a batch, and the tokens per second in it.

    Args:
        batch_sizes: requests that ran together.
        seconds: the time of each batch.
        num_tokens: tokens that each request wrote.
    """
    _, (left, right) = plt.subplots(1, 2)
    labels = [str(size) for size in batch_sizes]
    bars = left.bar(labels, [s / seconds[0] for s in seconds], color=BLUE)
    left.bar_label(bars, fmt="%.1f")
    left.set(xlabel="requests together", title="Time, compared with one request")
    bars = right.bar(labels, [num_tokens * b / s for b, s in zip(batch_sizes, seconds, strict=True)], color=GREEN)
    right.bar_label(bars, fmt="%.0f")
    right.set(xlabel="requests together", title="Tokens per second, all requests")
    plt.show()


def show_seats(runs: dict[str, list[tuple[int, int, int]]], num_seats: int) -> None:
    """A picture a run, below each other: which request has which seat, over the steps.

    Args:
        runs: by name: of each request its number, the step with which it begins and the one with which it ends.
        num_seats: the most requests at once.
    """
    longest = max(end for spans in runs.values() for *_, end in spans)
    _, axes = plt.subplots(len(runs), 1, sharex=True, squeeze=False, figsize=(8, 0.4 + 1.5 * len(runs)))
    for axis, (name, spans) in zip(axes[:, 0], runs.items(), strict=True):
        total, free_from = max(end for *_, end in spans), [0] * num_seats
        for request, start, end in sorted(spans, key=lambda span: span[1]):
            seat = next(seat for seat in range(num_seats) if free_from[seat] <= start)
            free_from[seat] = end
            color = (BLUE, ORANGE, GREEN, PINK)[request % 4]
            axis.barh(seat, end - start, left=start, height=0.86, color=color, edgecolor=TEXT, linewidth=0.6)
            if end - start > 0.02 * longest:
                axis.text((start + end) / 2, seat, str(request), ha="center", va="center", fontsize=8, color=INK)
        axis.barh(range(num_seats), total, height=0.86, color="none", edgecolor=FAINT, hatch="////", zorder=0)
        used = sum(end - start for _, start, end in spans)
        axis.set_title(f"{name}: {total} steps, {100 * (1 - used / total / num_seats):.0f} % of the seats not taken")
        axis.set(xlim=(0, longest), yticks=range(num_seats), ylabel="seat")
        axis.invert_yaxis()
    axes[-1, 0].set_xlabel("step")
    plt.show()


# Chapter 02.


def engine_map() -> None:
    """The parts of the engine, and in which order a step goes through them."""
    _, axis = plt.subplots(figsize=(8, 4))
    boxes = [
        ("LLM", "llm.py", "", 0.0, 3, GRAY),
        ("LLMEngine.run_step", "engine/llm_engine.py", "7", 2.4, 3, ORANGE),
        ("Scheduler", "engine/scheduler.py", "6", 0.0, 1.5, BLUE),
        ("Sequence", "engine/sequence.py", "4", 0.0, 0.0, BLUE),
        ("BlockManager", "engine/block_manager.py", "5", 2.4, 0.0, BLUE),
        ("ModelRunner", "engine/model_runner.py", "8", 4.8, 1.5, GREEN),
        ("Qwen3ForCausalLM", "models/qwen3.py", "15", 7.2, 1.5, GREEN),
        ("Sampler", "layers/sampler.py", "14", 4.8, 0.0, GREEN),
        ("Attention, Linear, ...", "layers/", "9 to 13", 7.2, 0.0, GREEN),
    ]
    for name, file, chapter, x, y, color in boxes:
        axis.add_patch(plt.Rectangle((x, y), 2.1, 1, facecolor=color, edgecolor=TEXT))
        axis.text(x + 1.05, y + 0.76, name, ha="center", va="center", color=INK, fontsize=8.5, weight="bold")
        axis.text(x + 1.05, y + 0.48, file, ha="center", va="center", color=INK, fontsize=8)
        axis.text(x + 1.05, y + 0.2, chapter and f"chapter {chapter}", ha="center", va="center", color=INK, fontsize=8)
    arrows = [(2.1, 3.5, 2.38, 3.5), (3.1, 2.98, 1.6, 2.53), (4.1, 2.98, 5.3, 2.53), (2.6, 2.98, 0.8, 2.53)]
    arrows += [(0.8, 1.48, 0.8, 1.03), (1.6, 1.48, 2.9, 1.03), (5.8, 1.48, 5.8, 1.03), (6.9, 2, 7.18, 2)]
    for x1, y1, x2, y2 in [*arrows, (8.2, 1.48, 8.2, 1.03)]:
        axis.annotate("", (x2, y2), (x1, y1), arrowprops={"arrowstyle": "->", "color": TEXT})
    for x, word in [(0.85, "3 postprocess"), (2.5, "1 schedule"), (4.9, "2 run")]:
        axis.text(x, 2.78, word, fontsize=8.5, ha="left" if x > 1 else "center", va="center")
    axis.set(xlim=(-0.1, 9.4), ylim=(-0.1, 4.1))
    axis.axis("off")
    plt.show()


def kv_of_one_token(num_layers: int, num_kv_heads: int, num_heads: int) -> None:
    """A cell for each key and each value of one token; dashed, those that there would be without sharing heads."""
    _, axis = plt.subplots(figsize=(8, 4.2))
    for k, (name, color) in enumerate([("keys", ORANGE), ("values", BLUE)]):
        left = k * (num_heads + 1)
        cells = [plt.Rectangle((left + h, i), 0.86, 0.8) for i in range(num_layers) for h in range(num_kv_heads)]
        axis.add_collection(PatchCollection(cells, facecolor=color, edgecolor="none"))
        saved = plt.Rectangle((left + num_kv_heads, 0), num_heads - num_kv_heads - 0.2, num_layers, linestyle="--")
        saved.set(facecolor="none", edgecolor=TEXT)
        axis.add_patch(saved)
        axis.text(left + num_kv_heads / 2, -0.6, f"{name}: {num_kv_heads} heads", ha="center")
        axis.text(left + (num_heads + num_kv_heads) / 2, num_layers / 2, "without GQA", ha="center", fontsize=8)
    axis.set(xlim=(-0.5, 2 * num_heads + 1.5), ylim=(num_layers + 0.3, -2.2), xticks=[], ylabel="layer")
    axis.set(title="One token in the cache: each cell is a vector of 128 numbers")
    for side in ("bottom", "left"):
        axis.spines[side].set_visible(False)
    plt.show()


def kv_bars(costs: dict[str, int]) -> None:
    """Bars of the bytes that one token takes, by model."""
    _, axis = plt.subplots(figsize=(8, 0.5 + 0.3 * len(costs)))
    names = sorted(costs, key=lambda name: costs[name])
    bars = axis.barh(names, [costs[name] / 1000 for name in names], color=BLUE, edgecolor=TEXT, linewidth=0.4)
    axis.bar_label(bars, [f"{costs[name] / 1000:,.0f} kB" for name in names], padding=3)
    axis.set(title="KV cache of one token, in 16 bits", xticks=[])
    axis.spines.bottom.set_visible(False)
    plt.show()


def what_fits(models: dict[str, tuple[float, float]], machines: dict[str, float], share: float = 0.9) -> None:
    """What is left beside the weights, cut into requests, for each model on each machine.

    Args:
        models: gigabytes of the weights and of one request's cache, by name.
        machines: gigabytes by name.
        share: of the memory that may be used.
    """
    sizes = [0.6 + 0.42 * len(models)] * len(machines)
    _, axes = plt.subplots(len(machines), 1, figsize=(8, sum(sizes)), height_ratios=sizes)
    for axis, (machine, total) in zip(axes, machines.items(), strict=True):
        for i, (weights, request) in enumerate(models.values()):
            count = max(0, int((share * total - weights) / request))
            fits = weights < share * total
            axis.barh(
                i, min(weights, total), color=BLUE if fits else "none", edgecolor=TEXT, hatch="" if fits else "//"
            )
            cells = [plt.Rectangle((weights + k * request, i - 0.4), request, 0.8) for k in range(count)]
            edge = TEXT if request > total / 200 else "none"
            axis.add_collection(PatchCollection(cells, facecolor=GREEN, edgecolor=edge, linewidth=0.4))
            axis.text(total * 1.01, i, f"{count} requests" if fits else "too large", va="center", fontsize=9)
        axis.axvline(share * total, color=TEXT, linestyle="--", linewidth=1)
        axis.set_yticks(range(len(models)), list(models))
        axis.set(xlim=(0, total * 1.16), ylim=(len(models) - 0.4, -0.6))
        axis.set(title=f"{machine}: weights (blue), and requests of 4,096 tokens (green cells)", xlabel="GB")
    plt.show()


def seconds_of_steps(counts: list[int], lines: dict[str, list[float]], least: list[float] | None = None) -> None:
    """Milliseconds of steps by the tokens in them, measured just now; and, if there is one, a bound.

    Args:
        counts: tokens in a step.
        lines: seconds for each count, by name.
        least: seconds that a step takes at least.
    """
    _, axis = plt.subplots(figsize=(8, 3.2))
    for (name, seconds), color in zip(lines.items(), (BLUE, ORANGE), strict=False):
        axis.plot(counts, [1000 * s for s in seconds], color=color, marker="o", markersize=4, label=name)
    first = next(iter(lines.values()))[0]
    if least:
        axis.plot(counts, [1000 * s for s in least], color=TEXT, linestyle="--", label="the least time")
    else:
        axis.plot(
            counts, [1000 * first * n for n in counts], color=TEXT, linestyle=":", label="if each token took as long"
        )
    axis.set(xscale="log", yscale="log", xlabel="tokens in the step", ylabel="milliseconds")
    axis.set_xticks(counts, [str(n) for n in counts])
    axis.minorticks_off()
    axis.set(title="The time of a step, measured just now on one core")
    shown = [1000 * s for line in lines.values() for s in line] + [1000 * s for s in least or ()]
    ticks = [digit * 10**power for power in range(-2, 6) for digit in (1, 3)]
    ticks = [tick for tick in ticks if 0.5 * min(shown) <= tick <= 1.2 * max(shown)]
    axis.set_yticks(ticks, [f"{tick:g}" for tick in ticks])
    axis.grid(alpha=0.4)
    axis.legend(fontsize=8)
    plt.show()


def measured_and_least(steps: list[tuple[int, int, float]], least: dict[tuple[int, int], float], title: str) -> None:
    """Milliseconds of decode steps by their sequences, a color for each length; the bound of each is dashed.

    Args:
        steps: sequences, tokens of each, and measured seconds.
        least: seconds at least, by sequences and tokens of each.
        title: where the measurements come from.
    """
    _, axis = plt.subplots(figsize=(8, 3.8))
    lengths = sorted({length for _, length, _ in steps})
    for length, color in zip(lengths, (GREEN, BLUE, ORANGE, PINK), strict=False):
        own = [(n, seconds) for n, other, seconds in steps if other == length]
        label = f"{length:,} tokens each"
        axis.plot([n for n, _ in own], [1e3 * s for _, s in own], color=color, marker="o", markersize=4, label=label)
        axis.plot(
            [n for n, _ in own], [1e3 * least[n, length] for n, _ in own], color=color, linestyle="--", linewidth=1
        )
    ticks = sorted({n for n, _, _ in steps})
    axis.set(xscale="log", yscale="log", xlabel="sequences in the step", ylabel="milliseconds", title=title)
    axis.set_xticks(ticks, [str(n) for n in ticks])
    axis.set_yticks([0.3, 1, 3, 10, 30], ["0.3", "1", "3", "10", "30"])
    axis.minorticks_off()
    axis.grid(alpha=0.4)
    axis.legend(fontsize=8)
    plt.show()


def roofline(device: Any, points: dict[str, list[tuple[float, float, str]]], marks: dict[str, float]) -> None:
    """The roof of a device, and steps under it.

    Args:
        device: has `bytes_per_second` and `flops_per_second`.
        points: operations a byte, operations a second, and a word, by the name of a series.
        marks: operations a byte of steps of which no time is known, by name.
    """
    _, axis = plt.subplots(figsize=(8, 3.8))
    bend = device.flops_per_second / device.bytes_per_second
    xs = [0.5, bend, 20 * bend]
    axis.plot(xs, [min(device.flops_per_second, x * device.bytes_per_second) for x in xs], color=TEXT)
    axis.text(3, 4.5 * device.bytes_per_second, "memory", rotation=25, fontsize=9, ha="center")
    axis.text(3 * bend, 1.25 * device.flops_per_second, "arithmetic", fontsize=9)
    places = [(8, -11), (-9, 6)]
    for (name, series), color, marker, place in zip(points.items(), (BLUE, PINK), "os", places, strict=False):
        axis.plot([p[0] for p in series], [p[1] for p in series], marker, color=color, label=f"{name} (RECORDED)")
        for x, y, word in series:
            axis.annotate(word, (x, y), xytext=place, textcoords="offset points", fontsize=8, ha="center")
    for name, x in marks.items():
        y = min(device.flops_per_second, x * device.bytes_per_second)
        axis.plot([x], [y], "^", color=ORANGE, markersize=8, label=f"{name}: at most")
    axis.set(xscale="log", yscale="log", xlabel="operations a byte", ylabel="operations a second")
    axis.set(title=f"The roof bends at {bend:.0f} operations a byte", ylim=(3e11, 3 * device.flops_per_second))
    axis.grid(alpha=0.4)
    axis.legend(fontsize=8, loc="lower right")
    plt.show()


def predicted_and_measured(answers: dict[str, list[tuple[float, float]]]) -> None:
    """Predicted seconds over measured ones; on the line both are equal.

    Args:
        answers: (measured, predicted) by who predicts.
    """
    _, axis = plt.subplots(figsize=(5.2, 4))
    every = [1e3 * seconds for pairs in answers.values() for pair in pairs for seconds in pair]
    ends = [min(every), max(every)]
    axis.plot(ends, ends, color=TEXT, linewidth=1)
    for (name, pairs), color, marker in zip(answers.items(), (ORANGE, BLUE), "so", strict=False):
        axis.plot([1e3 * m for m, _ in pairs], [1e3 * p for _, p in pairs], marker, color=color, label=name, alpha=0.9)
    axis.set(xscale="log", yscale="log", xlabel="measured, milliseconds", ylabel="predicted, milliseconds")
    axis.set_xticks([1, 3, 10, 30], ["1", "3", "10", "30"])
    axis.set_yticks([1, 3, 10, 30], ["1", "3", "10", "30"])
    axis.minorticks_off()
    axis.grid(alpha=0.4)
    axis.legend(fontsize=8)
    plt.show()


# Chapter 03.


def border() -> None:
    """What comes from outside, the line where it is checked, and those who rely on it."""
    _, axis = plt.subplots(figsize=(8, 2.6))
    outside = [("your script", 2.4), ("a web form", 1.5), ("a JSON file", 0.6)]
    inside = [("scheduler", 2.4), ("model runner", 1.5), ("sampler", 0.6)]
    for x, color, boxes in [(0, ORANGE, outside), (7.6, BLUE, inside)]:
        for name, y in boxes:
            axis.add_patch(plt.Rectangle((x, y - 0.3), 2.3, 0.6, facecolor=color, edgecolor=TEXT))
            axis.text(x + 1.15, y, name, ha="center", va="center", color=INK)
    arrow = {"arrowstyle": "->", "color": TEXT}
    for y in (2.4, 1.5, 0.6):
        axis.annotate("", (3.7, 1.5), (2.4, y), arrowprops=arrow)
        axis.annotate("", (7.5, y), (6.3, 1.5), arrowprops=arrow)
    axis.add_patch(plt.Rectangle((3.8, 0.9), 2.4, 1.2, facecolor=GREEN, edgecolor=TEXT, linewidth=2))
    axis.text(5, 1.5, "Config\nSamplingParams\nprompt", ha="center", va="center", color=INK)
    axis.annotate("", (5, 0.25), (5, 0.9), arrowprops=arrow)
    axis.text(5, 0.0, "an error that helps", ha="center")
    axis.text(1.15, 3.0, "anything may come", ha="center", style="italic")
    axis.text(8.75, 3.0, "nothing is checked again", ha="center", style="italic")
    axis.set(xlim=(-0.2, 10.1), ylim=(-0.2, 3.3))
    axis.axis("off")
    plt.show()


def memory_bars(budgets: list[Any]) -> None:
    """Stacked bars: where the memory of each GPU goes, in percent, and what the cache holds.

    Args:
        budgets: of `nanovllm.viz.memory.budget_of`.
    """
    names = [f"{budget.setting.model} on {budget.setting.memory_gb} GB" for budget in budgets]
    _, axis = plt.subplots(figsize=(8, 3.4))
    start = [0.0] * len(budgets)
    parts = [("other", GRAY, "//"), ("weights", BLUE, ""), ("activations", ORANGE, "..."), ("cache", GREEN, "")]
    for part, color, hatch in parts:
        shares = [100 * getattr(budget, part) / budget.total for budget in budgets]
        axis.barh(names, shares, left=start, color=color, edgecolor=TEXT, linewidth=0.4, hatch=hatch, label=part)
        start = [a + b for a, b in zip(start, shares, strict=True)]
    axis.axvline(90, color=TEXT, linestyle="--")
    axis.axvline(100, color=TEXT)
    for i, budget in enumerate(budgets):
        text = f"{budget.num_tokens:,} tokens" if budget.num_blocks else "does not start"
        axis.text(max(102, start[i] + 2), i, text, va="center", fontsize=8)
    axis.set(xlabel="percent of the GPU's memory", xlim=(0, max(145, max(start) + 35)))
    axis.invert_yaxis()
    axis.legend(ncols=4, fontsize=8, loc="lower center", bbox_to_anchor=(0.4, 1))
    plt.show()


def requests_beside_one_another(lengths: list[int], counts: dict[str, list[int]], limit: int) -> None:
    """How many requests of each length fit, a line for each model and GPU.

    Args:
        lengths: tokens of a request.
        counts: how many fit, by name, for each of the lengths.
        limit: `max_num_seqs`.
    """
    _, axis = plt.subplots(figsize=(8, 3.4))
    for (name, numbers), color in zip(counts.items(), (ORANGE, BLUE, GREEN, PINK), strict=False):
        axis.plot(lengths, numbers, color=color, marker="o", markersize=4, label=name)
    axis.axhline(limit, color=TEXT, linestyle="--", linewidth=1)
    axis.text(lengths[-1], limit * 1.15, f"max_num_seqs={limit}", fontsize=8, ha="right")
    axis.set(xscale="log", yscale="symlog", xlabel="tokens of a request, prompt and answer", ylabel="requests at once")
    axis.set_xticks(lengths, [f"{length:,}" for length in lengths])
    axis.set_yticks([0, 1, 10, 100, limit], ["0", "1", "10", "100", str(limit)])
    axis.minorticks_off()
    axis.set(ylim=(-0.2, 2 * limit))
    axis.grid(alpha=0.4)
    axis.legend(fontsize=8, loc="lower left")
    plt.show()


def steps_of_workloads(runs: dict[str, dict[str, Any]]) -> None:
    """Steps and mean batch of each workload, a bar for each choice of options.

    Args:
        runs: by name of the choice, then of the workload: with `steps` and `mean_batch`.
    """
    figure, axes = plt.subplots(1, 2, figsize=(8, 2.8))
    names = list(next(iter(runs.values())))
    width = 0.8 / len(runs)
    for axis, what, title in zip(axes, ("steps", "mean_batch"), ("steps", "requests in a decode step"), strict=True):
        for i, ((choice, results), color) in enumerate(zip(runs.items(), (GRAY, ORANGE, GREEN), strict=False)):
            places = [k + (i - (len(runs) - 1) / 2) * width for k in range(len(names))]
            bars = axis.bar(places, [getattr(results[name], what) for name in names], width, color=color, label=choice)
            axis.bar_label(bars, fmt="%.0f", fontsize=8, color=TEXT)
        axis.set_xticks(range(len(names)), names)
        axis.set(title=title, yticks=[])
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=3, fontsize=8)
    plt.show()


# Chapter 04.


def slots_of_requests(lengths: list[int], in_blocks: list[int], longest: int) -> None:
    """Slots that requests use, get in blocks, and would get if the longest text were reserved for each."""
    _, axis = plt.subplots()
    places = range(len(lengths))
    axis.bar(places, [longest] * len(lengths), color="none", edgecolor=TEXT, label="the longest text allowed")
    axis.bar(places, in_blocks, color=ORANGE, label="in blocks")
    axis.bar(places, lengths, color=BLUE, label="tokens")
    axis.set(xlabel="request", ylabel="slots", xticks=places, title="slots for each of twelve requests")
    axis.legend(ncols=3, loc="lower center", bbox_to_anchor=(0.5, 1.1))
    plt.show()


def states() -> None:
    """The three states of a sequence, and what leads from one to the other."""
    _, axis = plt.subplots(figsize=(8, 2))
    for x, name, color in [(0, "WAITING", GRAY), (4, "RUNNING", BLUE), (8, "FINISHED", GREEN)]:
        axis.add_patch(plt.Rectangle((x, 0.6), 1.9, 0.8, facecolor=color, edgecolor=TEXT))
        axis.text(x + 0.95, 1.0, name, ha="center", va="center", fontsize=11, color=INK)
    moves = [((1.9, 1.2), (4, 1.2), "all scheduled", (2.95, 1.3))]
    moves += [((4, 0.8), (1.9, 0.8), "preempted", (2.95, 0.5)), ((5.9, 1), (8, 1), "its last token", (6.95, 1.2))]
    moves += [((-1.2, 1), (0, 1), "arrives", (-0.7, 1.2))]
    for start, end, name, place in moves:
        axis.annotate("", end, start, arrowprops={"arrowstyle": "->", "color": TEXT})
        axis.text(*place, name, fontsize=9, ha="center")
    axis.text(0.95, 0.3, "cut: it stays", fontsize=9, ha="center")
    axis.text(4.95, 0.3, "one token a step", fontsize=9, ha="center")
    axis.set(xlim=(-1.4, 10), ylim=(0.1, 1.9), title="the states of a sequence")
    axis.axis("off")
    plt.show()


def ranges_of_a_life(life: list[Any]) -> None:
    """A column for each step of a sequence's life: its cached, scheduled and later tokens, and the status.

    Args:
        life: what `nanovllm.viz.sequence_view.moment` says of each step.
    """
    _, axis = plt.subplots()
    bottom = [0] * len(life)
    kinds = [
        ("cached", "cached", BLUE, ""),
        ("scheduled", "scheduled", ORANGE, "xx"),
        ("waiting", "later", "none", "//"),
    ]
    for name, label, color, hatch in kinds:
        heights = [getattr(now, name) for now in life]
        axis.bar(range(len(life)), heights, 0.9, bottom, color=color, hatch=hatch, edgecolor=TEXT, lw=0.5, label=label)
        bottom = [low + height for low, height in zip(bottom, heights, strict=True)]
    for i, now in enumerate(life):
        axis.text(i, bottom[i] + 0.6, now.status[:1], ha="center", fontsize=8)
    axis.set(xlabel="step", ylabel="tokens", ylim=(0, max(bottom) + 6))
    axis.set_title("its three ranges (W: WAITING, R: RUNNING, F: FINISHED)")
    axis.legend(ncols=3, loc="upper left")
    plt.show()


def empty_slots(lengths: range, empty: dict[int, list[int]], waste: dict[int, float]) -> None:
    """Empty slots in the last block by length of the text, and their share for all texts, by block size."""
    _, (left, right) = plt.subplots(1, 2)
    for (size, numbers), color in zip(empty.items(), (BLUE, GREEN, ORANGE), strict=False):
        left.plot(lengths, numbers, color=color, label=f"blocks of {size}")
    left.set(xlabel="tokens of the text", ylabel="slots", ylim=(0, 95), title="empty slots in the last block")
    left.legend(loc="upper right", fontsize=8)
    bars = right.bar([str(size) for size in waste], list(waste.values()), color=PINK)
    right.bar_label(bars, [f"{share:.1%}" for share in waste.values()], color=TEXT)
    right.set(xlabel="block size", ylabel="share of all slots", title="empty slots, all texts")
    plt.show()


def bytes_per_step(sizes: dict[str, list[int]]) -> None:
    """Bytes of a sequence in each step, a line for each way to send it."""
    _, axis = plt.subplots()
    for (label, numbers), color in zip(sizes.items(), (ORANGE, BLUE, GREEN), strict=False):
        axis.plot(numbers, color=color)
        axis.annotate(label, (len(numbers), numbers[-1]), xytext=(4, -3), textcoords="offset points")
    axis.set(xlabel="step", ylabel="bytes", ylim=0, title="one sequence, as bytes before each step")
    axis.margins(x=0.02)
    plt.show()


# Chapter 05.


def worst_moment(lengths: list[int], num_slots: int = 1024, num_requests: int = 300) -> tuple[list[int], int]:
    """Requests of known lengths come and go, each in one piece of memory: the worst moment of a newcomer.

    A newcomer takes the first hole that is long enough. If there is none, somebody who was chosen by chance ends.

    Returns:
        the owner of each slot, 0 for none, when the most slots were free and the newcomer still did not fit; and the
        newcomer's length.
    """
    rng, memory, live, worst = random.Random(0), [0] * num_slots, [], (0, 0, [0] * num_slots)
    for number in range(1, num_requests + 1):
        length = rng.choice(lengths)
        while not (fitting := [start for start, size in _holes(memory) if size >= length]):
            if memory.count(0) >= length:
                worst = max(worst, (memory.count(0), length, list(memory)))
            ended = live.pop(rng.randrange(len(live)))
            memory = [0 if owner == ended else owner for owner in memory]
        memory[fitting[0] : fitting[0] + length] = [number] * length
        live.append(number)
    return worst[2], worst[1]


def _holes(memory: list[int]) -> list[tuple[int, int]]:
    """Runs of free slots, as (start, length)."""
    runs, start = [], 0
    for owner, slots in groupby(memory):
        size = len(list(slots))
        runs += [] if owner else [(start, size)]
        start += size
    return runs


def pieces_and_blocks(memory: list[int], length: int, block_size: int = 16) -> None:
    """One moment of a memory twice: each request in one piece, and in blocks, where the newcomer has room.

    Args:
        memory, length: as `worst_moment` returns them.
    """
    num_blocks = len(memory) // block_size
    blocks = [[0] * block_size for _ in range(num_blocks)]
    free_ids = random.Random(1).sample(range(num_blocks), num_blocks)
    for owner in [*dict.fromkeys(owner for owner in memory if owner), -1]:
        count = length if owner == -1 else memory.count(owner)
        for start in range(0, count, block_size):
            size = min(block_size, count - start)
            blocks[free_ids.pop()] = [owner] * size + [-2] * (block_size - size)
    largest = max(size for _, size in _holes(memory))
    figure, (left, right) = plt.subplots(1, 2, figsize=(8, 2.6))
    title = f"{memory.count(0)} slots are free, the largest hole has {largest}:\na newcomer of {length} does not fit"
    _draw_slots(left, memory, title)
    title = f"in blocks of {block_size} it does (orange),\nand {len(free_ids)} blocks are left"
    _draw_slots(right, [owner for block in blocks for owner in block], title)
    figure.legend(
        handles=[Patch(color=ORANGE, label="the newcomer"), Patch(color=GRAY, label="empty end of a last block"),
                 Patch(facecolor="none", edgecolor=FAINT, label="free")],
        loc="outside lower center", ncols=3,
    )  # fmt: skip
    plt.show()


def _draw_slots(axis: Any, memory: list[int], title: str, width: int = 64) -> None:
    """Slots from left to right and from top to bottom, colored by owner."""
    colors = {owner: (BLUE, GREEN, PINK)[k % 3] for k, owner in enumerate(dict.fromkeys(memory))}
    colors |= {0: "none", -1: ORANGE, -2: GRAY}
    for slot, owner in enumerate(memory):
        axis.add_patch(plt.Rectangle((slot % width, slot // width), 1, 1, facecolor=colors[owner], edgecolor="none"))
    rows = len(memory) // width
    axis.vlines(range(0, width + 1, 16), 0, rows, color=TEXT, linewidth=0.4)
    axis.hlines(range(rows + 1), 0, width, color=TEXT, linewidth=0.4)
    axis.set(xlim=(0, width), ylim=(rows, 0), title=title)
    axis.axis("off")


def page_tables() -> None:
    """The page table of an operating system, and beside it the block tables of two requests that share a block."""
    _, axes = plt.subplots(1, 2, figsize=(8, 3.2))
    names = (("operating system", "page table", "physical memory", "page", "frame", "process"),
             ("nanovllm", "block table", "the pool", "block", "block", "request"))  # fmt: skip
    for axis, (title, table, memory, page, frame, owner) in zip(axes, names, strict=True):
        tables = {"A": ([5, 2, 6], BLUE), "B": ([5, 0], PINK)}
        holders = {frame_id: color for frames, color in tables.values() for frame_id in frames} | {5: GREEN}
        for number in range(8):
            axis.add_patch(plt.Rectangle((7, number), 2, 0.86, facecolor=holders.get(number, "none"), edgecolor=TEXT))
            label, ink = f"{frame} {number}", INK if number in holders else TEXT
            axis.text(8, number + 0.45, label, ha="center", va="center", fontsize=8, color=ink)
        top = 0.0
        for name, (frames, _) in tables.items():
            axis.text(0, top + 0.3, f"{owner} {name}: {table}", fontsize=8, va="bottom")
            for i, number in enumerate(frames):
                y = top + 0.4 + 0.9 * i
                axis.add_patch(plt.Rectangle((0.2, y), 2.4, 0.8, facecolor=holders[number], edgecolor=TEXT))
                axis.text(1.4, y + 0.42, f"{page} {i} → {number}", ha="center", va="center", fontsize=8, color=INK)
                arrow = {"arrowstyle": "->", "color": TEXT, "linewidth": 1}
                axis.annotate("", (6.9, number + 0.45), (2.7, y + 0.4), arrowprops=arrow)
            top += 0.9 * len(frames) + 1.3
        axis.text(8, -0.1, memory, ha="center", va="bottom", fontsize=8)
        axis.set(xlim=(-0.1, 9.2), ylim=(8, -0.8), title=title)
        axis.axis("off")
    plt.show()


def block_states() -> None:
    """The four states of a block, and what moves it from one to another."""
    _, axis = plt.subplots(figsize=(8, 3.5))
    boxes = {
        "free, empty": (0.2, 2.4, "none", "", "nothing is known of it"),
        "used": (3.7, 2.4, BLUE, "", "in one block table"),
        "shared": (7.2, 2.4, GREEN, "", "in two tables or more"),
        "free, cached": (3.7, 0.2, "none", "///", "in no table; keeps its hash"),
    }
    for name, (x, y, color, hatch, text) in boxes.items():
        edge = FAINT if hatch else TEXT
        axis.add_patch(plt.Rectangle((x, y), 2.2, 0.9, facecolor=color, edgecolor=edge, hatch=hatch))
        ink = INK if color != "none" else TEXT
        label = axis.text(x + 1.1, y + 0.55, name, ha="center", va="center", fontsize=10, color=ink, weight="bold")
        more = axis.text(x + 1.1, y + 0.22, text, ha="center", va="center", fontsize=7.5, color=ink)
        if hatch:
            for words in (label, more):
                words.set_y(y + 1.04 if words is label else y - 0.2)
    moves = [
        ((2.4, 3.05), (3.7, 3.05), "handed out:\nallocate,\nmay_append", (3.05, 3.45)),
        ((3.7, 2.6), (2.4, 2.6), "last owner ends,\nit was never full", (3.05, 2.1)),
        ((5.9, 3.05), (7.2, 3.05), "a hit: allocate", (6.55, 3.35)),
        ((7.2, 2.6), (5.9, 2.6), "an owner ends:\ndeallocate", (6.55, 2.1)),
        ((5.6, 2.4), (5.6, 1.4), "last owner ends:\ndeallocate", (6.35, 1.62)),
        ((4.3, 1.4), (4.3, 2.4), "a hit:\nrevived", (4.0, 1.85)),
        ((3.7, 0.8), (1.3, 2.4), "evicted:\nit forgets", (2.1, 1.35)),
    ]
    for start, end, text, place in moves:
        axis.annotate("", end, start, arrowprops={"arrowstyle": "->", "color": TEXT, "linewidth": 1.3})
        axis.text(*place, text, ha="center", va="center", fontsize=7.5)
    axis.set(xlim=(0, 9.6), ylim=(-0.2, 3.7))
    axis.axis("off")
    plt.show()


def pool_level(levels: dict[str, list[int]], num_blocks: int) -> None:
    """Lines: free blocks after each request, until somebody does not fit.

    Args:
        levels: by name, the number of free blocks after each request.
        num_blocks: in the pool.
    """
    _, axis = plt.subplots(figsize=(8, 2.4))
    for (name, numbers), color in zip(levels.items(), (BLUE, ORANGE), strict=False):
        axis.plot(range(len(numbers)), numbers, color=color, marker="o", markersize=4, label=name)
        if len(numbers) < max(map(len, levels.values())):
            axis.annotate("the next one does not fit", (len(numbers) - 1, numbers[-1]), xytext=(8, 2),
                          textcoords="offset points")  # fmt: skip
    axis.set(xlabel="requests that have ended", ylabel="free blocks", ylim=(-0.5, num_blocks + 0.5))
    axis.legend(loc="center right")
    plt.show()


def stairs(traces: dict[str, dict[str, Any]]) -> dict[str, int]:
    """The slots of one sequence as it grows, and how many of them hold keys and values.

    Args:
        traces: by title, as `record` makes them; each of one request.

    Returns:
        by title, the blocks that were taken while it wrote.
    """
    _, axes = plt.subplots(1, len(traces), sharey=True)
    taken = {}
    for axis, (title, trace) in zip(axes, traces.items(), strict=True):
        block_size = trace["config"]["block_size"]
        states = [state for step in trace["steps"] if (state := step["after"]["seqs"].get("0"))]
        slots, stored = [block_size * len(state["table"]) for state in states], [state["kv"] for state in states]
        axis.fill_between(range(len(states)), stored, slots, step="mid", color=GRAY, label="reserved, empty")
        axis.fill_between(range(len(states)), 0, stored, step="mid", color=BLUE, label="keys and values")
        taken[title] = len(states[-1]["table"]) - len(states[0]["table"]) if states else 0
        axis.set(title=f"{title}: {taken[title]} taken", xlabel="step")
    axes[0].legend(loc="upper left")
    axes[0].set(ylabel="slots of the sequence", ylim=(0, 1.35 * axes[0].get_ylim()[1]))
    plt.show()
    return taken


def hit_rates(found: dict[str, int], total: int, bar: int) -> None:
    """Bars: the share of all prompt tokens that each policy finds in the cache.

    Args:
        found: by policy, the number of tokens.
        total: of all prompts.
        bar: tokens that the exercise asks for.
    """
    _, axis = plt.subplots(figsize=(8, 0.6 + 0.5 * len(found)))
    colors = [GREEN if name.startswith("your") else GRAY if "random" in name else BLUE for name in found]
    bars = axis.barh(list(found), [100 * count / total for count in found.values()], color=colors)
    labels = [f"{100 * count / total:.1f} %, {count:,} tokens" for count in found.values()]
    axis.bar_label(bars, labels, label_type="center", color=INK)
    axis.axvline(100 * bar / total, color=PINK, linestyle="--", linewidth=1.5)
    axis.set(title="Prompt tokens found in the cache (dashed: what is asked for)", xlim=(0, 60), xlabel="% of all")
    axis.invert_yaxis()
    plt.show()


# Chapter 06.


def life_of_a_request() -> None:
    """The queues of the scheduler, and the functions that move a request between them."""
    _, axis = plt.subplots(figsize=(8, 2.3))
    for x, name, color in [(0.2, "waiting", GRAY), (3.6, "running", BLUE), (6.9, "finished", GREEN)]:
        axis.add_patch(plt.Rectangle((x, 0.5), 1.6, 0.8, facecolor=color, edgecolor=TEXT))
        axis.text(x + 0.8, 0.9, name, ha="center", va="center", fontsize=12, color=INK)
    moves = [((-0.6, 0.9), (0.2, 0.9), "add", (-0.5, 1.0)), ((1.8, 1.1), (3.6, 1.1), "schedule_prefill", (1.95, 1.2))]
    moves += [((3.6, 0.7), (1.8, 0.7), "preempt", (2.25, 0.44)), ((5.2, 0.9), (6.9, 0.9), "postprocess", (5.4, 1.0))]
    for start, end, name, place in moves:
        axis.annotate("", end, start, arrowprops={"arrowstyle": "->", "color": TEXT})
        axis.text(*place, name, fontsize=9)
    again = {"arrowstyle": "->", "color": TEXT, "connectionstyle": "arc3,rad=-1.1"}
    axis.annotate("", (4.75, 1.3), (4.05, 1.3), arrowprops=again)
    axis.text(4.4, 1.82, "schedule_decode: one token more", fontsize=9, ha="center")
    axis.set(xlim=(-0.7, 8.6), ylim=(0.2, 2.1), title="the life of a request, and what moves it")
    axis.axis("off")
    plt.show()


def free_blocks(trace: dict[str, Any]) -> None:
    """Free blocks after each step of a trace, and where an answer ends."""
    free = [len(moment["after"]["free"]) for moment in trace["steps"]]
    _, axis = plt.subplots()
    axis.step(range(len(free)), free, where="post", color=GREEN)
    for i, moment in enumerate(trace["steps"]):
        for event in moment["events"]:
            if event["event"] == "finish":
                name = trace["seqs"][str(event["seq"])]["name"]
                axis.annotate(f"{name} ends", (i, free[i]), xytext=(2, 4), textcoords="offset points")
    axis.set(xlabel="step", ylabel="free blocks", ylim=(0, max(free) * 1.15), xlim=(0, len(free) + 1))
    axis.set_title(f"free blocks of {max(free)}")
    plt.show()


def pauses(budgets: list[int], longest_pauses: list[float], longest_steps: list[float]) -> None:
    """Milliseconds over the token budget: what readers wait at most, and the longest step."""
    _, axis = plt.subplots()
    labels = [str(budget) for budget in budgets]
    axis.plot(labels, longest_pauses, color=ORANGE, marker="o", label="longest pause of a reader")
    axis.plot(labels, longest_steps, color=BLUE, marker="s", label="longest step")
    axis.set(xlabel="max_num_batched_tokens", ylabel="milliseconds", ylim=0)
    axis.set_title("while a prompt of 400 tokens is read, measured on this run")
    axis.legend()
    plt.show()


def budget_bars(budget: int, runs: dict[str, list[tuple[int, int]]]) -> None:
    """The token budget of each step as a stacked bar.

    Args:
        budget: the most tokens of a step.
        runs: by title, for each step the tokens of those that decode and the tokens of the prompt.
    """
    _, axes = plt.subplots(1, len(runs), sharey=True, squeeze=False)
    for axis, (title, steps) in zip(axes[0], runs.items(), strict=True):
        places = range(1, len(steps) + 1)
        decode, prompt = [step[0] for step in steps], [step[1] for step in steps]
        axis.bar(places, decode, color=BLUE, label="decode: a token for each reader")
        axis.bar(places, prompt, bottom=decode, color=ORANGE, hatch="//", label="a chunk of the prompt")
        axis.axhline(budget, color=TEXT, linestyle="--", linewidth=1)
        axis.set(xlabel="step", title=title, ylim=(0, budget * 1.45), xticks=list(places))
    axes[0][0].set_ylabel("tokens in the step")
    axes[0][-1].legend(loc="upper right", fontsize=8)
    plt.show()


def tokens_again(counts: dict[str, int], bar: int) -> None:
    """Tokens that are computed again by each rule for who is preempted, and the most that the exercise allows."""
    _, axis = plt.subplots(figsize=(8, 2.4))
    names = list(counts)
    colors = [GREEN if name.startswith("your") else GRAY for name in names]
    drawn = axis.barh(names, list(counts.values()), color=colors)
    axis.bar_label(drawn, [f"{count:,}" for count in counts.values()], padding=4, color=TEXT)
    axis.axvline(bar, color=TEXT, linestyle="--", linewidth=1)
    axis.set(xlabel=f"tokens computed again (dashed: the {bar:,} that the exercise allows)")
    axis.set_xlim(0, 1.15 * max(counts.values()))
    axis.invert_yaxis()
    plt.show()


# Chapter 07.


def _box(axis: Any, x: float, y: float, width: float, height: float, text: str, color: str, size: float = 9) -> None:
    """A box with words in it; `color` may be "none"."""
    axis.add_patch(plt.Rectangle((x, y), width, height, facecolor=color, edgecolor=TEXT))
    ink = TEXT if color == "none" else INK
    axis.text(x + width / 2, y + height / 2, text, ha="center", va="center", fontsize=size, color=ink)


def through_the_engine() -> None:
    """The way of a request: from the caller through the inbox into the loop, and back as text."""
    _, axis = plt.subplots(figsize=(8, 3.3))
    for x, width, title in [(0, 2.2, "LLM: text"), (3.2, 6.6, "LLMEngine: the loop, over and over")]:
        axis.add_patch(plt.Rectangle((x, 0), width, 3.3, facecolor="none", edgecolor=FAINT, linestyle="--"))
        axis.text(x + 0.1, 3.42, title, fontsize=10)
    _box(axis, 0.2, 2.1, 1.8, 0.9, "prompt,\nas token ids", BLUE)
    _box(axis, 0.2, 0.3, 1.8, 0.9, "text, reason,\nmetrics", BLUE)
    _box(axis, 3.4, 2.1, 1.2, 0.9, "inbox", PINK)
    _box(axis, 5.1, 2.1, 1.5, 0.9, "_read_inbox", GREEN)
    _box(axis, 7.2, 1.9, 2.4, 1.3, "run_step:\nschedule, run,\npostprocess", GREEN)
    _box(axis, 7.2, 0.3, 2.4, 0.9, "take_in", GREEN)
    _box(axis, 3.9, 0.3, 2.4, 0.9, "requests, the live ones", PINK)
    arrow = {"arrowstyle": "->", "color": TEXT, "linewidth": 1.3}
    ends = [((2.0, 2.55), (3.4, 2.55)), ((4.6, 2.55), (5.1, 2.55)), ((6.6, 2.55), (7.2, 2.55))]
    ends += [((8.4, 1.9), (8.4, 1.2)), ((7.2, 0.75), (6.3, 0.75)), ((3.9, 0.75), (2.0, 0.75)), ((5.6, 2.1), (5.6, 1.2))]
    for start, end in ends:
        axis.annotate("", end, start, arrowprops=arrow)
    for x, y, text in [(2.7, 2.67, "add_request"), (6.75, 0.87, "tokens"), (2.95, 0.87, "Detokenizer")]:
        axis.text(x, y, text, ha="center", fontsize=7.5)
    axis.set(xlim=(-0.1, 9.9), ylim=(-0.1, 3.7))
    axis.axis("off")
    plt.show()


def recovery() -> None:
    """What can happen to a step, and what the engine does about it."""
    _, axis = plt.subplots(figsize=(8, 4.4))
    _box(axis, 0, 3.4, 1.5, 0.8, "a step", GREEN, 11)
    rows = [
        (3.4, "it is done", "tokens are final", "the next step", "none"),
        (
            2.3,
            "no memory on\nthe GPU",
            "begin anew, steps\nhalf as large",
            'once more no memory:\nits requests end, "error"',
            ORANGE,
        ),
        (
            1.2,
            "any other error,\nor Ctrl-C",
            "passed on\nto the caller",
            "the next call begins anew:\nthe same tokens",
            ORANGE,
        ),
        (0.1, "a sequence outgrows\nthe whole pool", 'it ends with "error"', "all others go on", ORANGE),
    ]
    arrow = {"arrowstyle": "->", "color": TEXT, "linewidth": 1.3}
    for y, what, first, then, color in rows:
        _box(axis, 2.3, y, 2.1, 0.8, what, color, 8.5)
        _box(axis, 5.0, y, 2.0, 0.8, first, BLUE, 8.5)
        _box(axis, 7.6, y, 2.5, 0.8, then, GREEN if y == 3.4 else BLUE, 8.5)
        path = {"arrowstyle": "->", "color": TEXT, "connectionstyle": "angle,angleA=-90,angleB=180", "linewidth": 1.3}
        axis.annotate(
            "", (2.3, y + 0.4), (1.5, y + 0.4) if y == 3.4 else (0.75, 3.4), arrowprops=arrow if y == 3.4 else path
        )
        for x, end in ((4.4, 5.0), (7.0, 7.6)):
            axis.annotate("", (end, y + 0.4), (x, y + 0.4), arrowprops=arrow)
    anew = "begin anew: requests go back to their final tokens and wait; all blocks are free,\n"
    anew += "nothing is cached. What was half done is computed again."
    _box(axis, 2.3, -1.2, 7.8, 0.85, anew, "none", 8.5)
    axis.set(xlim=(-0.1, 10.2), ylim=(-1.3, 4.3))
    axis.axis("off")
    plt.show()


def streams(pieces: dict[str, list[tuple[int, str]]]) -> None:
    """What each reader sees, and in which step.

    Args:
        pieces: by reader, pairs of the step's number and the text that came with it.
    """
    _, axis = plt.subplots(figsize=(8, 0.7 + 0.65 * len(pieces)))
    for row, (shown, color) in enumerate(zip(pieces.values(), (BLUE, ORANGE, GREEN, PINK), strict=False)):
        for number, text in shown:
            axis.add_patch(plt.Rectangle((number - 0.47, row - 0.36), 0.94, 0.72, facecolor=color, edgecolor="none"))
            axis.text(number, row, text.strip(), ha="center", va="center", fontsize=7, color=INK, rotation=30)
    last = max(number for shown in pieces.values() for number, _ in shown)
    axis.set(xlim=(0.4, last + 0.6), ylim=(len(pieces) - 0.5, -0.5), xlabel="step of the engine")
    axis.set_yticks(range(len(pieces)), list(pieces))
    axis.set_xticks(range(1, last + 1))
    plt.show()


def waits(metrics: list[dict[str, float]], num_tokens: list[int]) -> None:
    """One bar a request: in the queue, until the first token, and while it writes. Milliseconds.

    Args:
        metrics: of each result.
        num_tokens: how many each has written.
    """
    _, axis = plt.subplots(figsize=(8, 3.2))
    names = [f"request {i}" for i in range(len(metrics))]
    queue = [1000 * m["queue_time"] for m in metrics]
    first = [1000 * m["time_to_first_token"] for m in metrics]
    writing = [1000 * (m["time_per_output_token"] or 0) * (n - 1) for m, n in zip(metrics, num_tokens, strict=True)]
    reading = [f - q for f, q in zip(first, queue, strict=True)]
    axis.barh(names, queue, color=GRAY, hatch="//", edgecolor=TEXT, linewidth=0.4, label="in the queue")
    axis.barh(names, reading, left=queue, color=ORANGE, label="its prompt is read")
    axis.barh(names, writing, left=first, color=BLUE, label="it writes")
    axis.set(xlabel="milliseconds since it came; measured on this run")
    axis.invert_yaxis()
    axis.legend(ncols=3, fontsize=8, loc="lower center", bbox_to_anchor=(0.45, 1))
    plt.show()


def turns(cached: list[int], computed: list[int]) -> None:
    """Stacked bars: what each turn of a chat finds in the cache, and what it computes."""
    _, axis = plt.subplots(figsize=(8, 2.6))
    names = [f"turn {i + 1}" for i in range(len(cached))]
    left = axis.barh(names, cached, color=GREEN, label="found in the cache")
    right = axis.barh(names, computed, left=cached, color=ORANGE, hatch="//", label="computed")
    for bars, counts in ((left, cached), (right, computed)):
        axis.bar_label(bars, [str(n) if n > 8 else "" for n in counts], label_type="center", fontsize=8, color=INK)
    axis.set(xlabel="tokens of the prompt")
    axis.invert_yaxis()
    axis.legend(fontsize=8)
    plt.show()


def long_talks(runs: dict[str, list[Any]], bar: int, share: float) -> None:
    """Two pictures: what each question of a long talk computes, and all of them together over what is sent.

    Args:
        runs: by name, what `exercises.kit.talk_work.send_all` returned.
        bar, share: the most that may be computed, and the least that has to be sent.
    """
    _, (left, right) = plt.subplots(1, 2, figsize=(8, 3.2), width_ratios=[3, 2])
    for (name, sent), color, marker in zip(runs.items(), (ORANGE, GREEN, BLUE), "sod", strict=False):
        total = 0
        sums = [total := total + turn.computed for turn in sent]
        left.plot(range(1, len(sums) + 1), sums, color=color, label=name)
        cut = [turn.tokens / turn.could for turn in sent if turn.could_leave]
        right.plot(100 * sum(cut) / max(1, len(cut)), total, color=color, marker=marker, markersize=9, linestyle="")
    left.set(xlabel="question", title="prompt tokens computed so far", ylim=0)
    left.legend(fontsize=8)
    right.add_patch(plt.Rectangle((100 * share, 0), 100, bar, facecolor=FAINT, edgecolor=TEXT))
    right.text(100 * share + 1, bar + 250, "what counts", fontsize=8)
    right.set(xlabel="percent sent of what fits", title="computed, all questions", xlim=(40, 103), ylim=0)
    plt.show()


# Chapter 08.


def start_up(runs: dict[str, list[Any]]) -> None:
    """The stages of a start, each as a bar from its begin to its end.

    Args:
        runs: by title, lists of (name of the stage, begin, seconds).
    """
    _, axes = plt.subplots(1, len(runs), figsize=(8, 3.1), squeeze=False)
    for axis, (title, stages) in zip(axes[0], runs.items(), strict=True):
        shown = [stage for stage in stages if stage[0] != "ranks"]  # the others are inside
        end = max(begin + seconds for _, begin, seconds in shown)
        for name, begin, seconds in shown:
            bar = axis.barh(name, 1000 * seconds, left=1000 * begin, color=BLUE, edgecolor=TEXT, linewidth=0.6)
            x, y = 1000 * begin, bar[0].get_y() + 0.4
            number = f"{1000 * seconds:,.0f} ms" if seconds >= 0.001 else "under 1 ms"
            if end - begin - seconds > 0.25 * end:
                axis.text(x + 1000 * seconds + 12 * end, y, number, ha="left", va="center", fontsize=8)
            elif begin > 0.25 * end:
                axis.text(x - 12 * end, y, number, ha="right", va="center", fontsize=8)
            else:  # no room beside the bar, so it is long
                axis.text(x + 500 * seconds, y, number, ha="center", va="center", fontsize=8, color=INK)
        axis.invert_yaxis()
        axis.set(xlabel="milliseconds", title=title, xlim=(0, 1030 * end))
        axis.tick_params(labelsize=8)
    plt.show()


def padded_or_flat(lengths: list[int]) -> None:
    """The same prompts as rows of a rectangle, and behind each other.

    Args:
        lengths: tokens of each prompt.
    """
    _, (left, right) = plt.subplots(2, 1, figsize=(8, 3.2), height_ratios=[len(lengths), 1.3])
    longest, total, colors = max(lengths), sum(lengths), [BLUE, ORANGE, GREEN, PINK, GRAY]
    begin = 0
    for row, length in enumerate(lengths):
        color = colors[row % len(colors)]
        left.barh(row, longest, color="none", edgecolor=TEXT, hatch="//", linewidth=0.5)
        left.barh(row, length, color=color, edgecolor=TEXT, linewidth=0.5)
        right.barh(0, length, left=begin, color=color, edgecolor=TEXT, linewidth=0.5)
        begin += length
    left.set(yticks=[], xlim=(0, total), title=f"a rectangle: {longest * len(lengths)} places (hatched: padding)")
    right.set(yticks=[], xlim=(0, total), title=f"flat: {total} places", xlabel="places")
    left.invert_yaxis()
    plt.show()


def flat_step(texts: list[str], positions: list[int], slots: list[int], starts: list[int]) -> None:
    """The tensors of a prefill, a column a token, and the marks of cu_seqlens_q over them.

    Args:
        texts, positions, slots: of each token of the step.
        starts: where each sequence begins, and the last one ends.
    """
    _, axis = plt.subplots(figsize=(8, 2.3))
    for k, column in enumerate(zip(texts, positions, slots, strict=True)):
        owner = sum(start <= k for start in starts[:-1]) - 1
        for row, value in enumerate(column):
            color = (ORANGE, BLUE, GREEN, PINK)[owner % 4]  # as in the widgets
            axis.add_patch(plt.Rectangle((k, 2 - row), 1, 1, facecolor=color, edgecolor=TEXT))
            text = str(value).strip()[:6]
            axis.text(k + 0.5, 2.5 - row, text, ha="center", va="center", fontsize=8, color=INK)
    for start in starts:
        axis.annotate(str(start), (start, 3), (start, 3.7), ha="center", arrowprops={"arrowstyle": "->", "color": TEXT})
    for y, name in ((2.5, "input_ids (as text)"), (1.5, "positions"), (0.5, "slot_mapping"), (3.85, "cu_seqlens_q")):
        axis.text(-0.2, y, name, ha="right", va="center", fontsize=9)
    axis.set(xlim=(-4.6, starts[-1] + 0.3), ylim=(-0.1, 4.2))
    axis.axis("off")
    plt.show()


def graph_sizes(counts: dict[int, int], chosen: dict[str, list[int]], padding: dict[str, int], bar: int) -> None:
    """How many steps have how many sequences, where the graphs are, and the padding of each choice.

    Args:
        counts: steps, by the number of sequences.
        chosen: batch sizes that have a graph, by the name of the choice; at most three choices.
        padding: rows of each choice.
        bar: the most that the exercise allows.
    """
    _, (top, bottom) = plt.subplots(2, 1, figsize=(8, 4), height_ratios=[3, 2])
    top.bar(list(counts), list(counts.values()), width=1, color=GRAY)
    most, colors = max(counts.values()), (ORANGE, GREEN, BLUE)
    for n, (name, sizes) in enumerate(chosen.items()):
        height = most * (1.1 + 0.16 * n)
        top.plot(sizes, [height] * len(sizes), color=colors[n], marker="v", linestyle="", label=name)
    top.set(xlabel="sequences in the step (marks: sizes that have a graph)", ylabel="steps", ylim=(0, most * 1.65))
    top.legend(ncols=3, fontsize=8, loc="upper right")
    drawn = bottom.barh(list(padding), list(padding.values()), color=colors[: len(padding)])
    bottom.bar_label(drawn, [f"{count:,}" for count in padding.values()], padding=4, color=TEXT)
    bottom.axvline(bar, color=TEXT, linestyle="--", linewidth=1)
    bottom.set(xlabel=f"rows of padding (dashed: the {bar:,} that are allowed)", xlim=(0, 1.15 * max(padding.values())))
    bottom.invert_yaxis()
    plt.show()


# Chapter 10.


def scores_and_weights(texts: list[str], scores: list[float], weights: list[float]) -> None:
    """Two rows of bars over the same tokens: the scores of one query, and what the softmax makes of them."""
    _, axes = plt.subplots(2, 1, figsize=(8, 3.6), sharex=True)
    for axis, values, name, color, form in zip(
        axes, (scores, weights), ("score", "weight"), (GRAY, BLUE), ("{:.1f}", "{:.2f}"), strict=True
    ):
        bars = axis.bar(range(len(values)), values, color=color)
        axis.bar_label(bars, [form.format(value) for value in values], padding=2, fontsize=8, color=TEXT)
        axis.set(ylabel=name, yticks=[])
        axis.spines.left.set_visible(False)
    axes[1].set_xticks(range(len(texts)), [text.strip() or repr(text) for text in texts], fontsize=9)
    plt.show()


def who_sees_whom(cases: dict[str, tuple[int, int]]) -> None:
    """Masks: a row a query, a column a key; what is filled is seen.

    Args:
        cases: by title, how many queries and keys there are.
    """
    widths = [keys for _, keys in cases.values()]
    _, axes = plt.subplots(1, len(cases), figsize=(8, 2.4), width_ratios=widths)
    for axis, (title, (num_queries, num_keys)) in zip(axes, cases.items(), strict=True):
        for i in range(num_queries):
            for j in range(num_keys):
                is_seen = j <= i + num_keys - num_queries
                square = plt.Rectangle(
                    (j, i), 1, 1, facecolor=BLUE if is_seen else "none", edgecolor=TEXT, linewidth=0.6, clip_on=False
                )
                axis.add_patch(square)
        rows = [str(i + num_keys - num_queries) for i in range(num_queries)]
        axis.set_yticks([i + 0.5 for i in range(num_queries)], rows, fontsize=8)
        axis.set_xticks([j + 0.5 for j in range(num_keys)], map(str, range(num_keys)), fontsize=8)
        axis.set(title=title, xlim=(0, num_keys), ylim=(num_queries, 0), aspect="equal")
        axis.tick_params(length=0)
    axes[0].set(ylabel="query of token", xlabel="key of token")
    plt.show()


def attention_maps(
    maps: dict[str, Any], texts: list[str], outlined: dict[str, list[tuple[int, int]]] | None = None
) -> None:
    """Weights as squares: a row a query, a column a key; the stronger, the more.

    Args:
        maps: by title, a tensor [num_tokens, num_tokens].
        texts: of the tokens.
        outlined: by title, the (row, column) of squares that the text speaks of.
    """
    _, axes = plt.subplots(1, len(maps), figsize=(9.5, 3.3), sharey=True)
    names = [text.strip() or repr(text) for text in texts]
    for axis, (title, weights) in zip(axes, maps.items(), strict=True):
        squares, colors = [], []
        for i, row in enumerate(weights.tolist()):
            for j, weight in enumerate(row[: i + 1]):
                squares.append(plt.Rectangle((j, i), 1, 1))
                colors.append((0.0, 0.45, 0.70, max(0.04, min(1.0, weight**0.6))))  # so that half can be seen
        axis.add_collection(PatchCollection(squares, facecolor=colors, edgecolor=FAINT, linewidth=0.3))
        for i, j in (outlined or {}).get(title, []):
            axis.add_patch(plt.Rectangle((j, i), 1, 1, fill=False, edgecolor=ORANGE, linewidth=2, clip_on=False))
        axis.set(title=title, xlim=(0, len(names)), ylim=(len(names), 0), aspect="equal")
        axis.set_xticks([j + 0.5 for j in range(len(names))], names, rotation=90, fontsize=7)
        axis.set_yticks([i + 0.5 for i in range(len(names))], names, fontsize=7)
        axis.tick_params(length=0)
    plt.show()


def shares_of_heads(by_group: list[tuple[str, str]]) -> None:
    """Query heads on the left, the KV head that each looks at on the right.

    Args:
        by_group: pairs of names.
    """
    _, axis = plt.subplots(figsize=(8, 1.9))
    queries, kv = list(dict.fromkeys(q for q, _ in by_group)), list(dict.fromkeys(k for _, k in by_group))
    colors = dict(zip(kv, (BLUE, ORANGE, GREEN, PINK), strict=False))
    xs = {name: 1.6 * n for n, name in enumerate(queries)}
    centers = {name: sum(xs[q] for q, k in by_group if k == name) / sum(k == name for _, k in by_group) for name in kv}
    for q, k in by_group:
        axis.plot([xs[q] + 0.65, centers[k] + 0.65], [1.2, 0.6], color=colors[k])
        _box(axis, xs[q], 1.2, 1.3, 0.5, q, colors[k])
    for k in kv:
        _box(axis, centers[k], 0.1, 1.3, 0.5, k, colors[k])
    axis.set(xlim=(-0.1, max(xs.values()) + 1.5), ylim=(0, 1.8))
    axis.axis("off")


# Chapter 11.


def turning(frequencies: Any, pairs: list[int], positions: int = 9) -> None:
    """Some pairs of features as arrows, at the positions 0, 1, 2, ...: the later, the darker.

    Args:
        frequencies: radians a position, of each pair.
    """
    _, axes = plt.subplots(1, len(pairs), figsize=(8, 2.6))
    for axis, pair in zip(axes, pairs, strict=True):
        axis.add_patch(plt.Circle((0, 0), 1, fill=False, color=FAINT))
        for p in range(positions):
            angle = float(frequencies[pair]) * p
            x, y = math.cos(angle), math.sin(angle)
            style = {"color": BLUE, "alpha": 0.35 + 0.65 * p / (positions - 1), "arrowstyle": "->", "linewidth": 2}
            axis.annotate("", (x, y), (0, 0), arrowprops=style)
            if p == positions - 1 or (math.degrees(angle) > 15) or (not p and frequencies[pair] * positions > 0.3):
                axis.text(1.22 * x, 1.22 * y, str(p), ha="center", va="center", fontsize=8)
        degrees = math.degrees(float(frequencies[pair]))
        axis.set(title=f"pair {pair}: {degrees:.3g}° a position", xlim=(-1.4, 1.4), ylim=(-1.4, 1.4), aspect="equal")
        axis.axis("off")
    plt.show()


def scores_by_positions(scores: Any, title: str) -> None:
    """A table of scores: a row for each position of the query, a column for each of the key."""
    size = len(scores)
    _, axis = plt.subplots(figsize=(8, 3.6))
    axis.imshow(scores, cmap="cividis", aspect="auto")
    low, high = float(scores.min()), float(scores.max())
    for i in range(size):
        for j in range(size):
            ink = "white" if float(scores[i, j]) < low + 0.45 * (high - low) else INK
            axis.text(j, i, f"{float(scores[i, j]):.1f}", ha="center", va="center", fontsize=8, color=ink)
    axis.set(xticks=range(size), yticks=range(size), xlabel="position of the key", ylabel="position of the query")
    axis.set_title(title)
    plt.show()


def pairs_of_features(head_dim: int = 8) -> None:
    """Which features of a head turn together: one of each half, or neighbors."""
    _, axes = plt.subplots(1, 2, figsize=(8, 2.1))
    half, colors = head_dim // 2, (BLUE, ORANGE, GREEN, PINK)
    conventions = {
        "halves: qwen3, and most models on Hugging Face": [(i, i + half) for i in range(half)],
        "neighbors: the paper, and GPT-J": [(2 * i, 2 * i + 1) for i in range(half)],
    }
    for axis, (title, pairs) in zip(axes, conventions.items(), strict=True):
        for n, (first, second) in enumerate(pairs):
            for k in (first, second):
                axis.add_patch(plt.Rectangle((k, 0), 1, 0.8, facecolor=colors[n % 4], edgecolor=TEXT))
                axis.text(k + 0.5, 0.4, str(k), ha="center", va="center", color=INK)
            middle, height = (first + second + 1) / 2, 0.35 + 0.25 * (second - first) / half * (1 + n % 2)
            axis.plot([first + 0.5, middle, second + 0.5], [0.85, 0.85 + height, 0.85], color=colors[n % 4])
        axis.set(title=title, xlim=(-0.2, head_dim + 0.2), ylim=(-0.1, 1.9))
        axis.axis("off")
    plt.show()


def wavelengths(models: dict[str, Any], lengths: dict[str, int]) -> None:
    """How many positions each pair needs to go round once, and how long texts are.

    Args:
        models: by name, the radians a position of each pair.
        lengths: by name, tokens of a text.
    """
    _, axis = plt.subplots(figsize=(8, 3.2))
    for (name, frequencies), color, marker in zip(models.items(), (BLUE, ORANGE, GREEN), "os^", strict=False):
        share = [i / len(frequencies) for i in range(len(frequencies))]
        rounds = [2 * math.pi / float(frequency) for frequency in frequencies]
        axis.plot(share, rounds, marker=marker, markersize=3, color=color, label=name)
    for name, length in lengths.items():
        axis.axhline(length, color=TEXT, linestyle=":", linewidth=1)
        axis.text(0, length * 1.4, f"{name}: {length:,} tokens", fontsize=8)
    axis.set(yscale="log", xlabel="pair, from the first (0) to the last (1)", ylabel="positions for one turn")
    axis.legend(fontsize=8, loc="lower right")
    plt.show()


def loss_by_position(curves: dict[str, Any], width: int, title: str, trained: int = 0) -> None:
    """How badly a model guesses the tokens of a text, in groups of `width`, from its beginning to its end.

    Args:
        curves: by name, the loss of each token.
        trained: the longest text of the training; 0 leaves it out.
    """
    _, axis = plt.subplots(figsize=(8, 3.2))
    colors, styles = (ORANGE, PINK, GREEN, BLUE), ("-", "-.", "--", ":")
    for (name, losses), color, style in zip(curves.items(), colors, styles, strict=False):
        starts = range(0, len(losses) - width // 2, width)
        means = [float(losses[a : a + width].mean()) for a in starts]
        axis.plot([a + width / 2 for a in starts], means, color=color, linestyle=style, label=name)
    if trained:
        axis.axvline(trained, color=TEXT, linestyle=":", linewidth=1)
        axis.text(trained, axis.get_ylim()[1], " longest text of the training", va="top", fontsize=8)
    axis.set(xlabel="position", ylabel="loss", title=title, ylim=(0, None))
    axis.legend(fontsize=8)
    plt.show()


# Chapter 12.


def sizes_through_layers(curves: dict[str, list[float]], title: str) -> None:
    """How large the residual stream is at each norm, on a logarithmic scale; a curve ends where its numbers do.

    Args:
        curves: by name, the root mean square at each norm.
    """
    _, axis = plt.subplots(figsize=(8, 3.2))
    for (name, sizes), color, marker in zip(curves.items(), (ORANGE, BLUE, GREEN), "so^", strict=False):
        finite = [size for size in sizes if math.isfinite(size)]
        axis.plot(finite, marker=marker, markersize=4, color=color, label=name)
        if len(finite) < len(sizes):
            text = f"then {sizes[len(finite)]}"
            axis.annotate(text, (len(finite) - 1, finite[-1]), (6, 4), textcoords="offset points", fontsize=9)
    layers = (len(sizes) - 1) // 2
    axis.set(yscale="log", ylabel="root mean square", xlabel="layer (two norms each), and the end", title=title)
    axis.set_xticks([2 * layer for layer in range(layers + 1)], [*map(str, range(layers)), "end"])
    axis.legend(fontsize=8)
    plt.show()


def rows_and_sizes(rows: dict[str, list[float]]) -> None:
    """Some short rows as bars, with plus and minus their root mean square dashed."""
    _, axes = plt.subplots(1, len(rows), figsize=(8, 2.5))
    for axis, (name, row), color in zip(axes, rows.items(), (BLUE, BLUE, GREEN, GREEN), strict=False):
        size = math.sqrt(sum(value * value for value in row) / len(row))
        bars = axis.bar(range(len(row)), row, color=color, edgecolor=TEXT, linewidth=0.5)
        axis.bar_label(bars, [f"{value:.3g}" for value in row], fontsize=8)
        for sign in (1, -1):
            axis.axhline(sign * size, color=TEXT, linestyle="--", linewidth=1)
        axis.axhline(0, color=TEXT, linewidth=0.6)
        axis.set(title=f"{name}: {size:.3g}", xticks=[], yticks=[], ymargin=0.25)
        axis.spines.bottom.set_visible(False)
        axis.spines.left.set_visible(False)
    plt.show()


def ranges_of_floats(numbers: tuple[float, float]) -> None:
    """Which sizes three kinds of floats have normal numbers for, and which are needed.

    Args:
        numbers: the root mean square of the smallest row that is to be squared, and the largest number.
    """
    _, axis = plt.subplots(figsize=(8, 2.6))
    low, high = numbers
    rows = {
        "float32": (1.2e-38, 3.4e38, BLUE, "7 digits"),
        "bfloat16": (1.2e-38, 3.4e38, BLUE, "2 to 3 digits"),
        "float16": (6.1e-5, 65_504.0, BLUE, "3 to 4 digits"),
        "smallest row to\nlargest number": (low, high, GREEN, ""),
        "squares of these": (low * low, high * high, ORANGE, ""),
    }
    for y, (start, end, color, text) in enumerate(rows.values()):
        axis.barh(y, math.log10(end / start), 0.62, math.log10(start), color=color, edgecolor=TEXT, linewidth=0.5)
        axis.text(math.log10(start * end) / 2, y, text, ha="center", va="center", fontsize=8, color=INK)
    for edge in (6.1e-5, 65_504.0):
        axis.axvline(math.log10(edge), color=TEXT, linestyle=":", linewidth=1)
    ticks = [-36, -24, -12, 0, 12, 24, 36]
    axis.set(yticks=range(len(rows)), yticklabels=list(rows), xlabel="from ... to ...")
    axis.set_xticks(ticks, [f"1e{tick}" if tick else "1" for tick in ticks])
    axis.invert_yaxis()
    plt.show()


def activations() -> None:
    """SiLU beside ReLU, and what SiLU multiplies its input with."""
    _, axes = plt.subplots(1, 2, figsize=(8, 2.9))
    xs = [i / 20 for i in range(-160, 81)]
    passed = [1 / (1 + math.exp(-x)) for x in xs]
    axes[0].plot(xs, passed, color=PINK)
    axes[0].set(title="how much passes: 1 / (1 + exp(-g))", xlabel="g")
    axes[1].plot(xs, [x * share for x, share in zip(xs, passed, strict=True)], color=BLUE, label="SiLU: g times that")
    axes[1].plot(xs, [max(0.0, x) for x in xs], color=ORANGE, linestyle="--", label="ReLU: max(g, 0)")
    axes[1].set(title="what comes out", xlabel="g")
    axes[1].legend(fontsize=8)
    for axis in axes:
        axis.axhline(0, color=TEXT, linewidth=0.6)
        axis.axvline(0, color=TEXT, linewidth=0.6)
    plt.show()


def gates_of_layers(below: list[float], closed: list[float]) -> None:
    """For each layer two bars: how many gates are negative, and how many let hardly anything pass, in percent."""
    _, axis = plt.subplots(figsize=(8, 2.8))
    for shift, shares, color, hatch, label in (
        (-0.2, below, BLUE, "", "negative"),
        (0.2, closed, ORANGE, "//", "SiLU between -0.1 and 0.1"),
    ):
        places = [layer + shift for layer in range(len(shares))]
        bars = axis.bar(places, [100 * share for share in shares], 0.38, color=color, hatch=hatch, label=label)
        axis.bar_label(bars, fmt="%.0f", fontsize=8)
    axis.set(xticks=range(len(below)), xlabel="layer", ylabel="percent of the gates", ylim=(0, 112))
    axis.legend(fontsize=8, ncols=2, loc="lower center", bbox_to_anchor=(0.5, 1))
    plt.show()


def losses_with_closed_gates(curves: dict[str, list[tuple[float, float]]]) -> None:
    """The loss over the share of the gates that is closed, by the rule that chooses them."""
    _, axis = plt.subplots(figsize=(8, 3))
    for (name, points), color, marker in zip(curves.items(), (ORANGE, BLUE, GREEN), "so^", strict=False):
        axis.plot([100 * share for share, _ in points], [loss for _, loss in points], marker=marker, color=color,
                  markersize=5, label=name)  # fmt: skip
    axis.set(xlabel="percent of the gates that are closed", ylabel="loss", ylim=(0, None))
    axis.legend(fontsize=8)
    plt.show()


# Chapter 13.


def tables_and_rest(models: dict[str, tuple[int, int, bool]]) -> None:
    """A bar a model, as long as 100 %: the table of its tokens, a second one if it has its own head, and the rest.

    Args:
        models: by name: parameters of a table, of everything else, and whether embedding and head are one table.
    """
    _, axis = plt.subplots(figsize=(8, 0.8 + 0.5 * len(models)))
    for y, (table, rest, is_tied) in enumerate(models.values()):
        total, left = table * (1 if is_tied else 2) + rest, 0.0
        names = ("embedding and head",) if is_tied else ("embedding", "head")
        kinds = [(name, table, color) for name, color in zip(names, (ORANGE, PINK), strict=False)]
        for name, count, color in [*kinds, ("everything else", rest, BLUE)]:
            share = 100 * count / total
            axis.barh(y, share, left=left, color=color, edgecolor=TEXT, linewidth=0.5)
            text = f"{share:.1f} %" if share < 30 else f"{name}: {share:.1f} %"
            axis.text(left + share / 2, y, text, ha="center", va="center", fontsize=8, color=INK)
            left += share
    axis.set(yticks=range(len(models)), yticklabels=list(models), xticks=[], title="Where the parameters are")
    axis.legend(handles=[Patch(color=ORANGE, label="embedding"), Patch(color=PINK, label="a head of its own")],
                loc="upper center", bbox_to_anchor=(0.5, -0.02), ncols=2, fontsize=8)  # fmt: skip
    axis.spines.bottom.set_visible(False)
    axis.invert_yaxis()
    plt.show()


def cosines(texts: list[str], numbers: Any) -> None:
    """A square of cosines: how nearly the rows of some tokens point the same way."""
    _, axis = plt.subplots(figsize=(8, 4.2))
    axis.imshow(numbers, cmap="cividis", vmin=-0.2, vmax=1.0, aspect="auto")
    for i in range(len(texts)):
        for j in range(len(texts)):
            value = float(numbers[i, j])
            ink = "white" if value < 0.4 else INK
            axis.text(j, i, f"{value:.1f}".replace("-0.0", "0.0"), ha="center", va="center", fontsize=8, color=ink)
    axis.set(xticks=range(len(texts)), yticks=range(len(texts)), xticklabels=texts, yticklabels=texts)
    axis.tick_params(labelsize=8)
    axis.set_title("The cosine of the angle between two rows")
    plt.show()


def flat_steps(steps: list[tuple[list[str], list[int], bool]]) -> None:
    """Steps below each other: their flat tokens; a thick line where a sequence begins, its last token in a color.

    Args:
        steps: the texts of the tokens, where sequences begin and the end, and whether the last one is cut.
    """
    longest = max(len(texts) for texts, _, _ in steps)
    _, axes = plt.subplots(len(steps), 1, figsize=(8, 1.15 * len(steps)), squeeze=False)
    for number, (axis, (texts, ends, is_cut)) in enumerate(zip(axes[:, 0], steps, strict=True), 1):
        for n, text in enumerate(texts):
            is_last = n + 1 in ends
            color = (GRAY if is_cut and n + 1 == ends[-1] else ORANGE) if is_last else "none"
            axis.add_patch(plt.Rectangle((n, 0), 1, 0.9, facecolor=color, edgecolor=TEXT))
            axis.text(
                n + 0.5, 0.55, text.strip()[:6], ha="center", va="center", fontsize=7, color=INK if is_last else TEXT
            )
            axis.text(n + 0.5, 0.2, f"{n}", ha="center", va="center", fontsize=7, color=INK if is_last else TEXT)
            if n in ends:
                axis.plot([n, n], [-0.1, 1.05], color=TEXT, linewidth=3)
        axis.set(xlim=(-0.1, longest + 0.1), ylim=(-0.15, 1.1))
        axis.set_title(f"step {number}: cu_seqlens_q = {ends}", fontsize=9, loc="left")
        axis.axis("off")
    plt.show()


def logits_with_padding(names: list[str], logits: list[float], padding: float) -> None:
    """Bars of the best logits, all negative, and of one that belongs to no token."""
    _, axis = plt.subplots(figsize=(8, 2.4))
    drawn = axis.barh(names, logits, color=BLUE, edgecolor=TEXT, linewidth=0.5)
    axis.bar_label(drawn, fmt="%.1f", padding=3, fontsize=8)
    axis.barh(["beyond the vocabulary"], [padding], color=ORANGE)
    axis.plot([padding], ["beyond the vocabulary"], "o", color=ORANGE, markeredgecolor=TEXT)
    axis.annotate(f"{padding:.1f}, the largest", (padding, len(names)), (-8, -3), textcoords="offset points",
                  ha="right", fontsize=8)  # fmt: skip
    axis.set(title="The best logits, and one that belongs to no token", xmargin=0.12)
    axis.invert_yaxis()
    plt.show()


def quick_heads(judged: dict[str, Any], right: float, share: float) -> None:
    """Points: how many multiplications a head takes, and how often it finds the best token.

    Args:
        judged: by name, with `right` and `share`.
        right, share: what is asked for, as dashed lines.
    """
    _, axis = plt.subplots(figsize=(8, 3.2))
    for name, one in judged.items():
        color = GREEN if "yours" in name or "ours" in name else BLUE
        axis.plot(100 * one.share, 100 * one.right, "o", color=color, markeredgecolor=TEXT)
        at = 100 * one.share, 100 * one.right
        axis.annotate(name, at, (-8, -3), textcoords="offset points", fontsize=8, ha="right")
    axis.axvline(100 * share, color=TEXT, linestyle="--", linewidth=1)
    axis.axhline(100 * right, color=TEXT, linestyle="--", linewidth=1)
    axis.set(
        xlabel="multiplications, in percent of the plain head's", ylabel="best token found, percent", xlim=(0, 105)
    )
    plt.show()


# Chapter 14.


def how_sure(chances: Any) -> None:
    """A histogram of places in stories by the probability of their most likely token, and what the tail has.

    Args:
        chances: [places, vocabulary size], the largest first.
    """
    _, (left, right) = plt.subplots(1, 2, figsize=(8, 2.6))
    left.hist(100 * chances[:, 0].numpy(), bins=20, color=BLUE, edgecolor=TEXT, linewidth=0.5)
    left.set(xlabel="percent of the most likely token", ylabel="places", title="How sure the model is")
    ranks = [1, 2, 5, 10, 20, 50, 100, 200]
    tail = [100 * (1 - chances[:, :rank].sum(-1)).mean().item() for rank in ranks]
    drawn = right.bar([str(rank) for rank in ranks], tail, color=ORANGE, edgecolor=TEXT, linewidth=0.5)
    right.bar_label(drawn, fmt="%.1f", fontsize=8)
    right.set(xlabel="k", ylabel="percent", title="All but the k most likely together")
    plt.show()


def noisy_logits(names: list[str], logits: Any, noise: Any) -> None:
    """Draws side by side: each token's logit, and where the noise moves it; the largest wins.

    Args:
        names, logits: of the most likely tokens.
        noise: [draws, tokens].
    """
    _, axes = plt.subplots(1, len(noise), figsize=(8, 2.8), sharey=True, sharex=True)
    low = float(logits.min()) - 3
    for number, (axis, row) in enumerate(zip(axes, noise, strict=True), 1):
        sums = logits + row
        winner = int(sums.argmax())
        colors = [ORANGE if i == winner else BLUE for i in range(len(names))]
        axis.barh(names, logits - low, left=low, color=colors, height=0.6)
        axis.hlines(range(len(names)), logits, sums, color=TEXT, linewidth=1)
        axis.plot(sums, range(len(names)), "|", color=TEXT, markersize=11, markeredgewidth=2)
        axis.set(title=f"draw {number}: {names[winner].strip()}", xlabel="logit + noise")
    axes[0].invert_yaxis()
    plt.show()


def frequencies(names: list[str], expected: list[float], found: dict[str, list[float]]) -> None:
    """Bars of how often tokens were drawn, beside how often they should be."""
    _, axis = plt.subplots(figsize=(8, 2.8))
    kinds = {"softmax": expected} | found
    for number, ((kind, shares), color) in enumerate(zip(kinds.items(), (GRAY, BLUE, ORANGE), strict=True)):
        places = [i + 0.27 * (number - 1) for i in range(len(names))]
        axis.bar(places, [100 * share for share in shares], width=0.25, color=color, label=kind)
    axis.set_xticks(range(len(names)), [name.strip() for name in names])
    axis.set(ylabel="percent", title="How often each token is drawn")
    axis.legend(fontsize=8)
    plt.show()


def choices_and_right(rules: dict[str, Any], choices: float, right: float) -> None:
    """Points: how many choices a rule leaves in stories, and how many tasks come out right.

    Args:
        rules: by name, with `choices` and `right`.
        choices, right: the least that is asked for, as dashed lines.
    """
    _, axis = plt.subplots(figsize=(8, 3.2))
    for name, judged in rules.items():
        color = GREEN if "rule" in name else ORANGE if "top-p" in name else BLUE
        axis.plot(judged.choices, 100 * judged.right, "o", color=color, markeredgecolor=TEXT)
        is_left = judged.choices < choices  # so that no label lies on a dashed line
        axis.annotate(
            name,
            (judged.choices, 100 * judged.right),
            (-6 if is_left else 6, -11 if is_left and judged.right < right else 4),
            textcoords="offset points",
            ha="right" if is_left else "left",
            fontsize=8,
        )
    axis.axvline(choices, color=TEXT, linestyle="--", linewidth=1)
    axis.axhline(100 * right, color=TEXT, linestyle="--", linewidth=1)
    axis.set(xlabel="choices in stories", ylabel="percent of the tasks right", ymargin=0.15, xmargin=0.15)
    plt.show()


# Chapter 15.


def row_of_heads(num_heads: int, num_kv_heads: int, head_dim: int) -> None:
    """What qkv_proj makes of one token: its heads behind one another; and which query heads share keys and values."""
    _, axis = plt.subplots(figsize=(8, 2.3))
    colors = (BLUE, ORANGE, GREEN, PINK)
    group, total = num_heads // num_kv_heads, num_heads + 2 * num_kv_heads
    for n in range(total):
        kind = "q" if n < num_heads else "k" if n < num_heads + num_kv_heads else "v"
        number = n if kind == "q" else (n - num_heads) % num_kv_heads
        color = colors[(number // group if kind == "q" else number) % 4]
        _box(axis, n, 0, 1, 0.8, f"{kind}{number}", color, 11)
        axis.text(n, -0.12, f"{n * head_dim}", ha="center", va="top", fontsize=8)
    axis.text(total, -0.12, f"{total * head_dim}", ha="center", va="top", fontsize=8)
    for first, count, word in (
        (0, num_heads, "query heads"), (num_heads, num_kv_heads, "key heads"),
        (num_heads + num_kv_heads, num_kv_heads, "value heads"),
    ):  # fmt: skip
        axis.text(first + count / 2, 0.95, word, ha="center", fontsize=9)
    axis.text(total / 2, -0.62, "feature of the row; heads of one color belong together", ha="center", fontsize=8.5)
    axis.set(xlim=(-0.2, total + 0.2), ylim=(-0.8, 1.2), title="One token's row of queries, keys and values")
    axis.axis("off")
    plt.show()


def sizes_in_the_stream(stream: list[float], attention: list[float], mlp: list[float]) -> None:
    """How large the stream is behind each layer, and what attention and MLP of each layer add."""
    _, axis = plt.subplots(figsize=(8, 3))
    numbers = range(len(attention))
    axis.bar([n + 0.8 for n in numbers], attention, 0.35, color=BLUE, edgecolor=TEXT, label="attention adds")
    axis.bar([n + 1.2 for n in numbers], mlp, 0.35, color=ORANGE, edgecolor=TEXT, label="the MLP adds", hatch="//")
    axis.plot(range(len(stream)), stream, "o-", color=GREEN, label="the stream behind it")
    axis.set(title="Size (root mean square), the median of all tokens", yscale="log")
    axis.set_xticks(range(len(stream)), ["embedding", *(f"layer {n}" for n in numbers)], fontsize=8.5)
    axis.legend(fontsize=8)
    plt.show()


def through_the_lens(tokens: list[str], words: list[list[str]], chances: list[list[float]], right: list[str]) -> None:
    """A row for each depth, a column for each token: what the head would say next there.

    Args:
        tokens: what is read.
        words: for each depth, the likeliest next token behind each of these.
        chances: how likely it is.
        right: what the whole model says.
    """
    _, axis = plt.subplots(figsize=(max(8, 0.62 * len(tokens)), 0.9 + 0.36 * len(words)))
    for depth, (row, sure) in enumerate(zip(words, chances, strict=True)):
        for n, (word, chance) in enumerate(zip(row, sure, strict=True)):
            is_right = word == right[n]
            axis.add_patch(plt.Rectangle((n, depth), 1, 1, facecolor=BLUE if is_right else "none", edgecolor=FAINT))
            text = word.strip()[:8] or "␣"
            color = INK if is_right else TEXT
            axis.text(n + 0.5, depth + 0.5, text, ha="center", va="center", fontsize=8, color=color)
            axis.plot([n + 0.1, n + 0.1 + 0.8 * chance], [depth + 0.92] * 2, color=ORANGE, linewidth=1.5)
    axis.set_xticks([n + 0.5 for n in range(len(tokens))], [token.strip() or "␣" for token in tokens], fontsize=8)
    axis.set_yticks(
        [d + 0.5 for d in range(len(words))], [f"after {d}" if d else "embedding" for d in range(len(words))]
    )
    axis.xaxis.tick_top()
    axis.set(xlim=(0, len(tokens)), ylim=(len(words), 0))
    axis.set_xlabel("filled: what the whole model says, too; orange line: how sure", fontsize=8.5)
    for side in ("left", "bottom"):
        axis.spines[side].set_visible(False)
    plt.show()


def parameters_by_part(counts: dict[str, dict[str, int]]) -> None:
    """A bar for each model, as long as 100 %: in which parts its parameters are."""
    _, axis = plt.subplots(figsize=(8, 0.8 + 0.36 * len(counts)))
    parts = list(next(iter(counts.values())))
    starts = dict.fromkeys(counts, 0.0)
    for part, color, hatch in zip(parts, (PINK, BLUE, ORANGE, GRAY), ("..", "", "//", ""), strict=True):
        shares = [100 * found[part] / sum(found.values()) for found in counts.values()]
        axis.barh(
            list(counts), shares, left=list(starts.values()), color=color, edgecolor=TEXT, label=part, hatch=hatch
        )
        starts = {name: starts[name] + share for name, share in zip(counts, shares, strict=True)}
    totals = [sum(found.values()) for found in counts.values()]
    for n, total in enumerate(totals):
        text = f"{total / 1e9:.2f} billion" if total > 1e8 else f"{total / 1e6:.1f} million"
        axis.text(101, n, text, va="center", fontsize=8.5)
    axis.set(xlim=(0, 118), xticks=range(0, 101, 25), xlabel="% of all parameters")
    axis.invert_yaxis()
    axis.legend(fontsize=8, ncols=4, loc="lower center", bbox_to_anchor=(0.45, 1.0))
    plt.show()


def same_as_at_the_end(shares: dict[str, float], bar: float = 0.0) -> None:
    """Bars of the share of tokens that are the same as the whole model's."""
    percent = {name: 100 * share for name, share in shares.items()}
    title = "the same token as the whole model, of 100" + f"; dashed: {100 * bar:.0f} are asked for" * (bar > 0)
    bars(percent, title, "{:.1f}", GREEN, 100 * bar)


# Chapter 16.


def two_ways_to_cut(width: int = 6, height: int = 4) -> None:
    """A product with a matrix that is cut by rows, and with one that is cut by columns: what each rank has."""
    _, axes = plt.subplots(1, 2, figsize=(8, 2.7))
    titles = ("by rows: column-parallel", "by columns: row-parallel")
    for axis, is_row, title in zip(axes, (False, True), titles, strict=True):
        for i in range(height):
            for j in range(width):
                color = (BLUE, ORANGE)[j >= width // 2 if is_row else i >= height // 2]
                axis.add_patch(plt.Rectangle((j, -i), 0.9, 0.9, facecolor=color))
        for j in range(width):
            color = (BLUE, ORANGE)[j >= width // 2] if is_row else GRAY
            axis.add_patch(plt.Rectangle((j, 2.2), 0.9, 0.9, facecolor=color))
        for i in range(height):
            if is_row:
                for k, color in enumerate((BLUE, ORANGE)):
                    axis.add_patch(plt.Rectangle((width + 1 + 1.7 * k, -i), 0.9, 0.9, facecolor=color))
                axis.text(width + 2.3, 0.45 - i, "+", ha="center", va="center")
            else:
                color = (BLUE, ORANGE)[i >= height // 2]
                axis.add_patch(plt.Rectangle((width + 1, -i), 0.9, 0.9, facecolor=color))
        axis.text(width / 2, 3.35, "input", ha="center", fontsize=9)
        axis.text(width / 2, 1.1, "weight", ha="center", fontsize=9)
        axis.text(width + (2.3 if is_row else 1.45), 1.1, "output", ha="center", fontsize=9)
        axis.set(xlim=(-0.5, width + 4.5), ylim=(-height, 4), title=title, aspect="equal")
        axis.axis("off")
    plt.show()


def parts_of_sums(parts: list[list[float]], total: list[float]) -> None:
    """Bars for some output features: what each rank has computed of them, and their sums."""
    _, axis = plt.subplots(figsize=(8, 2.8))
    places = range(len(total))
    for rank, (part, color) in enumerate(zip(parts, (BLUE, ORANGE, GREEN, PINK), strict=False)):
        left = [place + (rank - (len(parts) - 1) / 2) * 0.36 for place in places]
        axis.bar(left, part, 0.34, color=color, label=f"rank {rank}")
    axis.plot(places, total, "D", color=TEXT, markersize=5, label="their sum")
    axis.axhline(0, color=TEXT, linewidth=0.6)
    axis.set(title="o_proj of layer 0: the first output features of one token", xlabel="feature", xticks=list(places))
    axis.legend(loc="upper left", bbox_to_anchor=(1, 1))
    plt.show()


def way_of_a_call(engine: int, ranks: list[int], meetings: int) -> None:
    """A step's way through processes: the engine, a thread of it, pipes, ranks, and back.

    Args:
        engine, ranks: numbers of the processes.
        meetings: collectives in a step.
    """
    _, axis = plt.subplots(figsize=(8, 3.2))
    axis.add_patch(plt.Rectangle((0, -0.2), 4.3, 3.4, facecolor="none", edgecolor=FAINT, linestyle="--"))
    axis.text(0.1, 3.3, f"process {engine}: the engine", fontsize=9)
    _box(axis, 0.2, 1.0, 1.6, 1.0, "scheduler,\nthe loop", GREEN)
    _box(axis, 2.5, 1.0, 1.6, 1.0, "thread Ranks:\nsends, waits", BLUE)
    arrow = {"arrowstyle": "<->", "color": TEXT, "linewidth": 1.3}
    axis.annotate("", (2.5, 1.5), (1.8, 1.5), arrowprops=arrow)
    step = 3.2 / len(ranks)
    for rank, number in enumerate(ranks):
        y = 3.2 - step * (rank + 1) - 0.1
        _box(axis, 5.9, y, 3.4, step - 0.35, f"rank {rank}, process {number}:\nModelRunner.run, its part", ORANGE)
        axis.annotate("", (5.9, y + step / 2 - 0.17), (4.1, 1.5), arrowprops=arrow)
    axis.text(5.0, 2.45, "pipes", ha="center", fontsize=9)
    axis.annotate("", (9.6, -0.1), (9.6, 3.0), arrowprops=arrow | {"color": ORANGE, "linewidth": 3})
    axis.text(9.75, 1.45, f"{meetings} meetings\nin a step", va="center", fontsize=9)
    axis.set(xlim=(-0.1, 11.2), ylim=(-0.3, 3.6))
    axis.axis("off")
    plt.show()


def read_and_sent(rows: dict[str, tuple[float, float]]) -> None:
    """Pairs of bars on a logarithmic axis: bytes of weights that a rank reads for a token, and bytes that it sends."""
    _, axis = plt.subplots(figsize=(8, 0.9 + 0.55 * len(rows)))
    for place, (read, sent) in enumerate(rows.values()):
        for y, value, color, word in ((place - 0.19, read, BLUE, "weights read"), (place + 0.19, sent, ORANGE, "sent")):
            axis.barh(y, value, 0.34, color=color)
            unit, size = ("GB", 1e9) if value >= 1e9 else ("MB", 1e6) if value >= 1e6 else ("KB", 1e3)
            axis.text(value * 1.2, y, f"{word}: {value / size:,.1f} {unit}", va="center", fontsize=9)
    axis.set(xscale="log", xlim=(1e3, 1e13), yticks=range(len(rows)), yticklabels=list(rows))
    axis.set(title="A decode step of one sequence: what each of two ranks reads and sends", xlabel="bytes")
    axis.invert_yaxis()
    plt.show()


def plans_of_a_chain(linears: list[Any], plans: dict[str, list[str]], num_ranks: int) -> None:
    """For each plan a row of matrices, as wide as they have weights, colored by how they are cut."""
    colors = {"column": BLUE, "row": ORANGE, "replicated": PINK}
    _, axis = plt.subplots(figsize=(8, 0.9 + 0.5 * len(plans)))
    for y, cuts in enumerate(plans.values()):
        x = 0.0
        for linear, cut in zip(linears, cuts, strict=True):
            width = linear.num_weights
            axis.barh(y, width, 0.6, x, color=colors[cut], edgecolor=TEXT, linewidth=0.5)
            x += width
    axis.set(yticks=range(len(plans)), yticklabels=list(plans), xticks=[], ylim=(len(plans) - 0.5, -0.5))
    axis.set(title=f"{len(linears)} matrices, as wide as they have weights, on {num_ranks} ranks")
    axis.legend(handles=[Patch(color=color, label=cut) for cut, color in colors.items()], ncols=3,
                loc="upper center", bbox_to_anchor=(0.5, -0.02))  # fmt: skip
    axis.spines.bottom.set_visible(False)
    plt.show()


def guesses(right: float, exchanged: list[float]) -> None:
    """Bars: how badly a model guesses a text, as it is, and with two tensors exchanged in one layer."""
    _, axis = plt.subplots(figsize=(8, 2.8))
    names = ["as it is", *(f"layer {layer}" for layer in range(len(exchanged)))]
    bars = axis.bar(names, [right, *exchanged], color=[GREEN] + [ORANGE] * len(exchanged))
    axis.bar_label(bars, fmt="%.2f")
    axis.set(ylabel="loss", title="How badly it guesses the next token, with k_proj and v_proj of one layer exchanged")
    plt.show()


def file_of_tensors(path: Any) -> None:
    """A safetensors file from its first byte to its last; what is too small to be seen at its size is drawn larger."""
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(length))
    total = path.stat().st_size
    _, (top, below) = plt.subplots(2, 1, figsize=(8, 3.4), height_ratios=[1, 1.25])
    _box(top, 0, 0, 1.1, 1, "8 bytes:\nlength of\nthe header", ORANGE, 8)
    _box(top, 1.1, 0, 2.2, 1, f"header: JSON,\n{length:,} bytes", PINK, 8)
    _box(top, 3.3, 0, 6.7, 1, f"the numbers, {total - length - 8:,} bytes", BLUE, 8)
    top.set(xlim=(0, 10), ylim=(0, 1))
    groups: dict[str, int] = {}
    for name, entry in header.items():
        if name != "__metadata__":
            start, end = entry["data_offsets"]
            group = name.split(".")[2] if ".layers." in name else name.split(".")[1]
            groups[group] = groups.get(group, 0) + end - start
    left = 0
    for i, (name, size) in enumerate(groups.items()):
        below.barh(0, size, left=left, height=1, color=(BLUE, GREEN)[i % 2], edgecolor=TEXT, linewidth=0.5)
        text = f"layer {name}" if name.isdigit() else name.removesuffix("_tokens")
        if size > 1e5:
            below.text(
                left + size / 2, 0, f"{text}\n{size / 1e6:.2f} MB", ha="center", va="center", fontsize=7, color=INK
            )
        left += size
    below.set(xlim=(0, left), ylim=(-0.5, 0.5), title="the numbers, to scale")
    for axis in (top, below):
        axis.axis("off")
    plt.show()


def products(found: dict[str, dict[int, tuple[float, float]]]) -> None:
    """For each model, three products as a multiple of one, by the number of tokens.

    Args:
        found: by model, what `exercises.kit.checkpoint_work.seconds_of_products` returned.
    """
    _, axes = plt.subplots(1, len(found), figsize=(8, 2.8), sharey=True, squeeze=False)
    for axis, (name, times) in zip(axes[0], found.items(), strict=True):
        labels = [f"{count}" for count in times]
        bars = axis.bar(labels, [three / one for one, three in times.values()], color=BLUE)
        axis.bar_label(bars, fmt="%.2f")
        axis.axhline(1, color=ORANGE, linewidth=1.2)
        axis.set(title=name, xlabel="tokens")
    axes[0][0].set(ylabel="three products / one")
    plt.show()


def held(courses: dict[str, list[int]], bar: int) -> None:
    """Bytes that are held while a checkpoint is streamed, from tensor to tensor.

    Args:
        courses: by name, the bytes at each tensor.
        bar: the most bytes that may be held.
    """
    _, axis = plt.subplots(figsize=(8, 3))
    for (name, course), color, style in zip(courses.items(), (ORANGE, BLUE, GREEN), ("-", "-.", "-"), strict=False):
        axis.plot([max(size, 1) / 1e6 for size in course], color=color, linestyle=style, label=name)
    axis.axhline(bar / 1e6, color=TEXT, linewidth=1, linestyle=":", label="the limit")
    axis.set(xlabel="tensors that have come", ylabel="MB held at that moment", ylim=(0, None))
    axis.legend(fontsize=8)
    plt.show()


def beside_the_arguments() -> None:
    """Two ways for a step's layout to get to those who need it: through every call, and beside them."""
    _, axes = plt.subplots(1, 2, figsize=(8, 4))
    chain = ["ModelRunner", "Qwen3ForCausalLM", "Qwen3Model", "Qwen3DecoderLayer", "Qwen3Attention", "Attention"]
    arrow = {"arrowstyle": "->", "color": TEXT, "linewidth": 1.3}
    for axis, title in zip(axes, ("through every call", "beside the arguments"), strict=True):
        is_beside = axis is axes[1]
        for i, name in enumerate(chain):
            needs = i in (0, 5)
            _box(axis, 0, -i, 2.6, 0.62, name, GREEN if needs else BLUE if is_beside else ORANGE, 8)
            if i:
                axis.annotate("", (1.3, 0.62 - i), (1.3, 1 - i), arrowprops=arrow)
                text = "tokens" if is_beside else "tokens + 8 more"
                axis.text(1.4, 0.81 - i, text, fontsize=7, va="center")
        if is_beside:
            _box(axis, 3.4, -3.2, 1.5, 1.2, "the thread's\nContext", PINK, 8)
            axis.annotate("", (4.1, -2), (2.6, 0.3), arrowprops=arrow)
            axis.annotate("", (2.6, -4.7), (4.1, -3.2), arrowprops=arrow)
            axis.text(3.6, -0.7, "set_context", fontsize=7.5)
            axis.text(3.6, -4.2, "get_context", fontsize=7.5)
        axis.set(title=title, xlim=(-0.1, 5), ylim=(-5.2, 0.8))
        axis.axis("off")
    plt.show()


# Chapter 17.


def bars(values: dict[str, float], title: str, form: str = "{:,.0f}", color: str = BLUE, limit: float = 0.0) -> None:
    """One horizontal bar a name; `limit` is a dashed line."""
    _, axis = plt.subplots(figsize=(8, 0.7 + 0.34 * len(values)))
    drawn = axis.barh(list(values), list(values.values()), color=color, edgecolor=TEXT, linewidth=0.4)
    room = 0.15 * max([*values.values(), limit])
    # Where the line would go through the label, it is written on the bar.
    is_under = [max(room, limit - room) < value < limit for value in values.values()]
    words = [form.format(value) for value in values.values()]
    axis.bar_label(drawn, ["" if under else word for word, under in zip(words, is_under, strict=True)], padding=3)
    for place, (value, word, under) in enumerate(zip(values.values(), words, is_under, strict=True)):
        if under:
            axis.text(value - 0.05 * room, place, word, ha="right", va="center", color=INK)
    if limit:
        axis.axvline(limit, color=TEXT, linestyle="--", linewidth=1)
    axis.set(title=title, xticks=[], xlim=(0, 1.15 * max([*values.values(), limit])))
    axis.spines.bottom.set_visible(False)
    axis.invert_yaxis()
    plt.show()


def parts_of_steps(steps: dict[str, dict[str, float]]) -> None:
    """Where the time of steps goes: a bar a step, as long as 100 %.

    Args:
        steps: by the step's name, seconds by part.
    """
    colors = (ORANGE, BLUE, GREEN, PINK, "#F0E442", GRAY)
    _, axis = plt.subplots(figsize=(8, 1.1 + 0.5 * len(steps)))
    left = dict.fromkeys(steps, 0.0)
    for part, color in zip(next(iter(steps.values())), colors, strict=True):
        shares = {name: 100 * parts[part] / sum(parts.values()) for name, parts in steps.items()}
        drawn = axis.barh(list(steps), list(shares.values()), left=list(left.values()), color=color, label=part)
        labels = [f"{share:.0f}" if share > 4 else "" for share in shares.values()]
        axis.bar_label(drawn, labels, label_type="center", color=INK, fontsize=9)
        left = {name: left[name] + shares[name] for name in steps}
    axis.set(xlim=(0, 100), xlabel="percent of the step")
    axis.legend(fontsize=8, ncols=3, loc="lower center", bbox_to_anchor=(0.5, 1))
    axis.invert_yaxis()
    plt.show()


def calls_and_kernels(steps: dict[str, tuple[list[float], list[float]]]) -> None:
    """Two lanes a step: when the CPU makes each call, and when the GPU runs each kernel.

    Args:
        steps: by name, microseconds of the calls and of the kernels.
    """
    _, axes = plt.subplots(len(steps), 1, sharex=True, squeeze=False, figsize=(8, 0.5 + 1.15 * len(steps)))
    for axis, (name, (launches, kernels)) in zip(axes[:, 0], steps.items(), strict=True):
        launched = done = 0.0
        for i, (launch, kernel) in enumerate(zip(launches, kernels, strict=True)):
            color = (BLUE, ORANGE, GREEN, PINK)[i % 4]
            axis.broken_barh([(launched, launch)], (1.1, 0.8), facecolor=color, edgecolor=TEXT, linewidth=0.5)
            launched += launch
            begin = max(launched, done)
            axis.broken_barh([(begin, kernel)], (0.1, 0.8), facecolor=color, edgecolor=TEXT, linewidth=0.5)
            done = begin + kernel
        axis.set(yticks=[0.5, 1.5], yticklabels=["GPU: kernels", "CPU: calls"], ylim=(0, 2))
        axis.set_title(f"{name}: {done:,.0f} µs, the GPU works {100 * sum(kernels) / done:.0f} % of the time")
    axes[-1, 0].set_xlabel("microseconds")
    plt.show()


def lever_gains(gains: dict[str, dict[str, float]], lines: dict[str, int]) -> None:
    """Points on a scale of factors, and their numbers: how many times as fast the engine is with each lever.

    Args:
        gains: by workload, the factor by lever.
        lines: of code, by lever.
    """
    names = [name for name in lines if any(name in found for found in gains.values())]
    _, axis = plt.subplots(figsize=(8, 0.9 + 0.44 * len(names)))
    for (workload, found), color, marker, down in zip(
        gains.items(), (BLUE, ORANGE, GREEN), "osd", (-0.2, 0.2, 0), strict=True
    ):
        points = {row + down: found[name] for row, name in enumerate(names) if name in found}
        axis.plot(list(points.values()), list(points), marker, color=color, label=workload, markeredgecolor=TEXT)
        for height, factor in points.items():
            axis.text(1.05 * factor, height, f"{factor:.2f}", fontsize=8, va="center")
    axis.axvline(1, color=TEXT, linewidth=1)
    ticks = [1, 1.5, 2, 4, 8, 16, 32]
    axis.set(xscale="log", xlim=(0.9, 40), xlabel="times as fast as without it; beside the name, lines of code")
    axis.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axis.minorticks_off()
    axis.set_yticks(range(len(names)), [f"{name}, {lines[name]}" for name in names])
    axis.set_ylim(len(names) - 0.4, -0.6)
    axis.grid(alpha=0.5)
    axis.legend(fontsize=8)
    plt.show()


def peers(rows: list[dict[str, Any]], limits: dict[str, float]) -> None:
    """For each work, bars of the engines that did it, and a dashed line where the machine's limit is."""
    works = list(dict.fromkeys(row["work"] for row in rows if row["work"] in limits))
    _, axes = plt.subplots(1, len(works), figsize=(8, 2.3))
    for axis, work in zip(axes, works, strict=True):
        chosen = [row for row in rows if row["work"] == work]
        speeds = {"ours": chosen[0]["ours"]} | {row["peer"]: row["theirs"] for row in chosen}
        colors = [GREEN] + [GRAY if name.startswith("ours") else BLUE for name in list(speeds)[1:]]
        drawn = axis.barh([name.replace(" with", "\nwith") for name in speeds], list(speeds.values()), color=colors)
        axis.bar_label(drawn, [f"{speed:,}" for speed in speeds.values()], padding=3, fontsize=8)
        axis.axvline(limits[work], color=TEXT, linestyle="--", linewidth=1)
        axis.set(title=f"{work}, tokens/s; dashed: limit", xticks=[], xlim=(0, 1.2 * limits[work]))
        axis.tick_params(labelsize=8)
        axis.invert_yaxis()
        axis.spines.bottom.set_visible(False)
    plt.show()


def pairs_of_runs(plain: list[float], lever: list[float], bar: float) -> None:
    """Seconds of neighbors, joined by a line, and how many times as fast the second is."""
    _, (left, right) = plt.subplots(1, 2, figsize=(8, 2.6), width_ratios=[3, 2])
    for i, (slow, fast) in enumerate(zip(plain, lever, strict=True)):
        left.plot([i + 0.8, i + 1.2], [1000 * slow, 1000 * fast], color=TEXT, linewidth=1, zorder=0)
    numbers = range(1, len(plain) + 1)
    left.plot([i - 0.2 for i in numbers], [1000 * s for s in plain], "o", color=ORANGE, label="plain")
    left.plot([i + 0.2 for i in numbers], [1000 * s for s in lever], "o", color=GREEN, label="with the lever")
    left.set(ylim=0, xlabel="pair of runs", title="milliseconds of computing")
    left.legend(fontsize=8)
    ratios = [slow / fast for slow, fast in zip(plain, lever, strict=True)]
    right.plot(numbers, ratios, "o", color=BLUE)
    right.axhline(bar, color=TEXT, linestyle="--", linewidth=1)
    right.text(len(plain) + 0.2, bar - 0.08, "the bar", fontsize=8, ha="right")
    right.set(ylim=(0.8, max(1.3, 1.1 * max(ratios))), xlabel="pair of runs", title="times as fast")
    plt.show()


# Chapter 18.


def whose_lines(parts: dict[str, Any], says: dict[str, str]) -> None:
    """A bar for each part of the engine: code lines of the learner's, and others.

    Args:
        parts: by name, what has `yours` and `ours`.
        says: what is in each.
    """
    names = [f"{name}: {says[name]}" for name in parts]
    yours, ours = ([getattr(part, key) for part in parts.values()] for key in ("yours", "ours"))
    _, axis = plt.subplots(figsize=(8, 0.9 + 0.42 * len(parts)))
    drawn = axis.barh(names, yours, color=GREEN, edgecolor=TEXT, linewidth=0.4, label="in functions of yours")
    axis.bar_label(drawn, [count or "" for count in yours], label_type="center", color=INK)
    drawn = axis.barh(names, ours, left=yours, color=GRAY, hatch="//", edgecolor=TEXT, linewidth=0.4, label="ours")
    axis.bar_label(drawn, ours, padding=3)
    total, own = sum(yours) + sum(ours), sum(yours)
    axis.set(
        title=f"{total:,} lines of code, {own} of them yours",
        xticks=[],
        xlim=(0, 1.1 * max(map(sum, zip(yours, ours, strict=True)))),
    )
    axis.legend(fontsize=8, loc="center right", bbox_to_anchor=(1, 0.45))
    axis.spines.bottom.set_visible(False)
    axis.invert_yaxis()
    plt.show()


def tree_of_beams(calls: list[list[list[int]]], prompt_len: int, words: Any, chosen: list[int]) -> None:
    """Which beams there were in each step, each joined to the one that it came from; the best text is green.

    Args:
        calls: for each step the texts that were asked about, token ids, the most likely first.
        prompt_len: tokens of the prompt.
        words: gives a token's text.
        chosen: the tokens of the best text.
    """
    _, axis = plt.subplots(figsize=(8, 0.8 + 0.42 * max(map(len, calls))))
    places: dict[tuple[int, ...], tuple[int, int]] = {}
    for step, texts in enumerate(calls):
        for row, text in enumerate(texts):
            key = tuple(text[prompt_len:])
            places[key] = (step, row)
            is_chosen = list(key) == chosen[: len(key)]
            color = GREEN if is_chosen else BLUE
            if key:
                x, y = places[key[:-1]]
                width = 2.5 if is_chosen else 1
                axis.plot(
                    [x + 0.25, step - 0.3], [y, row], color=color if is_chosen else TEXT, linewidth=width, zorder=0
                )
            said = words(key[-1]) if key else "prompt"
            box = {"facecolor": color, "edgecolor": TEXT, "boxstyle": "round,pad=0.2", "linewidth": 0.4}
            axis.text(step, row, said, ha="center", va="center", fontsize=8, color=INK, bbox=box)
    axis.set(xlim=(-0.6, len(calls) - 0.4), ylim=(max(map(len, calls)) - 0.4, -0.7), yticks=[], xlabel="step")
    axis.set_xticks(range(len(calls)))
    axis.set_title("the beams of each step, the most likely on top; green: how the best text began")
    axis.spines.left.set_visible(False)
    plt.show()


def drafts(calls: list[Any], words: Any, most: int = 24) -> None:
    """What each call of the model proposed and added: right, the model's own, and wrong in vain.

    Args:
        calls: each has `draft` and `added`, token ids.
        words: gives a token's text.
    """
    shown = calls[:most]
    longest = max(len(call.draft) for call in shown) + 1
    _, axis = plt.subplots(figsize=(8, 1 + 0.3 * longest))
    for x, call in enumerate(shown):
        right = len(call.added) - 1
        cells = [(token, GREEN, "") for token in call.added[:right]] + [(call.added[-1], BLUE, "")]
        cells += [(token, "none", "///") for token in call.draft[right + 1 :]]
        for y, (token, color, hatch) in enumerate(cells):
            axis.bar(x, 1, bottom=y, width=0.96, color=color, hatch=hatch, edgecolor=TEXT, linewidth=0.4)
            axis.text(x, y + 0.5, words(token).strip()[:4], ha="center", va="center", fontsize=7,
                      color=TEXT if hatch else INK)  # fmt: skip
    axis.set(xlabel=f"call of the model (the first {len(shown)} of {len(calls)})", yticks=[], ylim=(0, longest + 0.1))
    axis.set_title("each call: tokens of the draft that were right, and the model's own")
    handles = [Patch(facecolor=GREEN, label="proposed, right"), Patch(facecolor=BLUE, label="the model's own")]
    handles.append(Patch(facecolor="none", edgecolor=TEXT, hatch="///", label="proposed in vain"))
    axis.legend(handles=handles, fontsize=8, ncols=3, loc="lower center", bbox_to_anchor=(0.5, 1.12))
    axis.spines.left.set_visible(False)
    plt.show()


def calls_saved(found: dict[str, dict[str, float]]) -> None:
    """Tokens a call of the model, for several texts (rows) and several ways to propose (colors).

    Args:
        found: by the way, tokens a call by text.
    """
    texts = list(next(iter(found.values())))
    height = 0.8 / len(found)
    _, axis = plt.subplots(figsize=(8, 0.9 + 0.5 * len(texts)))
    for i, ((way, values), color) in enumerate(zip(found.items(), (BLUE, ORANGE, GREEN, PINK), strict=False)):
        rows = [row + (i - (len(found) - 1) / 2) * height for row in range(len(texts))]
        drawn = axis.barh(rows, [values[text] for text in texts], height, color=color, label=way)
        axis.bar_label(drawn, fmt="%.2f", padding=3, fontsize=8)
    axis.axvline(1, color=TEXT, linestyle="--", linewidth=1)
    axis.set_yticks(range(len(texts)), texts)
    axis.set(title="tokens a call of the model; dashed: without drafts", xticks=[])
    axis.margins(x=0.1)
    axis.legend(fontsize=8)
    axis.spines.bottom.set_visible(False)
    axis.invert_yaxis()
    plt.show()


def two_engines(ours: list[float], own: list[float]) -> None:
    """Runs of two engines at the same work, in turn: milliseconds, and a line at the fastest of each."""
    _, axis = plt.subplots(figsize=(8, 2.6))
    numbers = range(1, len(ours) + 1)
    for i, pair in zip(numbers, zip(ours, own, strict=True), strict=True):
        axis.plot([i - 0.15, i + 0.15], [1000 * seconds for seconds in pair], color=TEXT, linewidth=1, zorder=0)
    for seconds, move, marker, color, name in ((ours, -0.15, "s", GRAY, "ours"), (own, 0.15, "o", GREEN, "yours")):
        axis.plot([i + move for i in numbers], [1000 * one for one in seconds], marker, color=color, label=name)
        axis.axhline(1000 * min(seconds), color=color, linestyle="--", linewidth=1)
    axis.set(ylim=0, xlabel="pair of runs", title="milliseconds of computing; dashed: the fastest run of each")
    axis.legend(fontsize=8, ncols=2, loc="lower right")
    plt.show()
