// What happens between two frames, as movements. No kernel, no network, no libraries.
//
// Elements say by `data-key` what they are: "4" is block 4 itself, "4:C" and "4:free" are where it stands in the table
// of C and in the free list. Between two frames, an element whose key is in both goes from one place to the other. One
// that is new comes from where another of its kind (what stands before the colon) has just gone: a block travels from
// the free list into a table. If none has gone, a link grows to it from the thing itself. What is gone and came nowhere
// else fades, and so does what looked different before. "A3>7" is a copy of A3, which flies from there to block 7. Places are measured before and after (first, last, invert,
// play); the browser moves everything between by its own clock.
class Motion {
  static kind(key) {
    return key.split(/[:>]/)[0];
  }

  constructor(stage) {
    Object.assign(this, { stage, running: [], layer: null });
  }

  // Each frame after the other, as `render` draws it; true when all have been shown, false if `stop` was first.
  async play(frames, render) {
    const run = (this.run = {}), ms = Math.max(160, Math.min(460, 3000 / frames.length));
    for (const frame of frames) {
      const before = this.look();
      render(frame);
      this.change(before, this.look(), frame[3], ms);
      await Promise.allSettled(this.running.map((animation) => animation.finished));
      if (this.run !== run) return false;
      this.clear();
    }
    this.run = null;
    return true;
  }

  stop() {
    const wasRunning = Boolean(this.run);
    this.run = null;
    this.clear();
    return wasRunning;
  }

  clear() {
    for (const animation of this.running) animation.cancel();
    this.running = [];
    this.layer?.remove();
    this.layer = null;
  }

  // All elements with keys: where they are, and how they look.
  look() {
    const found = new Map();
    for (const node of this.stage.querySelectorAll("[data-key]")) {
      const own = node.cloneNode(true), box = node.getBoundingClientRect(), key = node.dataset.key;
      for (const part of own.querySelectorAll("title,[data-key]")) part.remove();
      const at = node.querySelector("rect")?.getBoundingClientRect() ?? box;
      found.set(key, { key, node, own, at, matrix: node.getScreenCTM(), kind: Motion.kind(key), looks: own.innerHTML });
    }
    return found;
  }

  change(before, after, subject, ms) {
    const gone = [...before.values()].filter(({ key }) => !after.has(key));
    let count = 0;
    for (const now of after.values()) {
      const was = before.get(now.key);
      if (was) this.shift(was, now, ms);
      else {
        const n = gone.findIndex(({ kind }) => kind === now.kind);
        const itself = after.get(now.kind);
        if (n >= 0) this.travel(gone.splice(n, 1)[0], now, ms, 0.35 * ms * count++);
        else if (itself && now.key.includes(">")) this.travel(itself, now, ms, 0.1 * ms * count++);
        else this.grow(itself === now ? null : itself, now, ms);
      }
    }
    for (const was of gone) this.fade(was, ms);
    // Whom it is about and who stays as it was, such as a sequence that is refused, nods.
    const about = after.get(subject), of = ({ dataset }) => Motion.kind(dataset.key ?? dataset.ghost ?? "");
    if (!about || this.running.some(({ effect }) => of(effect.target) === about.kind)) return;
    const places = [0, -5, 5, -3, 3, 0].map((x) => ({ transform: `translateX(${x}px)` }));
    this.animate(about.node, places, { duration: 1.2 * ms });
  }

  animate(node, keyframes, options) {
    const animation = node.animate(keyframes, { easing: "ease-in-out", fill: "backwards", ...options });
    this.running.push(animation);
    return animation;
  }

  // The same thing, at another place or with another look.
  shift(was, now, ms) {
    const [x, y] = this.distance(was, now), isText = !now.own.querySelector("rect");
    if (Math.hypot(x, y) > 0.5)
      this.animate(now.node, [{ transform: `translate(${x}px,${y}px)` }, { transform: "none" }], { duration: ms });
    else if (was.looks !== now.looks) {
      const up = { opacity: 0, transform: "translateY(-9px)" }, down = { opacity: 0, transform: "translateY(9px)" };
      const still = { opacity: 1, transform: "none" };
      this.animate(this.ghost(was), [still, isText ? up : { opacity: 0 }], { duration: ms, fill: "both" });
      if (isText) this.animate(now.node, [down, still], { duration: ms });
    }
  }

  travel(was, now, ms, delay) {
    const [x, y] = this.distance(was, now), flying = this.ghost(now), timing = { duration: ms, delay };
    const ground = [...flying.querySelectorAll("rect")].at(-1)?.cloneNode();
    // Nothing shows through what flies.
    ground?.setAttribute("style", "fill:var(--nv-bg);stroke-width:3px");
    if (ground) flying.prepend(ground);
    this.animate(flying, [{ transform: `translate(${x}px,${y}px)` }, { transform: "none" }], timing);
    this.animate(now.node, [{ opacity: 0 }, { opacity: 0 }], timing);
  }

  grow(from, now, ms) {
    if (from) {
      const link = this.draw("path", { fill: "none", stroke: "#D55E00", "stroke-width": 3, pathLength: 1 });
      const [a, b] = [from, now].map(({ at }) => this.middle(at));
      link.setAttribute("d", `M${a}L${b}`);
      link.setAttribute("stroke-dasharray", "1 1");
      const there = { strokeDashoffset: 0, opacity: 1, offset: 0.7 };
      const steps = [{ strokeDashoffset: 1, opacity: 1 }, there, { strokeDashoffset: 0, opacity: 0 }];
      this.animate(link, steps, { duration: 1.3 * ms, fill: "both" });
    }
    this.animate(now.node, [{ opacity: 0 }, { opacity: 1 }], { duration: 0.5 * ms, delay: from ? 0.8 * ms : 0 });
  }

  fade(was, ms) {
    const low = { opacity: 0, transform: "translateY(9px)" };
    this.animate(this.ghost(was), [{ opacity: 1, transform: "none" }, low], { duration: ms, fill: "both" });
  }

  // From one place to another, in units of the drawing in which the second stands.
  distance(was, now) {
    return [(was.at.x - now.at.x) / now.matrix.a, (was.at.y - now.at.y) / now.matrix.d];
  }

  middle(box) {
    const origin = this.layer.getBoundingClientRect();
    return `${box.x + box.width / 2 - origin.x} ${box.y + box.height / 2 - origin.y}`;
  }

  draw(tag, attributes, parent) {
    const svg = this.stage.querySelector("svg").namespaceURI;
    if (!this.layer) {
      this.layer = document.createElementNS(svg, "svg");
      this.layer.setAttribute("class", "nv-motion");
      this.layer.setAttribute("aria-hidden", "true");
      this.stage.append(this.layer);
    }
    const element = document.createElementNS(svg, tag);
    for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
    (parent ?? this.layer).append(element);
    return element;
  }

  // A copy above everything, which nobody can point at or find for the thing itself.
  ghost({ key, own, matrix }) {
    const place = this.draw("g", { "font-size": 13 }), origin = this.layer.getBoundingClientRect();
    const { a, d, e, f } = matrix;
    place.setAttribute("transform", `matrix(${a} 0 0 ${d} ${e - origin.x} ${f - origin.y})`);
    const copy = this.draw("g", { "data-ghost": key }, place);
    copy.innerHTML = own.innerHTML;
    for (const part of copy.querySelectorAll("*")) for (const name in part.dataset) delete part.dataset[name];
    return copy;
  }
}
