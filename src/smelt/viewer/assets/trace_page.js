// The page of one trace: strips above, columns, the card at the side.

import { card } from "./card.js";
import { LoopColumn, OperatorColumn, SourceColumn, StepColumn } from "./columns.js";
import { Tip, fill, h, remember, remembered } from "./dom.js";
import { Filter } from "./filter.js";
import { percent, plural, time } from "./format.js";
import { Joins } from "./joins.js";
import { addressOf, focusOf, helpDialog, keepAddress, listenToKeys, themeButton } from "./keys.js";
import { compileSeconds, compileStrip } from "./spans.js";
import { Selection } from "./state.js";
import { Strip } from "./strip.js";
import { CodeColumn, NestColumn } from "./texts.js";
import { top } from "./top.js";

/** @typedef {import("./load.js").Trace} Trace */

/** @type {[string, string][]} */
const KEYS = [
  ["j k", "next and previous step (of those that the filter keeps)"],
  ["/", "filter by name, operator, file, module"],
  ["f", "film: what each pass changes"],
  ["[ ]", "pass before, next pass"],
  ["Esc", "unpin; leave the filter"],
  ["1 2 3 4 5 6", "show or hide source, operators, loops, steps, nest, code"],
  ["d", "show or hide the details"],
  ["+ −", "zoom the strip"],
  ["t", "theme"],
  ["Tab ↑ ↓ Enter", "another list; a line of it; pin that"],
  ["?", "these keys"],
];

export class TracePage {
  /**
   * @param {Trace} trace
   * @param {HTMLElement} root
   */
  constructor(trace, root) {
    this.trace = trace;
    this.joins = new Joins(trace);
    this.selection = new Selection(this.joins);
    this.filter = new Filter(this.joins);
    this.tip = new Tip();
    this.strip = new Strip(this.selection, this.tip);
    this.nest = new NestColumn(this.selection);
    this.code = new CodeColumn(this.selection);
    this.columns = [
      new SourceColumn(this.selection), new OperatorColumn(this.selection), new LoopColumn(this.selection), new StepColumn(this.selection), this.nest, this.code,
    ]; // prettier-ignore
    this.help = helpDialog(KEYS);
    this.status = h("span", { class: "pinned", role: "status", "aria-live": "polite" });
    this.matches = h("span", { class: "matches", role: "status" });
    this.field = h("input", { type: "search", placeholder: "filter  /", "aria-label": "filter", spellcheck: false, oninput: () => this.find() });
    this.side = new Side(this.selection);
    this.splitters = this.columns.slice(1).map((column) => splitter(column.element));
    this.panes = h("main", { class: "panes" }, this.columns.flatMap((column, at) => [at ? this.splitters[at - 1] : null, column.element]), this.side.element);
    const shown = remembered("columns")?.split(",");
    /** @type {Set<string>} */
    this.shown = new Set(shown ?? defaults());
    this.build(root);
    this.selection.listen((change) => this.changed(change));
    this.keys();
    window.addEventListener("hashchange", () => this.follow());
    this.follow();
  }

  /** @param {HTMLElement} root */
  build(root) {
    const { trace, joins } = this;
    const theme = themeButton(() => requestAnimationFrame(() => this.recolor()));
    this.theme = theme;
    const spans = trace.compile ?? [];
    this.toggles = this.columns.map((column, at) => h("button", { class: "toggle", title: `show or hide ( ${at + 1} )`, onclick: () => this.toggle(column.name) }, column.title));
    const details = h("button", { class: "toggle", title: "show or hide ( d )", onclick: () => this.toggle("side") }, "Details");
    this.toggles.push(details);
    fill(root,
      h("header", { class: "top" },
        h("span", { class: "brand" }, "smelt"), h("h1", { title: trace.title }, trace.title), h("span", { class: "total" }, total(joins)),
        h("nav", { class: "shown", "aria-label": "columns" }, this.toggles),
        h("span", { class: "space" }), this.matches, this.field, theme,
        h("button", { class: "toggle", "aria-label": "keys", title: "keys ( ? )", onclick: () => this.help.showModal() }, "?")),
      h("section", { class: "run", "aria-label": "run" },
        h("div", { class: "legend" }, h("h2", null, "Run"), h("span", null, runLine(joins)), h("span", { class: "space" }), ...legend(joins),
          h("span", { class: "zoom" },
            h("button", { "aria-label": "zoom out", title: "zoom out ( − )", onclick: () => this.strip.zoomBy(1 / 1.6) }, "−"),
            h("button", { "aria-label": "zoom in", title: "zoom in ( + ), or Ctrl and the wheel", onclick: () => this.strip.zoomBy(1.6) }, "+"))),
        this.strip.element,
        spans.length ? h("div", { class: "compile" }, h("h2", null, "Compile"), h("span", { class: "muted" }, time(compileSeconds(spans))), compileStrip(spans, this.tip)) : null),
      this.panes,
      h("footer", null, this.status, h("span", { class: "made" }, made(trace)), h("span", { class: "space" }), h("span", { class: "hint" }, h("kbd", null, "j"), h("kbd", null, "k"), " steps  ", h("kbd", null, "/"), " filter  ", h("kbd", null, "f"), " film  ", h("kbd", null, "?"), " keys"))); // prettier-ignore
    this.layout();
  }

  layout() {
    const first = this.visible()[0];
    this.columns.forEach((column, at) => {
      column.element.hidden = !this.shown.has(column.name);
      if (at) this.splitters[at - 1].hidden = column.element.hidden || column === first;
    });
    this.side.element.hidden = !this.shown.has("side");
    const names = [...this.columns.map((column) => column.name), "side"];
    this.toggles?.forEach((button, at) => button.setAttribute("aria-pressed", String(this.shown.has(names[at]))));
  }

  /** @param {string} name */
  toggle(name) {
    if (!this.shown.delete(name)) this.shown.add(name);
    remember("columns", [...this.shown].join(","));
    this.layout();
    for (const column of this.visible()) {
      column.rows.resized();
      column.rows.mark();
      if (column.name === name) column.reveal();
    }
    this.nest.revealPass();
  }

  visible() {
    return this.columns.filter((column) => this.shown.has(column.name));
  }

  /** @param {import("./state.js").Change} change */
  changed(change) {
    if (change === "step") {
      for (const column of this.columns) column.stepped();
      return;
    }
    for (const column of this.visible()) column.rows.mark();
    if (change === "hover") return this.strip.draw();
    for (const column of this.visible()) column.reveal();
    this.strip.reveal();
    this.side.pinned();
    const { focus } = this.selection.pin;
    keepAddress(addressOf(this.joins, focus));
    fill(this.status, focus ? this.said() : "");
  }

  /** What is pinned, as a line. */
  said() {
    const { joins, selection } = this;
    const { focus, steps } = selection.pin;
    if (!focus) return "";
    const seconds = joins.secondsOf(selection.pin);
    const name = focus.kind === "step" ? `${joins.steps[focus.at].data.id} ${joins.steps[focus.at].data.name}` : addressOf(joins, focus).replace("=", " ");
    const share = joins.seconds && seconds ? ` · ${time(seconds)} · ${percent(seconds / joins.seconds)}` : "";
    return `${name} · ${plural(steps.size, "step")} · ${plural(selection.pin.ops.size, "operator")}${share}`;
  }

  find() {
    const kept = this.filter.set(this.field.value);
    for (const column of this.columns) column.filter(kept);
    this.strip.kept = kept ? kept.steps : null;
    this.strip.draw();
    fill(this.matches, kept ? `${plural(kept.steps.size, "step")}, ${plural(kept.ops.size, "operator")}` : "");
  }

  /**
   * Pins the next step, of those that the filter keeps.
   * @param {number} by
   */
  step(by) {
    const { kept } = this.filter;
    const steps = this.joins.steps.filter((step) => !kept || kept.steps.has(step.at)).map((step) => step.at);
    const shown = this.selection.step;
    const next = by > 0 ? steps.find((at) => at > shown) : steps.findLast((at) => at < shown);
    const at = steps.includes(shown) ? (this.selection.pin.focus ? next : shown) : (next ?? (by > 0 ? steps[0] : steps[steps.length - 1]));
    if (at !== undefined) this.selection.pinTo({ kind: "step", at });
  }

  follow() {
    const focus = focusOf(this.joins, location.hash);
    if (focus) this.selection.pinTo(focus);
  }

  leave() {
    if (this.field.value || document.activeElement === this.field) {
      this.field.value = "";
      this.field.blur();
      this.find();
    } else this.selection.pinTo(null);
  }

  recolor() {
    this.strip.recolor();
    for (const column of this.visible()) column.rows.drawRuler();
  }

  keys() {
    /** @type {import("./keys.js").Actions} */
    const actions = {
      j: () => this.step(1), k: () => this.step(-1), "/": () => this.field.focus(), Escape: () => this.leave(), "?": () => this.help.showModal(),
      f: () => this.nest.toggleFilm(), "[": () => this.nest.go(this.nest.frame - 1), "]": () => this.nest.go(this.nest.frame + 1),
      t: () => this.theme?.click(), "+": () => this.strip.zoomBy(1.6), "-": () => this.strip.zoomBy(1 / 1.6), d: () => this.toggle("side"),
    }; // prettier-ignore
    this.columns.forEach((column, at) => (actions[at + 1] = () => this.toggle(column.name)));
    listenToKeys(actions);
    this.strip.element.addEventListener("keydown", (event) => {
      const by = /** @type {Record<string, number>} */ ({ ArrowRight: 1, ArrowLeft: -1 })[event.key];
      if (!by) return;
      this.step(by);
      event.preventDefault();
    });
    this.field.addEventListener("keydown", (event) => {
      if (event.key === "Enter") this.field.blur();
    });
  }
}

/** The side: what costs most, or the card of what is pinned. */
class Side {
  /** @param {Selection} selection */
  constructor(selection) {
    this.selection = selection;
    this.tab = "top";
    const tab = (/** @type {string} */ name, /** @type {string} */ text) =>
      h("button", { role: "tab", id: `tab-${name}`, "aria-controls": "side", onclick: () => this.open(name) }, text);
    this.tabs = [tab("top", "What costs"), tab("card", "Details")];
    this.body = h("div", { class: "body", id: "side", role: "tabpanel", tabindex: 0 });
    this.element = h("aside", { class: "side", "aria-label": "details" }, h("div", { class: "tabs", role: "tablist" }, this.tabs), this.body);
    this.show();
  }

  /** @param {string} tab */
  open(tab) {
    this.tab = tab;
    this.show();
  }

  pinned() {
    this.open(this.selection.pin.focus ? "card" : "top");
  }

  show() {
    this.tabs.forEach((tab) => tab.setAttribute("aria-selected", String(tab.id === `tab-${this.tab}`)));
    this.body.setAttribute("aria-labelledby", `tab-${this.tab}`);
    fill(this.body, this.tab === "top" ? top(this.selection) : card(this.selection));
  }
}

/** The columns of a first visit: what the window has place for. */
function defaults() {
  const shown = ["source", "operators", "nest"];
  if (window.innerWidth >= 1500) shown.push("code");
  if (window.innerWidth >= 900) shown.push("side");
  return shown;
}

/** @param {Joins} joins */
export function total(joins) {
  const run = joins.trace.run_seconds;
  if (typeof run === "number") return `${time(run)} a run`;
  return joins.timed ? `${time(joins.seconds)} in steps` : "not timed";
}

/** @param {Joins} joins */
function runLine(joins) {
  const { steps, timed, trace } = joins;
  const outside = steps.filter((step) => step.data.kind === "aten" || step.data.kind === "eager").length;
  const text = `${plural(steps.length, "step")}${outside ? `, ${outside} of them ATen or PyTorch` : ""}`;
  if (!timed) return `${text}. Not timed: the width is bytes moved`;
  const run = trace.run_seconds;
  return run ? `${text}, ${time(joins.seconds)}: ${percent(Math.min(1, joins.seconds / run))} of the run` : text;
}

/** @param {Joins} joins */
export function legend(joins) {
  const roofs = joins.steps.some((step) => joins.roofline(step))
    ? [h("span", { class: "key" }, "of the roofline 0 ", h("i", { class: "scale" }), " 100 %")]
    : [];
  const outside = joins.steps.some((step) => step.data.kind !== "kernel");
  return [...roofs, outside ? h("span", { class: "key" }, h("i", { class: "hatch" }), " ATen or PyTorch") : null];
}

/** @param {Trace} trace */
export function made({ made: facts }) {
  if (!facts) return "";
  const options = Object.entries(facts.options ?? {}).map(([name, value]) => `${name}=${value}`).join(" ");
  const threads = facts.threads ? plural(facts.threads, "thread") : "";
  return [facts.machine, threads, facts.torch ? `torch ${facts.torch}` : "", facts.smelt ? `smelt ${facts.smelt}` : "", options, facts.date].filter((each) => each).join(" · ");
}

/**
 * A bar before a column, which the pointer or the arrow keys move.
 * @param {HTMLElement} right
 */
export function splitter(right) {
  const move = (/** @type {number} */ pixels) => {
    let left = /** @type {HTMLElement} */ (bar.previousElementSibling);
    while (left.hidden || left.getAttribute("role") === "separator") left = /** @type {HTMLElement} */ (left.previousElementSibling);
    const [one, other] = [left.offsetWidth, right.offsetWidth];
    const by = Math.max(120 - one, Math.min(other - 120, pixels));
    const grow = (Number(getComputedStyle(left).flexGrow) + Number(getComputedStyle(right).flexGrow)) / (one + other);
    left.style.flexGrow = String((one + by) * grow);
    right.style.flexGrow = String((other - by) * grow);
    bar.setAttribute("aria-valuenow", String(Math.round((100 * (one + by)) / (one + other))));
  };
  const bar = h("div", {
    class: "splitter", role: "separator", tabindex: 0, "aria-orientation": "vertical", "aria-label": "width", "aria-valuenow": 50,
    onkeydown: (/** @type {KeyboardEvent} */ event) => {
      const by = /** @type {Record<string, number>} */ ({ ArrowLeft: -24, ArrowRight: 24 })[event.key];
      if (by) move(by);
    },
    onpointerdown: (/** @type {PointerEvent} */ event) => bar.setPointerCapture(event.pointerId),
    onpointermove: (/** @type {PointerEvent} */ event) => bar.hasPointerCapture(event.pointerId) && move(event.clientX - bar.getBoundingClientRect().left - 3),
  }); // prettier-ignore
  return bar;
}
