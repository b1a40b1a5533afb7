// Keys, the theme, and the address of what is pinned.

import { h, remember, remembered } from "./dom.js";

/**
 * @typedef {import("./joins.js").Joins} Joins
 * @typedef {import("./joins.js").Focus} Focus
 * @typedef {Record<string, () => void>} Actions
 */

/**
 * Keys of the page; none of them where a text is written, but Escape.
 * @param {Actions} actions
 */
export function listenToKeys(actions) {
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.defaultPrevented) return;
    const { target } = event;
    const writes = target instanceof HTMLInputElement || target instanceof HTMLSelectElement;
    if ((writes && event.key !== "Escape") || !(event.key in actions)) return;
    if (document.querySelector("dialog[open]")) return;
    actions[event.key]();
    event.preventDefault();
  });
}

/**
 * The dialog of keys.
 * @param {[string, string][]} keys
 */
export function helpDialog(keys) {
  const rows = keys.map(([names, text]) => h("tr", null, h("td", null, names.split(" ").map((name) => h("kbd", null, name))), h("td", null, text)));
  const dialog = h("dialog", { "aria-label": "keys" }, h("h2", null, "Keys"), h("table", null, rows),
    h("form", { method: "dialog" }, h("button", { class: "toggle" }, "close"))); // prettier-ignore
  dialog.addEventListener("click", (event) => event.target === dialog && dialog.close());
  document.body.append(dialog);
  return dialog;
}

const THEMES = ["auto", "light", "dark"];

/**
 * A button that changes between the system's theme, light and dark.
 * @param {() => void} changed
 */
export function themeButton(changed) {
  let theme = remembered("theme") ?? "auto";
  const system = matchMedia("(prefers-color-scheme: dark)");
  system.addEventListener("change", () => choose(theme));
  const button = h("button", { class: "toggle", title: "theme: the system's, light or dark ( t )", onclick: () => choose(THEMES[(THEMES.indexOf(theme) + 1) % 3]) });
  const choose = (/** @type {string} */ name) => {
    theme = name;
    document.documentElement.dataset.theme = name !== "auto" ? name : system.matches ? "dark" : "light";
    button.textContent = { auto: "◐ auto", light: "○ light", dark: "● dark" }[name] ?? name;
    button.setAttribute("aria-label", `theme: ${name}`);
    remember("theme", name);
    changed();
  };
  choose(theme);
  return button;
}

/**
 * The address of what is pinned: "k12", "line=model.py:42", "op=addmm_3", "module=layers.3".
 * @param {Joins} joins
 * @param {Focus | null} focus
 */
export function addressOf(joins, focus) {
  if (!focus) return "";
  if (focus.kind === "line") return `line=${joins.place(focus.at)}`;
  if (focus.kind === "module") return `module=${focus.path}`;
  if (focus.kind === "loop") return `loop=${focus.at}`;
  if (focus.kind !== "op") return joins.steps[focus.at].data.id;
  const op = joins.ops[focus.at];
  const first = joins.ops.find((each) => each.data.name === op.data.name);
  return first === op ? `op=${op.data.name}` : `op=${op.graph.name}/${op.data.name}`;
}

/**
 * @param {Joins} joins
 * @param {string} address
 * @returns {Focus | null}
 */
export function focusOf(joins, address) {
  const [, kind, value] = /^#?(?:(\w+)=)?(.*)$/.exec(decodeURIComponent(address)) ?? [];
  const found = (/** @type {Focus["kind"]} */ name, /** @type {number} */ at) => (at < 0 ? null : { kind: name, at });
  if (!value) return null;
  if (kind === "line") return found("line", joins.lines.findIndex((line) => joins.place(line.at) === value));
  if (kind === "op") return found("op", joins.ops.findIndex((op) => op.data.name === value || `${op.graph.name}/${op.data.name}` === value));
  if (kind === "loop") return found("loop", Number(value) < joins.loops.length ? Number(value) : -1);
  if (kind === "module") return { kind: "module", at: -1, path: value };
  return found("step", joins.steps.findIndex((step) => step.data.id === value));
}

/** @type {number[]} */
const changes = []; // when the address was changed
let waiting = 0;

/**
 * Keeps the address in the browser's line, where it lets the page. Browsers refuse more than some hundred changes in half a
 * minute: after fifty, as when j is held down, the page waits for the last one.
 * @param {string} address
 */
export function keepAddress(address) {
  clearTimeout(waiting);
  const now = performance.now();
  while (changes.length && changes[0] < now - 15_000) changes.shift();
  if (changes.length >= 50) {
    waiting = setTimeout(() => putAddress(address), 400);
    return;
  }
  changes.push(now);
  putAddress(address);
}

/** @param {string} address */
function putAddress(address) {
  try {
    history.replaceState(null, "", address ? `#${encodeURI(address)}` : location.pathname + location.search);
  } catch {
    // A frame of a notebook has no address of its own.
  }
}
