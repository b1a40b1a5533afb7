// Two texts, line by line: which lines are equal, which are only in one of them (Myers, "An O(ND) difference algorithm").

/** @typedef {{kind: "same" | "gone" | "new", before: number, after: number}} Pair  places; -1 on the side that has none */

const MOST = 1200; // differences that are searched for; texts with more share only their ends

/**
 * @param {string[]} before
 * @param {string[]} after
 * @returns {Pair[]}
 */
export function align(before, after) {
  let [begin, beforeEnd, afterEnd] = [0, before.length, after.length];
  while (begin < beforeEnd && begin < afterEnd && before[begin] === after[begin]) begin++;
  while (beforeEnd > begin && afterEnd > begin && before[beforeEnd - 1] === after[afterEnd - 1]) [beforeEnd, afterEnd] = [beforeEnd - 1, afterEnd - 1];
  /** @type {Pair[]} */
  const pairs = [];
  const equal = (/** @type {number} */ i, /** @type {number} */ j) => pairs.push({ kind: "same", before: i, after: j });
  for (let i = 0; i < begin; i++) equal(i, i);
  let [i, j] = [begin, begin];
  for (const [x, y] of [...common(before, after, begin, beforeEnd, afterEnd), [beforeEnd, afterEnd]]) {
    while (i < x) pairs.push({ kind: "gone", before: i++, after: -1 });
    while (j < y) pairs.push({ kind: "new", before: -1, after: j++ });
    if (x < beforeEnd && y < afterEnd) equal(i++, j++);
  }
  while (i < before.length) equal(i++, j++);
  return pairs;
}

/**
 * Places of equal lines between the ends, rising in both texts.
 * @param {string[]} before
 * @param {string[]} after
 * @param {number} begin
 * @param {number} beforeEnd
 * @param {number} afterEnd
 * @returns {[number, number][]}
 */
function common(before, after, begin, beforeEnd, afterEnd) {
  const [n, m] = [beforeEnd - begin, afterEnd - begin];
  const most = Math.min(n + m, MOST);
  const furthest = new Int32Array(2 * most + 3);
  /** @type {Int32Array[]} */
  const rounds = [];
  const middle = most + 1;
  for (let d = 0; d <= most; d++) {
    rounds.push(furthest.slice(middle - d - 1, middle + d + 2));
    for (let k = -d; k <= d; k += 2) {
      const down = k === -d || (k !== d && furthest[middle + k - 1] < furthest[middle + k + 1]);
      let x = down ? furthest[middle + k + 1] : furthest[middle + k - 1] + 1;
      while (x < n && x - k < m && before[begin + x] === after[begin + x - k]) x++;
      furthest[middle + k] = x;
      if (x >= n && x - k >= m) return walkBack(rounds, n, m, begin);
    }
  }
  return [];
}

/**
 * @param {Int32Array[]} rounds
 * @param {number} n
 * @param {number} m
 * @param {number} begin
 */
function walkBack(rounds, n, m, begin) {
  /** @type {[number, number][]} */
  const found = [];
  let [x, y] = [n, m];
  for (let d = rounds.length - 1; d >= 0; d--) {
    const at = (/** @type {number} */ k) => rounds[d][k + d + 1];
    const k = x - y;
    const down = k === -d || (k !== d && at(k - 1) < at(k + 1));
    const fromX = d === 0 ? 0 : down ? at(k + 1) : at(k - 1) + 1;
    while (x > fromX && y > fromX - k) found.push([begin + --x, begin + --y]);
    if (d > 0) [x, y] = down ? [x, y - 1] : [x - 1, y];
  }
  return found.reverse();
}

/**
 * The pairs near a difference; a number stands for so many equal ones that are left out.
 * @param {Pair[]} pairs
 * @param {number} [around]
 * @returns {(Pair | number)[]}
 */
export function shortened(pairs, around = 4) {
  const near = new Uint8Array(pairs.length);
  pairs.forEach((pair, at) => {
    if (pair.kind !== "same") near.fill(1, Math.max(0, at - around), at + around + 1);
  });
  /** @type {(Pair | number)[]} */
  const kept = [];
  pairs.forEach((pair, at) => {
    const last = kept[kept.length - 1];
    if (near[at]) kept.push(pair);
    else if (typeof last === "number") kept[kept.length - 1] = last + 1;
    else kept.push(1);
  });
  return kept;
}
