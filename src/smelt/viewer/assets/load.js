// The trace, out of the page (packing.py packs it).

/**
 * @typedef {{path: string, name: string, first: number, text: string}} SourceFile
 * @typedef {{name: string, begin: number, seconds: number, depth: number}} Span
 * @typedef {{name: string, op: string, text: string, inputs: number[], lines: [number, number, string][], module: string | null}} Operator
 * @typedef {{text: string, operators: number[]}} Loop
 * @typedef {{pass: string, lines: string[], marks: number[][]}} Frame
 * @typedef {{language: string, name: string, lines: string[], marks: number[][], more?: Code[]}} Code
 * @typedef {object} Step
 * @property {string} id
 * @property {"kernel" | "aten" | "eager" | "cluster"} kind
 * @property {string} name
 * @property {number[]} [origins]
 * @property {number[]} [loops]
 * @property {number | null} [seconds]
 * @property {number} [calls]
 * @property {number} [operations]
 * @property {number} [moved]
 * @property {boolean} [parallel]
 * @property {number | string | null} [run]
 * @property {string | null} [reason]
 * @property {string | null} [apart]
 * @property {string | null} [alternatives]
 * @property {number | null} [nest]
 * @property {number | null} [code]
 * @typedef {object} Graph
 * @property {string} name
 * @property {string} kind
 * @property {string[]} [sizes]
 * @property {string[]} [guards]
 * @property {Operator[]} operators
 * @property {Loop[]} loops
 * @property {Step[]} steps
 * @property {Frame[][]} nests
 * @property {Code[]} codes
 * @typedef {object} Trace
 * @property {string} title
 * @property {Record<string, any>} [made]
 * @property {{flops: number, bytes: number} | null} [peaks]
 * @property {number | null} [run_seconds]
 * @property {SourceFile[]} files
 * @property {Span[]} [compile]
 * @property {Graph[]} graphs
 */

/**
 * The traces of the page, by name.
 * @returns {Promise<Record<string, Trace>>}
 */
export async function load() {
  const text = document.getElementById("data")?.textContent ?? "";
  const bytes = Uint8Array.from(atob(text.trim()), (letter) => letter.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  const whole = JSON.parse(await new Response(stream).text());
  for (const trace of Object.values(whole.traces)) {
    for (const graph of trace.graphs) {
      for (const text of [...graph.nests.flat(), ...graph.codes]) unpack(text, whole.lines, whole.marks);
    }
  }
  return whole.traces;
}

/**
 * @param {any} text
 * @param {string[]} lines
 * @param {number[][]} marks
 */
function unpack(text, lines, marks) {
  text.lines = text.lines.map((/** @type {number} */ each) => lines[each]);
  text.marks = text.marks.map((/** @type {number} */ each) => marks[each]);
  for (const each of text.more) unpack(each, lines, marks);
}
