"""What an instructor reads of a class: a table, a page for each learner, JUnit XML, and what most got wrong.

What the last three look like is in the templates beside this file.
"""

import csv
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import jinja2

from .grades import Grade

WORDS = {"passed": "passed", "failed": "not right", "todo": "not written"}
UTF8: Any = {"encoding": "utf-8", "errors": "replace"}  # an error's text may hold what no file can
SHOWN = 5  # mistakes of an exercise; more of them only where several made them
LOADER = jinja2.FileSystemLoader(Path(__file__).parent)
TEMPLATES = jinja2.Environment(loader=LOADER, trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True)


def write(grades: list[Grade], exercise_ids: list[str], folder: Path, others: Iterable[str] = ()) -> list[Path]:
    """Write grades.csv, class.md, junit.xml and feedback/<student>.md; returns their paths.

    Args:
        others: what was not graded, a line each.
    """
    paths = [folder / name for name in ("grades.csv", "class.md", "junit.xml", "feedback")]
    paths[-1].mkdir(parents=True, exist_ok=True)
    for grade in grades:
        text = TEMPLATES.get_template("page.md.j2").render(grade=grade, words=WORDS)
        (paths[-1] / f"{grade.submission.student}.md").write_text(text, **UTF8)
    # The mark at its start tells spreadsheets how it is encoded.
    with paths[0].open("w", newline="", encoding="utf-8-sig", errors="replace") as file:
        table = csv.writer(file)
        table.writerow(["student", "passed", *exercise_ids, "together", "remarks", "seconds"])
        table.writerows(map(_row, grades))
    paths[1].write_text(summary(grades, exercise_ids, others), **UTF8)
    paths[2].write_text(
        TEMPLATES.get_template("junit.xml.j2").render(grades=grades, clean=_printable), encoding="utf-8"
    )
    return paths


def _row(grade: Grade) -> list[object]:
    words = [WORDS[result["status"]] for result in grade.results]
    cells = [grade.submission.student, grade.num_passed, *words, grade.together, "; ".join(grade.submission.remarks)]
    # A text that no spreadsheet takes for a formula.
    safe = (f"'{cell}" if isinstance(cell, str) and cell[:1] in ("=", "+", "-", "@") else cell for cell in cells)
    return [*safe, f"{grade.seconds:.0f}"]


def summary(grades: list[Grade], exercise_ids: list[str], others: Iterable[str] = ()) -> str:
    """How the class did: each exercise, its mistakes, who may need somebody, and what is to be looked at."""
    exercises = [_exercise(exercise_id, i, grades) for i, exercise_id in enumerate(exercise_ids)]
    counts = [(grade.submission.student, _counts(grade.results)) for grade in grades]
    # Of those who passed as few, who tried more comes first; a fifth of the class is shown.
    left = sorted((entry for entry in counts if sum(entry[1][1:])), key=lambda entry: (entry[1][0], -entry[1][1]))
    number = max(3, len(grades) // 5)
    alike = [entry for entry in left[number:] if entry[1][0] == left[number - 1][1][0]]
    words = {"exercises": exercises, "fewest": left[:number], "alike": alike, "grades": grades, "others": others}
    return TEMPLATES.get_template("class.md.j2").render(words)


def _exercise(exercise_id: str, place: int, grades: list[Grade]) -> dict[str, Any]:
    """Numbers of an exercise, and what was not right with whose it was; of what only one has, a few and the rest."""
    whose: dict[tuple[str, str], list[str]] = {}
    for grade in grades:
        if (result := grade.results[place])["status"] == "failed":
            whose.setdefault((result["about"], result.get("case", "")), []).append(grade.submission.student)
    mistakes = sorted(whose.items(), key=lambda entry: -len(entry[1]))
    rest = [names[0] for _, names in mistakes[SHOWN:] if len(names) == 1]
    mistakes = mistakes[:SHOWN] + [entry for entry in mistakes[SHOWN:] if len(entry[1]) > 1]
    counts = _counts(grade.results[place] for grade in grades)
    return {"id": exercise_id, "counts": counts, "mistakes": mistakes, "rest": rest}


def _counts(results: Iterable[dict[str, Any]]) -> list[int]:
    """How many are passed, not right, not written."""
    statuses = [result["status"] for result in results]
    return [statuses.count(status) for status in WORDS]


def _printable(text: str) -> str:
    """Without what XML cannot hold, and with what means something in it escaped."""
    kept = (c for c in text if c in "\t\n" or (c >= " " and not "\ud800" <= c <= "\udfff" and c < "\ufffe"))
    return str(jinja2.filters.escape("".join(kept)))
