// The run as a strip: a bar a step, as wide as its time, coloured by its share of the roofline; under it the modules.

import { context, h, variable } from "./dom.js";
import { percent, reached, size, time } from "./format.js";
import { moduleParts } from "./joins.js";

/**
 * @typedef {import("./state.js").Selection} Selection
 * @typedef {import("./joins.js").RunStep} RunStep
 * @typedef {{name: string, path: string, begin: number, end: number, lane: number}} ModuleSpan  steps from `begin` to `end`
 */

const TOP = 6; // room for the marks above the bars
const BAR = 30;
const LANE = 15;
const LANES = 2;

export class Strip {
  /**
   * @param {Selection} selection
   * @param {import("./dom.js").Tip} tip
   * @param {number} [full]  the weight of a strip of the whole width, where two are compared
   */
  constructor(selection, tip, full) {
    this.selection = selection;
    this.joins = selection.joins;
    this.tip = tip;
    this.zoom = 1;
    /** @type {Set<number> | null} */
    this.kept = null;
    this.weights = this.joins.steps.map((step) => (this.joins.timed ? step.seconds : step.moved));
    this.total = this.weights.reduce((one, other) => one + other, 0);
    this.full = full ?? this.total;
    this.modules = moduleSpans(this.joins.steps, this.joins.depth);
    const lanes = this.modules.reduce((most, span) => Math.max(most, span.lane + 1), 0);
    this.height = TOP + BAR + (lanes ? lanes * LANE + 3 : 2);
    /** @type {Float64Array} */
    this.edges = new Float64Array(this.weights.length + 1);
    this.canvas = h("canvas", { "aria-hidden": true });
    this.size = h("div", { class: "size" }, this.canvas);
    this.scroll = h("div", {
      class: "strip", role: "slider", tabindex: 0, "aria-label": "steps in run order", "aria-valuemin": 0,
      "aria-valuemax": this.weights.length - 1,
      onscroll: () => this.draw(),
      onpointermove: (/** @type {PointerEvent} */ event) => this.move(event),
      onpointerleave: () => this.leave(),
      onclick: (/** @type {MouseEvent} */ event) => this.selection.pinTo(this.focus(event)),
      onwheel: (/** @type {WheelEvent} */ event) => this.wheel(event),
    }, this.size); // prettier-ignore
    this.element = this.scroll;
    this.colors = palette();
    this.width = 0;
    new ResizeObserver(() => this.resize()).observe(this.scroll);
  }

  resize() {
    this.width = this.scroll.clientWidth;
    const content = this.width * this.zoom * (this.full ? this.total / this.full || 1 : 1);
    const count = this.weights.length;
    const least = Math.min(2.5, (0.2 * content) / Math.max(1, count));
    const rest = content - least * count;
    let x = 0;
    for (let at = 0; at < count; at++) {
      x += least + (this.total ? (rest * this.weights[at]) / this.total : rest / count);
      this.edges[at + 1] = x;
    }
    this.size.style.width = `${Math.max(this.width, content)}px`;
    this.size.style.height = `${this.height}px`;
    this.draw();
  }

  /**
   * @param {number} factor
   * @param {number} [at]  the place that stays, in pixels from the left
   */
  zoomBy(factor, at = this.width / 2) {
    const before = this.zoom;
    this.zoom = Math.min(200, Math.max(1, this.zoom * factor));
    const place = ((this.scroll.scrollLeft + at) / before) * this.zoom;
    this.resize();
    this.scroll.scrollLeft = place - at;
    this.draw();
  }

  /** @param {WheelEvent} event */
  wheel(event) {
    if (!event.ctrlKey && !event.metaKey) return;
    event.preventDefault();
    this.zoomBy(Math.exp(-event.deltaY / 200), event.offsetX - this.scroll.scrollLeft);
  }

  draw() {
    if (!this.width) return;
    const drawn = context(this.canvas, this.width, this.height);
    const left = this.scroll.scrollLeft;
    const { hover, pin, step: shown } = this.selection;
    drawn.font = `11px ${variable("--sans")}`;
    drawn.textBaseline = "middle";
    for (let at = this.stepAt(left); at < this.weights.length && this.edges[at] < left + this.width; at++) {
      const [x, end] = [this.edges[at] - left, this.edges[at + 1] - left];
      const wide = Math.max(0.7, end - x - (end - x > 3 ? 1 : 0));
      drawn.globalAlpha = this.kept && !this.kept.has(at) ? 0.15 : 1;
      this.bar(drawn, this.joins.steps[at], x, wide);
      drawn.globalAlpha = 1;
      if (pin.steps.has(at)) this.frame(drawn, x, wide, this.colors.pin);
      if (hover.steps.has(at)) this.frame(drawn, x, wide, this.colors.hot);
      if (at === shown) this.caret(drawn, x + wide / 2);
    }
    for (const span of this.modules) this.module(drawn, span, left);
  }

  /**
   * @param {CanvasRenderingContext2D} drawn
   * @param {RunStep} step
   * @param {number} x
   * @param {number} wide
   */
  bar(drawn, step, x, wide) {
    const share = this.joins.roofline(step);
    drawn.fillStyle = share ? this.colors.roof(share.best) : this.colors.unknown;
    drawn.fillRect(x, TOP, wide, BAR);
    const own = step.data.kind === "kernel" || step.data.kind === "cluster";
    if (!own) {
      drawn.fillStyle = this.colors.hatch(drawn);
      drawn.fillRect(x, TOP, wide, BAR);
    }
    if (wide > 52) {
      drawn.fillStyle = share ? this.colors.ink(share.best) : this.colors.text;
      if (!own) this.plate(drawn, step, x, wide, share ? this.colors.roof(share.best) : this.colors.unknown);
      drawn.fillText(clipped(drawn, step.data.name, wide - 8), x + 4, TOP + BAR / 2 + 0.5);
    }
  }

  /** A ground for the name on a hatched bar.
   * @param {CanvasRenderingContext2D} drawn @param {RunStep} step @param {number} x @param {number} wide @param {string} color */
  plate(drawn, step, x, wide, color) {
    const ink = drawn.fillStyle;
    drawn.fillStyle = color;
    drawn.fillRect(x + 2, TOP + 6, drawn.measureText(clipped(drawn, step.data.name, wide - 8)).width + 5, BAR - 12);
    drawn.fillStyle = ink;
  }

  /**
   * @param {CanvasRenderingContext2D} drawn
   * @param {number} x
   * @param {number} wide
   * @param {string} color
   */
  frame(drawn, x, wide, color) {
    drawn.fillStyle = color;
    drawn.fillRect(x, TOP - 4, wide, 3);
    drawn.strokeStyle = color;
    drawn.lineWidth = 2;
    if (wide > 4) drawn.strokeRect(x + 1, TOP + 1, wide - 2, BAR - 2);
  }

  /**
   * @param {CanvasRenderingContext2D} drawn
   * @param {number} x
   */
  caret(drawn, x) {
    drawn.fillStyle = this.colors.text;
    drawn.beginPath();
    drawn.moveTo(x - 4, 0);
    drawn.lineTo(x + 4, 0);
    drawn.lineTo(x, 5);
    drawn.fill();
  }

  /**
   * @param {CanvasRenderingContext2D} drawn
   * @param {ModuleSpan} span
   * @param {number} left
   */
  module(drawn, span, left) {
    const [x, end] = [this.edges[span.begin] - left, this.edges[span.end] - left];
    if (end < 0 || x > this.width) return;
    const top = TOP + BAR + 3 + span.lane * LANE;
    const chosen = this.selection.pin.focus?.path === span.path ? "pin" : this.selection.hover.focus?.path === span.path ? "hot" : "";
    drawn.fillStyle = chosen === "pin" ? this.colors.pinGround : chosen ? this.colors.hotGround : this.colors.lane;
    drawn.fillRect(x, top, Math.max(0.5, end - x - 1), LANE - 1);
    const [from, wide] = [Math.max(0, x), Math.min(end, this.width) - Math.max(0, x)];
    if (wide < 16) return;
    drawn.fillStyle = this.colors.muted;
    drawn.fillText(clipped(drawn, span.name, wide - 8), from + 4, top + LANE / 2);
  }

  /**
   * The step at a place.
   * @param {number} x  from the strip's beginning
   */
  stepAt(x) {
    let [low, high] = [0, this.weights.length - 1];
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.edges[middle + 1] <= x) low = middle + 1;
      else high = middle;
    }
    return low;
  }

  /**
   * What is under the pointer.
   * @param {MouseEvent} event
   * @returns {import("./joins.js").Focus | null}
   */
  focus(event) {
    const box = this.scroll.getBoundingClientRect();
    const [x, y] = [event.clientX - box.left + this.scroll.scrollLeft, event.clientY - box.top];
    if (!this.weights.length || x > this.edges[this.weights.length]) return null;
    const at = this.stepAt(x);
    if (y < TOP + BAR + 2) return { kind: "step", at };
    const lane = Math.floor((y - TOP - BAR - 3) / LANE);
    const span = this.modules.find((each) => each.lane === lane && each.begin <= at && at < each.end);
    return span ? { kind: "module", at: -1, path: span.path } : null;
  }

  /** @param {PointerEvent} event */
  move(event) {
    const focus = this.focus(event);
    this.selection.point(focus);
    if (focus?.kind === "step") this.tip.show(event.clientX, event.clientY, describe(this.selection, focus.at));
    else if (focus) this.tip.show(event.clientX, event.clientY, [h("b", null, focus.path), moduleTime(this.selection)]);
    else this.tip.hide();
  }

  leave() {
    this.selection.point(null);
    this.tip.hide();
  }

  /** The chosen step comes into view. */
  reveal() {
    const at = this.selection.step;
    this.scroll.setAttribute("aria-valuenow", String(at));
    this.scroll.setAttribute("aria-valuetext", at < 0 ? "" : `${this.joins.steps[at].data.id} ${this.joins.steps[at].data.name}`);
    const [x, end] = [this.edges[at], this.edges[at + 1]];
    if (x < this.scroll.scrollLeft || end > this.scroll.scrollLeft + this.width) this.scroll.scrollLeft = x - this.width / 3;
    this.draw();
  }

  recolor() {
    this.colors = palette();
    this.draw();
  }
}

/** @param {Selection} selection */
function moduleTime(selection) {
  const seconds = selection.joins.secondsOf(selection.hover);
  return h("div", null, seconds ? time(seconds) : "not timed", ` in ${selection.hover.steps.size} steps`);
}

/**
 * A step in a tooltip.
 * @param {Selection} selection
 * @param {number} at
 * @returns {(Node | string | null)[]}
 */
function describe(selection, at) {
  const { joins } = selection;
  const step = joins.steps[at];
  const share = joins.roofline(step);
  const outside = step.data.kind === "aten" ? "ATen" : step.data.kind === "eager" ? "PyTorch" : "";
  return [
    h("b", null, step.data.name), h("span", { class: "muted" }, ` ${step.data.id}`),
    h("div", null, typeof step.data.seconds === "number" ? `${time(step.seconds)} · ${percent(step.seconds / (joins.seconds || 1))} of the run` : `not timed · ${size(step.moved)} moved`),
    share ? h("div", null, `${reached(share.best)} of the roofline, by ${share.compute > share.memory ? "arithmetic" : "memory"}`) : null,
    step.module ? h("div", { class: "muted" }, step.module) : null,
    outside ? h("div", { class: "outside" }, `${outside}: ${step.data.reason ?? ""}`) : null,
  ]; // prettier-ignore
}

/**
 * The modules of consecutive steps, on two lanes.
 * @param {RunStep[]} steps
 * @param {number} skipped  names that all have in common
 * @returns {ModuleSpan[]}
 */
function moduleSpans(steps, skipped) {
  const paths = steps.map((step) => moduleParts(step.module));
  /** @type {ModuleSpan[]} */
  const spans = [];
  for (let lane = 0; lane < LANES; lane++) {
    /** @type {ModuleSpan | null} */
    let open = null;
    paths.forEach((path, at) => {
      const parts = path.slice(0, skipped + lane + 1);
      if (!parts.length || (parts.length <= skipped + lane && lane > 0)) return (open = null);
      const whole = parts.join(".");
      if (open?.path === whole) open.end = at + 1;
      else spans.push((open = { name: parts[parts.length - 1], path: whole, begin: at, end: at + 1, lane }));
      return open;
    });
  }
  return spans;
}

/**
 * A text that fits.
 * @param {CanvasRenderingContext2D} drawn
 * @param {string} text
 * @param {number} width
 */
function clipped(drawn, text, width) {
  if (drawn.measureText(text).width <= width) return text;
  const letters = Math.floor((text.length * width) / drawn.measureText(text).width) - 1;
  return letters > 1 ? `${text.slice(0, letters)}…` : "";
}

/** The colours of the present theme. */
function palette() {
  const stops = [0, 1, 2].map((stop) => rgb(variable(`--roof${stop}`)));
  const mixed = (/** @type {number} */ share) => {
    const place = Math.min(1, Math.max(0, share)) * 2;
    const [one, other] = [stops[Math.floor(Math.min(1.999, place))], stops[Math.floor(Math.min(1.999, place)) + 1]];
    const part = place - Math.floor(Math.min(1.999, place));
    return one.map((value, at) => Math.round(value + (other[at] - value) * part));
  };
  /** @type {CanvasPattern | null} */
  let pattern = null;
  return {
    roof: (/** @type {number} */ share) => `rgb(${mixed(share).join(" ")})`,
    ink: (/** @type {number} */ share) => {
      const [red, green, blue] = mixed(share);
      return 0.299 * red + 0.587 * green + 0.114 * blue > 140 ? "#14171c" : "#ffffff";
    },
    hatch: (/** @type {CanvasRenderingContext2D} */ drawn) => (pattern ??= hatched(drawn)),
    unknown: variable("--unknown"), text: variable("--text"), muted: variable("--muted"), lane: variable("--lane"),
    pin: variable("--pin-line"), hot: variable("--hot-line"), pinGround: variable("--pin"), hotGround: variable("--hot"),
  }; // prettier-ignore
}

/** @param {CanvasRenderingContext2D} drawn */
function hatched(drawn) {
  const tile = document.createElement("canvas");
  tile.width = tile.height = 6;
  const lines = /** @type {CanvasRenderingContext2D} */ (tile.getContext("2d"));
  lines.strokeStyle = variable("--hatch");
  lines.lineWidth = 1.6;
  lines.beginPath();
  for (const offset of [-6, 0, 6]) {
    lines.moveTo(offset - 1, 7);
    lines.lineTo(offset + 7, -1);
  }
  lines.stroke();
  return /** @type {CanvasPattern} */ (drawn.createPattern(tile, "repeat"));
}

/** @param {string} color  "#rrggbb" */
function rgb(color) {
  return [1, 3, 5].map((begin) => parseInt(color.slice(begin, begin + 2), 16));
}
