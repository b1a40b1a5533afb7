// The filter line: words that must all stand in what is said about a step, an operator, a loop or a line.

/**
 * @typedef {import("./joins.js").Joins} Joins
 * @typedef {{ops: Set<number>, steps: Set<number>, loops: Set<number>, lines: Set<number>}} Kept
 */

export class Filter {
  /** @param {Joins} joins */
  constructor(joins) {
    this.joins = joins;
    /** @type {Kept | null} */
    this.kept = null;
    /** @type {{ops: string[], steps: string[], loops: string[], lines: string[]} | null} */
    this.texts = null;
  }

  /**
   * @param {string} query
   * @returns {Kept | null}  null: everything is kept
   */
  set(query) {
    const words = query.toLowerCase().split(/\s+/).filter((word) => word);
    if (!words.length) return (this.kept = null);
    this.texts ??= textsOf(this.joins);
    const matching = (/** @type {string[]} */ texts) => {
      const found = new Set();
      texts.forEach((text, at) => words.every((word) => text.includes(word)) && found.add(at));
      return /** @type {Set<number>} */ (found);
    };
    const { ops, steps, loops, lines } = this.texts;
    this.kept = { ops: matching(ops), steps: matching(steps), loops: matching(loops), lines: matching(lines) };
    for (const op of this.kept.ops) for (const line of this.joins.ops[op].lines.slice(0, 1)) this.kept.lines.add(line);
    return this.kept;
  }
}

/** @param {Joins} joins */
function textsOf(joins) {
  const places = joins.lines.map((line) => joins.place(line.at).toLowerCase());
  const ops = joins.ops.map(({ data, lines }) =>
    `${data.text} ${data.op} ${data.module ?? ""} ${lines.map((line) => places[line]).join(" ")}`.toLowerCase());
  const steps = joins.steps.map(({ data, ops: origins, module }) =>
    `${data.id} ${data.name} ${data.kind} ${data.reason ?? ""} ${module} ${origins.map((op) => ops[op]).join(" ")}`.toLowerCase());
  const loops = joins.loops.map(({ text, ops: origins }) => `${text.toLowerCase()} ${origins.map((op) => ops[op]).join(" ")}`);
  const lines = joins.lines.map(({ text, at }) => `${text.toLowerCase()} ${places[at]}`);
  return { ops, steps, loops, lines };
}
