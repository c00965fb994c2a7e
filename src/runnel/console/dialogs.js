// Questions that are asked before something is done, and what came of it.

import { announce, attribute, el, field, say, unique } from "./dom.js";

/** Ask, and do it: the answer of `work`, or null if the reader chose not to. What fails is said in the dialog, which stays.
 *  @template T
 *  @param {{title: string, text?: string, action: string, kind?: "danger" | "primary", typed?: string,
 *    fields?: {name: string, label: string, input: HTMLInputElement | HTMLSelectElement | HTMLTextAreaElement, hint?: string}[],
 *    work?: (values: Record<string, string>) => Promise<T>}} question
 *    `typed`: what has to be typed before it can be done; `work` is given the values of `fields` by name
 *  @returns {Promise<T | true | null>} */
export function ask({ title, text, action, kind = "primary", typed, fields = [], work = async () => true }) {
  const heading = unique("dialog");
  const go = el("button", { type: "submit", class: kind }, action);
  const name = typed === undefined ? null : el("input", { type: "text", autocomplete: "off", spellcheck: "false" });
  const outcome = new Outcome();
  let answer = null;

  async function submit(event) {
    event.preventDefault();
    go.disabled = true;
    try {
      answer = await work(Object.fromEntries(fields.map((one) => [one.name, one.input.value])));
      dialog.close();
    } catch (error) {
      outcome.say(error.message, true);
      go.disabled = false;
    }
  }

  const form = el(
    "form",
    { method: "dialog", on: { submit } },
    el("h2", { id: heading }, title),
    text ? el("p", {}, text) : null,
    ...fields.map(({ label, input, hint }) => field(label, input, hint)),
    name && field(`Type ${typed} to confirm`, name),
    outcome.node,
    el("div", { class: "buttons" }, el("button", { type: "button", autofocus: !fields.length && !name, on: { click: () => dialog.close() } }, "Cancel"), go),
  );
  const dialog = el("dialog", { "aria-labelledby": heading }, form);
  if (name) {
    go.disabled = true;
    name.addEventListener("input", () => (go.disabled = name.value !== typed));
  }
  document.body.append(dialog);
  const before = document.activeElement;
  dialog.showModal();
  return new Promise((resolve) => {
    dialog.addEventListener("close", () => {
      dialog.remove();
      if (before instanceof HTMLElement) before.focus();
      resolve(answer);
    });
  });
}

/** A line that says what came of an action. */
export class Outcome {
  node = el("p", { class: "told", role: "status", tabindex: -1 });

  /** @param {string} text @param {boolean} [bad] */
  say(text, bad = false) {
    attribute(this.node, "data-bad", bad ? "" : null);
    say(this.node, text);
    announce(text);
  }

  /** Do something, and say what came of it; its answer, or null if it failed.
   *  @template T @param {() => Promise<T>} work @param {(answer: T) => string} words */
  async of(work, words) {
    try {
      const answer = await work();
      this.say(words(answer));
      return answer;
    } catch (error) {
      this.say(error.message, true);
      return null;
    }
  }
}

/** A button. @param {string} title @param {() => void} click @param {string} [kind] @param {Record<string, any>} [more] */
export const button = (title, click, kind = "", more = {}) =>
  el("button", { type: "button", class: kind || null, on: { click }, ...more }, title);

/** Where to start, as people write it: earliest, latest, an offset, or a time of this time zone.
 *  @param {string} text @returns {string} as the server takes it; throws what is wrong */
export function startOf(text) {
  const said = text.trim();
  if (/^(earliest|latest|\d{1,18}|-\d{1,18})$/.test(said)) return said;
  const time = new Date(/^\d{4}-\d{2}-\d{2}$/.test(said) ? `${said}T00:00` : said.replace(" ", "T"));
  if (!said || Number.isNaN(time.getTime())) throw new Error(`"${said.slice(0, 40)}" is no offset and no time: write 1234, 2026-11-18 20:15, earliest or latest`);
  return time.toISOString();
}
