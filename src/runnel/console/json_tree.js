// JSON as a tree that opens. Numbers are shown as they are written: JavaScript would round those beyond 2^53.

import { el } from "./dom.js";

const OPEN = 2; // levels that are open at first
const SHOWN = 100; // entries of one object or array that are made at a time
const DEEPEST = 64;

/** A number with the digits that were sent. */
class Exact {
  constructor(source) {
    this.source = source;
  }
}

/** The tree of a text; null if it is no JSON object or array. @param {string} text */
export function jsonTree(text) {
  if (!/^\s*[[{]/.test(text)) return null;
  let value;
  try {
    value = JSON.parse(text, (_, one, context) => (typeof one === "number" && context?.source ? new Exact(context.source) : one));
  } catch {
    return null;
  }
  return el("div", { class: "tree", tabindex: 0, role: "group", "aria-label": "Value as a tree" }, node(null, value, 0));
}

function node(name, value, depth) {
  const key = name === null ? null : el("span", { class: "tree-key" }, `${name}: `);
  if (value === null || typeof value !== "object" || value instanceof Exact) return el("div", { class: "leaf" }, key, leaf(value));
  const entries = Array.isArray(value) ? value.map((one, index) => [String(index), one]) : Object.entries(value);
  const count = Array.isArray(value) ? `[${entries.length}]` : `{${entries.length}}`;
  const open = depth < OPEN;
  const details = el("details", { open }, el("summary", {}, key, el("span", { class: "tree-count" }, count)));
  const fill = () => details.children.length === 1 && details.append(children(entries, 0, depth));
  if (open) fill();
  else details.addEventListener("toggle", () => details.open && fill());
  return details;
}

function children(entries, from, depth) {
  const box = el("div", { class: "branch" });
  if (depth >= DEEPEST) {
    box.append(el("div", { class: "leaf muted" }, "nested too deeply to be shown"));
    return box;
  }
  for (const [name, value] of entries.slice(from, from + SHOWN)) box.append(node(name, value, depth + 1));
  const left = entries.length - from - SHOWN;
  if (left > 0) {
    const more = el("button", { type: "button", on: { click: () => more.replaceWith(...children(entries, from + SHOWN, depth).childNodes) } }, `${left} more`);
    box.append(more);
  }
  return box;
}

function leaf(value) {
  if (value instanceof Exact) return el("span", { class: "tree-number" }, value.source);
  if (typeof value === "string") return el("span", { class: "tree-string" }, JSON.stringify(value));
  return el("span", { class: "tree-word" }, String(value));
}
