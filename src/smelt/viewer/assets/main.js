// Begins: reads the trace out of the page and shows it, or the difference of two.

import { DifferencePage } from "./difference.js";
import { fill, h } from "./dom.js";
import { load } from "./load.js";
import { TracePage } from "./trace_page.js";

/** @param {HTMLElement} root */
async function begin(root) {
  try {
    const { trace, before, after } = await load();
    const page = trace ? new TracePage(trace, root) : new DifferencePage(before, after, root);
    document.documentElement.dataset.ready = page instanceof TracePage ? "trace" : "difference";
  } catch (error) {
    fill(root, h("p", { class: "failed", role: "alert" }, `This page cannot be shown: ${error}. It needs a browser of 2023 or later.`));
    throw error;
  }
}

begin(/** @type {HTMLElement} */ (document.getElementById("root")));
