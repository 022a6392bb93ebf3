"""How things are said to the learner: the same words in a notebook, a terminal and an editor."""

import html
import sys
import textwrap
from dataclasses import dataclass, field
from typing import Any

from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

# The symbol beside the color says the same, for those who do not see the color.
KINDS = {"passed": ("✓", "#009E73", "green"), "failed": ("✗", "#D55E00", "red"), "todo": ("·", "#0072B2", "blue")}
DIFFERENT = "✗"
MONOSPACED = ("steps", "raised", "where", "your prints", "expected", "got", "ours", "our answer")


@dataclass
class Message:
    """A title and labeled texts.

    Args:
        title: one line.
        rows: label and text; an empty label for a text of its own.
        kind: "passed", "failed" or "todo".
        beside: what was observed in two runs: what it is, ours, yours.
        picture: HTML below all that, where there is a page.
    """

    title: str
    rows: list[tuple[str, str]] = field(default_factory=list)
    kind: str = "todo"
    beside: list[tuple[str, str, str]] = field(default_factory=list)
    picture: str = ""

    def __repr__(self) -> str:
        width = max((len(label) for label, _ in self.rows), default=0)
        lines = [f"{KINDS[self.kind][0]} {self.title}"]
        for label, text in self.rows:
            first, *rest = (text if label in MONOSPACED else _wrapped(text)).splitlines() or [""]
            lines += [f"  {label:{width}}  {first}", *(f"  {'':{width}}  {line}" for line in rest)]
        for what, ours, yours in self.beside:
            lines += [f"  {DIFFERENT if ours != yours else ' '} {what}"]
            lines += [f"      ours   {ours}", f"      yours  {yours}"] if ours != yours else [f"      both   {ours}"]
        return "\n".join(line.rstrip() for line in lines)

    def _repr_html_(self) -> str:
        symbol, color, _ = KINDS[self.kind]
        cell = "text-align:left;vertical-align:baseline;padding:0.1em 0.8em 0.1em 0;background:none"
        rows = "".join(
            f"<tr style='background:none'><td style='{cell};opacity:0.75;white-space:nowrap'>{html.escape(label)}</td>"
            f"<td style='{cell};white-space:pre-wrap;{_font(label)}'>{html.escape(text)}</td></tr>"
            for label, text in self.rows
        )
        return (
            f"<div style='border-left:0.3em solid {color};padding-left:0.8em' role='status'>"
            f"<b>{symbol} {html.escape(self.title)}</b><table style='font-size:1em'>{rows}</table>"
            f"{self._table(cell)}{self.picture}</div>"
        )

    def _table(self, cell: str) -> str:
        """The two runs in two columns; where they differ, the row is marked."""
        rows = [[DIFFERENT if entry[1] != entry[2] else "", *entry] for entry in self.beside]
        font = _font("ours")
        table = "".join(
            f"<tr style='background:none'><td style='{cell};color:{KINDS['failed'][1]}'>{row[0]}</td>"
            f"<td style='{cell}'>{html.escape(row[1])}</td>"
            + "".join(f"<td style='{cell};white-space:pre-wrap;{font}'>{html.escape(text)}</td>" for text in row[2:])
            + "</tr>"
            for row in rows
        )
        head = "".join(f"<th style='{cell}'>{text}</th>" for text in ("", "looked at", "ours", "yours"))
        return f"<table style='font-size:1em'><tr style='background:none'>{head}</tr>{table}</table>" if rows else ""

    def __rich__(self) -> RenderableType:
        symbol, _, color = KINDS[self.kind]
        table = Table.grid(padding=(0, 2))
        for label, text in self.rows:
            table.add_row(Text(label, style="dim"), Text(text))
        for what, ours, yours in self.beside:
            is_same = ours == yours
            text = f"{what}\n    both   {ours}" if is_same else f"{what}\n    ours   {ours}\n    yours  {yours}"
            table.add_row(Text("" if is_same else DIFFERENT, style="red"), Text(text))
        return Panel(Group(table), title=Text(f"{symbol} {self.title}"), border_style=color, title_align="left")


def _wrapped(text: str) -> str:
    return "\n".join(textwrap.fill(line, 96, break_on_hyphens=False) for line in text.splitlines())


def _font(label: str) -> str:
    return "font-family:var(--jp-code-font-family, monospace)" if label in MONOSPACED else ""


def shell() -> Any:
    """The IPython that this runs in, or None; a notebook's has a kernel."""
    return sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
