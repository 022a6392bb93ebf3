"""From token to slot: each token of a step with its position, the entry of the block table, and its slot in the pool.

One picture a token, in the order in which the model runner prepares them. All of it follows from the trace of a run.
"""

# What a subclass says is documented in StepWidget.
# ruff: noqa: D102

from typing import NamedTuple

from .data_flow import columns_of
from .drawing import SMALL, VERMILION, Drawing, color_of
from .sequence_view import moment, texts_of
from .shapes import EMPTY, FREE, LegendItem, Style, arrow, badge, block, legend_html, tensor
from .step_widget import Frame
from .trace import Trace
from .widgets import _TraceWidget

WIDTH, LEFT, CELL, PER_LINE = 632.0, 100.0, 38.0, 14
TABLE_CELL, LINE, POOL_BLOCK, POOL_ROW = 34.0, 78.0, 74.0, 36.0
PER_POOL_ROW = int(WIDTH // (POOL_BLOCK + 5))
NAMES = ("token", "position", "slot")
LEGEND: list[LegendItem] = [("new", "the token that is looked up", None), ("waiting", "an empty slot", None)]


class Lookup(NamedTuple):
    """A token of a step on its way to its slot.

    Args:
        i: the step of the run.
        k: which token of the step.
        columns: of all tokens of the step: sequence, token id, position, slot.
    """

    i: int
    k: int
    columns: list[tuple[int, ...]]

    @property
    def seq_id(self) -> int:
        """Whose token it is."""
        return self.columns[self.k][0]

    @property
    def position(self) -> int:
        """Where in its text it is."""
        return self.columns[self.k][2]

    @property
    def slot(self) -> int:
        """Where in the pool; -1 if it has no block."""
        return self.columns[self.k][3]


def lookups_of(trace: Trace) -> list[Lookup]:
    """All tokens that a run computes, one after the other."""
    steps = [(i, columns_of(trace, i)) for i in range(len(trace["steps"]))]
    return [Lookup(i, k, columns) for i, columns in steps for k in range(len(columns))]


def held_before(trace: Trace, i: int) -> dict[int, int]:
    """By slot, the sequence whose keys and values lie there when step `i` begins; only those that have blocks in it."""
    size, held = trace["config"]["block_size"], dict[int, int]()
    for key in trace["seqs"]:
        now = moment(trace, int(key), i)
        stored = [p for p in range(now.cached) if p // size < len(now.table)]
        held |= {now.table[p // size] * size + p % size: int(key) for p in stored}
    return held


class SlotMapping(_TraceWidget):
    """A stepper through the tokens of a run: token, position, block table, slot.

    Args:
        trace: a recorded run (`record(llm, prompts, params)`), best of few short requests in a small pool.
        complete: as for `check_trace`.
    """

    title, unit, pace = "slot mapping", "token", 700

    def __init__(self, trace: Trace, complete: bool = True) -> None:
        self.lookups = lookups_of(trace)
        super().__init__(trace, complete=complete)

    @property
    def num_steps(self) -> int:
        return len(self.lookups)

    def first_step(self) -> int:
        if not self.problems:
            return self.default_bookmarks().get("a border", 0)
        return next((n for n, lookup in enumerate(self.lookups) if lookup.i >= self.problems[0].step), 0)

    def label(self, step: int) -> str:
        found = self.lookups[step]
        return f"step {found.i}, token {found.k + 1} of {len(found.columns)}"

    def caption(self, step: int) -> str:
        found, size = self.lookups[step], self.trace["config"]["block_size"]
        name = self.trace["seqs"][str(found.seq_id)]["name"]
        index, rest = divmod(found.position, size)
        where = f"{name}'s token at position {found.position} = {index} * {size} + {rest}. "
        if found.slot < 0:
            return where + f"{name}'s table has no entry {index}, so there is no slot."
        block_id = found.slot // size
        return where + (
            f"Entry {index} of {name}'s table is block {block_id}, so the slot is "
            f"{block_id} * {size} + {rest} = {found.slot}."
        )

    def default_bookmarks(self) -> dict[str, int]:
        marks: dict[str, int] = {}
        for n, found in enumerate(self.lookups):
            kind = self.trace["steps"][found.i]["kind"]
            marks.setdefault(kind, n)
            if found.k and found.seq_id != found.columns[found.k - 1][0] and kind == "prefill":
                marks.setdefault("the next sequence", n)
            if found.position and not found.position % self.trace["config"]["block_size"]:
                marks.setdefault("a border" if kind == "prefill" else "a block more", n)
        return marks

    def draw(self, step: int) -> Frame:
        return Frame((self._draw(self.lookups[step]),), legend_html(LEGEND))

    def still_rows(self, step: int) -> list[list[Drawing]]:
        return [[self._draw(self.lookups[step])]]

    def _draw(self, found: Lookup) -> Drawing:
        trace, size = self.trace, self.trace["config"]["block_size"]
        lines = -(-max(len(lookup.columns) for lookup in self.lookups) // PER_LINE)
        fills = {int(key): color_of(order) for order, key in enumerate(trace["seqs"])}
        top, tables = LINE * lines + 30, {key: moment(trace, key, found.i).table for key in fills}
        pool = top + 28 * len(fills) + 44
        rows = -(-trace["config"]["num_blocks"] // PER_POOL_ROW)
        picture = Drawing(WIDTH, pool + POOL_ROW * rows + 4, f"slot mapping, step {found.i}")
        texts = [texts_of(trace, column[0])[column[2]] for column in found.columns]
        for n in range(0, len(found.columns), PER_LINE):
            self._draw_line(picture, found, texts, n, LINE * (n // PER_LINE), fills)
        index = found.position // size
        picture.text(0, top - 12, "block tables", bold=True)
        entry = pool_spot = (0.0, 0.0)
        for n, (seq_id, table) in enumerate(tables.items()):
            y = top + 28 * n
            badge(picture, 0, y, trace["seqs"][str(seq_id)]["name"], fills[seq_id])
            for j, block_id in enumerate(table):
                current = seq_id == found.seq_id and j == index
                with picture.group(
                    f"entry {j}: block {block_id}", seq=seq_id, entry=j, block=block_id, now=int(current)
                ):
                    style = Style(fills[seq_id], frame=current)
                    block(picture, 30 + TABLE_CELL * j, y, TABLE_CELL, [(style, 1)], [f"#{block_id}"])
                entry = (30 + TABLE_CELL * (j + 0.5), y + 20) if current else entry
        picture.text(0, pool - 12, "pool: number of the block, and its slots", bold=True)
        held, written = held_before(trace, found.i), found.columns[: found.k + 1]
        held |= {slot: seq_id for seq_id, _, _, slot in written if slot >= 0}
        for block_id in range(trace["config"]["num_blocks"]):
            x, y = block_id % PER_POOL_ROW * (POOL_BLOCK + 5), pool + block_id // PER_POOL_ROW * POOL_ROW
            slots = range(block_id * size, (block_id + 1) * size)
            picture.text(x, y + 11, f"#{block_id}", SMALL, mono=True)
            for n, slot in enumerate(slots):
                style = Style(fills[held[slot]], frame=slot == found.slot) if slot in held else FREE
                width = (POOL_BLOCK - 22) / size
                with picture.group(f"slot {slot}", slot=slot, owner=held.get(slot, ""), now=int(slot == found.slot)):
                    block(picture, x + 22 + width * n, y, width, [(style, 1)], height=24)
                pool_spot = (x + 22 + width * (n + 0.5), y) if slot == found.slot else pool_spot
        if found.slot >= 0:
            arrow(picture, *entry, *pool_spot, strong=True)
        return picture

    def _draw_line(
        self, picture: Drawing, found: Lookup, texts: list[str], n: int, y: float, fills: dict[int, str]
    ) -> None:
        """A line of the step's tokens; slots that are not looked up yet are empty."""
        part = found.columns[n : n + PER_LINE]
        shown = [[texts[n + j], str(column[2]), str(column[3])] for j, column in enumerate(part)]
        cells = [
            [(words[row] if row < 2 or n + j <= found.k else "", self._style(found, n + j, row, fills[column[0]]))
             for j, (words, column) in enumerate(zip(shown, part, strict=True))]
            for row in range(3)
        ]  # fmt: skip
        values = " ".join(str(column[3]) for column in part[: max(0, found.k + 1 - n)])
        with picture.group(f"slots: {values}", line=n // PER_LINE, slots=values):
            tensor(picture, LEFT, y + 4, cells, CELL, names=NAMES)
        if n <= found.k < n + PER_LINE:
            x = LEFT + CELL * (found.k - n)
            picture.rect(x, y + 4, CELL, 60, None, VERMILION, 3)

    def _style(self, found: Lookup, k: int, row: int, fill: str) -> Style:
        return EMPTY if row == 2 and k > found.k else Style(fill)
