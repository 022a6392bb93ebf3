// A guess that is made on a picture (see hands.py): what is clicked, put in order or dragged is written as text into the
// field of the form that the picture stands in. The field is the only memory; the marks are drawn from it.
(() => {
  "use strict";
  const LATE = 600; // tries, a tenth of a second each, until the form is there
  const handOf = (node) => node?.closest?.(".nv-hand[data-live]");
  const fieldOf = (hand) => hand.closest(".nv-hand-form")?.querySelector("input");
  const choicesOf = (hand) => [...hand.querySelectorAll("[data-choice]")];
  const chosen = (hand) => fieldOf(hand).value.split(", ").filter((name) => name);

  function write(hand, text, isFinal = true) {
    const field = fieldOf(hand);
    field.value = text;
    if (isFinal) field.dispatchEvent(new Event("change", { bubbles: true }));
    show(hand);
  }

  // The marks, from what is in the field.
  function show(hand) {
    if (hand.dataset.kind === "drag") return showBar(hand);
    const names = chosen(hand);
    const elements = choicesOf(hand);
    const stop = hand.dataset.stop || names[0] || elements[0].dataset.choice;
    for (const element of elements) {
      const { choice } = element.dataset;
      const place = names.indexOf(choice);
      const word = hand.dataset.kind === "order" ? `yours: no. ${place + 1}` : "your guess";
      element.toggleAttribute("data-chosen", place >= 0);
      element.querySelector("[data-frame] text").textContent = word;
      element.setAttribute("aria-label", place < 0 ? choice : `${choice}, ${word}`);
      element.setAttribute(hand.dataset.kind === "order" ? "aria-pressed" : "aria-checked", place >= 0);
      element.setAttribute("tabindex", choice === stop ? 0 : -1);
    }
  }

  function showBar(hand) {
    const bar = hand.querySelector("[data-bar]");
    const { left, width, top, unit } = bar.dataset;
    const text = fieldOf(hand).value.replace(/[,_ ]/g, "");
    const value = Number.parseFloat(text);
    const end = Number(width) * Math.min(Math.max((value || 0) / top, 0), 1);
    bar.querySelector("[data-fill] rect").setAttribute("width", end);
    bar.querySelector("[data-knob] rect").setAttribute("x", Number(left) + end - 4);
    const said = Number.isNaN(value) ? "?" : `${value.toLocaleString("en-US")} ${unit}`.trim();
    bar.querySelector("[data-said] text").textContent = said;
    bar.setAttribute("aria-valuenow", value || 0);
    bar.setAttribute("aria-valuetext", Number.isNaN(value) ? "no guess yet" : said);
  }

  // Give a picture its roles and keys, once it stands in its form.
  function wake(hand) {
    if (hand.dataset.awake || !fieldOf(hand)) return;
    hand.dataset.awake = "yes";
    hand.closest(".nv-hand-form").classList.add("nv-alive");
    const kind = hand.dataset.kind;
    const svg = hand.querySelector("svg");
    if (kind === "choose") svg.setAttribute("role", "radiogroup");
    for (const element of hand.querySelectorAll("[data-choice],[data-bar]")) {
      element.setAttribute("data-lm-suppress-shortcuts", "true"); // JupyterLab would take the keys
      element.setAttribute("role", kind === "drag" ? "slider" : kind === "order" ? "button" : "radio");
    }
    const bar = hand.querySelector("[data-bar]");
    if (bar) {
      const attributes = { tabindex: 0, "aria-label": bar.dataset.bar, "aria-valuemin": 0, "aria-valuemax": bar.dataset.top };
      for (const [name, value] of Object.entries(attributes)) bar.setAttribute(name, value);
    }
    show(hand);
  }

  function choose(hand, element) {
    const { choice } = element.dataset;
    const names = chosen(hand);
    hand.dataset.stop = choice;
    if (hand.dataset.kind === "choose") return write(hand, choice);
    write(hand, (names.includes(choice) ? names.filter((name) => name !== choice) : [...names, choice]).join(", "));
  }

  function drag(hand, value, isFinal = true) {
    const { top, step } = hand.querySelector("[data-bar]").dataset;
    const steps = Math.round(Math.min(Math.max(value, 0), Number(top)) / step);
    write(hand, String(Number((steps * step).toFixed(6))), isFinal);
  }

  function dragTo(hand, event) {
    const svg = hand.querySelector("svg");
    const { left, width, top } = hand.querySelector("[data-bar]").dataset;
    const point = new DOMPoint(event.clientX, event.clientY).matrixTransform(svg.getScreenCTM().inverse());
    drag(hand, ((point.x - left) / width) * top, false);
  }

  function moveBy(event, hand) {
    const { top, step } = hand.querySelector("[data-bar]").dataset;
    const now = Number.parseFloat(fieldOf(hand).value.replace(/[,_ ]/g, "")) || 0;
    const one = Math.max(Number(step), step * Math.round(top / step / 100));
    const by = { ArrowRight: one, ArrowUp: one, ArrowLeft: -one, ArrowDown: -one, PageUp: top / 10, PageDown: -top / 10 };
    if (event.key in by) drag(hand, now + by[event.key]);
    else if (event.key === "Home") drag(hand, 0);
    else if (event.key === "End") drag(hand, Number(top));
    else return false;
    return true;
  }

  function moveOn(event, hand, element) {
    const all = choicesOf(hand);
    const at = all.indexOf(element);
    const to = { ArrowRight: at + 1, ArrowDown: at + 1, ArrowLeft: at - 1, ArrowUp: at - 1, Home: 0, End: all.length - 1 };
    if (event.key === "Enter" || event.key === " ") choose(hand, element);
    else if (event.key in to) {
      const next = all[(to[event.key] + all.length) % all.length];
      hand.dataset.stop = next.dataset.choice;
      show(hand);
      next.focus();
    } else return false;
    return true;
  }

  function listen() {
    let moving = null;
    document.addEventListener("click", (event) => {
      const element = event.target.closest?.("[data-choice]");
      const hand = handOf(element);
      if (hand?.dataset.awake) choose(hand, element);
    });
    document.addEventListener("keydown", (event) => {
      const element = event.target.closest?.("[data-choice],[data-bar]");
      const hand = handOf(element);
      if (!hand?.dataset.awake || event.ctrlKey || event.metaKey || event.altKey || event.shiftKey) return;
      if (event.key === "Escape") hand.parentElement.closest("[tabindex]")?.focus({ preventScroll: true }); // the cell
      const isTaken = "bar" in element.dataset ? moveBy(event, hand) : moveOn(event, hand, element);
      if (isTaken) event.preventDefault();
    });
    document.addEventListener("pointerdown", (event) => {
      const hand = handOf(event.target.closest?.("svg"));
      if (!hand?.dataset.awake || hand.dataset.kind !== "drag") return;
      dragTo((moving = hand), event);
      hand.querySelector("[data-bar]").focus();
      event.preventDefault();
    });
    document.addEventListener("pointermove", (event) => moving && dragTo(moving, event));
    for (const type of ["pointerup", "pointercancel"])
      document.addEventListener(type, () => {
        if (moving) write(moving, fieldOf(moving).value);
        moving = null;
      });
    // A form that is drawn anew, and one whose number was typed.
    for (const type of ["pointerover", "focusin"])
      document.addEventListener(type, (event) => handOf(event.target) && wake(handOf(event.target)));
    document.addEventListener("change", (event) => {
      const hand = event.target.closest?.(".nv-hand-form")?.querySelector(".nv-hand[data-awake]");
      if (hand) show(hand);
    });
  }

  if (!document.nanovllmHands) {
    document.nanovllmHands = true;
    listen();
  }
  let tries = 0;
  const timer = setInterval(() => {
    const asleep = [...document.querySelectorAll(".nv-hand[data-live]:not([data-awake])")];
    asleep.forEach(wake);
    if ((tries > 20 && !asleep.length) || ++tries > LATE) clearInterval(timer);
  }, 100);
})();
