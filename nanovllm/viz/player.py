"""A step player as one self-contained piece of HTML: no kernel, no network, no libraries.

The frames travel compressed inside the page; `player.js` makes the controls, so that where scripts are not run (an
untrusted notebook, a mail) only the still picture shows.
"""

import base64
import gzip
import html
import json
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


def _read(name: str) -> str:
    """A file beside this one, as every picture carries it: without indentation and lines that are only comments."""
    text = Path(__file__).with_name(name).read_text(encoding="utf-8")
    return re.sub(r"(?m)^\s*(?://.*|/\*.*\*/)?\n|^[ \t]+", "", text)


CSS, SCRIPT, MOTION = _read("player.css"), _read("player.js"), _read("motion.js")


@dataclass
class View:
    """What stays while the frames change, and where the playhead stands on it.

    Args:
        name: what the x axis counts.
        base: HTML.
        x, widths: left edge and width of each step, in units of the drawings; empty without a playhead.
    """

    name: str
    base: str
    x: list[float] = field(default_factory=list)
    widths: list[float] = field(default_factory=list)


@dataclass
class PlayerData:
    """What a player shows; one entry of `frames`, `captions` and `labels` a step.

    Args:
        title, unit: names of the whole and of a step, for screen readers.
        views: one or two; the frame of the step is shown after the base of the first, or of the one chosen.
        moves: by step, what led to it, if more than one thing: kind, sentence of the caption, frame, and a key.
        questions: by step, what has to be predicted before it shows.
        group: players of one page with the same group move together.
        pace: milliseconds that a step is shown while it plays.
    """

    title: str
    frames: list[str]
    captions: list[str]
    labels: list[str]
    unit: str = "step"
    views: list[View] = field(default_factory=list)
    first_view: int = 0
    bookmarks: list[tuple[str, int]] = field(default_factory=list)
    moves: list[list[tuple[str, str, str, str]]] = field(default_factory=list)
    questions: dict[int, dict[str, str]] = field(default_factory=dict)
    start: int = 0
    footer: str = ""
    group: str = ""
    pace: int = 900


def html_player(data: PlayerData, png: bytes = b"", live: str = "") -> str:
    """The player as HTML; the script that moves things is only with pictures of which elements have a `data-key`.

    Args:
        data: what it shows.
        png: what shows where scripts are not run.
        live: CSS class of the widget for which this player stands in when it is gone.
    """
    parts, frames = share_parts([*data.frames, *(frame for moves in data.moves for _, _, frame, _ in moves)])
    between = iter(frames[len(data.frames) :])
    moves = [[(kind, sentence, next(between), key) for kind, sentence, _, key in moves] for moves in data.moves]
    content: dict[str, Any] = vars(data) | {"views": [vars(view) for view in data.views]}
    content |= {"parts": parts, "frames": frames[: len(data.frames)], "moves": moves}
    packed = gzip.compress(json.dumps(content).encode(), mtime=0)
    script = f"{{{MOTION}{SCRIPT}}}" if any("data-key" in part for part in parts) else SCRIPT
    still = ""
    if png:
        text = html.escape("; ".join(dict.fromkeys([data.title, data.captions[data.start]])))
        style = 'style="max-width:100%;background:#fff"'  # where neither scripts nor style sheets are kept
        still = f'<img class="nv-still" {style} alt="{text}" src="data:image/png;base64,{as_base64(png)}">'
    return (
        f'<div class="nv nv-player"{f" data-live={live}" if live else ""}>{still}<style>{CSS}</style>'
        f'<script type="application/gzip">{as_base64(packed)}</script><script>{script}</script></div>'
    )


def share_parts(frames: list[str]) -> tuple[list[str], list[list[int]]]:
    """Frames as lists of numbers of their parts: most of a picture is the same from step to step."""
    numbers: dict[str, int] = {}
    result = []
    for frame in frames:
        parts = re.split(r"(?=<g |<text )", frame)
        result.append([numbers.setdefault(part, len(numbers)) for part in parts])
    return list(numbers), result


def as_base64(data: bytes) -> str:
    """Bytes as text for HTML and for Jupyter's messages."""
    return base64.b64encode(data).decode()
