"""A step player as one self-contained piece of HTML: no kernel, no network, no libraries.

The frames travel compressed inside the page; the controls are made by the script, so that where scripts are not run
(an untrusted notebook, a mail) only the still picture shows.
"""

import base64
import gzip
import html
import json
import re
from dataclasses import dataclass, field

_LETTERS = "ABCDEFGHIJKL"

# JupyterLab's and VS Code's theme colors where they exist, else the system's preference for light or dark.
CSS = (
    """
.nv{--nv-paper:#fff;--nv-ink:#111;--nv-bg:var(--jp-layout-color0,var(--vscode-editor-background,var(--nv-paper)));
--nv-fg:var(--jp-content-font-color0,var(--vscode-editor-foreground,var(--nv-ink)));--nv-link:#0072B2;
color:var(--nv-fg);background:var(--nv-bg);font-family:var(--jp-ui-font-family,system-ui,sans-serif);
font-size:var(--jp-code-font-size,13px);line-height:1.45;padding:.5em;box-sizing:border-box;max-width:72em}
@media(prefers-color-scheme:dark){.nv{--nv-paper:#161616;--nv-ink:#f0f0f0}}
.nv .widget-html-content{line-height:1.45}
.nv svg{display:block;height:auto;max-width:100%;overflow:visible;margin:.4em 0;fill:currentColor}
.nv svg text{white-space:pre}
.nv svg text.m{font-family:var(--jp-code-font-family,ui-monospace,monospace)}
.nv svg text.b{font-weight:700}.nv svg text.i{font-style:italic}.nv svg text.x{text-decoration:line-through}
.nv svg g:focus-visible{outline:2px solid currentColor;outline-offset:2px}
.nv svg [data-cursor]{transform:translateX(calc(var(--nv-x,0)*1px))}
.nv table{border-collapse:collapse;margin:.4em 0;color:inherit;font-size:1em}
.nv th,.nv td{border:1px solid #767676;padding:.15em .6em;text-align:right;background:none;color:inherit}
.nv th:first-child,.nv td:first-child{text-align:left;white-space:nowrap}
.nv tr[aria-current] td{font-weight:700;border:2px solid #D55E00}
.nv-controls{display:flex;flex-wrap:wrap;gap:.4em;align-items:center}
.nv-controls input[type=range]{flex:1 1 12em;max-width:28em;accent-color:#0072B2}
.nv-controls button,.nv-question button{font:inherit;color:inherit;background:none;border:1px solid #767676;
border-radius:.3em;padding:.25em .7em;min-width:2.4em;cursor:pointer}
.nv :is(button,input,textarea):focus-visible{outline:3px solid #D55E00;outline-offset:1px}
.nv-caption{min-height:2.9em;margin:.4em 0;font-size:1.08em}.nv-caption b{font-weight:700}
.nv-question{margin:.4em 0}.nv-question input{font:inherit;width:9em}
.nv-problem{border-left:.4em solid #D55E00;padding:.2em .6em;margin:.3em 0}
.nv-footer{font-size:.82em;opacity:.85;margin-top:.3em}
.nv-still{max-width:100%}
"""
    # Hovering or focusing the row of a sequence dims what is not its own.
    + "".join(
        f'.nv svg:has(g[data-row="{x}"]:is(:hover,:focus-visible)) g[data-owners]:not([data-owners~="{x}"])'
        "{opacity:.22}\n"
        for x in _LETTERS
    )
)

SCRIPT = r"""
(async () => {
  const root = document.currentScript.parentElement;
  if (root.dataset.ready) return;
  root.dataset.ready = "yes";
  const packed = root.querySelector("script[type='application/gzip']").textContent;
  const bytes = Uint8Array.from(atob(packed), (character) => character.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  const data = await new Response(stream).json();
  const make = (tag, attributes, parent, text) => {
    const element = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
    if (text !== undefined) element.textContent = text;
    parent.append(element);
    return element;
  };
  // JupyterLab takes the arrow keys for itself unless the very element with the focus says no.
  const quiet = { "data-lm-suppress-shortcuts": "true" };
  const button = (label, name, parent, action) => {
    const element = make("button", { ...quiet, type: "button", title: name, "aria-label": name }, parent, label);
    element.addEventListener("click", action);
    return element;
  };
  const last = data.frames.length - 1, answers = {};
  let step = data.start, timer = null;
  root.querySelector(".nv-still")?.remove();
  const controls = make("div", { class: "nv-controls", role: "group", "aria-label": data.title }, root);
  button("◀", "previous " + data.unit, controls, () => go(step - 1));
  const play = button("▶▶", "play", controls, () => (timer ? pause() : start()));
  button("▶", "next " + data.unit, controls, () => go(step + 1));
  const range = make("input", { ...quiet, type: "range", min: 0, max: last, "aria-label": data.unit }, controls);
  range.addEventListener("input", () => go(Number(range.value)));
  const count = make("span", {}, controls);
  if (data.bookmarks.length) {
    const marks = make("div", { class: "nv-controls nv-bookmarks", role: "group", "aria-label": "jump to" }, root);
    for (const [name, target] of data.bookmarks) button(name, "jump to: " + name, marks, () => go(target));
  }
  const caption = make("div", { class: "nv-caption", role: "status", "aria-live": "polite" }, root);
  const form = make("form", { class: "nv-question", hidden: "" }, root);
  const input = make("input", { ...quiet, "aria-label": "your answer", autocomplete: "off" }, form);
  form.append(" ");
  make("button", { ...quiet, type: "submit" }, form, "answer");
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    if (input.value.trim()) answers[step] = input.value.trim();
    show();
  });
  const base = make("div", {}, root), view = make("div", { class: "nv-view" }, root);
  base.innerHTML = data.base;
  make("div", { class: "nv-footer" }, root, data.footer);
  const same = (a, b) => a.toLowerCase() === b.toLowerCase() || (a !== "" && Number(a) === Number(b));
  function show() {
    const question = data.questions[step], open = question && !(step in answers);
    const shown = open ? Math.max(0, step - 1) : step;
    view.innerHTML = data.frames[shown].map((part) => data.parts[part]).join("");
    root.dataset.step = shown;
    if (data.x.length) root.style.setProperty("--nv-x", data.x[shown]);
    range.value = step;
    range.setAttribute("aria-valuetext", data.labels[step]);
    count.textContent = data.labels[step];
    form.hidden = !open;
    let text = data.captions[shown];
    if (open) {
      text = "Predict: " + question.question;
      input.value = "";
    } else if (question) {
      const verdict = same(answers[step], question.answer) ? "Right: " : "You said " + answers[step] + "; it is ";
      text = verdict + question.answer + ". " + text;
    }
    caption.textContent = text;
  }
  function go(target, told) {
    step = Math.max(0, Math.min(last, target));
    show();
    if (!told && data.group)
      document.dispatchEvent(new CustomEvent("nanovllm-step", { detail: { group: data.group, step, from: root } }));
  }
  function pause() {
    clearInterval(timer);
    timer = null;
    play.textContent = "▶▶";
    play.setAttribute("aria-label", "play");
  }
  function start() {
    if (step === last) go(0);
    play.textContent = "❚❚";
    play.setAttribute("aria-label", "pause");
    timer = setInterval(() => (step === last || !root.isConnected || !form.hidden ? pause() : go(step + 1)), 900);
  }
  document.addEventListener("nanovllm-step", function listen(event) {
    if (!root.isConnected) document.removeEventListener("nanovllm-step", listen);
    else if (event.detail.group === data.group && event.detail.from !== root) go(event.detail.step, true);
  });
  show();
})();
"""


@dataclass
class PlayerData:
    """What a player shows; one entry of `frames`, `captions` and `labels` a step.

    Args:
        title, unit: names of the whole and of a step, for screen readers.
        x: where the cursor of `base` stands at each step, in units of its drawing; empty without a cursor.
        base: HTML that stays; the frame of the step is shown below.
        questions: by step, what has to be predicted before it shows.
        group: players of one page with the same group move together.
    """

    title: str
    frames: list[str]
    captions: list[str]
    labels: list[str]
    unit: str = "step"
    base: str = ""
    x: list[float] = field(default_factory=list)
    bookmarks: list[tuple[str, int]] = field(default_factory=list)
    questions: dict[int, dict[str, str]] = field(default_factory=dict)
    start: int = 0
    footer: str = ""
    group: str = ""


def html_player(data: PlayerData, png: bytes = b"") -> str:
    """The player as HTML; `png` is what shows where scripts are not run."""
    parts, frames = share_parts(data.frames)
    content = json.dumps(vars(data) | {"parts": parts, "frames": frames}, ensure_ascii=False)
    packed = gzip.compress(content.encode(), mtime=0)
    still = ""
    if png:
        text = html.escape("; ".join(dict.fromkeys([data.title, data.captions[data.start]])))
        still = f'<img class="nv-still" alt="{text}" src="data:image/png;base64,{as_base64(png)}">'
    return (
        f'<div class="nv nv-player">{still}<style>{CSS}</style>'
        f'<script type="application/gzip">{as_base64(packed)}</script><script>{SCRIPT}</script></div>'
    )


def share_parts(frames: list[str]) -> tuple[list[str], list[list[int]]]:
    """Frames as lists of numbers of their parts: most of a picture is the same from step to step."""
    numbers: dict[str, int] = {}
    result = []
    for frame in frames:
        parts = re.split(r"(?=<g |<text )", frame)
        result.append([numbers.setdefault(part, len(numbers)) for part in parts])
    return list(numbers), result


def as_base64(data: bytes) -> str:
    """Bytes as text for HTML and for Jupyter's messages."""
    return base64.b64encode(data).decode()
