// Colours of code: a line is taken apart into words, numbers, strings and comments.

import { h } from "./dom.js";

const PYTHON = words(`False None True and as assert async await break class continue def del elif else except finally for from global if
  import in is lambda nonlocal not or pass raise return try while with yield self`);
const CPP = words(`alignas auto bool break case char class const constexpr continue default do double else enum extern false float for if
  inline int long namespace nullptr return short signed sizeof static struct switch template this true typedef typename union unsigned
  using void volatile while f16 f32 f64 bf16 i8 i16 i32 i64 u8 u16 u32 u64 vec mask`);
const NEST = words(`kernel run for in range step parallel vector carry update prefetch if else sum product welford out b8 i8 i16 i32 i64 u8
  bf16 f16 f32 f64 contraction pointwise reduce as graph return atomic unroll`);

const TOKEN = {
  python: /(#.*)|([rbfRBF]{0,2}(?:"""|'''|"(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*'))|(@?[A-Za-z_]\w*)|(\d[\w.]*)/g,
  cpp: /(\/\/.*|\/\*.*?\*\/|^\s*#.*)|("(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*')|([A-Za-z_]\w*)|(\d[\w.]*)/g,
  asm: /(^\s*[\da-f]+:(?=\s)|[;#].*)|("[^"]*")|([%.@]?[A-Za-z_][\w.]*)|((?:0x)?[\da-f]+\b)/g,
};

/**
 * @param {string} text
 * @returns {Set<string>}
 */
function words(text) {
  return new Set(text.split(/\s+/));
}

/**
 * @param {string} language
 * @returns {{tokens: RegExp, known: Set<string>}}
 */
function grammar(language) {
  if (language === "python") return { tokens: TOKEN.python, known: PYTHON };
  if (language === "nest") return { tokens: TOKEN.python, known: NEST };
  if (language === "c++" || language === "cuda") return { tokens: TOKEN.cpp, known: CPP };
  if (language === "triton") return { tokens: TOKEN.python, known: PYTHON };
  return { tokens: TOKEN.asm, known: new Set() };
}

/**
 * A line of code as elements.
 * @param {string} text
 * @param {string} language  "python", "nest", "c++", "triton"; everything else looks like assembly
 * @param {boolean} [inString]  whether the line begins inside of a string of several lines
 * @returns {(Node | string)[]}
 */
export function coloured(text, language, inString = false) {
  if (inString) return [h("span", { class: "t-string" }, text)];
  const { tokens, known } = grammar(language);
  /** @type {(Node | string)[]} */
  const parts = [];
  let end = 0;
  const add = (/** @type {number} */ begin, /** @type {string} */ name, /** @type {string} */ token) => {
    if (begin > end) parts.push(text.slice(end, begin));
    parts.push(h("span", { class: name }, token));
    end = begin + token.length;
  };
  for (const match of text.matchAll(tokens)) {
    const [token, comment, string, word, number] = match;
    if (match.index < end) continue;
    if (comment) add(match.index, "t-comment", token);
    else if (string && /"""|'''/.test(string)) return [...parts, text.slice(end, match.index), h("span", { class: "t-string" }, text.slice(match.index))];
    else if (string) add(match.index, "t-string", token);
    else if (word && known.has(word)) add(match.index, "t-word", token);
    else if (word && language === "asm" && /^(\s*[\da-f]+:)?\s*$/.test(text.slice(0, match.index)) && !text.endsWith(":")) add(match.index, "t-word", token);
    else if (word && text[match.index + token.length] === "(") add(match.index, "t-call", token);
    else if (number) add(match.index, "t-number", token);
  }
  if (end < text.length) parts.push(text.slice(end));
  return parts;
}

/**
 * Which lines of a Python file begin inside of a string of several lines.
 * @param {string[]} lines
 * @returns {boolean[]}
 */
export function insideStrings(lines) {
  let open = "";
  return lines.map((line) => {
    const begins = open !== "";
    for (const [mark] of line.matchAll(/"""|'''/g)) {
      if (!open) open = mark;
      else if (open === mark) open = "";
    }
    return begins;
  });
}
