// The compile as a strip: Dynamo, AOTAutograd, smelt's passes, the C++ compiler.

import { h } from "./dom.js";
import { percent, time } from "./format.js";

/** @typedef {import("./load.js").Span} Span */

const SHOWN = 3; // levels
const WIDE = 1100; // pixels of the strip, about: names that have no place are left to the tooltip

/**
 * @param {Span[]} spans
 * @param {import("./dom.js").Tip} tip
 * @returns {HTMLElement}
 */
export function compileStrip(spans, tip) {
  const end = Math.max(1e-9, ...spans.map((span) => span.begin + span.seconds));
  const shown = placed(spans.filter((span) => span.seconds / end > 0.0005)).filter(({ level }) => level < SHOWN);
  const levels = 1 + Math.max(0, ...shown.map(({ level }) => level));
  const names = [...new Set(shown.filter(({ level }) => level === 0).map(({ span }) => span.name))];
  const list = h("div", { class: "spans", role: "list", "aria-label": "compile time" });
  list.style.height = `${levels * 16}px`;
  let hue = 0;
  for (const { span, level } of shown) {
    if (level === 0) hue = names.indexOf(span.name) % 5;
    const text = `${span.name}: ${time(span.seconds)}, ${percent(span.seconds / end)} of the compile`;
    const element = h("div", { class: `span span${hue} level${level}`, role: "listitem", "aria-label": text });
    if ((WIDE * span.seconds) / end > 6 * Math.min(6, span.name.length) + 8) element.append(span.name, h("span", { class: "seconds" }, ` ${time(span.seconds)}`));
    element.style.left = `${(100 * span.begin) / end}%`;
    element.style.width = `max(2px, calc(${(100 * span.seconds) / end}% - 1px))`;
    element.style.top = `${level * 16}px`;
    element.addEventListener("pointermove", (event) => tip.show(event.clientX, event.clientY, [text]));
    element.addEventListener("pointerleave", () => tip.hide());
    list.append(element);
  }
  return list;
}

/** The whole compile's seconds. @param {Span[]} spans */
export function compileSeconds(spans) {
  return spans.reduce((end, span) => Math.max(end, span.begin + span.seconds), 0);
}

/**
 * Spans and how many others they are in.
 * @param {Span[]} spans
 */
function placed(spans) {
  /** @type {Span[]} */
  let open = [];
  return spans.map((span) => {
    open = open.filter((each) => each.begin + each.seconds >= span.begin + span.seconds * 0.999 && each.depth < span.depth);
    open.push(span);
    return { span, level: open.length - 1 };
  });
}
