// What came from what: lines, operators, loops and steps of all graphs in four lists, joined in both directions.

/**
 * @typedef {import("./load.js").Trace} Trace
 * @typedef {import("./load.js").Graph} Graph
 * @typedef {import("./load.js").Operator} Operator
 * @typedef {import("./load.js").Step} Step
 *
 * @typedef {{at: number, file: number, number: number, text: string, ops: number[], own: number[], steps: number[], seconds: number, ownSeconds: number}} Line
 * `ops` came from the line or from what it calls, `own` from itself.
 * @typedef {{at: number, graph: Graph, data: Operator, steps: number[], loops: number[], lines: number[], seconds: number}} Op
 * @typedef {{at: number, graph: Graph, text: string, ops: number[], steps: number[]}} LoopNode
 * @typedef {{at: number, graph: Graph, data: Step, ops: number[], loops: number[], lines: number[], module: string, seconds: number, moved: number, operations: number}} RunStep
 *
 * @typedef {{kind: "line" | "op" | "loop" | "step" | "module" | "text", at: number, path?: string, ops?: number[]}} Focus
 * Something that is pointed at: `at` is its place in the list of its kind; a `text` is a line of the nest or the code of step `at`.
 * @typedef {{focus: Focus | null, ops: Set<number>, steps: Set<number>, loops: Set<number>, lines: Set<number>, callers: Set<number>}} Joined
 */

/** @type {Joined} */
export const NOTHING = { focus: null, ops: new Set(), steps: new Set(), loops: new Set(), lines: new Set(), callers: new Set() };

export class Joins {
  /** @param {Trace} trace */
  constructor(trace) {
    this.trace = trace;
    /** @type {Line[]} */
    this.lines = [];
    /** @type {Op[]} */
    this.ops = [];
    /** @type {LoopNode[]} */
    this.loops = [];
    /** @type {RunStep[]} */
    this.steps = [];
    /** @type {number[]} */
    this.fileBegins = [];
    this.names = trace.files.map((file) => nameOf(file, trace.files));
    trace.files.forEach((file, position) => this.addFile(file, position));
    this.addGraphs(trace.graphs);
    this.depth = sharedDepth(this.steps.map((step) => moduleParts(step.module)));
    this.seconds = sum(this.steps, (step) => step.seconds);
    this.timed = this.steps.some((step) => typeof step.data.seconds === "number");
    this.shareTime();
    for (const line of this.lines) {
      line.steps = distinct(line.ops.flatMap((op) => this.ops[op].steps));
      line.seconds = sum(line.ops, (op) => this.ops[op].seconds);
      line.ownSeconds = sum(line.own, (op) => this.ops[op].seconds);
    }
  }

  /**
   * @param {import("./load.js").SourceFile} file
   * @param {number} position
   */
  addFile(file, position) {
    this.fileBegins.push(this.lines.length);
    const texts = file.text.replace(/\n$/, "").split("\n");
    texts.forEach((text, offset) => {
      const at = this.lines.length;
      this.lines.push({ at, file: position, number: file.first + offset, text, ops: [], own: [], steps: [], seconds: 0, ownSeconds: 0 });
    });
  }

  /**
   * The place of a line in `lines`, or -1 where its file's text does not have it.
   * @param {number} file
   * @param {number} number
   */
  line(file, number) {
    const at = this.fileBegins[file] + number - this.trace.files[file].first;
    return at >= this.fileBegins[file] && this.lines[at]?.file === file ? at : -1;
  }

  /**
   * All graphs in run order: a cluster's steps stand where the program around it has the cluster.
   * @param {Graph[]} graphs
   */
  addGraphs(graphs) {
    const within = (/** @type {Step} */ step) =>
      step.kind === "cluster" ? graphs.find((graph) => graph.name === step.name || graph.name.startsWith(`${step.name} `)) : undefined;
    const inner = new Set(graphs.flatMap((graph) => graph.steps.map(within)));
    const added = new Set();
    const add = (/** @type {Graph} */ graph) => {
      added.add(graph);
      const begins = this.addNodes(graph);
      for (const step of graph.steps) {
        const cluster = within(step);
        if (cluster && !added.has(cluster)) add(cluster);
        else this.addStep(graph, step, ...begins);
      }
    };
    for (const graph of graphs) if (!inner.has(graph)) add(graph);
  }

  /**
   * Adds operators and loops; gives the places of the first ones.
   * @param {Graph} graph
   * @returns {[number, number]}
   */
  addNodes(graph) {
    const [opBegin, loopBegin] = [this.ops.length, this.loops.length];
    for (const data of graph.operators) {
      const at = this.ops.length;
      const lines = distinct(data.lines.map(([file, number]) => this.line(file, number)).filter((each) => each >= 0));
      this.ops.push({ at, graph, data, steps: [], loops: [], lines, seconds: 0 });
      lines.forEach((line, depth) => {
        this.lines[line].ops.push(at);
        if (depth === 0) this.lines[line].own.push(at);
      });
    }
    for (const { text, operators } of graph.loops) {
      const at = this.loops.length;
      const ops = operators.map((each) => opBegin + each);
      this.loops.push({ at, graph, text, ops, steps: [] });
      for (const op of ops) this.ops[op].loops.push(at);
    }
    return [opBegin, loopBegin];
  }

  /**
   * @param {Graph} graph
   * @param {Step} data
   * @param {number} opBegin
   * @param {number} loopBegin
   */
  addStep(graph, data, opBegin, loopBegin) {
    const at = this.steps.length;
    const ops = (data.origins ?? []).map((each) => opBegin + each);
    const loops = (data.loops ?? []).map((each) => loopBegin + each);
    const lines = distinct(ops.flatMap((op) => this.ops[op].lines.slice(0, 1)));
    const module = commonModule(ops.map((op) => this.ops[op].data.module));
    const { seconds, moved, operations } = data;
    this.steps.push({ at, graph, data, ops, loops, lines, module, seconds: seconds ?? 0, moved: moved ?? 0, operations: operations ?? 0 });
    for (const op of distinct(ops)) this.ops[op].steps.push(at);
    for (const loop of distinct(loops)) this.loops[loop].steps.push(at);
  }

  /** Divides the time of each step equally among its operators that have a line (as the command line does). */
  shareTime() {
    for (const step of this.steps) {
      const ops = distinct(step.ops);
      const lined = ops.filter((op) => this.ops[op].lines.length);
      const sharing = lined.length ? lined : ops;
      for (const op of sharing) this.ops[op].seconds += step.seconds / sharing.length;
    }
  }

  /**
   * The time of what is pointed at: the shares of its operators; all of a step.
   * @param {Joined} joined
   */
  secondsOf({ focus, ops }) {
    if (focus?.kind === "step" || focus?.kind === "text") return this.steps[focus.at].seconds;
    return sum([...ops], (op) => this.ops[op].seconds);
  }

  /**
   * The part of the model that a module is in: at most two names below what all modules share.
   * @param {string} module
   */
  area(module) {
    return moduleParts(module).slice(0, this.depth + 2).join(".");
  }

  /**
   * All that belongs to what is pointed at.
   * @param {Focus} focus
   * @returns {Joined}
   */
  join(focus) {
    const ops = this.opsOf(focus);
    const steps = focus.kind === "step" || focus.kind === "text" ? [focus.at] : ops.flatMap((op) => this.ops[op].steps);
    const loops = focus.kind === "loop" ? [focus.at] : ops.flatMap((op) => this.ops[op].loops);
    const lines = focus.kind === "line" ? [focus.at] : ops.flatMap((op) => this.ops[op].lines.slice(0, 1));
    const callers = focus.kind === "line" ? [] : ops.flatMap((op) => this.ops[op].lines.slice(1));
    return { focus, ops: new Set(ops), steps: new Set(steps), loops: new Set(loops), lines: new Set(lines), callers: new Set(callers) };
  }

  /**
   * @param {Focus} focus
   * @returns {number[]}
   */
  opsOf(focus) {
    if (focus.kind === "op") return [focus.at];
    if (focus.kind === "line") return this.lines[focus.at].ops;
    if (focus.kind === "loop") return this.loops[focus.at].ops;
    if (focus.kind === "step") return this.steps[focus.at].ops;
    if (focus.kind === "text") return focus.ops ?? [];
    const path = focus.path ?? "";
    return this.ops.filter(({ data }) => data.module === path || data.module?.startsWith(`${path}.`)).map((op) => op.at);
  }

  /**
   * The share of what the machine could do, by arithmetic and by memory; null where it is not known.
   * @param {RunStep} step
   * @returns {{compute: number, memory: number, best: number} | null}
   */
  roofline(step) {
    const peaks = this.trace.peaks;
    if (!peaks || !step.seconds || (!step.operations && !step.moved)) return null;
    const compute = step.operations / step.seconds / peaks.flops;
    const memory = step.moved / step.seconds / peaks.bytes;
    return { compute, memory, best: Math.max(compute, memory) };
  }

  /**
   * @param {RunStep} step
   * @returns {"compute" | "memory" | "overhead" | null}
   */
  bound(step) {
    const share = this.roofline(step);
    if (!share) return null;
    if (share.best < 0.1 && step.seconds / (step.data.calls || 1) < 20e-6) return "overhead";
    return share.compute > share.memory ? "compute" : "memory";
  }

  /**
   * "model.py:42" of a line.
   * @param {number} at
   */
  place(at) {
    const line = this.lines[at];
    return `${this.names[line.file]}:${line.number}`;
  }
}

/**
 * The name of a file, with folders where another one has the same name.
 * @param {import("./load.js").SourceFile} file
 * @param {import("./load.js").SourceFile[]} files
 */
function nameOf(file, files) {
  const parts = file.path.split(/[/\\]/);
  let name = file.name;
  for (let count = 2; count <= parts.length && files.some((other) => other !== file && `/${other.path}`.endsWith(`/${name}`)); count++) {
    name = parts.slice(-count).join("/");
  }
  return name;
}

/**
 * @template T
 * @param {T[]} values
 * @param {(value: T) => number} number
 */
export function sum(values, number) {
  let total = 0;
  for (const value of values) total += number(value);
  return total;
}

/**
 * @param {number[]} values
 * @returns {number[]}  in their order, each once
 */
export function distinct(values) {
  return values.length < 2 ? values : [...new Set(values)];
}

/**
 * The names of a path; a number belongs to the name before it: "layers.3".
 * @param {string} module
 */
export function moduleParts(module) {
  return module.split(/\.(?!\d+(?:\.|$))/).filter((part) => part);
}

/**
 * How many first names say little, because nearly all steps have the same.
 * @param {string[][]} paths
 */
function sharedDepth(paths) {
  const known = paths.filter((path) => path.length);
  for (let depth = 0; ; depth++) {
    /** @type {Map<string, number>} */
    const counts = new Map();
    for (const path of known) counts.set(path[depth] ?? "", (counts.get(path[depth] ?? "") ?? 0) + 1);
    const [name, most] = [...counts].reduce((best, each) => (each[1] > best[1] ? each : best), ["", 0]);
    if (!name || most < 0.8 * known.length || !known.some((path) => path.length > depth + 1)) return depth;
  }
}

/**
 * The module that all paths are in: "layers.3" of "layers.3.up" and "layers.3.down".
 * @param {(string | null)[]} paths
 */
function commonModule(paths) {
  const known = /** @type {string[]} */ (paths.filter((path) => path));
  if (!known.length) return "";
  const first = known[0].split(".");
  let common = first.length;
  for (const path of known) {
    const parts = path.split(".");
    let same = 0;
    while (same < common && parts[same] === first[same]) same++;
    common = same;
  }
  return first.slice(0, common).join(".");
}
