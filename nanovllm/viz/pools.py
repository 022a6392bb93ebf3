"""Two small pools beside each other: how a case should have left the blocks and queues, and how an answer left them.

A scene is plain data, taken by the graders (`exercises/kit/grading.py`): "blocks", for each its reference count, and
whether it is among the free ones, among the used ones, and known by its hash; the ids in "free", the next one first;
"tables", "facts" (a few words on a sequence) and "queues" by name.
"""

import html
import textwrap
from typing import Any

from .drawing import FONT_SIZE, SMALL, VERMILION, Drawing, color_of, ink_on
from .player import CSS
from .shapes import FREE, Style, block

Scene = dict[str, Any]
WIDTH, PER_ROW, CELL, HEIGHT = 340.0, 5, 68.0, 62.0
MOST_BLOCKS, MOST_FREE = 20, 12


def owners_of(scene: Scene, block_id: int) -> list[str]:
    """Names of those in whose tables a block is, each as often as it is there."""
    return [name for name, table in scene["tables"].items() for other in table if other == block_id]


def state_of(scene: Scene, block_id: int) -> str:
    """A block's state in a word or two, also if it is one that must not be."""
    _, is_free, is_used, is_named = scene["blocks"][block_id]
    owners = "+".join(owners_of(scene, block_id))
    if owners:
        named = f"{owners} hashed" if is_named else owners
        return named if is_used and not is_free else f"{owners}, free?"
    if is_free:
        return "free, used?" if is_used else "cached" if is_named else "free"
    return "used?" if is_used else "lost"


def differences(one: Scene, other: Scene) -> list[str]:
    """What is not the same in two scenes: blocks as "#3", tables and queues by their names, "free"."""
    num_blocks = min(len(one["blocks"]), len(other["blocks"]))
    facts = [[(s["blocks"][i], sorted(owners_of(s, i))) for i in range(num_blocks)] for s in (one, other)]
    found = [f"#{i}" for i in range(num_blocks) if facts[0][i] != facts[1][i]]
    for kinds in (("tables", "facts"), ("queues",)):
        names = dict.fromkeys(name for scene in (one, other) for name in scene[kinds[0]])
        found += [n for n in names if any(one[kind].get(n) != other[kind].get(n) for kind in kinds)]
    return found + ["free"] * (one["free"] != other["free"])


def draw_scene(scene: Scene, title: str, differs: list[str], shown: list[int]) -> Drawing:
    """A pool: its blocks, the free ones in their order, the tables and the queues; what differs has a mark."""
    picture = Drawing(WIDTH, 0, f"{title}; not the same: {', '.join(differs) or 'nothing'}")
    picture.text(0, 14, title, bold=True)
    names = list(scene["tables"])
    for n, block_id in enumerate(shown):
        x, y = 4 + n % PER_ROW * CELL, 26 + n // PER_ROW * HEIGHT
        _draw_block(picture, scene, block_id, x, y, f"#{block_id}" in differs, names)
    y = 26 + HEIGHT * -(-len(shown) // PER_ROW) + 8
    ids = [f"#{block_id}" for block_id in scene["free"]]
    if len(ids) > MOST_FREE:
        ids[4:-6] = [f"...\xa0{len(ids) - 10}\xa0more\xa0..."]
    free = " ".join(ids) or "none"
    lines = [("free", "free, the next one first", free)]
    for name, table in scene["tables"].items():
        lines.append((name, f"{name}, {scene['facts'][name]}", " ".join(f"#{i}" for i in table) or "no blocks"))
    lines += [(name, name, " ".join(queue) or "nobody") for name, queue in scene["queues"].items()]
    for key, name, text in lines:
        mark = "≠ " if key in differs else ""
        for k, line in enumerate(textwrap.wrap(f"{mark}{name}: {text}", int(WIDTH / (FONT_SIZE * 0.56)))[:4]):
            picture.text(12 if k else 0, y + 12, line, SMALL, bold=bool(mark))
            y += 17
    picture.height = y + 4
    return picture


def _draw_block(
    picture: Drawing, scene: Scene, block_id: int, x: float, y: float, is_other: bool, names: list[str]
) -> None:
    owners, state = owners_of(scene, block_id), state_of(scene, block_id)
    fill = color_of(names.index(owners[0])) if owners else None
    ref = scene["blocks"][block_id][0]
    words = f"block {block_id}: {state}, reference count {ref}"
    with picture.group(words, block=block_id, other="yes" if is_other else "-"):
        picture.text(x, y + 8, f"{'≠ ' if is_other else ''}#{block_id}", SMALL, mono=True, bold=is_other)
        style = Style(fill) if owners else FREE if state == "cached" else Style()
        block(picture, x, y + 15, CELL - 14, [(style, 1)], [], 20)
        ink = ink_on(fill)
        picture.text(x + (CELL - 14) / 2, y + 29, f"ref {ref}", SMALL, ink, "middle", mono=True)
        if is_other:
            picture.rect(x - 3, y + 12, CELL - 8, 26, None, VERMILION, 2, dashed=True)
        picture.text(x, y + 49, state, SMALL)


def compare(expected: Scene | None, got: Scene) -> str:
    """Both pools for a page; one of them where they are the same, or where the right one is not known."""
    differs = differences(expected, got) if expected else []
    scenes = {"Expected": expected, "Got": got} if expected and differs else {"The pool in that moment": got}
    known = [scene for scene in scenes.values() if scene]
    count = len(got["blocks"])
    told = [i for i in range(count) if f"#{i}" in differs or any(owners_of(s, i) or s["blocks"][i][3] for s in known)]
    shown = list(range(count)) if count <= MOST_BLOCKS else told[:MOST_BLOCKS]
    drawings = [draw_scene(scene, title, differs, shown) for title, scene in scenes.items() if scene]
    words = [{"free": "the free blocks"}.get(name, name) for name in differs]
    note = "Blocks, tables and queues are as they should be: what differs is what was looked at."
    note = f"≠ Not the same: {', '.join(words)}." if differs else note if expected else ""
    note += f" {count - len(shown)} blocks are not drawn." if len(shown) < count else ""
    body = "".join(drawing.svg() for drawing in drawings)
    footer = f'<div class="nv-footer">{html.escape(note)}</div>'
    return f'<div class="nv nv-pools"><style>{CSS}</style><div class="nv-stage">{body}</div>{footer}</div>'
