"""The data flow of a run: from a request's text over the tensors of a step to the token that comes back.

Every step of the engine is shown as four moments, and one more where requests come in. All numbers are those of the
run: tokens, tables and counts are in the trace, and positions and slots follow from them as in `ModelRunner`.
"""

# What a subclass says is documented in StepWidget.
# ruff: noqa: D102

from .drawing import BORDER, SMALL, VERMILION, Drawing, color_of
from .sequence_view import Moment, draw_legend, moment, style_of, texts_of
from .shapes import Style, arrow, badge, block, tensor
from .step_widget import Frame
from .trace import Trace, state_before, tokens_of
from .widgets import _TraceWidget

ADD, SCHEDULE, PREPARE, RUN, POSTPROCESS = range(5)  # stages
STAGES = ("add_request", "schedule", "prepare", "run_model", "postprocess")
FILES = ("llm_engine.py", "scheduler.py", "model_runner.py", "models/, layers/", "scheduler.py")
WIDTH, LEFT, CELL, NARROW, RESULT = 632.0, 66.0, 42.0, 34.0, 156.0
MOST_TOKENS = int((WIDTH - LEFT) // CELL)  # of a sequence; of a longer one the last blocks are shown
NEUTRAL = "#B0B0B0"  # of the legend: each sequence has a color of its own
NAMES = 96.0  # where the cells of the tensors begin
MOST_COLUMNS, PER_LINE = int((WIDTH - NAMES) // NARROW), int(WIDTH // RESULT)
TOP, ROW, IDS, TABLE = 126.0, 66.0, 33.0, 37.0  # the sequences; below the top of each row


def stages_of(trace: Trace) -> list[tuple[int, int]]:
    """(step, stage) of each picture: requests that come in, then the four stages of each step that computes."""
    new, steps = {seq["arrive"] for seq in trace["seqs"].values()}, trace["steps"]
    return [(i, k) for i, step in enumerate(steps) for k in range(5) if (step["scheduled"] if k else i in new)]


def columns_of(trace: Trace, i: int) -> list[tuple[int, ...]]:
    """Sequence, token id, position and slot (-1: no block) of each token of step `i`, in the order of its tensors."""
    size, columns = trace["config"]["block_size"], list[tuple[int, ...]]()
    for item in trace["steps"][i]["scheduled"]:
        now, tokens = moment(trace, item["seq"], i), tokens_of(trace, item["seq"])
        for position in range(now.cached, now.cached + now.scheduled):
            block_id = dict(enumerate(now.table)).get(position // size)
            slot = -1 if block_id is None else block_id * size + position % size
            columns.append((item["seq"], tokens[position], position, slot))
    return columns


def sampled_in(trace: Trace, i: int) -> dict[int, int]:
    """Position of the token that each sequence gets in step `i`; one that is cut gets none."""
    parts = [(item["seq"], moment(trace, item["seq"], i)) for item in trace["steps"][i]["scheduled"]]
    return {seq_id: now.num_tokens for seq_id, now in parts if now.chosen}


def state_at(trace: Trace, seq_id: int, i: int, stage: int) -> Moment:
    """A sequence at a stage of step `i`; a sampled token is its own once it has been taken in."""
    known, now = trace["seqs"][str(seq_id)], moment(trace, seq_id, i)
    if known["arrive"] > i or (known["arrive"] == i and stage == ADD):
        return Moment("WAITING", waiting=len(known["prompt_ids"])) if known["arrive"] == i else Moment("")
    if stage == ADD:
        return state_at(trace, seq_id, i - 1, POSTPROCESS)
    if stage == POSTPROCESS and now.scheduled:
        table = () if now.status == "FINISHED" else now.table
        return now._replace(cached=now.cached + now.scheduled, scheduled=0, table=table)
    return now._replace(status="RUNNING" if now.scheduled and not now.waiting else now.status, chosen=0)


def queues_at(trace: Trace, i: int, stage: int) -> dict[str, list[int]]:
    """Who waits and who runs, in the order of the queues."""
    before, after = state_before(trace, i), trace["steps"][i]["after"]
    if stage == ADD:
        new = [int(key) for key, seq in trace["seqs"].items() if seq["arrive"] == i]
        return {"waiting": [*before["waiting"], *new], "running": before["running"]}
    if stage == POSTPROCESS:
        return {name: after[name] for name in ("waiting", "running")}
    ids = dict.fromkeys([*before["running"], *(item["seq"] for item in trace["steps"][i]["scheduled"])])
    running = [seq_id for seq_id in ids if state_at(trace, seq_id, i, stage).status == "RUNNING"]
    return {"waiting": after["waiting"], "running": running}


def draw_flow(trace: Trace, i: int, stage: int) -> Drawing:
    """Everything at a stage of step `i`: who does what, the queues, the sequences, the tensors, and the result."""
    lines = max(-(-len(step["scheduled"]) // PER_LINE) for step in trace["steps"]) or 1
    bottom = TOP + ROW * len(trace["seqs"])
    picture = Drawing(WIDTH, bottom + 88 + 26 * lines, f"data flow: step {i}, {STAGES[stage]}")
    for n, (name, file) in enumerate(zip(STAGES, FILES, strict=True)):
        with picture.group(f"{name}, in {file}", stage=n, current=int(n == stage)):
            picture.rect(130 * n, 1, 112, 38, None, *((VERMILION, 3) if n == stage else (BORDER, 1)))
            picture.text(130 * n + 56, 16, name, SMALL, None, "middle", mono=True, bold=n == stage)
            picture.text(130 * n + 56, 32, file, SMALL, None, "middle")
        if n:
            arrow(picture, 130 * n - 16, 20, 130 * n - 2, 20, strong=n == stage)
    arrow(picture, 576, 46, 186, 46, "next step", strong=stage == SCHEDULE and i > 1)
    draw_legend(picture, NEUTRAL, 68)
    fills = {int(key): color_of(order) for order, key in enumerate(trace["seqs"])}
    for n, (word, queue) in enumerate(queues_at(trace, i, stage).items()):
        with picture.group(f"{word}: {len(queue)}", queue=word, ids=" ".join(map(str, queue))):
            picture.text(WIDTH / 2 * n, 111, word, bold=True)
            for k, seq_id in enumerate(queue):
                badge(picture, WIDTH / 2 * n + LEFT + 26 * k, 97, trace["seqs"][str(seq_id)]["name"], fills[seq_id])
    for order, seq_id in enumerate(fills):
        _draw_sequence(picture, trace, seq_id, state_at(trace, seq_id, i, stage), TOP + ROW * order, fills[seq_id])
    _draw_tensors(picture, columns_of(trace, i) if stage >= PREPARE else [], fills, bottom)
    for n, (seq_id, position) in enumerate(sampled_in(trace, i).items() if stage >= RUN else ()):
        x, y, name = n % PER_LINE * RESULT, bottom + 76 + n // PER_LINE * 26, trace["seqs"][str(seq_id)]["name"]
        token_id, words = tokens_of(trace, seq_id)[position], texts_of(trace, seq_id)[position]
        with picture.group(f"{name} gets token {token_id}", owners=name, seq=seq_id, sampled=token_id):
            block(picture, x, y, 50, [(Style(fills[seq_id]), 1)], ["logits"])
            arrow(picture, x + 52, y + 10, x + 70, y + 10, strong=stage == RUN)
            block(picture, x + 72, y, CELL, [(style_of("chosen", fills[seq_id]), 1)], [words])
            picture.text(x + 76 + CELL, y + 14, str(token_id), SMALL, mono=True)
    return picture


def _draw_sequence(picture: Drawing, trace: Trace, seq_id: int, now: Moment, y: float, fill: str) -> None:
    """The tokens of a sequence, their ids below them, and below those the physical blocks of its table."""
    size, name, total = trace["config"]["block_size"], trace["seqs"][str(seq_id)]["name"], now.num_tokens + now.chosen
    first = max(0, -(-(total - MOST_TOKENS) // size) * size)
    with picture.group(f"{name}: {now.status.lower() or 'not here yet'}", row=name, owners=name, tokens=total):
        badge(picture, 0, y, name, fill)
        picture.text(0, y + IDS, now.status.lower(), SMALL)
        for position in range(first, total):
            x, kind = LEFT + CELL * (position - first), now.kind_of(position)
            token_id = tokens_of(trace, seq_id)[position]
            with picture.group(f"at {position}: {kind}", kind=kind, seq=seq_id, position=position, token=token_id):
                block(picture, x, y, CELL, [(style_of(kind, fill), 1)], [texts_of(trace, seq_id)[position]])
                picture.text(x + CELL / 2, y + IDS, str(token_id), SMALL, None, "middle", mono=True)
        for index, block_id in enumerate(now.table):
            left, right = (LEFT + CELL * max(0, min(MOST_TOKENS, n * size - first)) for n in (index, index + 1))
            with picture.group(f"block {index} of {name} is #{block_id}", logical=index, physical=block_id):
                if right > left:
                    block(picture, left, y + TABLE, right - left, [(Style(fill), 1)], [f"#{block_id}"], 18)


def _draw_tensors(picture: Drawing, columns: list[tuple[int, ...]], fills: dict[int, str], y: float) -> None:
    for n, name in enumerate(("input_ids", "positions", "slot_mapping")):
        values = [column[n + 1] for column in columns]
        with picture.group(f"{name}: {values}", tensor=name, values=" ".join(map(str, values))):
            cells = [(str(value), Style(fills[column[0]])) for value, column in zip(values, columns, strict=True)]
            cells[MOST_COLUMNS - 1 :] = [("…", Style())] if len(cells) > MOST_COLUMNS else cells[MOST_COLUMNS - 1 :]
            picture.text(0, y + 14 + 22 * n, name, SMALL, mono=True)
            if cells:
                tensor(picture, NAMES, y + 22 * n, [cells], NARROW)


def describe(trace: Trace, i: int, stage: int) -> str:
    """What happens at a stage, in sentences."""
    step, columns, size = trace["steps"][i], columns_of(trace, i), trace["config"]["block_size"]
    names = {int(key): seq["name"] for key, seq in trace["seqs"].items()}
    if stage == ADD:
        new = [f"{seq['name']} ({len(seq['prompt_ids'])})" for seq in trace["seqs"].values() if seq["arrive"] == i]
        return f"Text becomes token ids, and the ids become a Sequence, which waits: {', '.join(new)}."
    if stage == SCHEDULE:
        who = ", ".join(f"{names[item['seq']]} {item['n']}" for item in step["scheduled"])
        new = [f"#{e['block']} for {names[e['seq']]}" for e in step["events"] if e["event"] in ("append", "share")]
        return f"{step['kind'].capitalize()}. Tokens of this step: {who}. Blocks: {', '.join(new) or 'no new one'}."
    if stage == PREPARE:
        seq_id, _, position, slot = columns[-1]
        where = f"slot {slot} (block #{slot // size}, offset {slot % size})" if slot >= 0 else "no slot"
        return f"Three tensors of {len(columns)}, no padding. Position {position} of {names[seq_id]} goes into {where}."
    if stage == RUN:
        return "All tokens of the step go through the model together. The last one of each sequence gives its logits."
    over = ", ".join(names[event["seq"]] for event in step["events"] if event["event"] == "finish")
    words = "Each sampled token is in its sequence now. It will be computed in the next step, if there is one."
    return (words if sampled_in(trace, i) else "") + (f" Finished, its blocks are free: {over}." if over else "")


class DataFlow(_TraceWidget):
    """Requests on their way through the engine: queues, block tables, the tensors of a step, and the tokens sampled.

    Args:
        trace: a recorded run (`record(llm, prompts, params)`), best a short one; a learner's, too.
        complete: as for `check_trace`.
    """

    title, unit = "data flow", "moment"

    def __init__(self, trace: Trace, complete: bool = True) -> None:
        self.stages = stages_of(trace)
        super().__init__(trace, complete=complete)

    @property
    def num_steps(self) -> int:
        return len(self.stages)

    def first_step(self) -> int:
        """What is wrong, else the tensors of the step that has most of them."""
        if self.problems:
            wrong = (self.problems[0].step, POSTPROCESS)
            return next((n for n, found in enumerate(self.stages) if found >= wrong), self.num_steps - 1)
        most = max(self.stages, key=lambda found: (found[1] == RUN, len(columns_of(self.trace, found[0]))))
        return self.stages.index(most)

    def label(self, step: int) -> str:
        i, stage = self.stages[step]
        return f"step {i}, {STAGES[stage]}"

    def caption(self, step: int) -> str:
        i, stage = self.stages[step]
        found = self.problems if stage == POSTPROCESS else []
        wrong = [f" Wrong here: {problem.message}." for problem in found if problem.step == i]
        return describe(self.trace, i, stage) + "".join(wrong)

    def default_bookmarks(self) -> dict[str, int]:
        numbers = [(self.trace["steps"][i]["kind"], n) for n, (i, stage) in enumerate(self.stages) if stage == RUN]
        return {kind: next(n for other, n in numbers if other == kind) for kind, _ in numbers}

    def draw(self, step: int) -> Frame:
        return Frame((draw_flow(self.trace, *self.stages[step]),))
