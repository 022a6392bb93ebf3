"""One picture, two outputs: inline SVG for notebooks and web pages, PNG for everything else.

Colors are those of Okabe and Ito (2008), which people with color-vision deficiency can tell apart. They never stand
alone: every state also has a letter, a word, a border or a hatching.
"""

import html
import io
import math
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any

# Fills with black text on them (contrast 5.4 or more), then blue with white text (5.2).
PALETTE = ("#E69F00", "#56B4E9", "#009E73", "#F0E442", "#CC79A7", "#0072B2")
VERMILION = "#D55E00"  # what is new, or wrong
BORDER = "#767676"  # 4.5 on white, and at least 3 on the dark backgrounds of JupyterLab
FONT_SIZE = 13  # in units of a drawing, which are pixels at a notebook's usual size
SMALL = 12  # the smallest text there is
GAP = 12.0  # between drawings beside each other
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
    """A list of shapes in a plane of `width` by `height` units, y downwards.

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
    ) -> None:
        """Text whose baseline is at `y`; `anchor` is start, middle or end; no color is the page's text color."""
        self.shapes.append(
            {"kind": "text", "x": x, "y": y, "text": text, "size": size, "color": color, "anchor": anchor}
            | {"mono": mono, "bold": bold, "italic": italic}
        )

    @contextmanager
    def group(self, title: str = "", focusable: bool = False, **data: Any) -> Iterator[None]:
        """Shapes that belong together: with a tooltip, and `data-` attributes that tests and styles can find."""
        self.shapes.append({"kind": "begin", "title": title, "focusable": focusable, "data": data})
        yield
        self.shapes.append({"kind": "end"})

    def svg(self, css_class: str = "nv-panel") -> str:
        """The picture as an inline SVG element.

        The style `--nv-s` says how many pixels a unit is; else it is one, and more where fonts are large.
        """
        body = "".join(_svg_shape(shape) for shape in self.shapes)
        width = _n(self.width)
        usual = f"max({width}px,min({width}em/{FONT_SIZE},100%))"
        return (
            f'<svg class="{css_class}" viewBox="0 0 {width} {_n(self.height)}" '
            f'style="--nv-w0:calc(var(--nv-s)*{width}px);width:var(--nv-w0,{usual})" role="group" '
            f'aria-label="{html.escape(self.label)}"><g font-size="{FONT_SIZE}">{body}</g></svg>'
        )

    def png(self) -> bytes:
        """The picture on white, a pixel a unit; drawn by Pillow, twice as large, so that edges get smooth."""
        from PIL import Image, ImageDraw

        image = Image.new("RGB", (2 * math.ceil(self.width), 2 * math.ceil(self.height)), "white")
        canvas = ImageDraw.Draw(image, "RGBA")
        hidden = False
        for shape in self.shapes:
            if shape["kind"] in ("begin", "end"):  # a still picture has no playhead that moves
                hidden = "cursor" in shape.get("data", {})
            elif not hidden:
                _paint(canvas, shape)
        return smaller(image.reduce(2))


def stack(rows: list[tuple[str, list[Drawing]]], footer: str = "") -> Drawing:
    """Rows of drawings below each other, each row under its caption: the still picture of a widget with steps."""
    widths = [sum(drawing.width for drawing in row) + GAP * (len(row) - 1) for _, row in rows]
    result = Drawing(max([480.0, *widths]) + 12, 0)
    y = 6.0
    for caption, row in rows:
        for line in textwrap.wrap(caption, int(result.width / 7.9)):
            y += 17
            result.text(6, y, line, bold=True)
        y += 8
        x = 6.0
        for drawing in row:
            result.shapes += [_moved(shape, x, y) for shape in drawing.shapes]
            x += drawing.width + GAP
        y += max(drawing.height for drawing in row) + 14
    for line in textwrap.wrap(footer, int(result.width / 7.1)):
        y += 15
        result.text(6, y, line, size=SMALL)
    result.height = y + 8
    return result


def smaller(image: Any) -> bytes:
    """A picture as PNG with at most 256 colors: those of the drawings, shaded for smooth edges."""
    from PIL import Image, ImageColor

    table: list[tuple[int, ...]] = [(gray, gray, gray) for gray in range(0, 256, 8)]
    for color in (*PALETTE, VERMILION):
        base = ImageColor.getrgb(color)[:3]
        for other in ((0, 0, 0), (255, 255, 255), ImageColor.getrgb(BORDER)[:3]):
            table += [tuple((a * n + b * (8 - n)) // 8 for a, b in zip(base, other, strict=True)) for n in range(1, 9)]
    table.append((255, 255, 255))
    palette = Image.new("P", (1, 1))
    palette.putpalette([value for color in dict.fromkeys(table) for value in color])
    buffer = io.BytesIO()
    image.quantize(palette=palette, dither=Image.Dither.NONE).save(buffer, "png", optimize=True)
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
        focus = ' tabindex="-1"' if shape["focusable"] else ""  # the player makes one of them a stop for Tab
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
    names = {"mono": "m", "bold": "b", "italic": "i"}
    classes = " ".join(css for key, css in names.items() if shape[key])
    style += f' class="{classes}"' if classes else ""
    return f'<text x="{x}" y="{y}"{style}>{html.escape(shape["text"])}</text>'


def _moved(shape: dict[str, Any], dx: float, dy: float) -> dict[str, Any]:
    return shape | {key: shape[key] + (dx if key[0] == "x" else dy) for key in ("x", "x2", "y", "y2") if key in shape}


def _paint(canvas: Any, shape: dict[str, Any]) -> None:
    """One shape on a Pillow canvas that has two pixels a unit."""
    x, y, color = 2 * shape["x"], 2 * shape["y"], shape.get("stroke") or "#000"
    width = max(1, round(2 * shape.get("line_width", 0.5)))
    if shape["kind"] == "rect":
        right, bottom = x + 2 * shape["w"], y + 2 * shape["h"]
        if shape["fill"] and right > x and bottom > y:
            canvas.rectangle((x, y, right, bottom), shape["fill"])
        corners = ((x, y), (right, y), (right, bottom), (x, bottom), (x, y))
        for start, end in pairwise(corners) if shape["stroke"] else ():
            _paint_line(canvas, start, end, color, width, shape["dashed"])
    elif shape["kind"] == "hatch":
        for x1, y1, x2, y2 in shape["lines"]:
            canvas.line((x + 2 * x1, y + 2 * y1, x + 2 * x2, y + 2 * y2), BORDER, 1)
    elif shape["kind"] == "line":
        _paint_line(canvas, (x, y), (2 * shape["x2"], 2 * shape["y2"]), color, width, shape["dashed"])
    elif shape["text"]:
        font = _font(shape["mono"], shape["bold"], shape["italic"], 2 * shape["size"])
        anchor = {"start": "ls", "middle": "ms", "end": "rs"}[shape["anchor"]]
        canvas.text((x, y), shape["text"], shape["color"] or "#000", font, anchor)


def _paint_line(
    canvas: Any, start: tuple[float, float], end: tuple[float, float], color: str, width: int, dashed: bool
) -> None:
    (x1, y1), (x2, y2) = start, end
    length = math.hypot(x2 - x1, y2 - y1)
    dash, gap = (6.0, 4.0) if dashed else (length or 1.0, 0.0)
    for k in range(math.ceil(length / (dash + gap))):
        a, b = k * (dash + gap) / length, min(1.0, (k * (dash + gap) + dash) / length)
        canvas.line((x1 + a * (x2 - x1), y1 + a * (y2 - y1), x1 + b * (x2 - x1), y1 + b * (y2 - y1)), color, width)


@lru_cache(maxsize=64)
def _font(mono: bool, bold: bool, italic: bool, size: float) -> Any:
    """DejaVu, which comes with matplotlib."""
    from matplotlib import get_data_path
    from PIL import ImageFont

    style = ("Bold" if bold else "") + ("Oblique" if italic else "")
    name = f"DejaVuSans{'Mono' if mono else ''}{f'-{style}' if style else ''}.ttf"
    return ImageFont.truetype(Path(get_data_path()) / "fonts" / "ttf" / name, size)
