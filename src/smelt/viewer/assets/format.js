// Numbers as people read them.

/**
 * Three digits of a number: 1234 → "1230", 12.34 → "12.3".
 * @param {number} value
 * @returns {string}
 */
function digits(value) {
  if (value >= 100) return value.toFixed(0);
  return value >= 10 ? value.toFixed(1) : value.toFixed(2);
}

/**
 * @param {number} value
 * @param {Array<[number, string]>} units  from large to small
 * @returns {string}
 */
function scaled(value, units) {
  const last = units[units.length - 1];
  const [size, unit] = units.find(([each]) => Math.abs(value) >= each * 0.9995) ?? last;
  return `${value < 0 ? "−" : ""}${digits(Math.abs(value) / size)} ${unit}`;
}

/**
 * @param {number} seconds
 * @returns {string}
 */
export function time(seconds) {
  if (seconds === 0) return "0";
  return scaled(seconds, [[1, "s"], [1e-3, "ms"], [1e-6, "µs"], [1e-9, "ns"]]);
}

/**
 * Milliseconds without their unit, for narrow columns.
 * @param {number} seconds
 * @returns {string}
 */
export function milliseconds(seconds) {
  const value = seconds * 1e3;
  if (value < 0.005) return value < 0.0005 ? "0" : value.toFixed(3);
  return digits(value);
}

/**
 * @param {number} bytes
 * @returns {string}
 */
export function size(bytes) {
  return bytes < 1000 ? `${bytes} B` : scaled(bytes, [[1e9, "GB"], [1e6, "MB"], [1e3, "kB"]]);
}

/**
 * @param {number} value
 * @param {string} unit
 * @returns {string}
 */
export function amount(value, unit) {
  return value < 1000 ? `${Math.round(value)} ${unit}` : scaled(value, [[1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"]]) + unit;
}

/**
 * @param {number} share  of one
 * @returns {string}
 */
export function percent(share) {
  const value = share * 100;
  if (value > 0 && value < 0.1) return "< 0.1 %";
  return `${value >= 10 ? value.toFixed(0) : value.toFixed(1)} %`;
}

/**
 * A share of a peak. More than all of it: the data is in the caches.
 * @param {number} share
 * @returns {string}
 */
export function reached(share) {
  return share > 1.005 ? "> 100 %" : percent(share);
}

/**
 * @param {number} number
 * @param {string} noun
 * @param {string} [nouns]
 * @returns {string}
 */
export function plural(number, noun, nouns = `${noun}s`) {
  return `${number.toLocaleString("en")} ${number === 1 ? noun : nouns}`;
}
