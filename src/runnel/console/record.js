// One record as a line that opens: what it holds is shown as text, whatever it is.

import { announce, el, say } from "./dom.js";
import { button } from "./dialogs.js";
import { bytes, clock, moment, payload } from "./format.js";
import { jsonTree } from "./json_tree.js";

const LINE = 400; // characters of a value in the line

/** A message of JSON lines (`payload`), or a record of history (`value`), with value and key as text or bytes. @param {any} message */
export function shaped({ payload, value = payload, encoding, key = null, key_encoding, time, headers = {}, ...place }) {
  const decoded = (text) => Uint8Array.from(atob(text), (character) => character.charCodeAt(0));
  return {
    ...place,
    id: `${place.epoch}:${place.offset}`,
    time: new Date(time),
    headers,
    text: encoding ? null : value,
    value: encoding ? decoded(value) : value,
    key: key_encoding ? decoded(key) : key,
    json: { ...place, time, key, key_encoding, headers, value, encoding },
  };
}

/** @param {any} record as `shaped` makes it, or {gap} */
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
  const plain = el("pre", { tabindex: 0, "aria-label": "Value" }, value.text);
  const tree = record.text === null || value.cut ? null : jsonTree(record.text);
  const shown = el("div", {}, tree ?? plain);
  const told = el("span", { class: "muted", role: "status" });
  const copy = (text) => async () => say(told, (await copied(text)) ? "Copied." : "The browser does not allow it.");
  const tools = el("div", { class: "buttons" });
  if (record.text !== null) tools.append(button("Copy value", copy(record.text)));
  tools.append(button("Copy record", copy(JSON.stringify(record.json, null, 2))));
  if (tree) {
    const raw = button("As text", () => {
      const asText = raw.getAttribute("aria-pressed") !== "true";
      raw.setAttribute("aria-pressed", String(asText));
      shown.replaceChildren(asText ? plain : tree);
    }, "", { "aria-pressed": "false" });
    tools.append(raw);
  }
  tools.append(told);
  return el(
    "div",
    { class: "inside" },
    el("dl", { class: "facts" }, ...facts.flatMap(([name, text]) => [el("dt", {}, name), el("dd", {}, String(text))])),
    tools,
    shown,
  );
}

/** Put a text where it can be pasted from; whether the browser did. @param {string} text */
async function copied(text) {
  try {
    await navigator.clipboard.writeText(text);
    announce("Copied");
    return true;
  } catch {
    // A page that came over plain HTTP from another machine has no clipboard, but may copy what is selected.
    const area = el("textarea", { class: "visually-hidden", readonly: true });
    area.value = text;
    document.body.append(area);
    area.select();
    const done = document.execCommand("copy");
    area.remove();
    return done;
  }
}

function gapLine({ gap }) {
  const count = gap.count === null ? "Some records are" : `${gap.count} record${gap.count === 1 ? " is" : "s are"}`;
  return el("li", { class: "gap" }, `${count} missing here: ${gap.reason}`);
}

const oneLine = (text) => text.replace(/\s+/g, " ");
