// The card of what is pinned: time, share, bytes, arithmetic, what was fused and why not more.

import { h } from "./dom.js";
import { amount, percent, plural, reached, size, time } from "./format.js";

/**
 * @typedef {import("./state.js").Selection} Selection
 * @typedef {import("./joins.js").RunStep} RunStep
 * @typedef {import("./joins.js").Focus} Focus
 */

const KINDS = { kernel: "kernel of smelt", aten: "ATen", eager: "PyTorch", cluster: "cluster" };
const BOUNDS = {
  compute: "bound by arithmetic",
  memory: "bound by memory",
  overhead: "bound by the cost of a call",
};

/**
 * A button that pins something.
 * @param {Selection} selection
 * @param {Focus} focus
 * @param {...(string | Node | null)} children
 */
export function link(selection, focus, ...children) {
  return h("button", {
    class: "link", onclick: () => selection.pinTo(focus), onpointerenter: () => selection.point(focus), onpointerleave: () => selection.point(null),
    onfocus: () => selection.point(focus), onblur: () => selection.point(null),
  }, children); // prettier-ignore
}

/**
 * A link with a bar of its share behind it.
 * @param {HTMLButtonElement} button
 * @param {number} share
 */
export function weighed(button, share) {
  button.classList.add("weighed");
  button.style.setProperty("--share", `${(100 * share).toFixed(1)}%`);
  return button;
}

/**
 * The card of the pinned thing; of the shown step, where nothing is pinned.
 * @param {Selection} selection
 * @returns {(Node | string | null)[]}
 */
export function card(selection) {
  const { joins, pin } = selection;
  const focus = pin.focus ?? (selection.step >= 0 ? { kind: /** @type {const} */ ("step"), at: selection.step } : null);
  if (!focus) return [h("p", { class: "muted" }, "Nothing is pinned.")];
  if (focus.kind === "step") return stepCard(selection, joins.steps[focus.at]);
  const steps = [...pin.steps].map((step) => joins.steps[step]);
  const seconds = joins.secondsOf(pin);
  return [
    ...heading(selection, focus),
    joins.timed ? h("p", { class: "big" }, time(seconds), h("small", null, ` ${percent(seconds / (joins.seconds || 1))} of the run`)) : null,
    ...listed(steps.length ? plural(steps.length, "step") : "No step: read in place", steps.map((step) => stepLine(selection, step))),
    ...(focus.kind === "op" ? inputsOf(selection, focus.at) : []),
    ...(focus.kind === "op" ? [] : operators(selection, [...pin.ops])),
    ...(focus.kind === "op" ? stack(selection, focus.at) : []),
  ]; // prettier-ignore
}

/**
 * @param {Selection} selection
 * @param {Focus} focus
 */
function heading({ joins }, focus) {
  if (focus.kind === "line") {
    const line = joins.lines[focus.at];
    const functions = new Set(line.ops.map((op) => joins.ops[op].data.lines.find(([file, number]) => joins.line(file, number) === focus.at)?.[2] ?? ""));
    return [h("h3", null, joins.place(focus.at), h("small", null, ` ${[...functions].join(", ")}`)), h("pre", null, line.text.trim())];
  }
  if (focus.kind === "op") {
    const { data } = joins.ops[focus.at];
    return [h("h3", null, data.name, h("small", null, ` ${data.op}`)), h("pre", null, data.text), data.module ? h("p", { class: "muted" }, data.module) : null];
  }
  if (focus.kind === "module") return [h("h3", null, focus.path ?? "", h("small", null, " module"))];
  return [h("h3", null, "loop"), h("pre", null, joins.loops[focus.at]?.text ?? "")];
}

/**
 * @param {Selection} selection
 * @param {RunStep} step
 */
export function stepLine(selection, step) {
  const { joins } = selection;
  const outside = step.data.kind === "kernel" ? "" : " outside";
  return link(selection, { kind: "step", at: step.at },
    h("span", { class: "id" }, step.data.id), h("span", { class: `name${outside}` }, step.data.name), h("span", { class: "value" }, joins.timed ? time(step.seconds) : size(step.moved))); // prettier-ignore
}

/**
 * @param {string} title
 * @param {Node[]} items
 * @param {number} [most]
 * @returns {Node[]}
 */
export function listed(title, items, most = 12) {
  if (!items.length) return [h("h4", null, title)];
  const list = h("ul", { class: "links" }, items.slice(0, most).map((item) => h("li", null, item)));
  const rest = items.slice(most);
  if (rest.length) {
    const more = h("button", { class: "link more", onclick: () => more.parentElement?.replaceWith(...rest.map((item) => h("li", null, item))) }, `and ${rest.length} more`);
    list.append(h("li", null, more));
  }
  return [h("h4", null, title), list];
}

/**
 * @param {Selection} selection
 * @param {number[]} ops
 */
function operators(selection, ops) {
  const { joins } = selection;
  const items = ops.map((op) => {
    const { data, lines } = joins.ops[op];
    return link(selection, { kind: "op", at: op }, h("span", { class: "name" }, data.name), h("span", { class: "value" }, lines.length ? joins.place(lines[0]) : ""));
  });
  return items.length ? listed(plural(items.length, "operator"), items, 8) : [];
}

/**
 * @param {Selection} selection
 * @param {number} at
 */
function inputsOf(selection, at) {
  const { joins } = selection;
  const op = joins.ops[at];
  const first = at - op.graph.operators.indexOf(op.data);
  const users = joins.ops.filter((each) => each.graph === op.graph && each.data.inputs.includes(at - first)).map((each) => each.at);
  const named = (/** @type {number[]} */ ops) => ops.map((each) => link(selection, { kind: "op", at: each }, h("span", { class: "name" }, joins.ops[each].data.name)));
  return [
    ...(op.data.inputs.length ? listed("Reads", named(op.data.inputs.map((each) => first + each)), 6) : []),
    ...(users.length ? listed("Is read by", named(users), 6) : []),
  ];
}

/**
 * @param {Selection} selection
 * @param {number} at
 */
function stack(selection, at) {
  const { joins } = selection;
  const lines = joins.ops[at].lines;
  if (!lines.length) return [];
  return listed("Called from", lines.map((line) => link(selection, { kind: "line", at: line },
    h("span", { class: "id" }, joins.place(line)), h("span", { class: "name" }, joins.lines[line].text.trim())))); // prettier-ignore
}

/**
 * @param {Selection} selection
 * @param {RunStep} step
 * @returns {(Node | null)[]}
 */
function stepCard(selection, step) {
  const { joins } = selection;
  const { data } = step;
  const bound = joins.bound(step);
  const share = joins.roofline(step);
  const own = [...new Set(step.ops)];
  const chips = [KINDS[data.kind] ?? data.kind, data.kind === "kernel" ? (data.parallel ? "parallel" : "one thread") : null, bound ? BOUNDS[bound] : null];
  return [
    h("h3", null, data.name, h("small", null, ` ${data.id}`)),
    step.module ? h("p", { class: "muted" }, step.module) : null,
    h("p", { class: "chips" }, chips.filter((chip) => chip).map((chip) => h("span", { class: chip === "ATen" || chip === "PyTorch" ? "chip outside" : "chip" }, chip))),
    typeof data.seconds === "number"
      ? h("p", { class: "big" }, time(step.seconds), h("small", null, ` ${percent(step.seconds / (joins.seconds || 1))} of the run`))
      : h("p", { class: "muted" }, "not timed"),
    share ? roof("arithmetic", share.compute, amount(step.operations / step.seconds, "op/s")) : null,
    share ? roof("memory", share.memory, amount(step.moved / step.seconds, "B/s")) : null,
    facts(step),
    data.reason ? said(data.kind === "kernel" ? "Note" : `Why ${KINDS[data.kind]}`, data.reason) : null,
    ...(own.length ? listed(own.length > 1 ? `Fused: ${plural(own.length, "operator")}` : "Computes", own.map((op) => fused(selection, op, step.ops.indexOf(op))), 10) : []),
    data.apart ? said("Why not more", data.apart) : null,
    data.alternatives ? said("Measured", data.alternatives) : null,
    ...graphPart(step),
  ]; // prettier-ignore
}

/**
 * @param {Selection} selection
 * @param {number} op
 * @param {number} place
 */
function fused(selection, op, place) {
  const { joins } = selection;
  const { data, lines } = joins.ops[op];
  return link(selection, { kind: "op", at: op },
    h("span", { class: `dot hue${place % 7}` }), h("span", { class: "name" }, data.name), h("span", { class: "value" }, lines.length ? joins.place(lines[0]) : "")); // prettier-ignore
}

/**
 * @param {string} title
 * @param {string} text
 */
function said(title, text) {
  return h("div", null, h("h4", null, title), h("p", null, text));
}

/**
 * A bar of what was reached of a peak.
 * @param {string} name
 * @param {number} share
 * @param {string} rate
 */
function roof(name, share, rate) {
  const bar = h("i", { class: "filled" });
  bar.style.width = `${Math.min(100, share * 100)}%`;
  return h("div", { class: "roof" }, h("span", null, name), h("span", { class: "track", role: "img", "aria-label": `${percent(share)} of the peak` }, bar), h("span", { class: "value" }, rate), h("span", { class: "value", title: share > 1 ? "more than the peak of main memory: the data is in the caches" : null }, reached(share)));
}

/** @param {RunStep} step */
function facts(step) {
  const { data } = step;
  const rows = [
    step.moved ? ["moved", size(step.moved)] : null,
    step.operations ? ["arithmetic", amount(step.operations, "op")] : null,
    step.moved && step.operations ? ["operations a byte", (step.operations / step.moved).toPrecision(3)] : null,
    (data.calls ?? 1) !== 1 ? ["calls in a run", String(data.calls)] : null,
    data.kind === "kernel" && data.run !== undefined && data.run !== null ? ["native call", String(data.run)] : null,
  ];
  return h("dl", null, rows.flatMap((row) => (row ? [h("dt", null, row[0]), h("dd", null, row[1])] : [])));
}

/** @param {RunStep} step */
function graphPart({ graph }) {
  const part = (/** @type {string} */ title, /** @type {string[]} */ lines) =>
    lines.length ? h("details", null, h("summary", null, `${title} `, h("span", { class: "muted" }, lines.length)), h("pre", { class: "wrap" }, lines.join("\n"))) : null;
  const sizes = part("Sizes", graph.sizes ?? []);
  const guards = part("Guards", graph.guards ?? []);
  return [h("h4", null, `${graph.name} · ${graph.kind}`), sizes, guards];
}
