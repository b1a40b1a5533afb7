// Elements, without a text that becomes markup: everything from the trace is a text node.

/**
 * @typedef {Node | string | number | null | undefined | false} Child
 * @typedef {Record<string, string | number | boolean | null | undefined | ((event: any) => void)>} Attributes
 */

/**
 * An element. Attributes that are functions listen (`onclick`); `false`, `null` and `undefined` are left out.
 * @template {keyof HTMLElementTagNameMap} Tag
 * @param {Tag} tag
 * @param {Attributes | null} [attributes]
 * @param {...(Child | Child[])} children
 * @returns {HTMLElementTagNameMap[Tag]}
 */
export function h(tag, attributes, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (typeof value === "function") element.addEventListener(name.slice(2), value);
    else if (name === "class") element.className = String(value || "");
    else if (name.startsWith("aria-") && typeof value === "boolean") element.setAttribute(name, String(value));
    else if (value === true) element.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) element.setAttribute(name, String(value));
  }
  append(element, children);
  return element;
}

/**
 * @param {Element} element
 * @param {(Child | Child[])[]} children
 */
function append(element, children) {
  for (const child of children.flat()) {
    if (child === null || child === undefined || child === false) continue;
    element.append(child instanceof Node ? child : String(child));
  }
}

/**
 * @param {Element} element
 * @param {...(Child | Child[])} children
 */
export function fill(element, ...children) {
  element.replaceChildren();
  append(element, children);
}

/**
 * The value of a variable of the style sheet.
 * @param {string} name
 * @returns {string}
 */
export function variable(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

/**
 * Makes a canvas as large as asked, sharp on every screen, and gives its cleared context.
 * @param {HTMLCanvasElement} canvas
 * @param {number} width
 * @param {number} height
 * @returns {CanvasRenderingContext2D}
 */
export function context(canvas, width, height) {
  const ratio = window.devicePixelRatio || 1;
  const [columns, rows] = [Math.round(width * ratio), Math.round(height * ratio)];
  if (canvas.width !== columns || canvas.height !== rows) {
    [canvas.width, canvas.height] = [columns, rows];
    canvas.style.width = `${width}px`;
    canvas.style.height = `${height}px`;
  }
  const drawn = /** @type {CanvasRenderingContext2D} */ (canvas.getContext("2d"));
  drawn.setTransform(ratio, 0, 0, ratio, 0, 0);
  drawn.clearRect(0, 0, width, height);
  return drawn;
}

/** The one tooltip of the page. */
export class Tip {
  constructor() {
    this.element = h("div", { class: "tip", role: "tooltip", hidden: true });
    document.body.append(this.element);
  }

  /**
   * @param {number} x
   * @param {number} y
   * @param {Child[]} children
   */
  show(x, y, children) {
    fill(this.element, children);
    this.element.hidden = false;
    const { width, height } = this.element.getBoundingClientRect();
    const left = Math.max(4, Math.min(x + 12, window.innerWidth - width - 8));
    const top = y + 18 + height > window.innerHeight ? Math.max(4, y - height - 10) : y + 18;
    this.element.style.transform = `translate(${left}px, ${top}px)`;
  }

  hide() {
    this.element.hidden = true;
  }
}

/**
 * Keeps a choice of the reader, where the browser lets the page do so (it does not in a notebook's frame).
 * @param {string} name
 * @param {string} value
 */
export function remember(name, value) {
  try {
    localStorage.setItem(`smelt.${name}`, value);
  } catch {
    // The choice holds as long as the page is open.
  }
}

/**
 * @param {string} name
 * @returns {string | null}
 */
export function remembered(name) {
  try {
    return localStorage.getItem(`smelt.${name}`);
  } catch {
    return null;
  }
}
