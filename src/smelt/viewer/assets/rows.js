// A long list of lines of one height: only those in view have elements. Its marks are classes, so that pointing at something
// changes no more than the rows in view, and a ruler at its right shows where in the whole list marked rows are.

import { context, h, variable } from "./dom.js";

export const ROW = 19; // pixels, as in the style sheet
export const PINNED = 1;
export const HOT = 2;
const BEYOND = 8; // rows that are kept above and below

/**
 * What stays at the left of a row that is scrolled sideways: the stripe of its operator, numbers, times.
 * @param {...Node} children
 */
export function gutter(...children) {
  return h("span", { class: "gutter" }, children);
}

/**
 * @typedef {object} Row
 * @property {(element: HTMLElement) => void} draw
 * @property {number} [wide]  characters
 * @property {boolean} [plain]  a heading, which is not chosen with keys
 * @typedef {object} Events
 * @property {(at: number) => void} point  -1: nothing
 * @property {(at: number) => void} pick
 * @property {(at: number) => string} classes  those of a row
 * @property {(at: number) => number} marked  PINNED, HOT, both or 0
 */

let lists = 0;

export class Rows {
  /**
   * @param {string} label
   * @param {Events} events
   */
  constructor(label, events) {
    this.events = events;
    this.name = `rows${lists++}`;
    /** @type {Row[]} */
    this.rows = [];
    /** @type {Map<number, HTMLElement>} */
    this.drawn = new Map();
    this.cursor = -1;
    this.pointed = -1;
    this.awaited = -1;
    this.inner = h("div", { class: "inner", role: "presentation" });
    this.list = h("div", {
      class: "list", role: "listbox", tabindex: 0, "aria-label": label,
      onscroll: () => this.draw(),
      onpointerover: (/** @type {PointerEvent} */ event) => this.point(this.at(event)),
      onpointerleave: () => this.point(-1),
      onclick: (/** @type {MouseEvent} */ event) => this.click(event),
      onkeydown: (/** @type {KeyboardEvent} */ event) => this.key(event),
      onblur: () => this.moveCursor(-1),
    }, this.inner); // prettier-ignore
    this.ruler = h("canvas", { class: "ruler", "aria-hidden": true, onclick: (/** @type {MouseEvent} */ event) => this.jump(event) });
    this.element = h("div", { class: "rows" }, this.list, this.ruler);
    new ResizeObserver(() => this.resized()).observe(this.list);
  }

  /**
   * @param {Row[]} rows
   * @param {boolean} [stay]  keeps the place in the list
   */
  set(rows, stay = false) {
    this.rows = rows;
    this.cursor = this.pointed = -1;
    this.drawn.clear();
    this.inner.replaceChildren();
    let wide = 0;
    for (const row of rows) wide = Math.max(wide, row.wide ?? 0);
    this.inner.style.height = `${rows.length * ROW}px`;
    this.inner.style.minWidth = `max(100%, ${wide + 14}ch)`;
    if (!stay) this.list.scrollTo(0, 0);
    this.draw();
    this.drawRuler();
  }

  /** Draws the rows that have come into view. */
  draw() {
    const height = this.height || 400;
    const first = Math.max(0, Math.floor(this.list.scrollTop / ROW) - BEYOND);
    const end = Math.min(this.rows.length, Math.ceil((this.list.scrollTop + height) / ROW) + BEYOND);
    for (const [at, element] of this.drawn) {
      if (at >= first && at < end) continue;
      element.remove();
      this.drawn.delete(at);
    }
    for (let at = first; at < end; at++) {
      if (this.drawn.has(at)) continue;
      const element = document.createElement("div");
      element.id = `${this.name}-${at}`;
      element.style.top = `${at * ROW}px`;
      element.dataset.at = String(at);
      element.setAttribute("role", this.rows[at].plain ? "presentation" : "option");
      element.setAttribute("aria-setsize", String(this.rows.length));
      element.setAttribute("aria-posinset", String(at + 1));
      this.rows[at].draw(element);
      this.classify(at, element);
      this.drawn.set(at, element);
      this.inner.append(element);
    }
  }

  /**
   * @param {number} at
   * @param {HTMLElement} element
   */
  classify(at, element) {
    const classes = `row ${this.events.classes(at)}${at === this.cursor ? " cursor" : ""}`;
    if (element.className !== classes) element.className = classes;
    const selected = String((this.events.marked(at) & PINNED) > 0);
    if (element.getAttribute("aria-selected") !== selected) element.setAttribute("aria-selected", selected);
  }

  /** Gives all rows in view their marks anew. */
  mark() {
    for (const [at, element] of this.drawn) this.classify(at, element);
    this.drawRuler();
  }

  drawRuler() {
    const height = this.height || 0;
    if (!height) return;
    const drawn = context(this.ruler, 8, height);
    const step = this.rows.length * ROW > height ? height / this.rows.length : ROW;
    const [pin, hot] = [variable("--pin-line"), variable("--hot-line")];
    for (let at = 0; at < this.rows.length; at++) {
      const marked = this.events.marked(at);
      if (marked & PINNED) drawn.fillStyle = pin;
      if (marked & PINNED) drawn.fillRect(0, at * step, 4, Math.max(2, step - 1));
      if (marked & HOT) drawn.fillStyle = hot;
      if (marked & HOT) drawn.fillRect(4, at * step, 4, Math.max(2, step - 1));
    }
  }

  /**
   * Brings a row into view, a third from the top, where it is not in view yet.
   * @param {number} at
   */
  reveal(at) {
    this.awaited = this.height ? -1 : at; // until the list stands in the page
    const [top, height] = [at * ROW, this.height || 400];
    if (top < this.list.scrollTop + ROW || top > this.list.scrollTop + height - 2 * ROW) this.list.scrollTop = top - height / 3;
    this.draw();
  }

  resized() {
    this.height = this.list.clientHeight;
    if (this.height && this.awaited >= 0) this.reveal(this.awaited);
    this.draw();
    this.drawRuler();
  }

  /**
   * @param {Event} event
   * @returns {number}
   */
  at(event) {
    const row = event.target instanceof Element ? event.target.closest(".row") : null;
    return row instanceof HTMLElement ? Number(row.dataset.at) : -1;
  }

  /** @param {number} at */
  point(at) {
    if (at === this.pointed) return;
    this.pointed = at;
    this.events.point(at);
  }

  /** @param {MouseEvent} event */
  click(event) {
    const at = this.at(event);
    if (at >= 0 && String(getSelection()) === "") this.events.pick(at);
  }

  /** @param {MouseEvent} event */
  jump(event) {
    const share = event.offsetY / (this.height || 1);
    this.list.scrollTop = share * this.rows.length * ROW - (this.height || 0) / 2;
  }

  /** @param {KeyboardEvent} event */
  key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const page = Math.max(1, Math.floor((this.height || 400) / ROW) - 1);
    /** @type {Record<string, number>} */
    const steps = { ArrowDown: 1, ArrowUp: -1, PageDown: page, PageUp: -page, Home: -this.rows.length, End: this.rows.length };
    if (event.key in steps) {
      const first = Math.floor(this.list.scrollTop / ROW);
      const from = this.cursor >= 0 ? this.cursor : event.key === "ArrowDown" ? first - 1 : first;
      this.moveCursor(this.next(Math.max(0, Math.min(this.rows.length - 1, from + steps[event.key])), steps[event.key] < 0 ? -1 : 1));
    } else if ((event.key === "Enter" || event.key === " ") && this.cursor >= 0) this.events.pick(this.cursor);
    else return;
    event.preventDefault();
    event.stopPropagation();
  }

  /**
   * The row nearest to `at` that can be chosen.
   * @param {number} at
   * @param {number} step
   */
  next(at, step) {
    let found = at;
    while (this.rows[found]?.plain) found += step;
    return this.rows[found] ? found : this.rows.findIndex((row) => !row.plain);
  }

  /** @param {number} at */
  moveCursor(at) {
    if (at === this.cursor) return;
    const before = this.drawn.get(this.cursor);
    [at, this.cursor] = [this.cursor, at];
    if (before) this.classify(at, before);
    if (this.cursor < 0) return this.list.removeAttribute("aria-activedescendant");
    this.reveal(this.cursor);
    const now = this.drawn.get(this.cursor);
    if (now) this.classify(this.cursor, now);
    this.list.setAttribute("aria-activedescendant", `${this.name}-${this.cursor}`);
    this.events.point(this.cursor);
  }
}
