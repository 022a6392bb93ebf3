// The step player: shows recorded frames, with one bar, keys, and things to click. No kernel, no network, no libraries.
//
// Python draws every frame; here is only what moves between them. The frames come packed inside the page (see
// player.py). Notebooks run this script once for each player, in different ways: JupyterLab and exported pages leave
// it where it stands, VS Code runs a copy elsewhere and removes it. So it looks for all players that are not started.
(() => {
  "use strict";
  const NATURAL_FONT = 13; // pixels at which one unit of a drawing is one pixel
  const GAP = { x: 16, y: 8 }; // between panels, as in player.css
  const PADDING = 4; // of the stage
  const SCREEN = 600; // pixels that a picture may be high, if that leaves its text readable
  const ICONS = {
    previous: "M2 2h3v12H2zM14 2v12L6 8z",
    play: "M3 1.5v13L14 8z",
    pause: "M3 2h4v12H3zM9 2h4v12H9z",
    next: "M11 2h3v12h-3zM2 2v12l8-6z",
    full: "M1 1h5v2H3v3H1zM10 1h5v5h-2V3h-3zM1 10h2v3h3v2H1zM13 10h2v5h-5v-2h3z",
  };
  // JupyterLab takes keys for itself unless the very element with the focus says no.
  const QUIET = { "data-lm-suppress-shortcuts": "true" };

  function make(tag, attributes, parent, text) {
    const element = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
    if (text !== undefined) element.textContent = text;
    parent.append(element);
    return element;
  }

  async function unpack(root) {
    const packed = root.querySelector("script[type='application/gzip']").textContent;
    const bytes = Uint8Array.from(atob(packed), (character) => character.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
    return new Response(stream).json();
  }

  const wantsMotion = () => !matchMedia("(prefers-reduced-motion: reduce)").matches && !document.hidden;
  const isSame = (a, b) => a.toLowerCase() === b.toLowerCase() || (a !== "" && Number(a) === Number(b));

  class Player {
    constructor(root, data) {
      Object.assign(this, { root, data, step: data.start, last: data.frames.length - 1 });
      Object.assign(this, { answers: {}, playing: null, picked: "", pointed: "", viewIndex: data.first_view });
      this.unsaid = new Set();
      root.querySelector(".nv-still")?.remove();
      for (const [name, value] of Object.entries({ ...QUIET, tabindex: 0, role: "group", "aria-label": data.title }))
        root.setAttribute(name, value);
      this.makeBar();
      this.caption = make("div", { class: "nv-caption" }, root);
      this.makeQuestion();
      this.stage = make("div", { class: "nv-stage" }, root);
      this.base = make("div", { class: "nv-base" }, this.stage);
      this.view = make("div", { class: "nv-view" }, this.stage);
      this.note = make("div", { class: "nv-footer" }, root);
      this.motion = typeof Motion === "undefined" ? null : new Motion(this.stage);
      this.listen();
      this.showBase();
      this.show(true);
    }

    // The parts around the picture.

    button(parent, name, icon, label, action) {
      const element = make("button", { ...QUIET, type: "button" }, parent, label);
      this.setIcon(element, icon, name);
      element.addEventListener("click", action);
      return element;
    }

    setIcon(button, icon, name) {
      if (icon) button.innerHTML = `<svg viewBox="0 0 16 16" aria-hidden="true"><path d="${ICONS[icon]}"/></svg>`;
      button.title = name;
      button.setAttribute("aria-label", name);
    }

    makeBar() {
      const { data, root } = this;
      const bar = make("div", { class: "nv-bar", role: "group", "aria-label": "player" }, root);
      this.button(bar, `previous ${data.unit}`, "previous", "", () => this.go(this.step - 1));
      this.playButton = this.button(bar, "play", "play", "", () => this.toggle());
      this.button(bar, `next ${data.unit}`, "next", "", () => this.go(this.step + 1));
      const range = { ...QUIET, type: "range", min: 0, max: this.last, "aria-label": data.unit };
      this.range = make("input", range, bar);
      this.range.addEventListener("input", () => this.go(Number(this.range.value)));
      this.count = make("span", { class: "nv-count" }, bar);
      this.said = make("div", { class: "nv-said", role: "log", "aria-live": "polite" }, bar);
      if (data.views.length > 1) {
        const name = `width by ${data.views[1].name}`;
        this.unitButton = this.button(bar, name, "", name, () => {
          this.viewIndex = 1 - this.viewIndex;
          this.showBase();
          this.show();
        });
      }
      this.button(bar, "full screen", "full", "", () => this.toggleFull());
      this.marks = [];
      if (!data.bookmarks.length) return;
      const row = make("div", { class: "nv-marks", role: "group", "aria-label": "jump to" }, bar);
      this.marks = data.bookmarks.map(([name, target]) => {
        const mark = this.button(row, `jump to: ${name}`, "", name, () => this.go(target));
        return { mark, target };
      });
    }

    makeQuestion() {
      this.form = make("div", { class: "nv-question", hidden: "" }, this.root); // <form> is blocked in some frames
      this.input = make("input", { ...QUIET, type: "text", "aria-label": "your answer" }, this.form);
      this.form.append(" ");
      this.button(this.form, "answer", "", "answer", () => this.answer());
    }

    answer() {
      if (!this.input.value.trim()) return;
      this.answers[this.step] = this.input.value.trim();
      this.show();
      this.root.focus();
    }

    // What is shown.

    isOpen() {
      return this.step in this.data.questions && !(this.step in this.answers);
    }

    showBase() {
      const view = this.data.views[this.viewIndex];
      this.base.innerHTML = view ? view.base : "";
      this.unitButton?.setAttribute("aria-pressed", String(this.viewIndex === 1));
    }

    text(shown) {
      const question = this.data.questions[this.step], caption = this.data.captions[shown];
      if (!question) return caption;
      if (this.isOpen()) return "Predict: " + question.question;
      const given = this.answers[this.step];
      const verdict = isSame(given, question.answer) ? "Right: " : `You said ${given}; it is `;
      return verdict + question.answer + ". " + caption;
    }

    // Quiet at the start, and where another player leads: that one is read out.
    show(isQuiet) {
      const { data, root } = this, open = this.isOpen(), shown = open ? Math.max(0, this.step - 1) : this.step;
      this.unsaid.clear(); // whoever goes on does not wait for the rest
      this.rest(this.shown ?? shown);
      root.dataset.step = shown;
      const view = data.views[this.viewIndex];
      if (view?.x.length) {
        root.style.setProperty("--nv-x", view.x[shown]);
        root.style.setProperty("--nv-w", view.widths[shown]);
      }
      this.range.value = this.step;
      this.range.setAttribute("aria-valuetext", data.labels[this.step]);
      this.count.textContent = data.labels[this.step];
      for (const { mark, target } of this.marks)
        target === this.step ? mark.setAttribute("aria-current", "step") : mark.removeAttribute("aria-current");
      if (open && this.form.hidden) this.input.value = "";
      this.form.hidden = !open;
      const text = this.text(shown), isNew = text !== this.told || shown !== this.shown;
      this.told = text;
      this.tell(text, data.moves[shown] ?? []);
      if (isNew) this.prepareSpeech(isQuiet);
      this.move(this.shown, shown);
      if (!this.moving && isNew && !isQuiet) this.sayAtOnce(text);
      this.shown = shown;
    }

    // One step forward moves, event by event; wherever else one goes, it is there at once.
    move(from, to) {
      const { data, motion } = this, isWanted = to === from + 1 && this.stage.clientWidth && wantsMotion();
      if (isWanted) this.glide(from, to);
      if (isWanted && motion) {
        const moves = data.moves[to]?.length ? data.moves[to] : [["", "", data.frames[to], ""]];
        this.moving = motion.play(moves, ([kind, sentence, frame]) => {
          this.root.dataset.moving = kind;
          this.render(frame);
          this.mark(sentence);
          this.say(sentence);
        });
        this.moving.then((isOver) => isOver && this.rest(to));
      } else this.render(data.frames[to]);
      this.layout();
    }

    // The playhead, from column to column.
    glide(...steps) {
      const { x, widths } = this.data.views[this.viewIndex] ?? { x: [] };
      if (!x.length) return;
      const places = steps.map((n) => ({ transform: `translateX(${x[n]}px) scaleX(${widths[n]})` }));
      const heads = this.base.querySelectorAll("[data-cursor]");
      for (const head of heads) head.animate(places, { duration: 260, easing: "ease-in-out" });
    }

    // No movement any more, and the frame as it is at its end.
    rest(shown) {
      for (const animation of this.base.getAnimations({ subtree: true })) animation.cancel();
      this.motion?.stop();
      this.moving = null;
      if (!("moving" in this.root.dataset)) return;
      delete this.root.dataset.moving;
      this.mark("");
      this.render(this.data.frames[shown]);
      for (const piece of this.unsaid) this.say(piece);
    }

    render(frame) {
      const { data, root } = this;
      const focused = this.stage.contains(document.activeElement) ? this.nameOf(document.activeElement) : "";
      this.view.innerHTML = frame.map((part) => data.parts[part]).join("");
      this.items().forEach((item, n) => {
        item.setAttribute("data-lm-suppress-shortcuts", "true");
        item.setAttribute("tabindex", n ? "-1" : "0"); // one stop for Tab; arrows go on from there
      });
      if (focused) (this.items().find((item) => this.nameOf(item) === focused) ?? root).focus({ preventScroll: true });
      this.highlight();
    }

    // The caption, with the sentences of the movements each in an element.
    tell(text, moves) {
      const places = [...new Set(moves.map(([, sentence]) => sentence))].map((sentence) => [text.indexOf(sentence), sentence]);
      let end = 0;
      this.caption.textContent = "";
      for (const [at, sentence] of places.sort(([a], [b]) => a - b)) {
        if (!sentence || at < end) continue;
        this.caption.append(text.slice(end, at));
        make("span", {}, this.caption, sentence);
        end = at + sentence.length;
      }
      this.caption.append(text.slice(end));
    }

    // What is read out is not the caption, but each of its pieces when its movement begins, in the order of movements.
    // What no movement tells comes before the first if it stands there, such as a verdict, else after the last.
    prepareSpeech(isQuiet) {
      const pieces = [...this.caption.childNodes].map((node) => node.textContent.replace(/^[.\s]+|\s+$/g, ""));
      this.said.textContent = "";
      this.unsaid = new Set(isQuiet ? [] : pieces.filter((piece) => piece));
      this.lead = pieces[0];
    }

    sayAtOnce(text) {
      this.unsaid = new Set([text]);
      this.say(text);
    }

    say(piece) {
      for (const next of [this.lead, piece]) if (this.unsaid.delete(next)) make("div", {}, this.said, next);
    }

    // Underlines the sentence that tells of the current movement.
    mark(sentence) {
      for (const span of this.caption.children) span.toggleAttribute("data-now", span.textContent === sentence);
    }

    go(target, isTold) {
      this.step = Math.max(0, Math.min(this.last, target));
      this.show(isTold);
      if (isTold || !this.data.group) return;
      const detail = { group: this.data.group, step: this.step, from: this.root };
      document.dispatchEvent(new CustomEvent("nanovllm-step", { detail }));
    }

    // As large as the screen allows. The font of the notebook says how small: text of drawings is at least 12 units.
    layout() {
      const { root, stage } = this, isFull = document.fullscreenElement === root || root.classList.contains("nv-full");
      const panels = [...stage.querySelectorAll("svg.nv-panel")].map((svg) => svg.viewBox.baseVal);
      if (!panels.length || !stage.clientWidth) return;
      const smallest = parseFloat(getComputedStyle(root).fontSize) / NATURAL_FONT;
      root.classList.remove("nv-side");
      this.reserveCaption();
      let scale = this.largest(panels, smallest, isFull);
      if (isFull && !scale && root.classList.toggle("nv-side")) scale = this.largest(panels, smallest, isFull);
      if (!scale) root.classList.remove("nv-side"); // words beside the picture did not help, either
      // In a narrow place rather a little smaller than wider than it.
      const narrow = (stage.clientWidth - 2 * PADDING) / Math.max(...panels.map((panel) => panel.width));
      root.style.setProperty("--nv-s", (scale || Math.max(0.85 * smallest, Math.min(smallest, narrow))).toFixed(3));
    }

    // The largest scale at which everything shows, 0 if there is none.
    largest(panels, smallest, isFull) {
      const { root, stage } = this, isBeside = root.classList.contains("nv-side");
      const others = [...root.children].filter((child) => child !== stage && child.tagName !== "SCRIPT");
      const above = isBeside ? [root.querySelector(".nv-bar")] : others;
      const taken = [...above, ...stage.querySelectorAll(".nv-below")].map((child) => child.offsetHeight + GAP.y);
      const room = (isFull ? window.innerHeight : SCREEN * smallest) - taken.reduce((a, b) => a + b, 2 * GAP.y);
      const width = stage.clientWidth - 2 * PADDING;
      let scale = (isFull ? 4 : 1.6) * smallest;
      while (scale > smallest && !this.fits(panels, scale, width, room)) scale -= 0.02;
      // On a wide screen everything beside each other, even if it gets a little smaller.
      const inRow = (width - GAP.x * (panels.length - 1)) / panels.reduce((sum, panel) => sum + panel.width, 0);
      const tallest = Math.max(...panels.map((panel) => panel.height));
      const beside = Math.min(inRow, room / tallest, scale);
      if (beside >= smallest && beside > 0.7 * scale) scale = beside + 0.001;
      else if (!this.fits(panels, Math.max(scale, smallest), width, room)) return 0;
      return Math.max(scale - 0.005, smallest);
    }

    fits(panels, scale, width, room) {
      let height = 0, x = 0, row = 0;
      for (const panel of panels) {
        const wide = panel.width * scale;
        if (wide > width) return false;
        if (x && x + GAP.x + wide > width) {
          height += row + GAP.y;
          x = row = 0;
        }
        x += (x ? GAP.x : 0) + wide;
        row = Math.max(row, panel.height * scale);
      }
      return height + row <= room;
    }

    // Room for the longest caption, so that nothing below it moves from step to step.
    reserveCaption() {
      const place = `${this.root.clientWidth} ${getComputedStyle(this.root).fontSize}`;
      if (place === this.reserved || !this.root.clientWidth) return;
      this.reserved = place;
      const told = [...this.caption.childNodes];
      this.caption.style.minHeight = "";
      this.caption.textContent = this.data.captions.reduce((a, b) => (b.length > a.length ? b : a), "");
      const height = Math.min(this.caption.offsetHeight, 3 * 1.5 * parseFloat(getComputedStyle(this.caption).fontSize));
      this.caption.replaceChildren(...told);
      this.caption.style.minHeight = `${height}px`;
    }

    toggleFull() {
      const { root } = this;
      if (document.fullscreenElement === root) return document.exitFullscreen();
      if (root.classList.contains("nv-full") || !document.fullscreenEnabled) return this.fillWindow();
      return root.requestFullscreen().then(() => root.focus(), () => this.fillWindow());
    }

    fillWindow() {
      // Where a frame may not fill the screen (Colab), it fills the window.
      this.root.classList.toggle("nv-full");
      this.layout();
    }

    // Sequences and blocks: point at one, and the rest steps back; click, and it stays so.

    items() {
      return [...this.stage.querySelectorAll("[tabindex]")];
    }

    nameOf(element) {
      const found = element?.closest?.("[data-block],[data-row]");
      if (!found || !this.stage.contains(found)) return "";
      return found.dataset.block !== undefined ? `#${found.dataset.block}` : found.dataset.row;
    }

    highlight() {
      const name = this.pointed || this.picked;
      for (const element of this.stage.querySelectorAll("[data-owners],[data-block]")) {
        const { owners, block } = element.dataset;
        const isOther = name.startsWith("#") ? block !== undefined && "#" + block !== name
          : name !== "" && owners !== undefined && !owners.split(" ").includes(name);
        element.classList.toggle("nv-dim", isOther);
        element.classList.toggle("nv-picked", name !== "" && "#" + block === name);
      }
      const item = this.items().find((item) => name !== "" && this.nameOf(item) === name);
      this.note.textContent = item?.querySelector("title")?.textContent ?? this.data.footer;
      this.note.classList.toggle("nv-made", !item);
    }

    point(name) {
      if (name === this.pointed) return;
      this.pointed = name;
      this.highlight();
    }

    pick(name) {
      this.picked = name === this.picked ? "" : name;
      this.highlight();
    }

    click(event) {
      const at = event.target.closest("[data-at]"), name = this.nameOf(event.target);
      const svg = event.target.closest("svg"), view = this.data.views[this.viewIndex];
      if (at) this.go(Number(at.dataset.at));
      else if (name) this.pick(name);
      else if (view?.x.length && svg?.querySelector("[data-cursor]")) {
        const x = ((event.clientX - svg.getBoundingClientRect().left) / svg.clientWidth) * svg.viewBox.baseVal.width;
        const step = view.x.findIndex((left, n) => x >= left && x < left + view.widths[n]);
        if (step >= 0) this.go(step);
      }
      if (!this.root.contains(document.activeElement)) this.root.focus({ preventScroll: true });
    }

    moveFocus(by) {
      const items = this.items(), now = items.indexOf(document.activeElement);
      if (now >= 0) items[(now + by + items.length) % items.length].focus();
      return now >= 0;
    }

    // Playing, keys, and whoever follows.

    toggle() {
      if (this.playing) return this.pause();
      if (this.step === this.last) this.go(0);
      this.setIcon(this.playButton, "pause", "pause");
      const playing = (this.playing = {});
      const wait = () => {
        if (this.playing !== playing) return;
        if (this.moving) this.moving.then(wait); // the time for looking begins when nothing moves any more
        else this.timer = setTimeout(next, this.data.pace);
      };
      const next = () => {
        if (this.step === this.last || !this.root.isConnected || this.isOpen()) return this.pause();
        this.go(this.step + 1);
        wait();
      };
      wait();
    }

    pause() {
      clearTimeout(this.timer);
      this.playing = null;
      this.setIcon(this.playButton, "play", "play");
    }

    press(event) {
      if (event.ctrlKey || event.altKey || event.metaKey) return;
      if (event.target === this.input) {
        event.stopPropagation(); // or the notebook takes Enter
        if (event.key === "Enter") this.answer();
        return;
      }
      const actions = {
        ArrowLeft: () => this.go(this.step - 1),
        ArrowRight: () => this.go(this.step + 1),
        Home: () => this.go(0),
        End: () => this.go(this.last),
        " ": () => this.toggle(),
        f: () => this.toggleFull(),
        ArrowUp: () => this.moveFocus(-1),
        ArrowDown: () => this.moveFocus(1),
        Enter: () => this.items().includes(event.target) && (this.pick(this.nameOf(event.target)), true),
        Escape: () => (this.picked === "" ? this.leave() : this.pick(this.picked)),
      };
      if (!(event.key in actions) || actions[event.key]() === false) return;
      event.preventDefault();
      event.stopPropagation();
    }

    leave() {
      this.root.parentElement?.closest("[tabindex]")?.focus({ preventScroll: true }); // a cell, which has other keys
    }

    listen() {
      const { root, stage } = this;
      root.addEventListener("keydown", (event) => this.press(event));
      root.addEventListener("keyup", (event) => {
        // Space plays, so the button with the focus must not take it for a click.
        if (event.key === " " && event.target !== this.input) event.preventDefault();
      });
      stage.addEventListener("click", (event) => this.click(event));
      // Moved, not over: a pointer that rests while the picture changes under it points at nothing.
      stage.addEventListener("pointermove", (event) => this.point(this.nameOf(event.target)));
      stage.addEventListener("pointerleave", () => this.point(""));
      stage.addEventListener("focusin", (event) => {
        if (event.target.matches(":focus-visible")) this.point(this.nameOf(event.target));
      });
      stage.addEventListener("focusout", () => this.point(""));
      root.addEventListener("fullscreenchange", () => (this.rest(this.shown), this.layout()));
      let width = 0;
      new ResizeObserver(() => {
        // Only for a new width: what the layout itself changes is no reason to begin anew.
        if (root.clientWidth === width) return;
        if (width) this.rest(this.shown); // the first call only tells the width
        width = root.clientWidth;
        this.layout();
      }).observe(root);
      const follow = (event) => {
        if (!root.isConnected) document.removeEventListener("nanovllm-step", follow);
        else if (event.detail.group === this.data.group && event.detail.from !== root) this.go(event.detail.step, true);
      };
      document.addEventListener("nanovllm-step", follow);
    }
  }

  // Beside a picture with controls that need a kernel: hidden while they live, shown when they are gone.
  function standIn(root) {
    const name = root.dataset.live, area = root.closest(".jp-OutputArea");
    if (!name) return;
    const check = () => {
      root.hidden = Boolean((area ?? document).querySelector(`.${name}:not(.jupyter-widgets-disconnected)`));
      for (const child of area?.children ?? []) {
        const isLost = /^(Error displaying widget|Loading widget)/.test(child.textContent.trim());
        if (isLost || (child.querySelector(`.${name}`) && !root.hidden)) child.style.display = "none";
        else if (child.querySelector(`.${name}`)) child.style.display = "";
      }
    };
    const options = { subtree: true, childList: true, attributes: true, attributeFilter: ["class"] };
    const observer = new MutationObserver(() => (root.isConnected ? check() : observer.disconnect()));
    observer.observe(area ?? document.body, options);
    check();
  }

  for (const root of document.querySelectorAll(".nv-player:not([data-ready])")) {
    root.dataset.ready = "yes";
    standIn(root);
    unpack(root).then((data) => new Player(root, data));
  }
})();
