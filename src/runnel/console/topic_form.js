// The options of a topic: in a form, to create one or to change them.

import { el } from "./dom.js";
import { ask } from "./dialogs.js";
import { act } from "./requests.js";

/** What can be said of a topic. `for life`: only when it is made. */
const OPTIONS = [
  { name: "durable", label: "Stored", kind: "choice", choices: [["", "as the broker does"], ["true", "on disk"], ["false", "in memory"]], forLife: true },
  { name: "retention_age", label: "Keep for, seconds", kind: "number" },
  { name: "retention_bytes", label: "Keep at most, bytes", kind: "number" },
  { name: "retention_count", label: "Keep at most, records", kind: "number" },
  { name: "compact", label: "Keep only the newest of each key", kind: "choice", choices: [["", "no"], ["true", "yes"]] },
  { name: "retention_until", label: "Keep, whatever the limits", kind: "choice", choices: [["", "no"], ["archived", "until it is archived"]] },
  { name: "compression", label: "Compression", kind: "choice", choices: [["", "none"], ["zstd", "zstd, the smaller"], ["lz4", "lz4, the faster"]] },
  { name: "dead_letter", label: "Dead letters go to", kind: "text" },
  { name: "max_deliver", label: "Attempts in a group", kind: "number" },
];

/** Ask for a topic and make it; its name, or null. */
export async function createTopic() {
  const name = el("input", { type: "text", required: true, maxlength: 255, autocomplete: "off", spellcheck: "false" });
  const inputs = OPTIONS.map((option) => [option, inputOf(option, undefined)]);
  const fields = [{ name: "topic", label: "Name", input: name, hint: "tokens joined by dots, such as orders.placed" }];
  for (const [option, input] of inputs) fields.push({ name: option.name, label: option.label, input });
  const work = async ({ topic }) => {
    const options = {};
    for (const [option, input] of inputs) if (input.value !== "") options[option.name] = valueOf(option, input.value);
    await act("create_topic", { topic, options });
    return topic;
  };
  return ask({ title: "Create a topic", action: "Create", fields, work });
}

/** Ask what is to be changed, and change it; the options that hold then, or null. @param {string} topic @param {Record<string, any>} now */
export async function changeOptions(topic, now) {
  const inputs = OPTIONS.filter((one) => !one.forLife).map((option) => [option, inputOf(option, now[option.name])]);
  const fields = inputs.map(([option, input]) => ({ name: option.name, label: option.label, input }));
  const text = "An empty field takes an option back to its default. Records that are beyond a smaller limit go at once.";
  const work = async () => {
    const changes = {};
    for (const [option, input] of inputs) {
      const value = input.value === "" ? null : valueOf(option, input.value);
      if (value !== (now[option.name] ?? null)) changes[option.name] = value;
    }
    return Object.keys(changes).length ? (await act("configure_topic", { topic, changes })).options : now;
  };
  return ask({ title: `Options of ${topic}`, text, action: "Change", fields, work });
}

function inputOf({ kind, choices }, value) {
  const shown = value === undefined || value === null ? "" : String(value);
  if (kind === "choice") return el("select", {}, ...choices.map(([one, title]) => el("option", { value: one, selected: one === shown }, title)));
  const input = el("input", { type: kind, min: kind === "number" ? 0 : null, step: kind === "number" ? "any" : null, autocomplete: "off", spellcheck: "false" });
  input.value = shown;
  return input;
}

const valueOf = ({ kind }, text) => (kind === "number" ? Number(text) : ["true", "false"].includes(text) ? text === "true" : text);
