// The columns of one step's texts: its nest after a pass, or the film of its passes, and its code.

import { align, shortened } from "./align.js";
import { Column, HUES } from "./columns.js";
import { fill, h } from "./dom.js";
import { coloured } from "./highlight.js";
import { HOT, PINNED, gutter } from "./rows.js";

/**
 * @typedef {import("./state.js").Selection} Selection
 * @typedef {import("./joins.js").Focus} Focus
 * @typedef {import("./joins.js").RunStep} RunStep
 * @typedef {import("./rows.js").Row} Row
 */

/** @type {Record<string, string>} */
const LANGUAGES = { "c++": "C++", triton: "Triton", cuda: "CUDA", ptx: "PTX", asm: "Assembly" };

/** A column that shows a text of the current step. `marks` has for each row the places of its operators. */
class TextColumn extends Column {
  /**
   * @param {string} name
   * @param {string} title
   * @param {Selection} selection
   */
  constructor(name, title, selection) {
    super(name, title, selection);
    /** @type {number[][]} */
    this.marks = [];
    /** @type {string[]} */
    this.kinds = [];
    /** @type {Row[]} */
    this.lines = [];
    /** @type {(Focus | null)[]} */
    this.lineKeys = [];
    /** @type {Map<number, () => void>} */
    this.acts = new Map();
    this.label = h("button", { class: "stepname", title: "pin this step", onclick: () => selection.step >= 0 && selection.pinTo({ kind: "step", at: selection.step }) });
  }

  /** @returns {RunStep | undefined} */
  get step() {
    return this.joins.steps[this.selection.step];
  }

  /**
   * A row of code that came from operators of the step.
   * @param {string} text
   * @param {number[]} marks
   * @param {string} language
   * @param {string | number} number
   * @param {string} [kind]
   */
  line(text, marks, language, number, kind = "") {
    this.marks.push(marks);
    this.kinds.push(kind);
    const sign = kind === "new" ? "+" : kind === "gone" ? "−" : "";
    this.lines.push({
      wide: text.length + 4,
      draw: (element) => {
        element.append(gutter(h("span", { class: "number" }, number), h("span", { class: "sign" }, sign)), ...coloured(text, language));
      },
    });
    const ops = marks.map((mark) => this.step?.ops[mark] ?? -1).filter((op) => op >= 0);
    this.lineKeys.push({ kind: "text", at: this.selection.step, ops });
  }

  /** A row that is no code. @param {string} text @param {() => void} [act] */
  heading(text, act) {
    this.marks.push([]);
    this.kinds.push(act ? "fold" : "plain");
    this.lines.push({ wide: text.length, plain: !act, draw: (element) => element.append(h("span", { class: "skip" }, text)) });
    this.lineKeys.push(null);
    if (act) this.acts.set(this.lines.length - 1, act);
  }

  begin() {
    [this.lines, this.lineKeys, this.acts] = [[], [], new Map()];
    [this.marks, this.kinds] = [[], []];
  }

  /** @param {boolean} stay */
  end(stay) {
    const { step } = this;
    fill(this.label, step ? `${step.data.id} ${step.data.name}` : "");
    const missing = this.lines.length === 0;
    this.note.hidden = !missing;
    fill(this.note, missing ? whyNone(step, this.title) : "");
    this.set(this.lines, this.lineKeys, stay);
  }

  /** @param {number} at */
  pick(at) {
    const act = this.acts.get(at);
    if (act) return act();
    const key = this.keys[at];
    if (!key) return;
    const ops = key.ops ?? [];
    this.pin(ops.length === 1 ? { kind: "op", at: ops[0] } : { kind: "step", at: key.at });
  }

  /** @param {number} at */
  marked(at) {
    const ops = this.keys[at]?.ops ?? [];
    const among = (/** @type {import("./joins.js").Joined} */ joined) =>
      joined.focus !== null && joined.focus.kind !== "step" && ops.some((op) => joined.ops.has(op));
    return (among(this.selection.pin) ? PINNED : 0) | (among(this.selection.hover) ? HOT : 0);
  }

  /** @param {number} at */
  classes(at) {
    const [marks, all] = [this.marks[at], this.step?.ops.length ?? 0];
    let hues = marks.length ? ` hue${marks[0] % HUES}` : "";
    if (marks.length > 2 && marks.length === all) hues = " hueall";
    else if (marks.length > 1) hues += ` second${marks[1] % HUES}`;
    return `${this.kinds[at]} ${super.classes(at)}${hues}`;
  }
}

/**
 * @param {RunStep | undefined} step
 * @param {string} title
 */
function whyNone(step, title) {
  if (!step) return "No step is chosen.";
  const { kind, reason, alternatives, name } = step.data;
  if (kind === "kernel") return `The trace has no ${title} of this kernel.`;
  const who = kind === "aten" ? "ATen runs" : kind === "cluster" ? "smelt runs, as a program of its own," : "PyTorch runs";
  return [h("b", null, `${who} ${name}.`), " ", reason ? reason.replace(/[^.]$/, "$&.") : "", alternatives ? ` Measured: ${alternatives}.` : ""];
}

/** The nest of the current step after a pass. */
export class NestColumn extends TextColumn {
  /** @param {Selection} selection */
  constructor(selection) {
    super("nest", "Nest", selection);
    this.frame = -1;
    this.film = false;
    this.whole = false;
    this.picker = h("div", { class: "passes", role: "tablist", "aria-label": "the nest after a pass ( [ and ] )" });
    this.rows.element.before(this.picker);
    this.filmButton = h("button", { class: "toggle", title: "what each pass changes ( f )", "aria-pressed": false, onclick: () => this.toggleFilm() }, "film");
    this.tools.append(this.label, this.filmButton);
    this.stepped();
  }

  /** @returns {import("./load.js").Frame[]} */
  get frames() {
    const { step } = this;
    return step && typeof step.data.nest === "number" ? step.graph.nests[step.data.nest] : [];
  }

  stepped() {
    const passes = this.frames.map((frame) => frame.pass);
    const current = this.film ? this.picker.children[this.frame]?.textContent : null;
    const idle = (/** @type {number} */ at) => at > 0 && String(this.frames[at].lines) === String(this.frames[at - 1].lines);
    fill(this.picker, passes.map((pass, at) => h("button", {
      role: "tab", class: idle(at) && "idle", title: `${pass}: pass ${at + 1} of ${passes.length}${idle(at) ? ", changes nothing here" : ""}`, onclick: () => this.go(at),
    }, pass))); // prettier-ignore
    const kept = current ? passes.indexOf(current) : -1;
    this.frame = kept >= 0 ? kept : this.film ? Math.min(1, passes.length - 1) : passes.length - 1;
    this.show(false);
  }

  /** @param {number} frame */
  go(frame) {
    if (frame < 0 || frame >= this.frames.length || frame === this.frame) return;
    this.frame = frame;
    this.whole = false;
    this.show(this.film);
  }

  toggleFilm() {
    this.film = !this.film;
    this.whole = false;
    this.frame = this.film ? Math.min(1, this.frames.length - 1) : this.frames.length - 1;
    this.filmButton.setAttribute("aria-pressed", String(this.film));
    this.show(false);
  }

  /** @param {boolean} stay */
  show(stay) {
    const { frames, frame } = this;
    this.begin();
    if (frames.length) {
      [...this.picker.children].forEach((tab, at) => tab.setAttribute("aria-selected", String(at === frame)));
      this.revealPass();
      const now = frames[frame];
      if (this.film && frame > 0) this.compare(frames[frame - 1], now);
      else now.lines.forEach((line, at) => this.line(line, now.marks[at], "nest", at + 1));
    }
    this.picker.hidden = !frames.length;
    this.filmButton.hidden = frames.length < 2;
    this.end(stay);
  }

  /**
   * @param {import("./load.js").Frame} before
   * @param {import("./load.js").Frame} after
   */
  compare(before, after) {
    const pairs = align(before.lines, after.lines);
    const count = (/** @type {string} */ kind) => pairs.filter((pair) => pair.kind === kind).length;
    const [gone, fresh] = [count("gone"), count("new")];
    this.heading(gone + fresh ? `−${gone}  +${fresh} lines by ${after.pass}` : `${after.pass} changes nothing in this nest`);
    for (const pair of this.whole ? pairs : shortened(pairs)) {
      if (typeof pair === "number") this.heading(`⋯ ${pair} equal lines`, () => this.unfold());
      else if (pair.kind === "gone") this.line(before.lines[pair.before], before.marks[pair.before], "nest", pair.before + 1, "gone");
      else this.line(after.lines[pair.after], after.marks[pair.after], "nest", pair.after + 1, pair.kind);
    }
  }

  /** Brings the chosen pass into view. */
  revealPass() {
    requestAnimationFrame(() => {
      const tab = this.picker.children[this.frame];
      if (tab) this.picker.scrollLeft += tab.getBoundingClientRect().right - this.picker.getBoundingClientRect().right + 40;
    });
  }

  unfold() {
    this.whole = true;
    this.show(true);
  }
}

/** The code of the current step: C++ or Triton, and what was made of it, folded in. */
export class CodeColumn extends TextColumn {
  /** @param {Selection} selection */
  constructor(selection) {
    const language = selection.joins.trace.graphs.flatMap((graph) => graph.codes)[0]?.language ?? "c++";
    super("code", LANGUAGES[language] ?? language, selection);
    /** @type {Set<string>} */
    this.open = new Set();
    this.tools.append(this.label);
    this.stepped();
  }

  stepped() {
    this.show(false);
  }

  /** @param {boolean} stay */
  show(stay) {
    const { step } = this;
    this.begin();
    const code = step && typeof step.data.code === "number" ? step.graph.codes[step.data.code] : null;
    if (code) {
      code.lines.forEach((line, at) => this.line(line, code.marks[at], code.language, at + 1));
      for (const more of code.more ?? []) {
        const open = this.open.has(more.language);
        this.heading(`${open ? "▾" : "▸"} ${more.language}: ${more.lines.length} lines`, () => this.fold(more.language));
        if (open) more.lines.forEach((line, at) => this.line(line, more.marks[at], more.language, at + 1));
      }
    }
    this.end(stay);
  }

  /** @param {string} language */
  fold(language) {
    if (!this.open.delete(language)) this.open.add(language);
    this.show(true);
  }
}
