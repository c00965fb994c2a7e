// A form that publishes one record, and says where it is.

import { el, field, say } from "./dom.js";
import { proof } from "./session.js";
import { publish } from "../runnel.js";

/** @param {string | null} topic to which; null: it is asked for */
export function publishForm(topic) {
  const name = el("input", { type: "text", required: true, autocomplete: "off", spellcheck: "false", maxlength: 255 });
  const key = el("input", { type: "text", autocomplete: "off", spellcheck: "false" });
  const value = el("textarea", { rows: 4, spellcheck: "false" });
  const headers = el("textarea", { rows: 2, spellcheck: "false", placeholder: "name: value" });
  const kind = el("select", {}, el("option", { value: "text/plain; charset=utf-8" }, "as it is"), el("option", { value: "application/json" }, "checked to be JSON"));
  const told = el("p", { class: "told", role: "status" });
  const button = el("button", { type: "submit", class: "primary" }, "Publish");

  async function send(event) {
    event.preventDefault();
    button.disabled = true;
    told.removeAttribute("data-bad");
    try {
      if (kind.value === "application/json") JSON.parse(value.value);
      const to = topic ?? name.value;
      const options = { contentType: kind.value, headers: headersOf(headers.value), timeout: 15_000, request: { headers: proof() } };
      if (key.value) options.key = key.value;
      const { offset, epoch } = await publish(to, value.value, options);
      say(told, `Stored in ${to} at offset ${offset} (epoch ${epoch}).`);
      value.focus();
      value.select();
    } catch (error) {
      told.setAttribute("data-bad", "");
      say(told, error.message);
    } finally {
      button.disabled = false;
    }
  }

  const fields = [field("Key", key, "optional"), field("Value is sent", kind)];
  if (topic === null) fields.unshift(field("Topic", name));
  const node = el(
    "form",
    { class: "publish", on: { submit: send } },
    el("div", { class: "fields" }, ...fields),
    field("Value", value),
    field("Headers", headers, "optional, one a line"),
    el("div", { class: "buttons" }, button, told),
  );
  return { node };
}

/** @param {string} text */
function headersOf(text) {
  const found = {};
  for (const line of text.split("\n").filter((one) => one.trim())) {
    const colon = line.indexOf(":");
    if (colon < 1) throw new Error(`"${line.slice(0, 40)}" is no header: write name: value`);
    found[line.slice(0, colon).trim().toLowerCase()] = line.slice(colon + 1).trim();
  }
  return found;
}
