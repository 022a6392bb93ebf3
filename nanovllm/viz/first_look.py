"""An engine at work, for whoever sees one for the first time: requests whose texts grow, and the memory behind them.

It is a recorded run, as in all pictures. A step shows what arrived, who got blocks of memory, what the model computed,
and who is done.
"""

# What a subclass says is documented in StepWidget.
# ruff: noqa: D102

from .block_table import lay_out
from .drawing import MONO_WIDTH, SMALL, VERMILION, Drawing, color_of, visible
from .replay import COMPUTE, Moment
from .sequence_view import texts_of
from .shapes import FREE, LegendItem, Style, badge, block, legend, legend_html
from .step_widget import Frame, Move
from .trace import State, Trace, name_of, owners, state_before
from .widgets import _TraceWidget

WIDTH, LEFT, ROW, PER_ROW, SIDE = 632.0, 92.0, 34.0, 3, 196.0
LEGEND: list[LegendItem] = [
    ("prefill", "written by the engine", "#C0C0C0"),
    ("new", "new in this step", None),
    ("waiting", "kept, free for others", None),
]


class FirstLook(_TraceWidget):
    """Requests, and the blocks of memory that hold what the model knows of their tokens, step by step.

    Args:
        trace: a short run of few requests, with texts.
    """

    title = "an engine at work"

    def __init__(self, trace: Trace) -> None:
        self._moments, self._held = lay_out(trace).moments, lay_out(trace).contents
        super().__init__(trace)

    def first_step(self) -> int:
        return 0

    def default_bookmarks(self) -> dict[str, int]:
        names = {"share": "shared memory", "finish": "first one done"}
        found: dict[str, int] = {"first request": 1}
        for i, step in enumerate(self.trace["steps"]):
            for event in step["events"]:
                if event["event"] in names:
                    found.setdefault(names[event["event"]], i)
        return found

    def told(self, step: int) -> list[tuple[Moment, str]]:
        """The moments that are shown of a step, each with its sentence."""
        return [(moment, text) for moment in self._moments[step] if (text := self._tell(step, moment))]

    def _tell(self, step: int, moment: Moment) -> str:
        event, kind = moment.event, moment.event["event"]
        if kind == COMPUTE:
            return self._tell_work(step)
        name = name_of(self.trace, event["seq"])
        if kind == "admit":
            count, size = len(moment.state["seqs"][str(event["seq"])]["table"]), self.trace["config"]["block_size"]
            shared = event["cached"] // size
            begins = f"{name} begins like another: {event['cached']} of its tokens are in memory already. " * bool(
                shared
            )
            return f"{begins}{name} gets room for its tokens: {count - shared} new block{'s' * (count - shared > 1)}"
        return {"arrive": f"{name} arrives", "finish": f"{name} is done, and its blocks are free again"}.get(kind, "")

    def _tell_work(self, step: int) -> str:
        work = self.trace["steps"][step]["scheduled"]
        names = " and ".join([", ".join(name_of(self.trace, w["seq"]) for w in work[:-1])] * (len(work) > 1))
        names = f"{names} and " * bool(names) + name_of(self.trace, work[-1]["seq"])
        if self.trace["steps"][step]["kind"] == "prefill":
            return f"The model reads {sum(w['n'] for w in work)} tokens of {names} at once, and one new token comes out"
        return f"One more token for {names}, in the same step" if len(work) > 1 else f"One more token for {names}"

    def describe(self, step: int) -> str:
        told = [text for _, text in self.told(step)]
        return ". ".join(told or ["Requests will come. Step on with the right arrow key"]) + "."

    def moves(self, step: int) -> list[Move]:
        moves = [Move(m.event["event"], text, self._frame(step, m.state), "") for m, text in self.told(step)]
        return [*moves[:-1], moves[-1]._replace(frame=self.draw(step))] if moves else []

    def draw(self, step: int) -> Frame:
        return self._frame(step, self.trace["steps"][step]["after"])

    def still_rows(self, step: int) -> list[list[Drawing]]:
        return [list(self.draw(step).drawings), [legend(LEGEND, WIDTH)]]

    def _frame(self, step: int, state: State) -> Frame:
        return Frame((self._draw_requests(step, state), self._draw_memory(step, state)), legend_html(LEGEND))

    def _draw_requests(self, step: int, state: State) -> Drawing:
        picture = Drawing(WIDTH, 22 + ROW * len(self.trace["seqs"]), "requests and their texts")
        picture.text(0, 14, "Requests", bold=True)
        for n, (seq_id, seq) in enumerate(self.trace["seqs"].items()):
            now, y, name = state["seqs"].get(seq_id), 24 + ROW * n, seq["name"]
            if not now and seq["arrive"] >= step:
                continue
            old = state_before(self.trace, step)["seqs"].get(seq_id, {"len": len(seq["prompt_ids"])})
            with picture.group(f"request {name}", focusable=True, key=name, owners=name, row=name):
                badge(picture, 0, y, name, color_of(n))
            with picture.group(key=f"{name}:status"):
                picture.text(28, y + 14, now["status"].lower() if now else "done", SMALL)
            self._draw_text(
                picture, int(seq_id), now["len"] if now else len(texts_of(self.trace, int(seq_id))), old["len"], y
            )
        return picture

    def _color(self, seq_id: int) -> str:
        return color_of(list(self.trace["seqs"]).index(str(seq_id)))

    def _draw_text(self, picture: Drawing, seq_id: int, count: int, old: int, y: float) -> None:
        """The tokens of a request side by side: those that it came with, and on its color those that were written."""
        x, prompt = LEFT, len(self.trace["seqs"][str(seq_id)]["prompt_ids"])
        for k, text in enumerate(texts_of(self.trace, seq_id)[:count]):
            width = 8 + SMALL * MONO_WIDTH * len(visible(text.removeprefix(" ")))
            with picture.group(f"token {k} of {name_of(self.trace, seq_id)}", key=f"{name_of(self.trace, seq_id)}{k}"):
                fill = self._color(seq_id) if k >= prompt else None
                block(picture, x, y, width, [(Style(fill), 1)], [text])
                if k >= max(prompt, old):
                    picture.rect(x + 1, y + 1, width - 2, 18, None, VERMILION, 3)
            x += width + 2

    def _draw_memory(self, step: int, state: State) -> Drawing:
        count, named = self.trace["config"]["num_blocks"], owners(state)
        picture = Drawing(WIDTH, 22 + 46.0 * -(-count // PER_ROW), "memory in blocks")
        used = f"{len(named)} of {count} blocks in use, room for {self.trace['config']['block_size']} tokens each"
        picture.text(0, 14, "Memory (KV cache)", bold=True)
        picture.text(160, 14, used, SMALL)
        for block_id in range(count):
            x, y = block_id % PER_ROW * (SIDE + 22), 22 + block_id // PER_ROW * 46.0
            names = [name_of(self.trace, seq_id) for seq_id in named.get(block_id, [])]
            is_kept = not names and str(block_id) in state["hash"]
            data = {"key": block_id, "block": block_id, "owners": " ".join(names) or "-"}
            with picture.group(f"block {block_id}", focusable=True, **data):
                block(picture, x, y + 16, SIDE, [(FREE if is_kept else Style(), self.trace["config"]["block_size"])])
            with picture.group(key=f"{block_id}:owners"):
                picture.text(x, y + 12, f"#{block_id} " + (" and ".join(names) or "free"), SMALL, bold=len(names) > 1)
            self._draw_slots(picture, step, state, block_id, x, y + 16)
        return picture

    def _draw_slots(self, picture: Drawing, step: int, state: State, block_id: int, x: float, y: float) -> None:
        """What stands in a block; what is only kept stands in the hatched block."""
        size, seq_ids = self.trace["config"]["block_size"], owners(state).get(block_id, [])
        held = self._held[step if seq_ids else max(0, step - 1)].get(block_id)
        if not held or not (seq_ids or str(block_id) in state["hash"]):
            return
        seq_id = seq_ids[0] if seq_ids else held[0]
        index = state["seqs"][str(seq_id)]["table"].index(block_id) if seq_ids else held[1]
        stored = state["seqs"][str(seq_id)]["kv"] if seq_ids else (index + 1) * size
        fill, name = self._color(seq_id) if seq_ids else None, name_of(self.trace, seq_id)
        for k in range(index * size, min(stored, (index + 1) * size)):
            with picture.group(key=f"{name}{k}>{block_id}"):
                left, text = x + k % size * SIDE / size, texts_of(self.trace, seq_id)[k]
                block(picture, left, y, SIDE / size, [(Style(fill), 1)], [text])
