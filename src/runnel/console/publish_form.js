// A form that publishes one record, and says where it is. What the topic's type asks for is checked by the server.

import { attribute, el, field, say } from "./dom.js";
import { check, proof } from "./session.js";
import { publish } from "../runnel.js";

/** @param {string | null} topic to which; null: it is asked for */
export function publishForm(topic) {
  const text = (more = {}) => el("input", { type: "text", autocomplete: "off", spellcheck: "false", ...more });
  const name = text({ required: true, maxlength: 255 });
  const key = text();
  const delay = el("input", { type: "number", min: 0, step: "any" });
  const value = el("textarea", { rows: 4, spellcheck: "false" });
  const headers = el("textarea", { rows: 2, spellcheck: "false", placeholder: "name: value" });
  const kind = el("select", {}, el("option", { value: "text/plain; charset=utf-8" }, "as it is"), el("option", { value: "application/json" }, "checked to be JSON"));
  const told = el("p", { class: "told", role: "status" });
  const checked = el("p", { class: "hint" });
  const button = el("button", { type: "submit", class: "primary" }, "Publish");
  let type = "";
  value.addEventListener("input", check);
  kind.addEventListener("change", check);

  /** Say at once whether a value that is to be JSON is. */
  function check() {
    let wrong = "";
    if (kind.value === "application/json" && value.value) {
      try {
        JSON.parse(value.value);
      } catch (error) {
        wrong = error.message;
      }
    }
    attribute(value, "aria-invalid", wrong ? "true" : null);
    attribute(checked, "data-bad", wrong ? "" : null);
    const right = type ? `It is to be ${type}: the server checks that, and names the field that is wrong.` : "";
    say(checked, wrong || (kind.value === "application/json" ? right || "It is JSON." : ""));
  }

  async function send(event) {
    event.preventDefault();
    button.disabled = true;
    told.removeAttribute("data-bad");
    try {
      if (kind.value === "application/json") JSON.parse(value.value);
      const to = topic ?? name.value;
      const said = { ...proof(), ...(delay.value ? { "runnel-delay": delay.value } : {}) };
      const options = { contentType: kind.value, headers: headersOf(headers.value), timeout: 15_000, request: { headers: said } };
      if (key.value) options.key = key.value;
      const { offset, epoch } = await publish(to, value.value, options);
      say(told, `Stored in ${to} at offset ${offset} (epoch ${epoch}).`);
      value.focus();
      value.select();
    } catch (error) {
      if (error.status === 401) await check().catch(() => {}); // the session may be over
      told.setAttribute("data-bad", "");
      say(told, error.message);
    } finally {
      button.disabled = false;
    }
  }

  const fields = [field("Key", key, "optional"), field("Delay", delay, "seconds, for groups; optional"), field("Value is sent", kind)];
  if (topic === null) fields.unshift(field("Topic", name));
  const node = el(
    "form",
    { class: "publish", on: { submit: send } },
    el("div", { class: "fields" }, ...fields),
    el("div", {}, field("Value", value), checked),
    field("Headers", headers, "optional, one a line"),
    el("div", { class: "buttons" }, button, told),
  );
  return {
    node,
    /** The topic has a type: values are JSON of it. @param {string} named */
    typed(named) {
      type = named;
      kind.value = "application/json";
      check();
    },
  };
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
