"""What an instructor reads of a class: a table, a page for each learner, JUnit XML, and what most got wrong."""

import csv
from collections import Counter
from pathlib import Path
from xml.etree import ElementTree

from .grades import Grade

WORDS = {"passed": "passed", "failed": "not right", "todo": "not written"}


def write(grades: list[Grade], exercise_ids: list[str], folder: Path) -> list[Path]:
    """Write grades.csv, class.md, junit.xml and feedback/<student>.md; returns their paths."""
    feedback = folder / "feedback"
    feedback.mkdir(parents=True, exist_ok=True)
    texts = {feedback / f"{grade.submission.student}.md": page(grade) for grade in grades}
    texts[folder / "class.md"] = summary(grades, exercise_ids)
    for path, text in texts.items():
        path.write_text(text, encoding="utf-8")
    _write_table(grades, exercise_ids, folder / "grades.csv")
    ElementTree.ElementTree(junit(grades)).write(folder / "junit.xml", encoding="utf-8", xml_declaration=True)
    return [folder / "grades.csv", folder / "class.md", folder / "junit.xml", feedback]


def _write_table(grades: list[Grade], exercise_ids: list[str], path: Path) -> None:
    with path.open("w", newline="", encoding="utf-8-sig") as file:  # which spreadsheets take for what it is
        table = csv.writer(file)
        table.writerow(["student", "passed", *exercise_ids, "together", "remarks", "seconds"])
        for grade in grades:
            words = [WORDS[result["status"]] for result in grade.results]
            remarks = "; ".join(grade.submission.remarks)
            cells = [grade.submission.student, grade.num_passed, *words, grade.together, remarks]
            table.writerow([*map(_plain, cells), f"{grade.seconds:.0f}"])


def _plain(cell: object) -> object:
    """A text that no spreadsheet takes for a formula."""
    return f"'{cell}" if isinstance(cell, str) and cell[:1] in ("=", "+", "-", "@") else cell


def page(grade: Grade) -> str:
    """What one learner is told, in the words of the checks."""
    lines = [f"# {grade.submission.student}", ""]
    lines += [f"{grade.num_passed} of {len(grade.results)} exercises are right. {grade.together}".rstrip(), ""]
    lines += [f"* {remark}" for remark in grade.submission.remarks]
    missing = [result["id"] for result in grade.results if result["status"] == "todo"]
    lines += [f"* not written: {', '.join(missing)}"] if missing else []
    for status in ("failed", "passed"):
        found = [result["feedback"] for result in grade.results if result["status"] == status]
        lines += ["", f"## {WORDS[status].capitalize()}", "", "````text", "\n\n".join(found), "````"] if found else []
    return "\n".join(lines) + "\n"


def summary(grades: list[Grade], exercise_ids: list[str]) -> str:
    """How the class did: each exercise, and the mistakes that several made."""
    lines = [f"# {len(grades)} submissions", "", "| exercise | passed | not right | not written |", "|---|--:|--:|--:|"]
    by_exercise = {id_: [r for grade in grades for r in grade.results if r["id"] == id_] for id_ in exercise_ids}
    for exercise_id, results in by_exercise.items():
        counts = Counter(result["status"] for result in results)
        lines.append(f"| {exercise_id} | {counts['passed']} | {counts['failed']} | {counts['todo']} |")
    failed = [(r["id"], r["about"]) for results in by_exercise.values() for r in results if r["status"] == "failed"]
    lines += ["", "## Most frequent mistakes", ""]
    for (id_, about), count in Counter(failed).most_common(20):
        lines.append(f"* **{id_}**, {'once' if count == 1 else f'{count} times'}: {about}")
    remarks = [(grade.submission.student, remark) for grade in grades for remark in grade.submission.remarks]
    lines += ["", "## Submissions to look at", "", *(f"* {student}: {remark}" for student, remark in remarks)]
    return "\n".join(lines) + "\n"


def junit(grades: list[Grade]) -> ElementTree.Element:
    """A suite for each learner, a case for each exercise; what is not written counts as skipped."""
    root = ElementTree.Element("testsuites")
    for grade in grades:
        counts = Counter(result["status"] for result in grade.results)
        numbers = {"tests": len(grade.results), "failures": counts["failed"], "skipped": counts["todo"]}
        attributes = {"name": _printable(grade.submission.student)} | {key: str(n) for key, n in numbers.items()}
        suite = ElementTree.SubElement(root, "testsuite", attributes)
        for result in grade.results:
            case = ElementTree.SubElement(suite, "testcase", classname=result["id"].split(".")[0], name=result["id"])
            if result["status"] == "failed":
                failure = ElementTree.SubElement(case, "failure", message=_printable(result["about"]))
                failure.text = _printable(result["feedback"])
            elif result["status"] == "todo":
                ElementTree.SubElement(case, "skipped")
    return root


def _printable(text: str) -> str:
    """Without what XML cannot hold."""
    return "".join(c for c in text if c in "\t\n" or (c >= " " and not "\ud800" <= c <= "\udfff" and c < "\ufffe"))
