"""The style of the notebooks' pictures: legible in a light and in a dark theme."""

import importlib
import io
import sys

import matplotlib
import pytest
from matplotlib import pyplot as plt
from matplotlib.colors import to_rgb

from exercises.kit.manifest import ROOT

PAGES = ("#ffffff", "#111111")  # JupyterLab's, light and dark


@pytest.fixture
def figures(monkeypatch):
    """The module, freshly imported; what it sets is undone after the test."""
    monkeypatch.syspath_prepend(str(ROOT / "notebooks"))
    with matplotlib.rc_context():
        matplotlib.use("agg")
        sys.modules.pop("figures", None)
        yield importlib.import_module("figures")
        plt.close("all")
        sys.modules.pop("figures", None)


def contrast(one, other):
    """As WCAG 2 defines it, 1 to 21."""

    def luminance(color):
        linear = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in to_rgb(color))
        return sum(weight * c for weight, c in zip((0.2126, 0.7152, 0.0722), linear, strict=True))

    darker, brighter = sorted(luminance(color) + 0.05 for color in (one, other))
    return brighter / darker


def drawn_texts():
    _, axis = plt.subplots()
    axis.plot([1, 2, 3], label="a line")
    axis.set(title="a title", xlabel="a label", ylabel="another")
    texts = [axis.title, axis.xaxis.label, axis.yaxis.label, *axis.get_xticklabels(), *axis.legend().get_texts()]
    return [*texts, axis.text(0, 0, "a word"), axis.annotate("a note", (0, 0))]


@pytest.mark.parametrize("page", PAGES)
def test_every_text_is_legible_on_the_page(figures, page):
    for text in drawn_texts():
        assert contrast(text.get_color(), page) >= 4.2, text


def test_ink_is_legible_on_every_color(figures):
    for color in (figures.BLUE, figures.ORANGE, figures.GREEN, figures.PINK, figures.GRAY):
        assert contrast(figures.INK, color) >= 4.5


def test_nothing_is_painted_behind_a_picture(figures):
    """As a notebook saves it, and without the hint that makes JupyterLab put white behind it."""
    from IPython.core.pylabtools import print_figure
    from matplotlib_inline.backend_inline import _fetch_figure_metadata

    drawn_texts()
    picture = plt.imread(io.BytesIO(print_figure(plt.gcf(), base64=False)))
    assert picture.shape[-1] == 4 and picture[0, :, 3].max() == 0  # its first row of pixels
    assert (picture[..., 3] == 0).mean() > 0.8
    assert not _fetch_figure_metadata(plt.gcf())
