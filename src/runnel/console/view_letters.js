// Dead letters: what failed for good and why; put back where it came from, or discarded.

import { proof } from "./session.js";
import { announce, arrange, confirm, el, say, attribute } from "./dom.js";
import { Table, link, number, text } from "./table.js";
import { inside } from "./record.js";
import { counted, moment, payload, whole } from "./format.js";

const PAGE = 50;

/** @param {string} chosen a topic of dead letters @returns {import("./console.js").View} */
export function letters(chosen) {
  const topics = new Table({
    caption: "Topics of dead letters",
    key: (row) => row.name,
    empty: "There are no dead letters. What fails for good in a group comes here.",
    columns: [
      link("Topic", (row) => [row.name, `#/dead-letters/${encodeURIComponent(row.name)}`], { head: true, class: "name" }),
      text("Of groups", (row) => row.groups.join(", "), { class: "wide mono" }),
      number("To be dealt with", (row) => whole(row.open)),
      number("Ever", (row) => whole(row.end), { class: "wide" }),
    ],
  });
  const box = el("div");
  let open = null; // the letters of one topic
  const node = el(
    "div",
    {},
    el("h1", {}, "Dead letters"),
    el("p", { class: "lead" }, "Records that failed for good, as they were, with the reason. Replay puts one back at the end of the topic it came from; discard is for good."),
    topics.node,
    box,
  );
  return {
    node,
    title: chosen ? `Dead letters of ${chosen}` : "Dead letters",
    query: () => ({ view: "dead-letters", limit: 500 }),
    update(figures) {
      if (figures.view !== "dead-letters") return;
      topics.update(figures.rows);
      const wanted = chosen || (figures.rows.find((row) => row.open) ?? figures.rows[0])?.name;
      const row = figures.rows.find((one) => one.name === wanted);
      if (!row) {
        box.replaceChildren();
        open = null;
        return;
      }
      if (open?.topic !== wanted) {
        open = new Letters(wanted);
        box.replaceChildren(open.node);
      }
      open.seen(`${row.open} ${row.first} ${row.end}`);
    },
  };
}

class Letters {
  #from = 0;
  #before = []; // where earlier pages began
  #next = null;
  #epoch = 0;
  #letters = [];
  #picked = new Set();
  #state = "";
  #loading = false;

  constructor(topic) {
    this.topic = topic;
    this.all = el("input", { type: "checkbox", "aria-label": "Choose all on this page", on: { change: () => this.#pickAll() } });
    this.list = el("ol", { class: "letters", "aria-label": `Dead letters of ${topic}` });
    this.told = el("p", { class: "told", role: "status", tabindex: -1 });
    const button = (title, kind, work) => el("button", { type: "button", class: kind, on: { click: work } }, title);
    this.replay = button("Replay chosen", "primary", () => this.#settle("replay", [...this.#picked]));
    this.discard = button("Discard chosen", "danger", () => this.#settle("discard", [...this.#picked]));
    this.replayAll = button("Replay all", "", () => this.#settle("replay", null));
    this.discardAll = button("Discard all", "", () => this.#settle("discard", null));
    this.back = button("‹ Previous", "", () => this.#go(this.#before.pop() ?? 0));
    this.on = button("Next ›", "", () => {
      this.#before.push(this.#from);
      this.#go(this.#next);
    });
    this.node = el(
      "section",
      {},
      el("h2", { class: "mono" }, topic),
      el(
        "div",
        { class: "tools" },
        el("label", { class: "check" }, this.all, " all on this page"),
        el("div", { class: "buttons" }, this.replay, this.discard, this.replayAll, this.discardAll),
        el("div", { class: "pager" }, this.back, this.on),
      ),
      this.told,
      this.list,
    );
    this.#show();
  }

  /** Something changed, or nothing did. @param {string} state */
  seen(state) {
    if (state === this.#state || this.#loading) return;
    this.#load().then((loaded) => loaded && (this.#state = state));
  }

  #go(from) {
    this.#from = from;
    this.#picked.clear();
    this.#load();
  }

  async #load() {
    this.#loading = true;
    try {
      const url = address(this.topic, `?from=${this.#from}&limit=${PAGE}`);
      const response = await fetch(url);
      const found = await response.json();
      if (!response.ok) throw new Error(found.detail);
      if (!found.letters.length && this.#before.length) {
        this.#from = this.#before.pop();
        return false; // the page is empty now: the one before it, at the next look
      }
      [this.#letters, this.#next, this.#epoch, this.open] = [found.letters, found.next, found.epoch, found.open];
      this.#show();
      return true;
    } catch (error) {
      this.#tell(error.message, true);
      return false;
    } finally {
      this.#loading = false;
    }
  }

  #show() {
    const there = new Set(this.#letters.map((one) => one.offset));
    for (const offset of this.#picked) if (!there.has(offset)) this.#picked.delete(offset);
    const known = new Map([...this.list.children].map((line) => [line.dataset.offset, line]));
    arrange(this.list, this.#letters.map((one) => known.get(String(one.offset)) ?? this.#line(one)));
    this.back.hidden = this.on.hidden = !this.#before.length && this.#next === null;
    this.back.disabled = !this.#before.length;
    this.on.disabled = this.#next === null;
    this.#picks();
  }

  #picks() {
    const count = this.#picked.size;
    this.replay.disabled = this.discard.disabled = !count;
    this.replayAll.disabled = this.discardAll.disabled = !this.open;
    this.all.checked = count > 0 && count === this.#letters.length;
    this.all.indeterminate = count > 0 && count < this.#letters.length;
    this.all.disabled = !this.#letters.length;
    say(this.replay, count ? `Replay ${whole(count)}` : "Replay chosen");
    say(this.discard, count ? `Discard ${whole(count)}` : "Discard chosen");
  }

  #line(letter) {
    const { story } = letter;
    const record = { ...letter, headers: letter.headers ?? {}, time: new Date(letter.time), ...values(letter) };
    const pick = el("input", { type: "checkbox", "aria-label": `Choose the letter at ${letter.offset}` });
    pick.checked = this.#picked.has(letter.offset);
    pick.addEventListener("change", () => {
      if (pick.checked) this.#picked.add(letter.offset);
      else this.#picked.delete(letter.offset);
      this.#picks();
    });
    const origin = story.topic ? `${story.topic} at ${(story.position ?? "").split(":").pop()}` : "";
    const details = el(
      "details",
      {},
      el(
        "summary",
        {},
        el("span", { class: "reason" }, story.reason ?? "no reason given"),
        el(
          "span",
          { class: "story" },
          ...[
            story.attempts ? `${counted(Number(story.attempts), "attempt")}` : null,
            story.group ? `group ${story.group}` : story.subscriber ? `subscriber ${story.subscriber}` : null,
            origin ? `from ${origin}` : null,
            moment(record.time),
          ]
            .filter(Boolean)
            .map((one) => el("span", {}, one)),
        ),
        el("span", { class: "payload" }, payload(record.text ?? record.value, 200).text.replace(/\s+/g, " ") || "(empty)"),
      ),
    );
    details.addEventListener("toggle", () => details.open && details.children.length === 1 && details.append(inside(record)));
    const one = (what) => () => this.#settle(what, [letter.offset]);
    return el(
      "li",
      { "data-offset": letter.offset },
      pick,
      details,
      el(
        "div",
        { class: "buttons" },
        el("button", { type: "button", "aria-label": `Replay the letter at ${letter.offset}`, on: { click: one("replay") } }, "Replay"),
        el("button", { type: "button", "aria-label": `Discard the letter at ${letter.offset}`, on: { click: one("discard") } }, "Discard"),
      ),
    );
  }

  #pickAll() {
    this.#picked = new Set(this.all.checked ? this.#letters.map((one) => one.offset) : []);
    for (const line of this.list.children) line.firstChild.checked = this.all.checked;
    this.#picks();
  }

  /** @param {"replay" | "discard"} what @param {number[] | null} offsets null: all */
  async #settle(what, offsets) {
    const many = offsets ? counted(offsets.length, "dead letter") : `all ${counted(this.open, "dead letter")}`;
    const [title, text] =
      what === "replay"
        ? [`Replay ${many}?`, "Each is published again at the end of the topic that it came from."]
        : [`Discard ${many}?`, "They are never offered again. This cannot be undone."];
    const [action, kind] = what === "replay" ? ["Replay", "primary"] : ["Discard", "danger"];
    if (!(await confirm(title, text, action, kind))) return;
    try {
      const body = JSON.stringify({ ...(offsets ? { offsets } : { all: true }), epoch: this.#epoch });
      const headers = { "content-type": "application/json", ...proof() };
      const response = await fetch(address(this.topic, `/${what}`), { method: "POST", headers, body });
      const answer = await response.json();
      if (!response.ok) throw new Error(answer.detail);
      this.#tell(what === "replay" ? `${counted(answer.replayed, "letter")} put back.` : `${counted(answer.discarded, "letter")} discarded.`);
      this.#picked.clear();
    } catch (error) {
      this.#tell(error.message, true);
    }
    await this.#load();
    this.told.focus(); // the button that was pressed may be gone with its letter
  }

  #tell(text, bad = false) {
    attribute(this.told, "data-bad", bad ? "" : null);
    say(this.told, text);
    announce(text);
  }
}

function values({ payload, encoding, key = null, key_encoding }) {
  const bytes = (text) => Uint8Array.from(atob(text), (character) => character.charCodeAt(0));
  return { text: encoding ? null : payload, value: encoding ? bytes(payload) : payload, key: key_encoding ? bytes(key) : key };
}

const address = (topic, rest) => new URL(`../dead-letters/${encodeURIComponent(topic)}${rest}`, import.meta.url);
