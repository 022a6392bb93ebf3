"""The table of levers: what each does, what it gained where, and what it costs in code.

`python bench.py --levers FILE` makes the measurements, `nanovllm/viz/data/levers_*.json`.
`python bench.py --levers-table` prints what follows from them.
"""

import ast
import io
import json
import statistics
import tokenize
from pathlib import Path
from typing import Any

from . import LEVERS, QUANTIZATIONS

PACKAGE = Path(__file__).resolve().parents[1]
DATA = PACKAGE / "viz" / "data"
# What only one lever needs, beside its own file.
BESIDE = {
    "folded_norm": ("levers/norm_factor.py",),
    "overlapped_launch": ("layers/kernels/overlap.py",),
}
ALL = "all"  # stands for all levers together
NO_CODE = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
}


def code_lines(source: str) -> set[int]:
    """Numbers of the lines that hold code: no blank lines, comments or docstrings."""
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in NO_CODE:
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            match node.body:
                case [ast.Expr(value=ast.Constant(value=str())) as docstring, *_]:
                    lines.difference_update(
                        range(docstring.lineno, (docstring.end_lineno or 0) + 1)
                    )
    return lines


def lever_files(name: str) -> list[Path]:
    """The files of a lever, its own first."""
    return [PACKAGE / "levers" / f"{name}.py", *(PACKAGE / path for path in BESIDE.get(name, ()))]


def lever_lines(name: str) -> int:
    """Code lines of a lever, its kernels included."""
    return sum(len(code_lines(path.read_text(encoding="utf-8"))) for path in lever_files(name))


def dependents(name: str) -> tuple[str, ...]:
    """The levers that build on a lever, and are off with it."""
    return tuple(other for other, lever in LEVERS.items() if name in lever.builds_on)


def load_measurements(folder: Path = DATA) -> list[dict[str, Any]]:
    """All measurements of levers in a folder, those on a GPU first."""
    found = [
        json.loads(path.read_text(encoding="utf-8"))
        for path in sorted(folder.glob("levers_*.json"))
    ]
    return sorted(found, key=lambda measurement: measurement["gpu"] is None)


def gain(row: dict[str, Any]) -> float:
    """How many times as fast the engine is with a lever: the median of runs side by side.

    An engine that is much slower has been run only once.
    """
    return statistics.median(
        fast / slow for fast, slow in zip(row["with"], row["without"], strict=False)
    )


def levers_markdown(measurements: list[dict[str, Any]]) -> str:
    """One table of all levers, and where each column of gains comes from."""
    machines = [f"gain on {measurement['gpu'] or 'a CPU'}" for measurement in measurements]
    rows = [["lever", "what it does", *machines, "code lines"]]
    for name, lever in LEVERS.items():
        base = f" Builds on {', '.join(lever.builds_on)}." if lever.builds_on else ""
        gains = [describe_gains(measurement, name) for measurement in measurements]
        link = f"[`{name}`](../nanovllm/levers/{name}.py)"
        rows.append([link, lever.sentence + base, *gains, str(lever_lines(name))])
    gains = [describe_gains(measurement, ALL) for measurement in measurements]
    rows.append(["all of them", "", *gains, str(sum(map(lever_lines, LEVERS)))])
    for option, lever in QUANTIZATIONS.items():  # what these gain is memory
        link = f"[`{lever.name}`](../nanovllm/levers/{lever.name}.py)"
        sentence = f'{lever.sentence} Off, but for `quantization="{option}"`.'
        rows.append([link, sentence, *["" for _ in measurements], str(lever_lines(lever.name))])
    return "\n\n".join([as_table(rows), *map(describe_measurement, measurements)])


def describe_gains(measurement: dict[str, Any], name: str) -> str:
    """How much faster each workload was with a lever."""
    rows = [row for row in measurement["rows"] if row["lever"] == name]
    return "<br>".join(f"{row['workload']}: {describe_gain(gain(row))}" for row in rows)


def describe_gain(times: float) -> str:
    """Small gains in percent."""
    return f"{times:.1f} times" if times >= 2 else f"{times - 1:+.1%}".replace("%", " %")


def middle_half(runs: list[float]) -> float:
    """How far the middle half of some runs lies apart, as a share of their median."""
    if len(runs) == 1:
        return 0.0
    low, _, high = statistics.quantiles(runs, n=4, method="inclusive")
    return (high - low) / statistics.median(runs)


def describe_measurement(measurement: dict[str, Any]) -> str:
    """What was measured, where, when and by which command."""
    all_runs = [runs for row in measurement["rows"] for runs in (row["with"], row["without"])]
    spread = max(map(middle_half, all_runs))
    rates = [
        f"{row['workload']} {statistics.median(row['with']):,.0f} and "
        f"{statistics.median(row['without']):,.0f}"
        for row in measurement["rows"]
        if row["lever"] == ALL
    ]
    machine, versions = measurement["cpu"], f"torch {measurement['torch']}"
    if measurement["gpu"]:
        machine = f"{measurement['gpu']}, driver {measurement['driver']}"
        versions += f", triton {measurement['triton']}"
    return (
        f"{measurement['gpu'] or 'CPU'}: measured on {measurement['date']} at commit "
        f"{measurement['commit']} by `{measurement['command']}` ({machine}; {versions}; "
        f"{measurement['model']}, {measurement['dtype']}). Medians of up to {measurement['runs']} "
        "pairs of runs in turn; the middle half of the runs of one kind lies within "
        f"{100 * spread:.1f} % or less; a large copy moved "
        f"{measurement['copy_gb_per_s']:,.0f} GB/s. "
        f"Tokens/s with all levers and without any: {'; '.join(rates)}."
    )


def as_table(rows: list[list[str]]) -> str:
    """Markdown; the first row is the head."""
    lines = ["| " + " | ".join(row) + " |" for row in rows]
    lines.insert(1, "|---" * len(rows[0]) + "|")
    return "\n".join(lines)
