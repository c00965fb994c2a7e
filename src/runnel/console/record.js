// One record as a line that opens: what it holds is shown as text, whatever it is.

import { el } from "./dom.js";
import { bytes, clock, moment, payload } from "./format.js";

const LINE = 400; // characters of a value in the line

/** @param {any} record as runnel.js gives it, or {gap} */
export function recordLine(record) {
  if (record.gap) return gapLine(record);
  const shown = payload(record.text ?? record.value, LINE);
  const key = record.key === null ? null : payload(record.key, 120).text;
  const details = el(
    "details",
    {},
    el(
      "summary",
      {},
      el("time", { datetime: record.time.toISOString(), title: moment(record.time) }, clock(record.time)),
      el("span", { class: "offset" }, String(record.offset)),
      el("span", { class: "line" }, key === null ? null : el("span", { class: "key" }, key), el("span", { class: shown.binary ? "payload hex" : "payload" }, oneLine(shown.text) || "(empty)")),
    ),
  );
  details.addEventListener("toggle", () => details.open && details.children.length === 1 && details.append(inside(record)));
  return el("li", {}, details);
}

/** Everything about a record. It is made when it is looked at. */
export function inside(record) {
  const value = payload(record.text ?? record.value);
  const facts = [
    ["Position", `${record.epoch}:${record.offset}`],
    ["Sequence", record.sequence],
    ["Time", `${moment(record.time)} (${record.time.toISOString()})`],
    ["Size", `${bytes(value.size)}${value.binary ? ", not UTF-8: in hex" : ""}${value.cut ? `, the beginning is shown` : ""}`],
  ];
  if (record.key !== null) {
    const key = payload(record.key, 4096);
    facts.push([key.binary ? "Key (hex)" : "Key", key.text]);
  }
  for (const [name, text] of Object.entries(record.headers)) facts.push([name, text]);
  return el(
    "div",
    { class: "inside" },
    el("dl", { class: "facts" }, ...facts.flatMap(([name, text]) => [el("dt", {}, name), el("dd", {}, String(text))])),
    el("pre", { tabindex: 0, "aria-label": "Value" }, value.cut ? value.text : pretty(record, value.text)),
  );
}

function gapLine({ gap }) {
  const count = gap.count === null ? "Some records are" : `${gap.count} record${gap.count === 1 ? " is" : "s are"}`;
  return el("li", { class: "gap" }, `${count} missing here: ${gap.reason}`);
}

/** JSON with its lines, other text as it is. */
function pretty(record, text) {
  if (record.text === null || !/^\s*[[{]/.test(text)) return text;
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text;
  }
}

const oneLine = (text) => text.replace(/\s+/g, " ");
