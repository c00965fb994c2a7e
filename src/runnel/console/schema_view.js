// The type of a topic: its fields in a table, and the whole schema to be opened.

import { el } from "./dom.js";

/** @param {{encoding: string, schema: any}} typed */
export function schemaView({ encoding, schema }) {
  const root = resolved(schema, schema);
  const required = new Set(root.required ?? []);
  const rows = Object.entries(root.properties ?? {}).map(([name, one]) =>
    el(
      "tr",
      {},
      el("th", { scope: "row", class: "mono" }, name),
      el("td", { class: "mono" }, kindOf(one, schema)),
      el("td", { class: "words" }, required.has(name) ? "required" : `optional${"default" in one ? `, ${JSON.stringify(one.default)} by default` : ""}`),
    ),
  );
  const head = el("tr", {}, ...["Field", "Type", ""].map((title) => el("th", { scope: "col" }, title || el("span", { class: "visually-hidden" }, "Needed"))));
  const table = el("table", {}, el("caption", { class: "visually-hidden" }, "Fields of the type"), el("thead", {}, head), el("tbody", {}, ...rows));
  return el(
    "div",
    {},
    el("p", {}, "Values are ", el("strong", {}, nameOf(schema)), `, written as ${encoding === "json" ? "JSON" : encoding}.`),
    rows.length ? el("div", { class: "table" }, table) : null,
    el("details", { class: "fold" }, el("summary", {}, "JSON Schema"), el("pre", { tabindex: 0, "aria-label": "JSON Schema" }, JSON.stringify(schema, null, 2))),
  );
}

/** What a type is called. @param {any} schema */
export const nameOf = (schema) => String(resolved(schema, schema).title ?? kindOf(schema, schema));

function resolved(one, root) {
  const passed = new Set();
  while (typeof one?.$ref === "string" && !passed.has(one.$ref)) {
    passed.add(one.$ref);
    one = root.$defs?.[one.$ref.replace("#/$defs/", "")];
  }
  return one ?? {};
}

function kindOf(one, root) {
  if (typeof one?.$ref === "string") return resolved(one, root).title ?? one.$ref.replace("#/$defs/", "");
  if (one?.anyOf) return one.anyOf.map((each) => kindOf(each, root)).join(" or ");
  if (one?.enum) return one.enum.map((each) => JSON.stringify(each)).join(" | ");
  if (one?.const !== undefined) return JSON.stringify(one.const);
  if (one?.type === "array") return `array of ${kindOf(one.items ?? {}, root)}`;
  return [one?.type ?? "any", one?.format].flat().filter(Boolean).join(", ");
}
