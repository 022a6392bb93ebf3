"""A phrase language: one alternative a line, ``{a|b}`` picks one, ``[slot]`` is filled in.

Every random text of the data set is written in it, so that a meaning is stated once and told in many ways.
"""

from __future__ import annotations

import hashlib
import random
import re
from functools import cache

_SENTENCE = re.compile(r'(^|[.?] |\." |\n)("?)([a-z])')


def held_out(*key: object, one_in: int = 16) -> bool:
    """Whether this operand or phrasing belongs to the held-out part; the same in every process and run."""
    digest = hashlib.blake2b("|".join(map(str, key)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") % one_in == 0


def _parse(text: str, i: int = 0, depth: int = 0) -> tuple[list, int]:
    """Parse alternatives from position i: a list of sequences of str, ("slot", name) and ("alt", sequences)."""
    alternatives: list[list] = [[]]
    literal = ""

    def flush() -> None:
        nonlocal literal
        if literal:
            alternatives[-1].append(literal)
            literal = ""

    while i < len(text):
        c = text[i]
        if c == "{":
            flush()
            inner, i = _parse(text, i + 1, depth + 1)
            alternatives[-1].append(("alt", inner))
        elif c == "[":
            flush()
            end = text.index("]", i)
            alternatives[-1].append(("slot", text[i + 1 : end]))
            i = end + 1
        elif c == "}" and depth:
            flush()
            return alternatives, i + 1
        elif c == "|" and depth:
            flush()
            alternatives.append([])
            i += 1
        else:
            literal += c
            i += 1
    if depth:
        raise ValueError(f"unclosed brace in {text!r}")
    flush()
    return alternatives, i


@cache
def _lines(template: str) -> list[list]:
    return [_parse(line.strip())[0][0] for line in template.strip().splitlines()]


def _render(rng: random.Random, sequence: list, slots: dict[str, str], out: list[str]) -> None:
    for part in sequence:
        if isinstance(part, str):
            out.append(part)
        elif part[0] == "slot":
            out.append(slots[part[1]])
        else:
            options = part[1]
            _render(rng, options[int(rng.random() * len(options))], slots, out)


def expand(rng: random.Random, template: str, slots: dict[str, str] | None = None) -> str:
    """One random rendering of the template.

    Raises KeyError for a slot without a value and ValueError for unbalanced braces.
    """
    lines = _lines(template)
    out: list[str] = []
    _render(rng, lines[int(rng.random() * len(lines))], slots or {}, out)
    return "".join(out)


def sentences(text: str) -> str:
    """The text with a capital letter at the start of every sentence and no doubled spaces."""
    text = re.sub(r"  +", " ", text).strip()
    return _SENTENCE.sub(lambda m: m[1] + m[2] + m[3].upper(), text)
