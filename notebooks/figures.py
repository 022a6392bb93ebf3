"""The pictures of the notebooks: one style for all of them, and the functions that draw those of each chapter.

Importing this module sets the style, which is right in a light and in a dark theme: nothing is painted behind a
picture, and text, ticks and frames have a gray that is legible on white as well as on JupyterLab's dark background
(both contrasts are at least 4.3 to 1). The colors are those of Okabe and Ito, which people with any kind of color
vision tell apart; black text on each of them is legible.

A function that draws takes numbers, not engines, wherever that is enough: then it works with anybody's engine.
"""

import matplotlib.pyplot as plt
from matplotlib.figure import Figure

BLUE, ORANGE, GREEN, PINK, GRAY = "#56B4E9", "#E69F00", "#009E73", "#CC79A7", "#999999"
TEXT = "#797979"  # on the page
INK = "black"  # on one of the colors
FAINT = "#79797955"  # lines of a grid, edges of what is empty; lets the page through

STYLE = {
    "figure.hooks": [f"{__name__}:leave_out_background"],
    "axes.facecolor": "none",
    "savefig.facecolor": "none",
    "figure.figsize": (8, 3),
    "figure.dpi": 110,
    "figure.constrained_layout.use": True,
    **dict.fromkeys(["text.color", "axes.titlecolor", "axes.labelcolor", "xtick.color", "ytick.color"], TEXT),
    "axes.edgecolor": TEXT,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": 11,
    "axes.ymargin": 0.12,
    "axes.prop_cycle": plt.cycler(color=[BLUE, ORANGE, GREEN, PINK, GRAY]),
    "grid.color": FAINT,
    "hatch.color": TEXT,
    "legend.frameon": False,
    "legend.labelcolor": TEXT,
    "lines.linewidth": 2,
}
plt.rcParams.update(STYLE)


def leave_out_background(figure: Figure) -> None:
    """Called by pyplot for every new figure: do not draw its background.

    A background that is see-through would not do: JupyterLab puts white behind a figure that calls itself transparent
    and has dark ticks.
    """
    figure.patch.set_visible(False)


# Chapter 01.


# Chapter 03.


# Chapter 04.


# Chapter 05.


# Chapter 06.
