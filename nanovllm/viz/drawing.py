"""One picture, two outputs: inline SVG for notebooks and web pages, PNG for everything else.

Colors are those of Okabe and Ito (2008), which people with color-vision deficiency can tell apart. They never stand
alone: every state also has a letter, a word, a border or a hatching.
"""

import html
import io
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

# Fills with black text on them (contrast 5.4 or more), then blue with white text (5.2).
PALETTE = ("#E69F00", "#56B4E9", "#009E73", "#F0E442", "#CC79A7", "#0072B2")
VERMILION = "#D55E00"  # what is new, or wrong
BORDER = "#767676"  # 4.5 on white, and at least 3 on the dark backgrounds of JupyterLab
FONT_SIZE = 13  # units of a drawing that make one em
MONO_WIDTH = 0.602  # of the font size: the advance of DejaVu Sans Mono, and nearly of every other monospaced font


def color_of(n: int) -> str:
    """Fill color of the n-th sequence, the same in every widget."""
    return PALETTE[n % len(PALETTE)]


def ink_on(fill: str | None) -> str | None:
    """Color of text on a fill; None for the page's own text color."""
    if fill is None:
        return None
    return "#fff" if fill == PALETTE[5] else "#000"


@dataclass
class Drawing:
    """A list of shapes in a plane of `width` by `height` units, y downwards, 13 units to one em.

    Shapes are dictionaries: rectangles, lines, texts, and the begin and end of groups.
    """

    width: float
    height: float
    label: str = ""
    shapes: list[dict[str, Any]] = field(default_factory=list)

    def rect(
        self,
        x: float,
        y: float,
        width: float,
        height: float,
        fill: str | None = None,
        stroke: str | None = BORDER,
        line_width: float = 1,
        hatch: bool = False,
        dashed: bool = False,
    ) -> None:
        """A rectangle; without `fill` the page shows through; `hatch` draws diagonals into it."""
        self.shapes.append(
            {"kind": "rect", "x": x, "y": y, "w": width, "h": height, "fill": fill, "stroke": stroke}
            | {"line_width": line_width, "dashed": dashed}
        )
        if hatch:
            self.shapes.append({"kind": "hatch", "x": x, "y": y, "lines": diagonals(width, height)})

    def line(
        self,
        x1: float,
        y1: float,
        x2: float,
        y2: float,
        stroke: str | None = None,
        line_width: float = 1,
        dashed: bool = False,
    ) -> None:
        """A straight line, in the page's text color unless `stroke` says otherwise."""
        self.shapes.append(
            {"kind": "line", "x": x1, "y": y1, "x2": x2, "y2": y2, "stroke": stroke, "line_width": line_width}
            | {"dashed": dashed}
        )

    def text(
        self,
        x: float,
        y: float,
        text: str,
        size: float = FONT_SIZE,
        color: str | None = None,
        anchor: str = "start",
        mono: bool = False,
        bold: bool = False,
        italic: bool = False,
        strike: bool = False,
    ) -> None:
        """Text whose baseline is at `y`; `anchor` is start, middle or end; no color is the page's text color."""
        self.shapes.append(
            {"kind": "text", "x": x, "y": y, "text": text, "size": size, "color": color, "anchor": anchor}
            | {"mono": mono, "bold": bold, "italic": italic, "strike": strike}
        )

    @contextmanager
    def group(self, title: str = "", focusable: bool = False, **data: Any) -> Iterator[None]:
        """Shapes that belong together: with a tooltip, and `data-` attributes that tests and styles can find."""
        self.shapes.append({"kind": "begin", "title": title, "focusable": focusable, "data": data})
        yield
        self.shapes.append({"kind": "end"})

    def svg(self) -> str:
        """The picture as an inline SVG element that scales with the text around it."""
        body = "".join(_svg_shape(shape) for shape in self.shapes)
        width = f"{self.width / FONT_SIZE:.1f}em"
        return (
            f'<svg viewBox="0 0 {_n(self.width)} {_n(self.height)}" style="width:{width}" role="group" '
            f'aria-label="{html.escape(self.label)}"><g font-size="{FONT_SIZE}">{body}</g></svg>'
        )

    def png(self, dpi: int = 100) -> bytes:
        """The picture on white, drawn by matplotlib."""
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure

        # 13 units are 9.75 points, the size of text on a page.
        figure = Figure(figsize=(self.width / 96, self.height / 96), dpi=dpi, facecolor="white")
        FigureCanvasAgg(figure)
        axes = figure.add_axes((0, 0, 1, 1))
        axes.set(xlim=(0, self.width), ylim=(self.height, 0))
        axes.axis("off")
        hidden = False
        for order, shape in enumerate(self.shapes):
            if shape["kind"] in ("begin", "end"):  # a still picture has no cursor
                hidden = "cursor" in shape.get("data", {})
            elif not hidden:
                _plot_shape(axes, shape, order)
        buffer = io.BytesIO()
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Glyph .* missing")  # somebody's emoji
            figure.savefig(buffer, format="png", metadata={"Software": None})
        return smaller(buffer)


def stack(drawings: list[tuple[str, Drawing]], footer: str = "") -> Drawing:
    """Drawings below each other, each under its caption: the still picture of a widget with steps."""
    import textwrap

    width = max([480.0, *(drawing.width for _, drawing in drawings)])
    result = Drawing(width, 0)
    y = 6.0
    for caption, drawing in drawings:
        for line in textwrap.wrap(caption, int(width / 7.9)):
            y += 17
            result.text(6, y, line, bold=True)
        y += 8
        result.shapes += [_moved(shape, y) for shape in drawing.shapes]
        y += drawing.height + 14
    for line in textwrap.wrap(footer, int(width / 5.8)):
        y += 12
        result.text(6, y, line, size=10)
    result.height = y + 8
    return result


def smaller(png: io.BytesIO) -> bytes:
    """The same picture with at most 256 colors, a third of the size: those of the drawings, shaded for smooth edges."""
    from PIL import Image, ImageColor  # Pillow comes with matplotlib

    table: list[tuple[int, ...]] = [(gray, gray, gray) for gray in range(0, 256, 8)]
    for color in (*PALETTE, VERMILION):
        base = ImageColor.getrgb(color)[:3]
        for other in ((0, 0, 0), (255, 255, 255), ImageColor.getrgb(BORDER)[:3]):
            table += [tuple((a * n + b * (8 - n)) // 8 for a, b in zip(base, other, strict=True)) for n in range(1, 9)]
    table.append((255, 255, 255))
    palette = Image.new("P", (1, 1))
    palette.putpalette([value for color in dict.fromkeys(table) for value in color])
    buffer = io.BytesIO()
    Image.open(png).convert("RGB").quantize(palette=palette, dither=Image.Dither.NONE).save(
        buffer, "png", optimize=True
    )
    return buffer.getvalue()


def diagonals(width: float, height: float, gap: float = 6) -> list[tuple[float, ...]]:
    """Line segments (x1, y1, x2, y2) that hatch a rectangle. Not an SVG pattern: those vanish with hidden parents."""
    lines: list[tuple[float, ...]] = []
    offset = gap
    while offset < width + height:
        start, end = max(0.0, offset - height), min(width, offset)
        lines.append((start, offset - start, end, offset - end))
        offset += gap
    return lines


def fit(text: str, width: float, size: float) -> str:
    """Text cut to `width` units of a monospaced font, with an ellipsis."""
    room = max(1, int(width / (size * MONO_WIDTH)))
    return text if len(text) <= room else text[: room - 1] + "…"


def visible(text: str) -> str:
    """A token's text on one line: spaces and line breaks at its ends as marks."""
    return text.replace("\n", "⏎").replace("\t", "⇥").replace(" ", "·") or "''"


def _n(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")


def _svg_shape(shape: dict[str, Any]) -> str:
    if shape["kind"] == "end":
        return "</g>"
    if shape["kind"] == "begin":
        data = "".join(f' data-{key}="{html.escape(str(value))}"' for key, value in shape["data"].items())
        title = f"<title>{html.escape(shape['title'])}</title>" if shape["title"] else ""
        focus = ' tabindex="0"' if shape["focusable"] else ""
        return f"<g{data}{focus}>{title}"
    x, y = _n(shape["x"]), _n(shape["y"])
    if shape["kind"] == "text":
        return _svg_text(shape, x, y)
    if shape["kind"] == "hatch":
        path = "".join(f"M{_n(a)} {_n(b)}L{_n(c)} {_n(d)}" for a, b, c, d in shape["lines"])
        return f'<path transform="translate({x} {y})" d="{path}" stroke="{BORDER}" stroke-width="0.7"/>'
    style = "" if shape["line_width"] == 1 else f' stroke-width="{shape["line_width"]}"'
    style += ' stroke-dasharray="3 2"' if shape["dashed"] else ""
    if shape["stroke"]:
        style += f' stroke="{shape["stroke"]}"'
    if shape["kind"] == "line":
        style += "" if shape["stroke"] else ' stroke="currentColor"'
        return f'<path d="M{x} {y}L{_n(shape["x2"])} {_n(shape["y2"])}"{style}/>'
    fill = f' fill="{shape["fill"]}"' if shape["fill"] else ' fill="none"'
    return f'<rect x="{x}" y="{y}" width="{_n(shape["w"])}" height="{_n(shape["h"])}"{fill}{style}/>'


def _svg_text(shape: dict[str, Any], x: str, y: str) -> str:
    style = "" if shape["size"] == FONT_SIZE else f' font-size="{_n(shape["size"])}"'
    style += f' fill="{shape["color"]}"' if shape["color"] else ""
    style += f' text-anchor="{shape["anchor"]}"' if shape["anchor"] != "start" else ""
    names = {"mono": "m", "bold": "b", "italic": "i", "strike": "x"}
    classes = " ".join(css for key, css in names.items() if shape[key])
    style += f' class="{classes}"' if classes else ""
    return f'<text x="{x}" y="{y}"{style}>{html.escape(shape["text"])}</text>'


def _moved(shape: dict[str, Any], dy: float) -> dict[str, Any]:
    return shape | {key: shape[key] + dy for key in ("y", "y2") if key in shape}


def _plot_shape(axes: Any, shape: dict[str, Any], order: int) -> None:
    """Matplotlib would draw all lines above all rectangles; `order` keeps what was drawn later on top."""
    from matplotlib.collections import LineCollection
    from matplotlib.lines import Line2D
    from matplotlib.patches import Rectangle

    if shape["kind"] == "rect":
        style: dict[str, Any] = {"linestyle": (0, (3, 2)) if shape["dashed"] else "solid"}
        style |= {"zorder": order, "facecolor": shape["fill"] or "none", "edgecolor": shape["stroke"] or "none"}
        axes.add_artist(
            Rectangle((shape["x"], shape["y"]), shape["w"], shape["h"], linewidth=shape["line_width"] * 0.75, **style)
        )
    elif shape["kind"] == "hatch":
        x, y = shape["x"], shape["y"]
        lines = [[(x + x1, y + y1), (x + x2, y + y2)] for x1, y1, x2, y2 in shape["lines"]]
        axes.add_collection(LineCollection(lines, colors=BORDER, linewidths=0.5, zorder=order), autolim=False)
    elif shape["kind"] == "line":
        style = {"linestyle": (0, (3, 2)) if shape["dashed"] else "solid", "solid_capstyle": "butt", "zorder": order}
        xs, ys = [shape["x"], shape["x2"]], [shape["y"], shape["y2"]]
        axes.add_line(Line2D(xs, ys, color=shape["stroke"] or "#000", linewidth=shape["line_width"] * 0.75, **style))
    elif shape["kind"] == "text":
        text = shape["text"]
        if shape["strike"]:
            text = "".join(char + "\u0336" for char in text)
        align = {"start": "left", "middle": "center", "end": "right"}[shape["anchor"]]
        axes.text(
            shape["x"],
            shape["y"],
            text,
            color=shape["color"] or "#000",
            fontsize=shape["size"] * 0.75,
            ha=align,
            va="baseline",
            family="DejaVu Sans Mono" if shape["mono"] else "DejaVu Sans",
            weight="bold" if shape["bold"] else "normal",
            style="italic" if shape["italic"] else "normal",
            zorder=order,
            parse_math=False,
        )
