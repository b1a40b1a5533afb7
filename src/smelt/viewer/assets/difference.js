// The page of two traces: which steps got slower or faster, which are new, gone, or have another nest.

import { align, shortened } from "./align.js";
import { Tip, fill, h } from "./dom.js";
import { milliseconds, percent, plural, size, time } from "./format.js";
import { coloured } from "./highlight.js";
import { Joins } from "./joins.js";
import { focusOf, helpDialog, keepAddress, listenToKeys, themeButton } from "./keys.js";
import { HOT, PINNED, Rows, gutter } from "./rows.js";
import { compileSeconds } from "./spans.js";
import { Selection } from "./state.js";
import { Strip } from "./strip.js";
import { made, splitter, total } from "./trace_page.js";

/**
 * @typedef {import("./load.js").Trace} Trace
 * @typedef {import("./joins.js").RunStep} RunStep
 * @typedef {"slower" | "faster" | "new" | "gone" | "same"} Verdict
 * @typedef {{before: RunStep | null, after: RunStep | null, lost: number, verdict: Verdict, changed: boolean}} Match
 */

const NOISE = 0.03; // times that differ by less count as equal
const LEAST = 1e-6; // seconds

/**
 * Steps of two traces that are the same step: in one order by name and operators, then out of order, then by operators alone.
 * @param {Joins} before
 * @param {Joins} after
 * @returns {[number, number][]}  -1: none
 */
export function matched(before, after) {
  const operators = (/** @type {Joins} */ joins, /** @type {RunStep} */ step) => step.ops.map((op) => joins.ops[op].data.op).join(" ");
  const named = (/** @type {Joins} */ joins) => joins.steps.map((step) => `${step.data.name.replace(/_\d+$/, "")}|${operators(joins, step)}`);
  const called = (/** @type {Joins} */ joins) => joins.steps.map((step) => operators(joins, step) || step.data.name);
  const left = new Set(before.steps.map((step) => step.at));
  const right = new Set(after.steps.map((step) => step.at));
  /** @type {[number, number][]} */
  const found = [];
  for (const keys of [named, called]) {
    const [ones, others] = [keys(before), keys(after)];
    const [froms, tos] = [[...left], [...right]];
    const take = (/** @type {number} */ from, /** @type {number} */ to) => {
      found.push([from, to]);
      left.delete(from);
      right.delete(to);
    };
    for (const pair of align(froms.map((at) => ones[at]), tos.map((at) => others[at]))) {
      if (pair.kind === "same") take(froms[pair.before], tos[pair.after]);
    }
    /** @type {Map<string, number[]>} */
    const waiting = new Map();
    for (const at of right) waiting.set(others[at], [...(waiting.get(others[at]) ?? []), at]);
    for (const at of [...left]) {
      const to = waiting.get(ones[at])?.shift();
      if (to !== undefined) take(at, to);
    }
  }
  for (const at of left) found.push([at, -1]);
  for (const at of right) found.push([-1, at]);
  return found;
}

/**
 * The text of a step that is compared.
 * @param {RunStep | null} step
 * @param {"nest" | "code"} which
 * @returns {string[]}
 */
function textOf(step, which) {
  if (!step) return [];
  if (which === "code") return typeof step.data.code === "number" ? step.graph.codes[step.data.code].lines : [];
  const frames = typeof step.data.nest === "number" ? step.graph.nests[step.data.nest] : [];
  return frames.length ? frames[frames.length - 1].lines : [];
}

export class DifferencePage {
  /**
   * @param {Trace} before
   * @param {Trace} after
   * @param {HTMLElement} root
   */
  constructor(before, after, root) {
    this.sides = [new Joins(before), new Joins(after)];
    this.selections = this.sides.map((joins) => new Selection(joins));
    this.timed = this.sides.every((joins) => joins.timed);
    this.matches = this.compared();
    /** @type {Verdict | "changed" | "all"} */
    this.wanted = "all";
    this.query = "";
    /** @type {Match[]} */
    this.shown = [];
    this.chosen = -1;
    this.pointed = -1;
    /** @type {"nest" | "code"} */
    this.which = "nest";
    this.whole = false;
    this.tip = new Tip();
    const full = Math.max(...this.sides.map((joins) => joins.steps.reduce((all, step) => all + (this.timed ? step.seconds : step.moved), 0)));
    this.strips = this.selections.map((selection) => new Strip(selection, this.tip, full));
    this.list = new Rows("steps", {
      point: (at) => this.point(at),
      pick: (at) => this.choose(at),
      classes: (at) => (at === this.chosen ? "pin" : at === this.pointed ? "hot" : ""),
      marked: (at) => (at === this.chosen ? PINNED : 0) | (at === this.pointed ? HOT : 0),
    });
    /** @type {string[]} */
    this.kinds = [];
    /** @type {Set<number>} */
    this.folds = new Set();
    this.text = new Rows("what changed", { point: () => {}, pick: (at) => this.folds.has(at) && this.unfold(), classes: (at) => this.kinds[at] ?? "", marked: () => 0 });
    this.card = h("div", { class: "pair" });
    this.none = h("p", { class: "note" }, "No such step.");
    this.build(root);
    this.selections.forEach((selection, side) => selection.listen((change) => this.changed(change, side)));
    this.filter();
    const focus = focusOf(this.sides[1], location.hash);
    this.choose(focus?.kind === "step" ? Math.max(0, this.shown.findIndex((match) => match.after?.at === focus.at)) : 0);
  }

  /** @returns {Match[]} */
  compared() {
    const [left, right] = this.sides;
    const weight = (/** @type {RunStep | null} */ step) => (this.timed ? step?.seconds : step?.moved) ?? 0;
    /** @type {Map<string, boolean>} */
    const known = new Map(); // steps share nests: each two are compared once
    const differ = (/** @type {RunStep} */ before, /** @type {RunStep} */ after) => {
      const key = [before.graph.name, before.data.nest, before.data.code, after.graph.name, after.data.nest, after.data.code].join();
      if (!known.has(key)) known.set(key, (/** @type {const} */ (["nest", "code"])).some((which) => textOf(before, which).join("\n") !== textOf(after, which).join("\n")));
      return known.get(key) ?? false;
    };
    const matches = matched(left, right).map(([from, to]) => {
      const [before, after] = [left.steps[from] ?? null, right.steps[to] ?? null];
      const lost = weight(after) - weight(before);
      const small = Math.abs(lost) < Math.max(this.timed ? LEAST : 1, NOISE * weight(before));
      /** @type {Verdict} */
      const verdict = !before ? "new" : !after ? "gone" : small ? "same" : lost > 0 ? "slower" : "faster";
      return { before, after, lost, verdict, changed: before !== null && after !== null && differ(before, after) };
    });
    return matches.sort((one, other) => other.lost - one.lost);
  }

  /** @param {HTMLElement} root */
  build(root) {
    const [before, after] = this.sides;
    const help = helpDialog([["j k", "next and previous step"], ["/", "filter"], ["n c", "nest, code"], ["Esc", "leave the filter"], ["t", "theme"], ["?", "these keys"]]);
    const theme = themeButton(() => requestAnimationFrame(() => this.strips.forEach((strip) => strip.recolor())));
    const field = h("input", { type: "search", placeholder: "filter  /", "aria-label": "filter", oninput: () => { this.query = field.value.toLowerCase(); this.filter(); } }); // prettier-ignore
    const names = /** @type {const} */ (["all", "slower", "faster", "new", "gone", "changed"]);
    const count = (/** @type {string} */ name) => this.matches.filter((match) => name === "all" || match.verdict === name || (name === "changed" && match.changed)).length;
    this.wants = names.map((name) => h("button", { class: "toggle", "data-name": name, "aria-pressed": name === "all", onclick: () => this.want(name) }, `${name} ${count(name)}`));
    this.choices = /** @type {const} */ (["nest", "code"]).map((name) => h("button", { class: "toggle", "data-name": name, "aria-pressed": name === "nest", onclick: () => this.open(name) }, name === "nest" ? "Nest" : "C++"));
    const list = h("section", { class: "column steps", "aria-label": "steps" }, h("header", null, h("h2", null, "Steps, by what was lost"), h("div", { class: "tools" }, this.wants)), this.none, this.list.element);
    const text = h("section", { class: "column", "aria-label": "what changed" }, h("header", null, h("h2", null, "What changed"), h("div", { class: "tools" }, this.choices)), this.card, this.text.element);
    fill(root,
      h("header", { class: "top" }, h("span", { class: "brand" }, "smelt"), h("h1", null, "Difference"), h("span", { class: "total" }, this.summary()), h("span", { class: "space" }), field, theme,
        h("button", { class: "toggle", "aria-label": "keys", onclick: () => help.showModal() }, "?")),
      h("section", { class: "run", "aria-label": "runs" },
        ["Before", "After"].flatMap((name, side) => [h("div", { class: "legend" }, h("h2", null, name), h("span", null, `${this.sides[side].trace.title} · ${total(this.sides[side])} · ${made(this.sides[side].trace)}`)), this.strips[side].element])),
      h("main", { class: "panes" }, list, splitter(text), text),
      h("footer", null, h("span", null, compileLine(before, after)), h("span", { class: "space" }), h("span", { class: "hint" }, h("kbd", null, "j"), h("kbd", null, "k"), " steps  ", h("kbd", null, "?"), " keys"))); // prettier-ignore
    listenToKeys({
      j: () => this.choose(Math.min(this.shown.length - 1, this.chosen + 1)), k: () => this.choose(Math.max(0, this.chosen - 1)), "/": () => field.focus(),
      Escape: () => { field.value = this.query = ""; field.blur(); this.filter(); }, n: () => this.open("nest"), c: () => this.open("code"), t: () => theme.click(), "?": () => help.showModal(),
    }); // prettier-ignore
  }

  summary() {
    const [before, after] = this.sides.map((joins) => joins.trace.run_seconds ?? joins.seconds);
    if (!this.timed || !before || !after) return `${plural(this.sides[0].steps.length, "step")} → ${this.sides[1].steps.length}, not timed`;
    const ratio = before / after;
    const faster = ratio >= 1 ? `${ratio.toFixed(2)} × as fast` : `${(1 / ratio).toFixed(2)} × slower`;
    return `${time(before)} → ${time(after)}: ${faster}`;
  }

  /** @param {Verdict | "changed" | "all"} name */
  want(name) {
    this.wanted = name;
    this.wants?.forEach((button) => button.setAttribute("aria-pressed", String(button.dataset.name === name)));
    this.filter();
  }

  filter() {
    const { wanted, query } = this;
    const kept = (/** @type {Match} */ match) => wanted === "all" || match.verdict === wanted || (wanted === "changed" && match.changed);
    const text = (/** @type {Match} */ { before, after }) => `${before?.data.id} ${before?.data.name} ${after?.data.id} ${after?.data.name} ${(after ?? before)?.module}`.toLowerCase();
    const chosen = this.shown[this.chosen];
    this.shown = this.matches.filter((match) => kept(match) && text(match).includes(query));
    this.chosen = this.shown.indexOf(chosen);
    this.pointed = -1;
    this.none.hidden = this.shown.length > 0;
    this.list.set(this.shown.map((match) => ({ wide: 70, draw: (element) => drawMatch(element, match, this.timed) })));
  }

  /** @param {number} at */
  point(at) {
    this.pointed = at;
    const match = this.shown[at];
    [match?.before, match?.after].forEach((step, side) => this.selections[side].point(step ? { kind: "step", at: step.at } : null));
    this.list.mark();
  }

  /** @param {number} at */
  choose(at) {
    const match = this.shown[at];
    if (!match) return;
    this.chosen = at;
    this.whole = false;
    [match.before, match.after].forEach((step, side) => this.selections[side].pinTo(step ? { kind: "step", at: step.at } : null));
    keepAddress(match.after?.data.id ?? "");
    this.list.reveal(at);
    this.list.mark();
    this.show();
  }

  /**
   * @param {import("./state.js").Change} change
   * @param {number} side
   */
  changed(change, side) {
    this.strips[side].draw();
    const selection = this.selections[side];
    const { focus } = selection.pin;
    const other = this.shown[this.chosen];
    if (change !== "pin" || focus?.kind !== "step" || (side ? other?.after : other?.before)?.at === focus.at) return;
    const at = this.shown.findIndex((match) => (side ? match.after : match.before)?.at === focus.at);
    if (at >= 0) this.choose(at);
  }

  /** @param {"nest" | "code"} which */
  open(which) {
    this.which = which;
    this.choices?.forEach((button) => button.setAttribute("aria-pressed", String(button.dataset.name === which)));
    this.show();
  }

  unfold() {
    this.whole = true;
    this.show();
  }

  show() {
    const { before, after } = this.shown[this.chosen] ?? {};
    fill(this.card, ...pairCard(this.shown[this.chosen], this.timed));
    const [old, now] = [textOf(before ?? null, this.which), textOf(after ?? null, this.which)];
    const language = this.which === "nest" ? "nest" : "c++";
    /** @type {import("./rows.js").Row[]} */
    const rows = [];
    [this.kinds, this.folds] = [[], new Set()];
    const pairs = align(old, now);
    const equal = pairs.every((pair) => pair.kind === "same");
    if (!pairs.length) rows.push({ draw: (element) => element.append(h("span", { class: "skip" }, "No text of this step on either side: ATen or PyTorch runs it.")) });
    else if (equal) rows.push({ draw: (element) => element.append(h("span", { class: "skip" }, "The text is the same.")) });
    rows.forEach(() => this.kinds.push("plain"));
    for (const pair of this.whole || equal ? pairs : shortened(pairs)) {
      if (typeof pair === "number") {
        this.folds.add(rows.length);
        this.kinds.push("fold");
        rows.push({ draw: (element) => element.append(h("span", { class: "skip" }, `⋯ ${pair} equal lines`)) });
        continue;
      }
      const [line, number] = pair.kind === "gone" ? [old[pair.before], pair.before] : [now[pair.after], pair.after];
      const sign = { gone: "−", new: "+", same: "" }[pair.kind];
      this.kinds.push(pair.kind);
      rows.push({ wide: line.length + 6, draw: (element) => element.append(gutter(h("span", { class: "number" }, number + 1), h("span", { class: "sign" }, sign)), ...coloured(line, language)) });
    }
    this.text.set(rows);
  }
}

/**
 * @param {HTMLElement} element
 * @param {Match} match
 * @param {boolean} timed
 */
function drawMatch(element, { before, after, lost, verdict, changed }, timed) {
  const step = /** @type {RunStep} */ (after ?? before);
  const shown = (/** @type {RunStep | null} */ each) => (each ? (timed ? milliseconds(each.seconds) : size(each.moved)) : "–");
  const sign = lost > 0 ? "+" : lost < 0 ? "−" : "";
  const ratio = timed && before && after && after.seconds ? `${(after.seconds / before.seconds).toFixed(2)}×` : "";
  element.append(
    h("span", { class: `verdict ${verdict}` }, verdict), h("span", { class: "lost" }, timed ? `${sign}${milliseconds(Math.abs(lost))} ms` : `${sign}${size(Math.abs(lost))}`),
    h("span", { class: "times" }, `${shown(before)} → ${shown(after)}`), h("span", { class: "ratio" }, ratio), h("span", { class: "by" }, step.data.id),
    h("span", { class: step.data.kind === "kernel" ? "t-name" : "outside" }, step.data.name), changed ? h("span", { class: "chip" }, "text changed") : "", h("span", { class: "muted" }, ` ${step.module}`),
  ); // prettier-ignore
}

/**
 * @param {Match | undefined} match
 * @param {boolean} timed
 */
function pairCard(match, timed) {
  if (!match) return [h("p", { class: "muted" }, "No step.")];
  const side = (/** @type {string} */ name, /** @type {RunStep | null} */ step) => h("div", null, h("h4", null, name),
    step ? h("p", null, h("b", null, step.data.name), h("small", null, ` ${step.data.id} · ${step.data.kind}`), timed ? h("span", { class: "big" }, ` ${time(step.seconds)}`) : "") : h("p", { class: "muted" }, "no such step"),
    step?.data.reason ? h("p", { class: "muted" }, step.data.reason) : null,
    step?.data.alternatives ? h("p", { class: "muted" }, step.data.alternatives) : null); // prettier-ignore
  return [side("Before", match.before), side("After", match.after)];
}

/**
 * @param {Joins} before
 * @param {Joins} after
 */
function compileLine(before, after) {
  const [one, other] = [before, after].map((joins) => compileSeconds(joins.trace.compile ?? []));
  return one && other ? `compile: ${time(one)} → ${time(other)} (${other >= one ? "+" : "−"}${percent(Math.abs(other - one) / one)})` : "";
}
