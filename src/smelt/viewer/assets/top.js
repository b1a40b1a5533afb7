// What costs most: lines, kernels, and what ATen or PyTorch still does.

import { link, listed, stepLine, weighed } from "./card.js";
import { h } from "./dom.js";
import { percent, plural, size, time } from "./format.js";
import { sum } from "./joins.js";

/**
 * @typedef {import("./state.js").Selection} Selection
 * @typedef {import("./joins.js").RunStep} RunStep
 */

/**
 * @param {Selection} selection
 * @returns {(Node | string | null)[]}
 */
export function top(selection) {
  const { joins } = selection;
  const weight = (/** @type {RunStep} */ step) => (joins.timed ? step.seconds : step.moved);
  const shown = (/** @type {number} */ value) => (joins.timed ? time(value) : size(value));
  const moved = (/** @type {number[]} */ steps) => sum(steps, (step) => weight(joins.steps[step]));
  const lines = joins.lines.filter((line) => line.own.length).map((line) => ({ line, value: joins.timed ? line.ownSeconds : moved(line.steps) }));
  lines.sort((one, other) => other.value - one.value);
  const ours = joins.steps.filter((step) => step.data.kind === "kernel" || step.data.kind === "cluster");
  const outside = joins.steps.filter((step) => step.data.kind === "aten" || step.data.kind === "eager");
  const whole = sum(joins.steps, weight) || 1;
  const share = sum(outside, weight) / whole;
  const most = Math.max(lines[0]?.value ?? 0, ...groups(ours).map((group) => sum(group, weight))) || 1;
  return [
    joins.timed ? null : h("p", { class: "muted" }, "Not timed: the order is by bytes moved. With --profile it is by time."),
    ...listed("Lines", lines.filter(({ value }) => value > 0).map(({ line, value }) => weighed(link(selection, { kind: "line", at: line.at },
      h("span", { class: "name" }, joins.place(line.at)), h("span", { class: "value" }, shown(value)), h("span", { class: "code" }, line.text.trim())), value / most)), 8),
    ...listed("Kernels", groups(ours).map((group) => weighed(stepGroup(selection, group, shown(sum(group, weight))), sum(group, weight) / most)), 8),
    h("h4", null, outside.length ? `ATen and PyTorch: ${percent(share)} of ${joins.timed ? "the time" : "the bytes"}` : "ATen and PyTorch run nothing"),
    ...byReason(outside).map(([reason, steps]) => h("div", { class: "reason" },
      h("p", null, reason, h("small", null, ` ${plural(steps.length, "step")}, ${shown(sum(steps, weight))}`)),
      ...listed("", groups(steps).map((group) => stepGroup(selection, group, shown(sum(group, weight)))), 4).slice(1))),
  ]; // prettier-ignore
}

/**
 * Steps of one name, the costliest groups first.
 * @param {RunStep[]} steps
 * @returns {RunStep[][]}
 */
function groups(steps) {
  /** @type {Map<string, RunStep[]>} */
  const named = new Map();
  for (const step of steps) named.set(step.data.name, [...(named.get(step.data.name) ?? []), step]);
  const cost = (/** @type {RunStep[]} */ group) => sum(group, (step) => step.seconds || step.moved * 1e-15);
  return [...named.values()].sort((one, other) => cost(other) - cost(one));
}

/**
 * @param {Selection} selection
 * @param {RunStep[]} group
 * @param {string} value
 */
function stepGroup(selection, group, value) {
  if (group.length === 1) return stepLine(selection, group[0]);
  const most = group.reduce((best, step) => (step.seconds > best.seconds ? step : best));
  const outside = most.data.kind === "kernel" ? "" : " outside";
  return link(selection, { kind: "step", at: most.at },
    h("span", { class: "id" }, `${group.length} ×`), h("span", { class: `name${outside}` }, most.data.name), h("span", { class: "value" }, value)); // prettier-ignore
}

/**
 * @param {RunStep[]} steps
 * @returns {[string, RunStep[]][]}
 */
function byReason(steps) {
  /** @type {Map<string, RunStep[]>} */
  const reasons = new Map();
  for (const step of steps) {
    const reason = step.data.reason ?? "no reason in the trace";
    reasons.set(reason, [...(reasons.get(reason) ?? []), step]);
  }
  const cost = (/** @type {RunStep[]} */ group) => sum(group, (step) => step.seconds);
  return [...reasons].sort((one, other) => cost(other[1]) - cost(one[1]));
}
