"""Pictures that a kernel computes: ipywidgets while there is one, and the frames that it drew last when it is gone.

The notebook gets two outputs: the controls, and a step player that hides while they live (see player.js).
"""

import asyncio
import html
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from .player import CSS
from .step_widget import StepWidget

SAVE_AFTER = 1.0  # seconds without a change until the frames are drawn for the day after


class LiveWidget(StepWidget):
    """A picture with settings. Its steps are examples, or stages of what was computed.

    Subclasses make their `controls` and call `changed` when one of them moves.
    """

    def __init__(self, predict: bool = False) -> None:
        super().__init__(predict)
        self.live_class = f"nv-live-{id(self):x}"
        self.panel: Any = None
        self.marks: list[Any] = []
        self._saving: Any = None

    def make_controls(self) -> Sequence[Any]:
        """The widgets above the picture, from top to bottom."""
        raise NotImplementedError

    def make_panel(self) -> Any:
        """Buttons for the examples, the controls, the caption and the picture; made when it is shown first."""
        import ipywidgets as w  # type: ignore[import-untyped]

        if self.panel is None:
            self.marks = [self._make_mark(w, name) for name in self.bookmarks]
            self.text, self.view, self.note = w.HTML(), w.HTML(), w.HTML()
            row = w.HBox(self.marks, layout=w.Layout(flex_flow="row wrap"))
            style = w.HTML(f"<style>{CSS}</style>")
            self.panel = w.VBox([style, row, *self.make_controls(), self.text, self.view, self.note])
            self.panel.add_class("nv").add_class(self.live_class)
            self._draw()
        return self.panel

    def _make_mark(self, w: Any, name: str) -> Any:
        button = w.Button(description=name, tooltip=f"jump to: {name}", layout=w.Layout(width="auto"))
        button.on_click(lambda _: setattr(self, "step", self.bookmarks[name]))
        return button

    def refresh(self) -> None:
        """The same, from Python."""
        self.changed()

    def changed(self) -> None:
        """Draw the picture anew, at once where it is looked at, and a moment later in what is saved."""
        if self.panel is not None:
            self._draw()
        if self._shown is None:
            return
        if self._saving:
            self._saving.cancel()
        try:
            self._saving = asyncio.get_running_loop().call_later(SAVE_AFTER, self._save)
        except RuntimeError:  # no kernel is listening
            self._save()

    def _save(self) -> None:
        self._shown.update(self.bundle(self.live_class), raw=True)

    def _draw(self) -> None:
        label, caption = html.escape(self.label(self.step)), html.escape(self.caption(self.step))
        words = f"<b>{label}.</b> {caption}"
        self.text.value = f'<div class="nv-caption" role="status" aria-live="polite">{words}</div>'
        body = f'<div class="nv-stage">{self.draw(self.step).html()}</div>'
        self.view.value = f'<div data-step="{self.step}">{body}</div>'
        self.note.value = f'<div class="nv-footer">{html.escape(self.footer())}</div>'

    def _ipython_display_(self) -> None:
        from IPython.display import display

        view = self.make_panel()._repr_mimebundle_()
        view = view[0] if isinstance(view, tuple) else view
        # Where the view cannot be shown, its output shows nothing: the player below does.
        display(view | {"text/html": "", "text/plain": ""}, raw=True)
        self._shown = display(self.bundle(self.live_class), raw=True, display_id=True)


class Examples(LiveWidget):
    """A picture with settings whose steps are examples by name; one that was changed is called "your setting".

    Args:
        presets: the examples by name.
    """

    unit = "example"
    edited_name = "your setting"

    def __init__(self, presets: dict[str, Any]) -> None:
        self.presets = dict(presets)
        self.edited: Any = None
        self.inputs: dict[str, Any] = {}  # where examples are dataclasses: a control for each field
        self.filling = False  # the controls are being set, and nobody moves them
        super().__init__()

    @property
    def num_steps(self) -> int:
        """One for each example."""
        return len(self.presets)

    def default_bookmarks(self) -> dict[str, int]:
        """All of them."""
        return {name: i for i, name in enumerate(self.presets)}

    def still_steps(self) -> list[int]:
        """The one on show."""
        return [self.step]

    def label(self, step: int) -> str:
        """Name of an example."""
        return self.edited_name if self.edited and step == self.step else list(self.presets)[step]

    def chosen(self, step: int) -> Any:
        """The example, or what was made of it."""
        return self.edited if self.edited and step == self.step else list(self.presets.values())[step]

    def fill(self) -> None:
        """Set the controls to what is chosen."""
        for name, control in self.inputs.items():
            control.value = getattr(self.chosen(self.step), name)

    def _on_input(self, _: Any) -> None:
        """One of `inputs` has moved."""
        if not self.filling:
            values = {name: control.value for name, control in self.inputs.items()}
            self.edited = replace(self.chosen(self.step), **values)
            self.changed()

    def refresh(self) -> None:
        """The example as it was given, also when it is the current one and was changed."""
        self.edited = None
        if self.panel is not None:
            self.filling = True
            self.fill()
            self.filling = False
        self.changed()
