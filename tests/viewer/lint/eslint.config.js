import js from "@eslint/js";

const BROWSER = `atob Blob Response DecompressionStream document window location history getComputedStyle getSelection localStorage
  matchMedia performance setTimeout clearTimeout requestAnimationFrame ResizeObserver HTMLElement HTMLInputElement HTMLSelectElement Element Node`;

export default [
  js.configs.recommended,
  {
    languageOptions: { ecmaVersion: 2022, sourceType: "module", globals: Object.fromEntries(BROWSER.split(/\s+/).map((name) => [name, "readonly"])) },
    rules: {
      "no-unused-vars": ["error", { argsIgnorePattern: "^_" }],
      "no-var": "error",
      "prefer-const": ["error", { destructuring: "all" }],
      eqeqeq: "error",
      "max-lines": ["error", 400],
      "no-restricted-properties": ["error", ...["innerHTML", "outerHTML", "insertAdjacentHTML"].map((property) => ({ property, message: "texts of a trace are text nodes" }))],
    },
  },
];
