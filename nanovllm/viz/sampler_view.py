"""What becomes of a model's logits: the temperature, the filters one after the other, and what is drawn."""

# What a subclass says is documented in StepWidget.
# ruff: noqa: D102

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..layers import sampler as engine_sampler
from .drawing import BORDER, PALETTE, SMALL, VERMILION, Drawing, fit, visible
from .live import Examples
from .shapes import LegendItem, legend, legend_html
from .step_widget import Frame

WIDTH, LEFT, RIGHT, ROW = 640.0, 118.0, 470.0, 20.0
SHOWN = 16  # tokens
LEGEND: list[LegendItem] = [
    ("prefill", "kept: its chance to be drawn", PALETTE[1]),
    ("paused", "chance after the temperature, before the filters", None),
    ("new", "drawn, of 1,000 draws", None),
]


@dataclass(frozen=True)
class Cut:
    """What a request asks for."""

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0


PRESETS = {
    "as the model says": Cut(),
    "temperature 0.4": Cut(0.4),
    "temperature 2": Cut(2.0),
    "top-k 5": Cut(top_k=5),
    "top-p 0.8": Cut(top_p=0.8),
    "min-p 0.2": Cut(min_p=0.2),
    "top-k 5, then top-p 0.8": Cut(top_k=5, top_p=0.8),
    "temperature 2 and min-p 0.2": Cut(2.0, min_p=0.2),
}


@dataclass(frozen=True)
class Outcome:
    """Probabilities of all tokens after the temperature, after the filters (0 where dropped), and how often drawn."""

    tempered: Tensor
    kept: Tensor
    counts: Tensor


def outcome_of(logits: Tensor, cut: Cut, sampler: Any = engine_sampler, draws: int = 1000) -> Outcome:
    """What functions like those of `nanovllm.layers.sampler` make of one row of logits."""
    row = logits.float().unsqueeze(0)
    tempered = sampler.apply_temperature(row, torch.tensor([cut.temperature]))
    kept = sampler.apply_min_p(tempered, torch.tensor([cut.min_p])) if cut.min_p else tempered
    top_k = torch.tensor([cut.top_k]) if 0 < cut.top_k < row.shape[1] else None
    top_p = torch.tensor([cut.top_p]) if cut.top_p < 1 else None
    if top_k is not None or top_p is not None:
        kept = sampler.apply_top_k_top_p(kept, top_k, top_p)
    noise = sampler.gumbel_noise(torch.arange(draws), torch.zeros(draws, dtype=torch.int64), row.shape[1])
    counts = torch.bincount((kept + noise).argmax(dim=-1), minlength=row.shape[1])
    return Outcome(tempered.softmax(-1)[0], kept.softmax(-1)[0], counts)


class SamplerView(Examples):
    """Bars of the most likely tokens: before and after the filters, and how often each is drawn.

    Live, temperature and filters can be moved; the steps of the player are the presets.

    Args:
        logits: [vocab_size], of a model.
        tokenizer: turns ids into text.
        prompt: the text that the model read, for the footer.
        sampler: a module like `nanovllm.layers.sampler`, a learner's.
        presets: name to `Cut`.
    """

    title = "from logits to a token"

    def __init__(
        self,
        logits: Tensor,
        tokenizer: Any,
        prompt: str = "",
        sampler: Any = None,
        presets: dict[str, Cut] | None = None,
    ) -> None:
        self.logits, self.prompt, self.sampler = logits, prompt, sampler or engine_sampler
        self.ids = logits.float().topk(min(SHOWN, len(logits))).indices.tolist()
        self.names = [visible(tokenizer.decode([token_id])) for token_id in self.ids]
        self.outcomes: dict[Cut, Outcome] = {}
        super().__init__(presets or PRESETS)

    def outcome(self, step: int) -> Outcome:
        """What becomes of the logits in a step."""
        cut = self.chosen(step)
        if cut not in self.outcomes:
            self.outcomes[cut] = outcome_of(self.logits, cut, self.sampler)
        return self.outcomes[cut]

    def caption(self, step: int) -> str:
        found, cut = self.outcome(step), self.chosen(step)
        number, mass = int((found.kept > 0).sum()), float(found.tempered[found.kept > 0].sum())
        entropy = float(torch.special.entr(found.kept.double()).sum().exp())
        said = f"{number:,} of {len(self.logits):,} tokens can be drawn; before the filters they had {100 * mass:.1f} %"
        asked = {"temperature": (cut.temperature, 1.0), "top-k": (cut.top_k, 0)}
        asked |= {"top-p": (cut.top_p, 1.0), "min-p": (cut.min_p, 0.0)}
        texts = [f"{name} {value:g}" for name, (value, off) in asked.items() if value != off]
        more = ", ".join(text for text in texts if text not in self.label(step))  # what the name does not say
        return f"{more}{'. ' * bool(more)}{said}. As varied as {entropy:.1f} equally likely tokens."

    def footer(self) -> str:
        whose = "the engine's" if self.sampler is engine_sampler else "your engine's"
        return f"logits of a real model after {self.prompt!r}; {whose} functions, 1,000 draws with seeds 0 to 999"

    def draw(self, step: int) -> Frame:
        return Frame((self.picture(step),), legend_html(LEGEND))

    def still_steps(self) -> list[int]:
        return [self.step]

    def still_rows(self, step: int) -> list[list[Drawing]]:
        return [[self.picture(step)], [legend(LEGEND, WIDTH)]]

    def picture(self, step: int) -> Drawing:
        """A bar for each of the most likely tokens, and one for all others."""
        found = self.outcome(step)
        picture = Drawing(WIDTH, 26 + ROW * (len(self.ids) + 1), self.caption(step))
        for x, text in ((LEFT, "probability"), (RIGHT + 62, "drawn"), (RIGHT + 84, "chance")):
            picture.text(x, 14, text, SMALL, anchor="end" if text == "drawn" else "start", bold=True)
        others = found.kept.clone()
        others[self.ids] = 0.0
        most = max(float(x) for x in (found.tempered.max(), found.kept.max(), found.counts.max() / 1000, others.sum()))
        scale = (RIGHT - LEFT) / most
        for n, (token_id, name) in enumerate(zip(self.ids, self.names, strict=True)):
            before, after = float(found.tempered[token_id]), float(found.kept[token_id])
            count = int(found.counts[token_id])
            with picture.group(name, token=token_id, kept=int(after > 0), drawn=count):
                self._draw_token(picture, 22 + ROW * n, name, (before * scale, after * scale, after), count, scale)
        drawn = 1000 - int(found.counts[self.ids].sum())
        rest, kept = len(self.logits) - len(self.ids), int((others > 0).sum())
        y = 22 + ROW * len(self.ids)
        picture.text(LEFT - 6, y + 14, f"and {kept or rest:,} others", SMALL, anchor="end", italic=True)
        picture.rect(LEFT, y + 3, float(others.sum()) * scale, 13, PALETTE[0], BORDER, hatch=True)
        picture.text(RIGHT + 62, y + 14, str(drawn) if kept else "dropped", SMALL, anchor="end", mono=True)
        picture.text(RIGHT + 84, y + 14, f"{100 * float(others.sum()):.1f} %" if kept else "-", SMALL, mono=True)
        return picture

    @staticmethod
    def _draw_token(
        picture: Drawing, y: float, name: str, widths: tuple[float, float, float], count: int, scale: float
    ) -> None:
        before, after, chance = widths
        picture.text(LEFT - 6, y + 14, fit(name, LEFT - 8, SMALL), SMALL, anchor="end", mono=True)
        if after:
            picture.rect(LEFT, y + 3, after, 13, PALETTE[1], BORDER)
        else:
            picture.line(LEFT - 8 - 7.3 * len(name), y + 10, LEFT - 4, y + 10, BORDER, 1.5)
        picture.rect(LEFT, y + 3, before, 13, None, BORDER, 1, dashed=True)
        if count:
            x = LEFT + count / 1000 * scale
            picture.line(x, y + 1, x, y + 18, VERMILION, 3)
        picture.text(RIGHT + 62, y + 14, str(count) if after else "dropped", SMALL, anchor="end", mono=True)
        picture.text(RIGHT + 84, y + 14, f"{100 * chance:.1f} %" if after else "-", SMALL, mono=True)

    def make_controls(self) -> Sequence[Any]:
        import ipywidgets as w  # type: ignore[import-untyped]

        cut = self.chosen(self.step)
        self.inputs = {
            "temperature": w.FloatSlider(value=cut.temperature, min=0.1, max=3.0, step=0.1),
            "top_k": w.IntSlider(value=cut.top_k, min=0, max=40),
            "top_p": w.FloatSlider(value=cut.top_p, min=0.05, max=1.0, step=0.05),
            "min_p": w.FloatSlider(value=cut.min_p, min=0.0, max=1.0, step=0.05),
        }
        for name, control in self.inputs.items():
            control.description = name.replace("_", "-")
            control.observe(self._on_input, names="value")
        return [w.HBox(list(self.inputs.values()), layout=w.Layout(flex_flow="row wrap"))]
