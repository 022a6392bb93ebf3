"""The widgets of scheduling and paging: SequenceView, BlockTable, Timeline and those about the prefix cache."""

# What a subclass says is documented in StepWidget.
# ruff: noqa: D102

from collections.abc import Sequence
from typing import Any

import ipywidgets as w  # type: ignore[import-untyped]
import traitlets as t

from . import prefix
from .block_table import describe_step, draw_blocks, find_bookmarks, lay_out
from .drawing import Drawing, stack
from .player import CSS
from .record import token_texts
from .sequence_view import describe_moment, draw_sequence, find_moments, moment, num_lines
from .step_widget import Frame, Question, StepWidget
from .timeline import cursor_positions, describe_run, draw_timeline, has_times, sizes, totals_table
from .trace import Trace, find_problems, name_of


class _TraceWidget(StepWidget):
    """A picture of a trace; opens at the first step that breaks a rule."""

    def __init__(self, trace: Trace, predict: bool = False, complete: bool = True, **kwargs: Any) -> None:
        self.trace = trace
        self.problems = find_problems(trace, complete)
        super().__init__(predict, **kwargs)
        if self.problems:
            self.step = self.problems[0].step

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
        return {**marks, **find_bookmarks(self.trace)}

    def footer(self) -> str:
        made, config = self.trace["made"], self.trace["config"]
        what = {"real-model": f"real run of {made['model']}"}.get(made["kind"], "real scheduler, scripted tokens")
        return (
            f"{what} on {made['device']}, {made['when'][:10]}, engine {made['engine_commit']}, torch {made['torch']}; "
            f"{config['num_blocks']} blocks of {config['block_size']} tokens, max_num_seqs {config['max_num_seqs']}, "
            f"max_num_batched_tokens {config['max_num_batched_tokens']}"
        )


class BlockTable(_TraceWidget):
    """Block tables, pool, queues and free list of a run, step by step.

    Args:
        trace: a recorded run (`load_trace("story")`, `record(llm, prompts, params)`), a learner's too; one that breaks
            a rule opens at the step where it does, and says so.
        predict: hide the steps with something to find out until they are predicted.
        complete: as for `check_trace`.
    """

    title = "block tables and pool"

    def __init__(self, trace: Trace, predict: bool = False, complete: bool = True, **kwargs: Any) -> None:
        self._layout = lay_out(trace)
        super().__init__(trace, predict, complete, **kwargs)

    def draw(self, step: int) -> Frame:
        return Frame(draw_blocks(self.trace, step, self._layout))

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
    """Lanes of all sequences, with queues, pool and token budget, and a cursor at the current step.

    Args:
        trace: a recorded run.
        compare: further runs by name, drawn below with the same totals; steps and cursor are those of `trace`.
        time_unit: "step", or "ms" if the steps were timed.
        name: of `trace`, in the table of totals.
        predict, complete: as for `BlockTable`.

    Raises:
        ValueError: the unit is unknown, or the steps were not timed.
    """

    title = "timeline of the run"
    time_unit = t.Unicode("step")

    def __init__(
        self,
        trace: Trace,
        compare: dict[str, Trace] | None = None,
        time_unit: str = "step",
        name: str = "this run",
        predict: bool = False,
        complete: bool = True,
        **kwargs: Any,
    ) -> None:
        self.traces = {name: trace, **(compare or {})}
        cursor_positions(trace, time_unit)  # raises for a unit that does not fit
        super().__init__(trace, predict, complete, time_unit=time_unit, **kwargs)

    @property
    def pictures(self) -> list[Drawing]:
        """One drawing a run."""
        labels = list(self.traces) if len(self.traces) > 1 else [""]
        units = [self.time_unit if has_times(trace) else "step" for trace in self.traces.values()]
        parts = zip(self.traces.values(), units, labels, strict=True)
        return [draw_timeline(trace, unit, label, self._longest(unit)) for trace, unit, label in parts]

    def _longest(self, unit: str) -> float:
        """Of the runs that are drawn in this unit, the longest: all of them get its scale."""
        return max(sum(sizes(trace, unit)) for trace in self.traces.values() if unit == "step" or has_times(trace))

    def base(self) -> str:
        first, *others = [picture.svg() for picture in self.pictures]
        # The cursor is that of the first run; the others stand still.
        others = [f'<div style="--nv-x:-1000">{svg}</div>' for svg in others]
        return f'<div style="overflow:hidden">{first}{"".join(others)}</div>{totals_table(self.traces)}'

    def cursor(self) -> list[float]:
        return cursor_positions(self.trace, self.time_unit, self._longest(self.time_unit))

    def draw(self, step: int) -> Frame:
        return Frame(Drawing(0, 0))

    def still(self, steps: Sequence[int] | None = None) -> Drawing:
        pairs = zip(self.traces.items(), self.pictures, strict=True)
        return stack([(f"{name}: {describe_run(trace)}", picture) for (name, trace), picture in pairs], self.footer())

    def plain_text(self) -> str:
        runs = [f"{name}: {describe_run(trace)}" for name, trace in self.traces.items()]
        return "\n".join([f"Timeline: {self.title}", *runs, self.footer()])

    def layout_children(self) -> tuple[w.Widget, ...]:
        style, controls, *rest = super().layout_children()
        if not has_times(self.trace):
            return (style, controls, *rest)
        self.in_ms = w.Checkbox(value=self.time_unit == "ms", description="width by measured time", indent=False)
        self.in_ms.observe(lambda change: self.set_trait("time_unit", "ms" if change["new"] else "step"), names="value")
        return (style, controls, self.in_ms, *rest)

    @t.observe("time_unit")
    def _on_unit(self, _: Any) -> None:
        self.refresh()


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

    def __init__(
        self, trace: Trace, name: str = "A", predict: bool = False, complete: bool = True, **kwargs: Any
    ) -> None:
        names = {seq["name"]: int(seq_id) for seq_id, seq in trace["seqs"].items()}
        if name not in names:
            raise ValueError(f"the trace has no sequence {name!r}, but {', '.join(names)}")
        self.seq_id, self.title = names[name], f"life of sequence {name}"
        self._num_lines = num_lines(trace, self.seq_id)
        super().__init__(trace, predict, complete, **kwargs)
        if not self.problems:
            self.step = min(trace["seqs"][str(self.seq_id)]["arrive"], self.num_steps - 1)

    def describe(self, step: int) -> str:
        return describe_moment(self.trace, self.seq_id, step)

    def draw(self, step: int) -> Frame:
        return Frame(draw_sequence(self.trace, self.seq_id, step, self._num_lines))

    def default_bookmarks(self) -> dict[str, int]:
        marks = {"problem": self.problems[0].step} if self.problems else {}
        return {**marks, **find_moments(self.trace, self.seq_id)}

    def default_questions(self) -> dict[int, Question]:
        marks, block_size = find_moments(self.trace, self.seq_id), self.trace["config"]["block_size"]
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


class PrefixExplorer(StepWidget):
    """Two or more prompts as blocks: which of them the prefix cache would find, and why.

    Live, the prompts can be edited and the block size moved; the steps of the player are the presets.

    Args:
        tokenizer: with `encode` and `decode`; None takes the bundled model's.
        block_size: tokens a block holds, 1 to 32.
        compute_hash: a learner's hash function.
        manager_class: a learner's `BlockManager`.
        presets: name to prompts.
    """

    title = "what the prefix cache finds"
    unit = "example"
    block_size = t.Int(4, min=1, max=32)
    chained = t.Bool(True)

    def __init__(
        self,
        tokenizer: Any = None,
        block_size: int = 4,
        compute_hash: prefix.HashFunction | None = None,
        manager_class: Any = prefix.BlockManager,
        presets: dict[str, Sequence[str]] | None = None,
        **kwargs: Any,
    ) -> None:
        self.tokenizer = tokenizer if tokenizer is not None else bundled_tokenizer()
        self.compute_hash, self.manager_class = compute_hash, manager_class
        self.presets = {name: list(prompts) for name, prompts in (presets or PRESETS).items()}
        self._edited: list[str] | None = None
        super().__init__(block_size=block_size, **kwargs)

    @property
    def num_steps(self) -> int:
        return len(self.presets)

    def default_bookmarks(self) -> dict[str, int]:
        return {name: i for i, name in enumerate(self.presets)}

    def still_steps(self) -> list[int]:
        return [self.step]

    def label(self, step: int) -> str:
        return list(self.presets)[step]

    def prompts(self, step: int) -> list[str]:
        """The prompts on show: what was typed, or those of the preset."""
        return self._edited if self._edited and step == self.step else list(self.presets.values())[step]

    def explained(self, step: int) -> list[prefix.ExplainedPrompt]:
        """What the block manager made of the prompts; empty ones are left out."""
        token_ids = [self.tokenizer.encode(prompt) for prompt in self.prompts(step)]
        token_ids = [ids for ids in token_ids if ids]
        return prefix.explain(token_ids, self.block_size, self.compute_hash, self.manager_class, self.chained)

    def caption(self, step: int) -> str:
        start = f"Blocks of {self.block_size} tokens" + ("" if self.chained else ", each hashed by itself") + ". "
        return start + prefix.describe_prompts(self.explained(step))

    def draw(self, step: int) -> Frame:
        explained = self.explained(step)
        texts = [token_texts(self.tokenizer, prompt.token_ids) for prompt in explained]
        return Frame(prefix.draw_prompts(explained, texts, self.block_size, self.chained))

    def footer(self) -> str:
        name = getattr(self.tokenizer, "name_or_path", "") or type(self.tokenizer).__name__
        whose = "a learner's" if self.compute_hash or self.manager_class is not prefix.BlockManager else "the engine's"
        return (
            f"computed by {whose} BlockManager, one prompt after the other; tokenizer: {name.rsplit('/', 1)[-1]}; "
            "underlined: where a prompt leaves the earlier ones"
        )

    def layout_children(self) -> tuple[w.Widget, ...]:
        wide = w.Layout(width="98%", height="3.6em")
        count = max(len(prompts) for prompts in self.presets.values())
        self.areas = [w.Textarea(layout=wide, continuous_update=False) for _ in range(count)]
        self.sizes = w.IntSlider(
            min=1, max=32, value=self.block_size, description="block size", continuous_update=False
        )
        self.chain = w.Checkbox(value=True, description="hashes are chained", indent=False)
        self._fill_areas()
        for area in self.areas:
            area.observe(self._on_edit, names="value")
        t.link((self.sizes, "value"), (self, "block_size"))
        t.link((self.chain, "value"), (self, "chained"))
        style = w.HTML(f"<style>{CSS}</style>")
        settings = w.HBox([self.sizes, self.chain])
        return (style, self.marks, *self.areas, settings, self.text, self.view, self.note)

    def _fill_areas(self) -> None:
        prompts = list(self.presets.values())[self.step]
        self._filling = True
        for area, prompt in zip(self.areas, [*prompts, *[""] * len(self.areas)], strict=False):
            area.value = prompt
        self._filling = False

    def _on_edit(self, _: Any) -> None:
        if not self._filling:
            self._edited = [area.value for area in self.areas]
            self.refresh()

    def _bookmark(self, name: str) -> w.Button:
        button = super()._bookmark(name)
        button.on_click(lambda _: self._load_preset())
        return button

    def _load_preset(self) -> None:
        """Also when the preset is the current one, and was edited."""
        self._edited = None
        self._fill_areas()
        self.refresh()

    @t.observe("step")
    def _on_step(self, _: Any) -> None:
        if hasattr(self, "areas"):
            self._load_preset()

    @t.observe("block_size", "chained")
    def _on_setting(self, _: Any) -> None:
        self.refresh()


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
        shared_prefix: int = 32,
        block_sizes: Sequence[int] = (1, 2, 4, 8, 16, 32, 64, 128, 256),
        **kwargs: Any,
    ) -> None:
        self.lengths, self.shared_prefix = list(lengths), shared_prefix
        self.rows = prefix.measure_waste(lengths, shared_prefix, block_sizes)
        super().__init__(**kwargs)
        self.step = next((i for i, row in enumerate(self.rows) if row.block_size == 16), 0)

    @property
    def num_steps(self) -> int:
        return len(self.rows)

    def label(self, step: int) -> str:
        return f"block size {self.rows[step].block_size}"

    def caption(self, step: int) -> str:
        return prefix.describe_waste(self.rows[step])

    def draw(self, step: int) -> Frame:
        return Frame(prefix.draw_waste(self.rows, step, self.lengths, self.shared_prefix), self._table(step))

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

    def _table(self, step: int) -> str:
        heads = ("block size", "blocks", "slots", "empty", "empty %", "table entries", "tokens shared")
        rows = []
        for i, row in enumerate(self.rows):
            values = (row.block_size, row.blocks, row.slots, row.wasted, f"{100 * row.wasted / row.slots:.1f}")
            cells = "".join(f"<td>{value}</td>" for value in (*values, row.table_entries, row.reused))
            rows.append(f"<tr{' aria-current=true' if i == step else ''}>{cells}</tr>")
        return f"<table><tr>{''.join(f'<th>{head}</th>' for head in heads)}</tr>{''.join(rows)}</table>"


class PrefixSimulation(StepWidget):
    """A hundred requests, of which a share begins alike, through the real scheduler with and without prefix cache.

    Args:
        share: of the requests with the common prefix, 0 to 1.
        num_requests, prefix_tokens, own_tokens, output_tokens, num_blocks, block_size, seed: as for `prefix.simulate`.
    """

    title = "prefix cache over many requests"
    unit = "requests"

    def __init__(
        self,
        num_requests: int = 100,
        share: float = 0.7,
        prefix_tokens: int = 64,
        own_tokens: int = 32,
        output_tokens: int = 16,
        num_blocks: int = 64,
        block_size: int = 16,
        seed: int = 0,
        **kwargs: Any,
    ) -> None:
        self.settings: dict[str, Any] = {
            "num_requests": num_requests,
            "share": share,
            "prefix_tokens": prefix_tokens,
            "own_tokens": own_tokens,
            "output_tokens": output_tokens,
            "num_blocks": num_blocks,
            "block_size": block_size,
            "seed": seed,
        }
        self.simulation = prefix.simulate(**self.settings)
        self.counts = [round(num_requests * k / 10) for k in range(1, 11)]
        super().__init__(**kwargs)
        self.step = self.num_steps - 1

    @property
    def num_steps(self) -> int:
        return len(self.counts)

    def label(self, step: int) -> str:
        return f"{self.counts[step]} requests"

    def caption(self, step: int) -> str:
        return prefix.describe_simulation(self.simulation, self.counts[step])

    def draw(self, step: int) -> Frame:
        picture = prefix.draw_simulation(self.simulation, self.counts[step])
        return Frame(picture, prefix.simulation_table(self.simulation))

    def still_steps(self) -> list[int]:
        return [self.num_steps - 1]

    def footer(self) -> str:
        s = self.settings
        return (
            f"real Scheduler and BlockManager, scripted tokens; {s['num_requests']} requests, "
            f"{100 * s['share']:.0f} % with a common prefix of {s['prefix_tokens']} tokens, {s['num_blocks']} blocks "
            f"of {s['block_size']} tokens, seed {s['seed']}"
        )

    def layout_children(self) -> tuple[w.Widget, ...]:
        style, *rest = super().layout_children()
        self.shares = w.IntSlider(
            min=0, max=100, step=10, value=round(100 * self.settings["share"]), description="share %"
        )
        sizes = sorted({24, 32, 48, 64, 128, self.settings["num_blocks"]})
        self.pool = w.SelectionSlider(options=sizes, value=self.settings["num_blocks"], description="blocks")
        for control in (self.shares, self.pool):
            control.continuous_update = False
            control.observe(self._on_setting, names="value")
        return (style, w.HBox([self.shares, self.pool]), *rest)

    def _on_setting(self, _: Any) -> None:
        self.settings |= {"share": self.shares.value / 100, "num_blocks": self.pool.value}
        self.simulation = prefix.simulate(**self.settings)
        self.refresh()
