"""The widgets of scheduling and paging: BlockTable, Timeline, SequenceView and those about the prefix cache."""

# What a subclass says is documented in StepWidget.
# ruff: noqa: D102

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from . import prefix
from .block_table import (
    describe_step,
    draw_pool,
    draw_tables,
    find_bookmarks,
    lay_out,
    legend_of,
    most_telling_step,
    sentence_of,
)
from .drawing import Drawing, stack
from .live import Examples, LiveWidget
from .player import View
from .record import token_texts
from .sequence_view import describe_moment, draw_sequence, find_moments, moment, num_lines
from .shapes import LegendItem, legend, legend_html
from .step_widget import Frame, Move, Question, StepWidget
from .timeline import (
    STAGE_WIDTH,
    WIDTH,
    describe_run,
    draw_lanes,
    draw_strips,
    edges,
    has_times,
    lane_legend,
    sizes,
    totals,
    totals_table,
)
from .trace import Trace, find_problems, name_of


def _view(trace: Trace, unit: str, base: str, longest: float, width: float) -> View:
    """A base whose playhead is the column of each step."""
    xs = edges(trace, unit, longest, width)
    return View(unit, base, [round(x, 1) for x in xs[:-1]], [round(b - a, 2) for a, b in pairwise(xs)])


class _TraceWidget(StepWidget):
    """A picture of a trace; opens at the first step that breaks a rule, else where most happens."""

    def __init__(self, trace: Trace, predict: bool = False, complete: bool = True) -> None:
        self.trace = trace
        self.problems = find_problems(trace, complete)
        super().__init__(predict)

    def first_step(self) -> int:
        if self.problems:
            return self.problems[0].step
        return min(1, self.num_steps - 1) if self.questions else self.telling_step()

    def telling_step(self) -> int:
        """The step that tells most."""
        return most_telling_step(self.trace)

    @property
    def num_steps(self) -> int:
        return len(self.trace["steps"])

    def caption(self, step: int) -> str:
        wrong = [problem.message for problem in self.problems if problem.step == step]
        return self.describe(step) + (" Wrong here: " + "; ".join(wrong) + "." if wrong else "")

    def describe(self, step: int) -> str:
        """What happens in a step, in sentences."""
        return describe_step(self.trace, step)

    def default_bookmarks(self) -> dict[str, int]:
        marks = {"problem": self.problems[0].step} if self.problems else {}
        return {**marks, **self.moments()}

    def moments(self) -> dict[str, int]:
        """Names and steps of what is worth a look in the run."""
        return find_bookmarks(self.trace)

    def footer(self) -> str:
        made, config = self.trace["made"], self.trace["config"]
        what = {"real-model": f"real run of {made['model']}"}.get(made["kind"], "real scheduler, scripted tokens")
        return (
            f"{what} on {made['device']}, {made['when'][:10]}, engine {made['engine_commit']}, torch {made['torch']}; "
            f"{config['num_blocks']} blocks of {config['block_size']} tokens; max_num_seqs {config['max_num_seqs']}, "
            f"at most {config['max_num_batched_tokens']} tokens a step"
        )


class BlockTable(_TraceWidget):
    """The stage: lanes of the sequences, their block tables, pool, free list and queues of a run, step by step.

    Args:
        trace: a recorded run (`load_trace("story")`, `record(llm, prompts, params)`), a learner's too; one that breaks
            a rule opens at the step where it does, and says so.
        predict: hide the steps with something to find out until they are predicted.
        complete: as for `check_trace`.
        beside: another run at the same work; what is not as in that one is marked.
    """

    title = "block tables and pool"

    def __init__(self, trace: Trace, predict: bool = False, complete: bool = True, beside: Trace | None = None) -> None:
        self._layout = lay_out(trace, beside)
        self._legend = legend_of(trace, self._layout)
        super().__init__(trace, predict, complete)

    def describe(self, step: int) -> str:
        marked, told = self._layout.others[step], describe_step(self.trace, step, quiet=())
        return told + (f" Not as in the other run (≠): {', '.join(marked)}." if marked else "")

    def draw(self, step: int) -> Frame:
        drawings = (draw_tables(self.trace, step, self._layout), draw_pool(self.trace, step, self._layout))
        return Frame(drawings, legend_html(self._legend))

    def moves(self, step: int) -> list[Move]:
        moves, moments = list[Move](), self._layout.moments[step]
        for k, (event, _) in enumerate(moments):
            cut = self._layout.at_moment(self.trace, step, k)
            drawings = (draw_tables(cut[0], step, cut[1]), draw_pool(cut[0], step, cut[1]))
            frame = self.draw(step) if k == len(moments) - 1 else Frame(drawings, legend_html(self._legend))
            seq = name_of(self.trace, event["seq"]) if "seq" in event else ""
            key = str(event.get("block", f"{seq}:queue" if seq else ""))
            moves.append(Move(event["event"], sentence_of(self.trace, step, event), frame, key))
        return moves

    def lanes(self, at: int | None = None) -> Drawing:
        """The lanes beside the block tables; the playhead stands at a step, or where the player puts it."""
        return draw_lanes(self.trace, width=STAGE_WIDTH, lines=self._layout.lines, at=at)

    def views(self) -> list[View]:
        return [_view(self.trace, "step", self.lanes().svg(), 0.0, STAGE_WIDTH)]

    def still(self, steps: Sequence[int] | None = None) -> Drawing:
        return stack([("", [super().still(steps)]), ("", [legend(self._legend, WIDTH)])])

    def still_rows(self, step: int) -> list[list[Drawing]]:
        tables, pool = self.draw(step).drawings
        return [[self.lanes(step), tables], [pool]]

    def default_questions(self) -> dict[int, Question]:
        questions: dict[int, Question] = {}
        for i, step in enumerate(self.trace["steps"]):
            for event in step["events"]:
                name = name_of(self.trace, event["seq"])
                if event["event"] == "admit" and event["cached"]:
                    text = f"{name} is admitted in step {i}. How many of its tokens come from the prefix cache?"
                    questions.setdefault(i, Question(text, str(event["cached"])))
                elif event["event"] == "preempt":
                    text = f"In step {i} the free blocks do not suffice. Which sequence has to give its blocks back?"
                    questions.setdefault(i, Question(text, name))
        return dict(list(questions.items())[:3])


class Timeline(_TraceWidget):
    """Lanes of all sequences, with queues, pool and token budget, and a playhead at the current step.

    Args:
        trace: a recorded run.
        compare: further runs by name, whose lanes and totals are shown in place of queues, pool and budget; steps and
            playhead are those of `trace`.
        time_unit: "step", or "ms" if the steps were timed; whoever looks at it can choose the other.
        name: of `trace`, in the table of totals.
        predict, complete: as for `BlockTable`.

    Raises:
        ValueError: the unit is unknown, or the steps were not timed.
    """

    title = "timeline of the run"

    def __init__(
        self,
        trace: Trace,
        compare: dict[str, Trace] | None = None,
        time_unit: str = "step",
        name: str = "this run",
        predict: bool = False,
        complete: bool = True,
    ) -> None:
        self.traces = {name: trace, **(compare or {})}
        sizes(trace, time_unit)  # raises for a unit that does not fit
        self.time_unit = time_unit
        super().__init__(trace, predict, complete)

    @property
    def totals(self) -> dict[str, dict[str, float]]:
        """The figures of `timeline.totals` of each run, by its name."""
        return {name: totals(trace) for name, trace in self.traces.items()}

    def pictures(self, unit: str, at: int | None = None) -> list[Drawing]:
        """Lanes of each run, or lanes and strips of one; the playhead stands at a step, or where the player puts it."""
        if len(self.traces) == 1:
            return [draw_lanes(self.trace, unit, at=at), draw_strips(self.trace, unit, at)]
        lanes = []
        for name, trace in self.traces.items():
            own = unit if has_times(trace) else "step"
            lanes.append(draw_lanes(trace, own, name, self._longest(own), at=at, has_playhead=trace is self.trace))
        return lanes

    def _legend(self) -> list[LegendItem]:
        return list(dict.fromkeys(item for trace in self.traces.values() for item in lane_legend(trace)))

    def _longest(self, unit: str) -> float:
        """Of the runs that are drawn in this unit, the longest: all of them get its scale."""
        return max(sum(sizes(trace, unit)) for trace in self.traces.values() if unit == "step" or has_times(trace))

    def views(self) -> list[View]:
        units = ["step", "ms"] if has_times(self.trace) else ["step"]
        units.sort(key=lambda unit: unit != self.time_unit)
        after = legend_html(self._legend()) + totals_table(self.traces)
        return [
            _view(self.trace, unit, Frame(tuple(self.pictures(unit)), after).html(), self._longest(unit), WIDTH)
            for unit in units
        ]

    def draw(self, step: int) -> Frame:
        return Frame(())

    def still(self, steps: Sequence[int] | None = None) -> Drawing:
        pictures = [*self.pictures(self.time_unit, self.step), legend(self._legend(), WIDTH)]
        captions = self._runs() + [""] * len(pictures)
        return stack([(captions[n], [picture]) for n, picture in enumerate(pictures)], self.footer())

    def _runs(self) -> list[str]:
        return [f"{name}: {describe_run(trace)}" for name, trace in self.traces.items()]

    def plain_text(self) -> str:
        return "\n".join([f"Timeline: {self.title}", *self._runs(), self.footer()])


class SequenceView(_TraceWidget):
    """One sequence of a run: its state, and its tokens in logical blocks, as cached, scheduled and waiting ones.

    It opens where the sequence arrives.

    Args:
        trace: a recorded run, a learner's too.
        name: letter of the sequence in the trace.
        predict, complete: as for `BlockTable`.

    Raises:
        ValueError: the trace has no such sequence; names those that it has.
    """

    def __init__(self, trace: Trace, name: str = "A", predict: bool = False, complete: bool = True) -> None:
        names = {seq["name"]: int(seq_id) for seq_id, seq in trace["seqs"].items()}
        if name not in names:
            raise ValueError(f"the trace has no sequence {name!r}, but {', '.join(names)}")
        self.seq_id, self.title = names[name], f"life of sequence {name}"
        self._num_lines = num_lines(trace, self.seq_id)
        super().__init__(trace, predict, complete)

    def first_step(self) -> int:
        return self.problems[0].step if self.problems else self.telling_step()

    def telling_step(self) -> int:
        return min(max(1, self.trace["seqs"][str(self.seq_id)]["arrive"]), self.num_steps - 1)

    def describe(self, step: int) -> str:
        return describe_moment(self.trace, self.seq_id, step)

    def draw(self, step: int) -> Frame:
        return Frame((draw_sequence(self.trace, self.seq_id, step, self._num_lines),))

    def moments(self) -> dict[str, int]:
        return find_moments(self.trace, self.seq_id)

    def default_questions(self) -> dict[int, Question]:
        marks, block_size = self.moments(), self.trace["config"]["block_size"]
        name, questions = name_of(self.trace, self.seq_id), {}
        if "a block more" in marks:
            now = moment(self.trace, self.seq_id, marks["a block more"])
            text = f"{name} has {now.num_tokens} tokens now, in blocks of {block_size}. How many blocks does it need?"
            questions[marks["a block more"]] = Question(text, str(-(-now.num_tokens // block_size)))
        if "preemption" in marks:
            text = f"{name} has to give its blocks back. How many of its tokens are still cached afterwards?"
            questions[marks["preemption"]] = Question(text, "0")
        return questions


PRESETS = {
    "same system prompt": (
        "You are a friendly helper. Answer in one short sentence. Tell me about cats.",
        "You are a friendly helper. Answer in one short sentence. Tell me about dogs.",
    ),
    "an early typo": (
        "You are a friendly helper. Answer in one short sentence. Tell me about cats.",
        "You ar a friendly helper. Answer in one short sentence. Tell me about cats.",
    ),
    "questions in another order": (
        "The cat is small. The dog is big. The bird can fly. What can fly?",
        "The dog is big. The cat is small. The bird can fly. What can fly?",
    ),
    "the same twice": (
        "Once upon a time there was a little cat.",
        "Once upon a time there was a little cat.",
    ),
}


class PrefixExplorer(Examples):
    """Two or more prompts as blocks: which of them the prefix cache would find, and why.

    Live, the prompts can be edited, and the block size moved; the picture follows while one types. Where a cache of
    unchained hashes would err, the still picture and the player show both.

    Args:
        tokenizer: with `encode` and `decode`; None takes the bundled model's.
        block_size: tokens a block holds, 1 to 32.
        compute_hash: a learner's hash function.
        manager_class: a learner's `BlockManager`.
        presets: name to prompts.

    Raises:
        ValueError: the block size is out of range.
    """

    title = "what the prefix cache finds"
    edited_name = "your texts"

    def __init__(
        self,
        tokenizer: Any = None,
        block_size: int = 4,
        compute_hash: prefix.HashFunction | None = None,
        manager_class: Any = prefix.BlockManager,
        presets: dict[str, Sequence[str]] | None = None,
    ) -> None:
        if not 1 <= block_size <= 32:
            raise ValueError(f"block_size must be from 1 to 32, got {block_size}")
        self.tokenizer = tokenizer if tokenizer is not None else bundled_tokenizer()
        self.block_size, self.chained = block_size, True
        self.compute_hash, self.manager_class = compute_hash, manager_class
        super().__init__({name: list(prompts) for name, prompts in (presets or PRESETS).items()})

    def explained(self, step: int, chained: bool = True) -> list[prefix.ExplainedPrompt]:
        """What the block manager made of the prompts; empty ones are left out."""
        token_ids = [self.tokenizer.encode(prompt) for prompt in self.chosen(step)]
        token_ids = [ids for ids in token_ids if ids]
        return prefix.explain(token_ids, self.block_size, self.compute_hash, self.manager_class, chained)

    def caption(self, step: int) -> str:
        return f"Blocks of {self.block_size} tokens. " + " ".join(text for text, _ in self._cases(step))

    def draw(self, step: int) -> Frame:
        return Frame(tuple(drawing for _, drawing in self._cases(step)))

    def _cases(self, step: int) -> list[tuple[str, Drawing]]:
        """With chained hashes; and with unchained ones, if live they are asked for, or else if they err."""
        cases, only = [], self.panel is not None and self.chained
        for chained in (True,) if only else (True, False):
            explained = self.explained(step, chained)
            errs = any(block.state == "false hit" for prompt in explained for block in prompt.blocks)
            if chained or errs or not self.chained:
                texts = [token_texts(self.tokenizer, prompt.token_ids) for prompt in explained]
                start = "" if chained else "If each block were hashed by itself: "
                picture = prefix.draw_prompts(explained, texts, self.block_size, chained)
                cases.append((start + prefix.describe_prompts(explained), picture))
        return cases

    def footer(self) -> str:
        name = getattr(self.tokenizer, "name_or_path", "") or type(self.tokenizer).__name__
        whose = "a learner's" if self.compute_hash or self.manager_class is not prefix.BlockManager else "the engine's"
        return f"computed by {whose} BlockManager, one prompt after the other; tokenizer: {name.rsplit('/', 1)[-1]}"

    def make_controls(self) -> list[Any]:
        import ipywidgets as w  # type: ignore[import-untyped]

        count = max(len(prompts) for prompts in self.presets.values())
        self.areas = [w.Textarea(layout=w.Layout(width="98%", height="3.4em")) for _ in range(count)]
        self.sizes = w.IntSlider(min=1, max=32, value=self.block_size, description="block size")
        self.chain = w.Checkbox(value=True, description="hashes are chained", indent=False)
        self.fill()
        for control in (*self.areas, self.sizes, self.chain):
            control.observe(self._on_input, names="value")
        for n, area in enumerate(self.areas):
            area.description = prefix.letters(n)
            area.style.description_width = "1.5em"
        return [*self.areas, w.HBox([self.sizes, self.chain])]

    def fill(self) -> None:
        prompts = self.chosen(self.step)
        for area, prompt in zip(self.areas, [*prompts, *[""] * len(self.areas)], strict=False):
            area.value = prompt

    def _on_input(self, change: dict[str, Any]) -> None:
        if self.filling:
            return
        if change["owner"] in self.areas:
            self.edited = [area.value for area in self.areas]
        self.block_size, self.chained = self.sizes.value, self.chain.value
        self.changed()


def bundled_tokenizer() -> Any:
    """The tokenizer of the bundled model."""
    from ..model_files import load_tokenizer, resolve_model

    return load_tokenizer(resolve_model("qwen3-tiny"))


class BlockSizeExplorer(StepWidget):
    """What the block size costs and brings: empty slots, table entries, shared tokens. A step is a block size.

    Args:
        lengths: tokens of each sequence; at most 8 are readable.
        shared_prefix: that many first tokens are common to all.
        block_sizes: in order.
    """

    title = "block size and waste"
    unit = "block size"

    def __init__(
        self,
        lengths: Sequence[int] = (37, 150, 90, 260, 52, 201),
        shared_prefix: int = 36,
        block_sizes: Sequence[int] = (1, 2, 4, 8, 16, 32, 64, 128, 256),
    ) -> None:
        self.lengths, self.shared_prefix = list(lengths), shared_prefix
        self.rows = prefix.measure_waste(lengths, shared_prefix, block_sizes)
        super().__init__()

    def first_step(self) -> int:
        return next((i for i, row in enumerate(self.rows) if row.block_size == 16), 0)

    @property
    def num_steps(self) -> int:
        return len(self.rows)

    def label(self, step: int) -> str:
        return f"block size {self.rows[step].block_size}"

    def caption(self, step: int) -> str:
        return prefix.describe_waste(self.rows[step])

    def draw(self, step: int) -> Frame:
        return Frame((prefix.draw_last_blocks(self.rows, step, self.lengths), prefix.draw_waste(self.rows, step)))

    def still_steps(self) -> list[int]:
        return [self.step]

    def plain_text(self) -> str:
        lines = [prefix.describe_waste(row) for row in self.rows]
        return "\n".join([f"BlockSizeExplorer: {self.title}", *lines, self.footer()])

    def footer(self) -> str:
        return (
            f"counted by the engine's BlockManager: {len(self.lengths)} sequences at the same time, the first "
            f"{self.shared_prefix} tokens common to all"
        )


class PrefixSimulation(LiveWidget):
    """A hundred requests, of which a share begins alike, through the real scheduler with and without prefix cache.

    Args:
        **settings: as for `prefix.simulate`, such as `num_requests=100` and `share=0.7`, of those with the common
            prefix.
    """

    title = "prefix cache over many requests"
    unit = "requests"

    def __init__(self, **settings: Any) -> None:
        self.simulation = prefix.simulate(**settings)
        self.settings = self.simulation.settings
        self.counts = [round(self.settings["num_requests"] * k / 10) for k in range(1, 11)]
        super().__init__()

    @property
    def num_steps(self) -> int:
        return len(self.counts)

    def first_step(self) -> int:
        return self.num_steps - 1

    def label(self, step: int) -> str:
        return f"{self.counts[step]} requests"

    def caption(self, step: int) -> str:
        return prefix.describe_simulation(self.simulation, self.counts[step])

    def draw(self, step: int) -> Frame:
        pictures = prefix.draw_requests(self.simulation, self.counts[step])
        return Frame(pictures, prefix.simulation_table(self.simulation))

    def footer(self) -> str:
        s = self.settings
        return (
            f"real Scheduler and BlockManager, scripted tokens; {s['num_requests']} requests, "
            f"{100 * s['share']:.0f} % with a common prefix of {s['prefix_tokens']} tokens, {s['num_blocks']} blocks "
            f"of {s['block_size']} tokens, seed {s['seed']}"
        )

    def make_controls(self) -> list[Any]:
        import ipywidgets as w

        sizes = sorted({24, 32, 48, 64, 128, self.settings["num_blocks"]})
        self.shares = w.IntSlider(min=0, max=100, step=10, value=round(100 * self.settings["share"]))
        self.pool = w.SelectionSlider(options=sizes, value=self.settings["num_blocks"])
        self.arrived = w.SelectionSlider(options=self.counts, value=self.counts[self.step])
        names = ("share %", "blocks", "requests")
        for control, name in zip((self.shares, self.pool, self.arrived), names, strict=True):
            control.description, control.continuous_update = name, control is self.arrived
            control.observe(self._on_input, names="value")
        return [w.HBox([self.shares, self.pool, self.arrived], layout=w.Layout(flex_flow="row wrap"))]

    def _on_input(self, change: dict[str, Any]) -> None:
        self._step = self.counts.index(self.arrived.value)
        if change["owner"] is not self.arrived:
            changed = {"share": self.shares.value / 100, "num_blocks": self.pool.value}
            self.simulation = prefix.simulate(**self.settings | changed)
            self.settings = self.simulation.settings
        self.changed()
