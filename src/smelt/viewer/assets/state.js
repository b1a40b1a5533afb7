// What is pointed at, what is pinned, and which step's texts are shown.

import { NOTHING } from "./joins.js";

/**
 * @typedef {import("./joins.js").Joins} Joins
 * @typedef {import("./joins.js").Joined} Joined
 * @typedef {import("./joins.js").Focus} Focus
 * @typedef {"hover" | "pin" | "step"} Change
 */

export class Selection {
  /** @param {Joins} joins */
  constructor(joins) {
    this.joins = joins;
    /** @type {Joined} */
    this.hover = NOTHING;
    /** @type {Joined} */
    this.pin = NOTHING;
    /** The step whose nest and code are shown; -1 where there is none. */
    this.step = costliest(joins, joins.steps.map((step) => step.at));
    /** @type {((change: Change) => void)[]} */
    this.listeners = [];
  }

  /** @param {(change: Change) => void} listener */
  listen(listener) {
    this.listeners.push(listener);
  }

  /** @param {Change} change */
  tell(change) {
    for (const listener of this.listeners) listener(change);
  }

  /** @param {Focus | null} focus */
  point(focus) {
    if (same(this.hover.focus, focus)) return;
    this.hover = focus ? this.joins.join(focus) : NOTHING;
    this.tell("hover");
  }

  /**
   * Pins; listeners hear of another step before they hear of the pin.
   * @param {Focus | null} focus
   */
  pinTo(focus) {
    if (same(this.pin.focus, focus)) return;
    this.pin = focus ? this.joins.join(focus) : NOTHING;
    const steps = [...this.pin.steps];
    if (steps.length && !this.pin.steps.has(this.step)) {
      this.step = costliest(this.joins, steps);
      this.tell("step");
    }
    this.tell("pin");
  }
}

/**
 * @param {Focus | null} one
 * @param {Focus | null} other
 */
function same(one, other) {
  if (!one || !other) return one === other;
  return one.kind === other.kind && one.at === other.at && one.path === other.path && String(one.ops) === String(other.ops);
}

/**
 * @param {Joins} joins
 * @param {number[]} steps
 */
function costliest(joins, steps) {
  let best = steps.length ? steps[0] : -1;
  for (const each of steps) {
    const [step, leading] = [joins.steps[each], joins.steps[best]];
    if (step.seconds > leading.seconds || (!joins.timed && step.moved > leading.moved)) best = each;
  }
  return best;
}
