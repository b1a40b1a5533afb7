// The columns of source, operators, loops and steps.

import { fill, h } from "./dom.js";
import { milliseconds, percent, plural, time } from "./format.js";
import { coloured, insideStrings } from "./highlight.js";
import { HOT, PINNED, ROW, Rows, gutter } from "./rows.js";

/**
 * @typedef {import("./state.js").Selection} Selection
 * @typedef {import("./filter.js").Kept} Kept
 * @typedef {import("./joins.js").Joins} Joins
 * @typedef {import("./joins.js").Focus} Focus
 * @typedef {import("./rows.js").Row} Row
 */

export const HUES = 7; // classes hue0 to hue6 of the style sheet: an operator of the shown step each

const MARKS = ["", "pin", "hot", "pin hot"];

/**
 * @param {import("./joins.js").Joined} joined
 * @param {Focus} key
 */
function has(joined, key) {
  if (key.kind === "line") return joined.lines.has(key.at);
  if (key.kind === "loop") return joined.loops.has(key.at);
  if (key.kind === "step") return joined.steps.has(key.at);
  return joined.ops.has(key.at);
}

/** A column: a heading with tools, a list under it. `keys` says for each row what it stands for. */
export class Column {
  /**
   * @param {string} name
   * @param {string} title
   * @param {Selection} selection
   */
  constructor(name, title, selection) {
    this.name = name;
    this.title = title;
    this.selection = selection;
    this.joins = selection.joins;
    /** @type {(Focus | null)[]} */
    this.keys = [];
    this.picking = false;
    this.rows = new Rows(title, {
      point: (at) => selection.point(this.keys[at] ?? null),
      pick: (at) => this.pick(at),
      classes: (at) => this.classes(at),
      marked: (at) => this.marked(at),
    });
    this.tools = h("div", { class: "tools" });
    this.note = h("p", { class: "note", hidden: true });
    this.element = h("section", { class: "column", "aria-label": title, "data-name": name }, h("header", null, h("h2", null, title), this.tools), this.note, this.rows.element);
  }

  /**
   * @param {Row[]} rows
   * @param {(Focus | null)[]} keys
   * @param {boolean} [stay]
   */
  set(rows, keys, stay = false) {
    this.keys = keys;
    this.rows.set(rows, stay);
  }

  /** @param {number} at */
  pick(at) {
    this.pin(this.keys[at] ?? null);
  }

  /** @param {Focus | null} focus */
  pin(focus) {
    this.picking = true;
    if (focus) this.selection.pinTo(focus);
    this.picking = false;
  }

  /**
   * Whether a row is pinned or pointed at.
   * @param {number} at
   * @returns {number}
   */
  marked(at) {
    const key = this.keys[at];
    if (!key) return 0;
    const { hover, pin } = this.selection;
    return (has(pin, key) ? PINNED : 0) | (has(hover, key) ? HOT : 0);
  }

  /**
   * @param {number} at
   * @returns {string}
   */
  classes(at) {
    return MARKS[this.marked(at)];
  }

  /** Brings pinned rows into view: the place with most of them; a list in which they were picked stays. */
  reveal() {
    if (this.picking) return;
    const height = this.rows.height || 400;
    /** @type {number[]} */
    const pinned = [];
    for (let at = 0; at < this.keys.length; at++) {
      if (this.marked(at) & PINNED) pinned.push(at);
    }
    let [best, most] = [-1, 0];
    for (let first = 0, end = 0; first < pinned.length; first++) {
      while (end < pinned.length && (pinned[end] - pinned[first]) * ROW < height / 2) end++;
      if (end - first > most) [best, most] = [pinned[first], end - first];
    }
    if (best >= 0) this.rows.reveal(best);
  }

  /** @param {Kept | null} _kept */
  filter(_kept) {}

  /** Another step's texts are to be shown. */
  stepped() {}
}

/**
 * Which colour of the shown step's operators an operator has.
 * @param {Selection} selection
 * @param {number} op
 */
export function hue(selection, op) {
  const place = selection.joins.steps[selection.step]?.ops.indexOf(op) ?? -1;
  return place < 0 ? "" : ` hue${place % HUES}`;
}

/** The model's source, with the time of what came from each line. */
export class SourceColumn extends Column {
  /** @param {Selection} selection */
  constructor(selection) {
    super("source", "Source", selection);
    const files = this.joins.trace.files;
    this.file = 0;
    this.picker = h("select", { "aria-label": "file", onchange: () => this.open(Number(this.picker.value)) }, files.map((file, at) => h("option", { value: at, title: file.path }, this.joins.names[at])));
    if (files.length > 1) this.tools.append(this.picker);
    else if (files.length) this.tools.append(h("span", { class: "muted", title: files[0].path }, files[0].name));
    /** @type {Kept | null} */
    this.kept = null;
    this.most = Math.max(1e-12, ...this.joins.lines.map((line) => line.ownSeconds));
    if (files.length) this.open(this.costliestFile());
    else this.tell("No file of the model is in the trace.");
  }

  /** @param {string} text */
  tell(text) {
    this.note.textContent = text;
    this.note.hidden = false;
  }

  costliestFile() {
    const seconds = this.joins.trace.files.map(() => 0);
    for (const line of this.joins.lines) seconds[line.file] += line.ownSeconds || line.own.length * 1e-12;
    return seconds.indexOf(Math.max(...seconds));
  }

  /** @param {number} file */
  open(file) {
    this.file = file;
    this.picker.value = String(file);
    const lines = this.joins.lines.filter((line) => line.file === file);
    const inside = insideStrings(lines.map((line) => line.text));
    const rows = lines.map((line, at) => ({ wide: line.text.length + 6, draw: (/** @type {HTMLElement} */ element) => this.drawLine(element, line, inside[at]) }));
    this.set(rows, lines.map((line) => ({ kind: "line", at: line.at })));
    const hottest = lines.reduce((best, line) => ((line.ownSeconds || line.own.length * 1e-12) > (best.ownSeconds || best.own.length * 1e-12) ? line : best), lines[0]);
    if (hottest?.own.length) this.rows.reveal(lines.indexOf(hottest));
  }

  /**
   * @param {HTMLElement} element
   * @param {import("./joins.js").Line} line
   * @param {boolean} inside
   */
  drawLine(element, line, inside) {
    const own = line.ownSeconds > 0;
    const seconds = own ? line.ownSeconds : line.seconds;
    const heat = h("span", { class: own ? "heat" : "heat below" }, seconds ? milliseconds(seconds) : "");
    if (own) heat.style.setProperty("--heat", (0.08 + 0.92 * Math.sqrt(line.ownSeconds / this.most)).toFixed(3));
    if (seconds) {
      const share = this.joins.seconds ? `, ${percent(seconds / this.joins.seconds)} of the run` : "";
      heat.title = own
        ? `${time(seconds)}${share}: kernels that came from this line. A fused kernel's time is divided equally among its operators.`
        : `${time(seconds)}${share}: kernels of what this line calls`;
    } else if (line.own.length) heat.classList.add("has");
    element.append(gutter(heat, h("span", { class: "number" }, line.number)), ...coloured(line.text, "python", inside));
  }

  /** @param {number} at */
  classes(at) {
    const line = /** @type {Focus} */ (this.keys[at]).at;
    const { hover, pin } = this.selection;
    const dim = this.kept && !this.kept.lines.has(line) ? " dim" : "";
    const called = hover.callers.has(line) ? " called" : "";
    const step = this.joins.steps[this.selection.step];
    const op = step ? step.ops.find((each) => this.joins.ops[each].lines[0] === line) : undefined;
    return super.classes(at) + dim + called + (pin.callers.has(line) ? " pincalled" : "") + (op === undefined ? "" : hue(this.selection, op));
  }

  /** @param {Kept | null} kept */
  filter(kept) {
    this.kept = kept;
    this.rows.mark();
    if (!kept) return;
    const at = this.keys.findIndex((key) => key && kept.lines.has(key.at));
    if (at >= 0) this.rows.reveal(at);
  }

  reveal() {
    const lines = [...this.selection.pin.lines];
    const focus = this.selection.pin.focus;
    if (lines.length && (focus?.kind === "line" || !lines.some((line) => this.joins.lines[line].file === this.file))) {
      const file = this.joins.lines[lines[0]].file;
      if (file !== this.file) this.open(file);
    }
    super.reveal();
  }
}

/** The calls of ATen, under the modules that they are in. */
export class OperatorColumn extends Column {
  /** @param {Selection} selection */
  constructor(selection) {
    super("operators", "Operators", selection);
    this.filter(null);
  }

  /** @param {Kept | null} kept */
  filter(kept) {
    /** @type {Row[]} */
    const rows = [];
    /** @type {(Focus | null)[]} */
    const keys = [];
    const heading = (/** @type {string} */ text, /** @type {string} */ kind, /** @type {Focus | null} */ key) => {
      rows.push({ plain: !key, wide: text.length, draw: (element) => element.append(h("span", { class: kind }, text)) });
      keys.push(key);
    };
    let [graph, module] = [/** @type {any} */ (null), ""];
    for (const op of this.joins.ops) {
      if (kept && !kept.ops.has(op.at)) continue;
      if (op.graph !== graph) {
        graph = op.graph;
        module = "";
        heading(`${graph.name} · ${graph.kind}`, "graph", null);
      }
      if (op.data.module !== null && this.joins.area(op.data.module) !== module) {
        module = this.joins.area(op.data.module);
        if (module) heading(module, "module", { kind: "module", at: -1, path: module });
      }
      rows.push({ wide: op.data.text.length + 8, draw: (element) => this.drawOperator(element, op) });
      keys.push({ kind: "op", at: op.at });
    }
    const shown = kept ? kept.ops.size : this.joins.ops.length;
    fill(this.tools, h("span", { class: "muted" }, kept ? `${shown} of ${this.joins.ops.length}` : shown));
    this.set(rows, keys);
  }

  /**
   * @param {HTMLElement} element
   * @param {import("./joins.js").Op} op
   */
  drawOperator(element, op) {
    const steps = op.steps.map((step) => this.joins.steps[step].data.id);
    const by = h("span", { class: "by", title: steps.length ? `computed in ${steps.join(", ")}` : "no step: a view or a size, read in place" }, steps.length > 1 ? `${steps[0]}+` : (steps[0] ?? "·"));
    const [name, rest] = split(op.data.text, op.data.name);
    const type = /^(:\s*)([^=]*\S)(\s*=\s*)(.*)$/s.exec(rest);
    if (!type) return element.append(gutter(by), h("span", { class: "t-name" }, name), ...coloured(rest, "nest"));
    element.append(gutter(by), h("span", { class: "t-name" }, name), type[1], h("span", { class: "t-type" }, type[2]), type[3], ...coloured(type[4], "nest"));
  }

  /** @param {number} at */
  classes(at) {
    const key = this.keys[at];
    if (!key) return "plain";
    return super.classes(at) + hue(this.selection, key.at);
  }

  /** @param {number} at */
  marked(at) {
    const key = this.keys[at];
    if (key?.kind !== "module") return super.marked(at);
    const { hover, pin } = this.selection;
    return (pin.focus?.path === key.path ? PINNED : 0) | (hover.focus?.path === key.path ? HOT : 0);
  }
}

/**
 * @param {string} text
 * @param {string} name
 */
function split(text, name) {
  return text.startsWith(name) ? [name, text.slice(name.length)] : ["", text];
}

/** The loop nodes, each of several lines. */
export class LoopColumn extends Column {
  /** @param {Selection} selection */
  constructor(selection) {
    super("loops", "Loops", selection);
    this.filter(null);
  }

  /** @param {Kept | null} kept */
  filter(kept) {
    /** @type {Row[]} */
    const rows = [];
    /** @type {(Focus | null)[]} */
    const keys = [];
    let count = 0;
    for (const loop of this.joins.loops) {
      if (kept && !kept.loops.has(loop.at)) continue;
      count++;
      const id = loop.steps.length ? this.joins.steps[loop.steps[0]].data.id : "·";
      loop.text.replace(/\n$/, "").split("\n").forEach((line, place) => {
        rows.push({ wide: line.length + 6, draw: (element) => element.append(gutter(h("span", { class: "by" }, place ? "" : id)), ...coloured(line, "nest")) });
        keys.push({ kind: "loop", at: loop.at });
      });
    }
    fill(this.tools, h("span", { class: "muted" }, kept ? `${count} of ${this.joins.loops.length}` : count));
    this.set(rows, keys);
  }

  /** @param {number} at */
  classes(at) {
    const key = this.keys[at];
    const op = key ? this.joins.loops[key.at].ops[0] : undefined;
    return super.classes(at) + (op === undefined ? "" : hue(this.selection, op));
  }
}

/** The steps of the run, in order. */
export class StepColumn extends Column {
  /** @param {Selection} selection */
  constructor(selection) {
    super("steps", "Steps", selection);
    this.most = Math.max(1e-12, ...this.joins.steps.map((step) => this.weight(step)));
    this.filter(null);
  }

  /** @param {import("./joins.js").RunStep} step */
  weight(step) {
    return this.joins.timed ? step.seconds : step.moved;
  }

  /** @param {Kept | null} kept */
  filter(kept) {
    const steps = this.joins.steps.filter((step) => !kept || kept.steps.has(step.at));
    const rows = steps.map((step) => ({
      wide: step.data.name.length + step.module.length + 22,
      draw: (/** @type {HTMLElement} */ element) => {
        const bar = h("span", { class: "bar" }, h("i", null), h("b", null, step.seconds ? milliseconds(step.seconds) : ""));
        /** @type {HTMLElement} */ (bar.firstChild).style.width = `${(100 * this.weight(step)) / this.most}%`;
        element.append(gutter(h("span", { class: "by" }, step.data.id)), bar, h("span", { class: step.data.kind === "kernel" ? "t-name" : "outside" }, step.data.name), h("span", { class: "muted" }, `  ${step.module}`));
      },
    })); // prettier-ignore
    fill(this.tools, h("span", { class: "muted" }, kept ? `${steps.length} of ${plural(this.joins.steps.length, "step")}` : steps.length));
    this.set(rows, steps.map((step) => ({ kind: "step", at: step.at })));
  }

  /** @param {number} at */
  classes(at) {
    return super.classes(at) + (this.keys[at]?.at === this.selection.step ? " current" : "");
  }
}
