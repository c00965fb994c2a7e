// The records of a topic as they come, the newest first: filtered, paused, or from a time in the past.

import { announce, arrange, el, field, later, say, attribute } from "./dom.js";
import { recordLine } from "./record.js";
import { counted, whole } from "./format.js";
import { subscribe } from "../runnel.js";

const SHOWN = 200; // records on the page
const KEPT = 1_000; // records at hand, to be filtered again
const FOR_A_KEY = 10_000; // records that are looked through for those with a key
const PAGE = 100; // records of the past, at a time
const FRAME = 150; // milliseconds between two paintings
const SPOKEN = 5_000; // milliseconds between two words to whoever listens

/** `node` shows the tail of a topic; `close()` ends it. */
export class Tail {
  #topic;
  #subscription = null;
  #records = []; // the newest first
  #missed = 0; // records that came and were let go unseen
  #fresh = 0; // since whoever listens was told
  #held = []; // while it is paused
  #paused = false;
  #past = null; // what is shown of the past: {next}
  #timer = 0;
  #speaking = 0;
  #lines = new Map();

  /** @param {string} topic */
  constructor(topic) {
    this.#topic = topic;
    this.filter = el("input", { type: "search", placeholder: "in key, value or headers", spellcheck: "false", autocomplete: "off" });
    this.key = el("input", { type: "search", placeholder: "exactly", spellcheck: "false", autocomplete: "off" });
    this.time = el("input", { type: "datetime-local", step: 1 });
    this.pause = el("button", { type: "button", "aria-pressed": "false", on: { click: () => this.#toggle() } }, "Pause");
    this.live = el("button", { type: "button", hidden: true, on: { click: () => this.#goLive() } }, "Back to live");
    this.more = el("button", { type: "button", hidden: true, on: { click: () => this.#later() } }, "Later records");
    this.state = el("p", { class: "muted tail-state" });
    this.list = el("ol", { class: "tail", tabindex: 0, "aria-label": `Records of ${topic}, the newest first` });
    this.filter.addEventListener("input", later(() => this.#filtered(), 150));
    this.key.addEventListener("change", () => this.#goLive());
    const jump = el("button", { type: "button", on: { click: () => this.#jump() } }, "Go");
    this.time.addEventListener("keydown", (event) => event.key === "Enter" && this.#jump());
    this.node = el(
      "div",
      {},
      el(
        "div",
        { class: "tools" },
        field("Filter", this.filter),
        field("Key", this.key),
        el("div", { class: "joined" }, field("From a time on", this.time), jump),
        el("div", { class: "buttons" }, this.pause, this.live),
      ),
      this.state,
      this.list,
      this.more,
    );
    this.#goLive();
  }

  close() {
    this.#subscription?.close();
    this.#subscription = null;
    clearTimeout(this.#timer);
    clearInterval(this.#speaking);
  }

  // -- live ------------------------------------------------------------------------------------------------------

  #goLive() {
    this.close();
    this.#reset(null);
    this.#paused = false;
    this.#showPause();
    const options = {
      start: this.key.value ? -FOR_A_KEY : -50,
      onRecord: (record) => this.#came(record),
      onGap: (gap) => this.#came({ gap, id: `gap-${gap.topic}-${gap.first}-${gap.end}`, time: new Date() }),
      onState: (state, detail) => this.#became(state, detail),
    };
    if (this.key.value) options.key = this.key.value;
    this.#subscription = subscribe(this.#topic, options);
    this.#speaking = setInterval(() => this.#speak(), SPOKEN);
  }

  #came(record) {
    this.#fresh++;
    const into = this.#paused ? this.#held : this.#records;
    into.unshift(record);
    if (into.length > KEPT) {
      this.#missed += into.length - KEPT;
      into.length = KEPT;
    }
    this.#paintSoon();
  }

  #became(state, { error } = {}) {
    const words = { connecting: "Connecting…", open: "Live.", waiting: "No connection: trying again.", closed: "" };
    this.words = state === "closed" && error ? `Ended: ${error.message}` : words[state];
    this.#paintSoon();
  }

  #toggle() {
    this.#paused = !this.#paused;
    if (!this.#paused) {
      this.#records = [...this.#held, ...this.#records].slice(0, KEPT);
      this.#held = [];
    }
    this.#showPause();
    this.#paint();
  }

  #showPause() {
    attribute(this.pause, "aria-pressed", String(this.#paused));
    this.pause.hidden = this.#past !== null;
    this.live.hidden = this.#past === null;
  }

  #speak() {
    if (this.#fresh && !this.#paused) announce(`${counted(this.#fresh, "new record")}`);
    this.#fresh = 0;
  }

  // -- the past --------------------------------------------------------------------------------------------------

  async #jump() {
    const time = new Date(this.time.value);
    if (!this.time.value || Number.isNaN(time.getTime())) {
      this.time.focus();
      return;
    }
    this.close();
    this.#reset({ from: time.toISOString() });
    await this.#later();
  }

  async #later() {
    const past = this.#past;
    const query = new URLSearchParams({ from: past.from, limit: String(PAGE) });
    const url = new URL(`../topics/${encodeURIComponent(this.#topic)}/records?${query}`, import.meta.url);
    try {
      const response = await fetch(url);
      const found = await response.json();
      if (past !== this.#past) return;
      if (!response.ok) throw new Error(found.detail);
      const records = found.records.map(shaped).filter((record) => !this.key.value || record.key === this.key.value);
      this.#records = [...this.#records, ...records].slice(-KEPT);
      past.from = String(found.next);
      const isMore = BigInt(found.next) < BigInt(found.end);
      this.more.hidden = !isMore;
      this.words = `From ${this.time.value.replace("T", " ")} on, the oldest first. ${isMore ? "There are later ones." : "That is all."}`;
      announce(this.words);
    } catch (error) {
      this.words = error.message;
    }
    this.#paint();
  }

  #reset(past) {
    this.#past = past;
    this.#records = [];
    this.#held = [];
    this.#missed = this.#fresh = 0;
    this.#lines.clear();
    this.list.replaceChildren();
    attribute(this.list, "aria-label", `Records of ${this.#topic}, the ${past ? "oldest" : "newest"} first`);
    this.more.hidden = true;
    this.words = "";
    this.#showPause();
    this.#paint();
  }

  // -- painting --------------------------------------------------------------------------------------------------

  #filtered() {
    this.list.scrollTop = 0;
    this.#paint();
  }

  #paintSoon() {
    this.#timer ||= setTimeout(() => this.#paint(), FRAME);
  }

  #paint() {
    clearTimeout(this.#timer);
    this.#timer = 0;
    const wanted = this.filter.value.toLowerCase();
    const found = wanted ? this.#records.filter((record) => holds(record, wanted)) : this.#records;
    const shown = found.slice(0, this.#past ? KEPT : SHOWN);
    const lines = new Map();
    for (const record of shown) lines.set(record.id, this.#lines.get(record.id) ?? recordLine(record));
    arrange(this.list, [...lines.values()]);
    this.#lines = lines;
    say(this.state, [this.words, ...this.#notes(found.length, wanted)].filter(Boolean).join(" "));
    this.list.hidden = !shown.length;
  }

  #notes(found, wanted) {
    const notes = [];
    if (this.#paused) notes.push(`Paused: ${counted(this.#held.length, "new record")} since.`);
    if (wanted) notes.push(`${whole(found)} of the last ${whole(this.#records.length)} fit the filter.`);
    else if (!this.#past && this.key.value) notes.push(`With this key among the last ${whole(FOR_A_KEY)}.`);
    else if (!this.#past && found > SHOWN) notes.push(`The last ${whole(SHOWN)} are shown.`);
    const nothing = !this.#records.length && !this.#past && !this.key.value && this.words === "Live.";
    if (nothing) notes.push("Nothing was published yet, or nothing is kept.");
    return notes;
  }
}

/** A record of history, as runnel.js gives those of streams. */
function shaped({ payload, encoding, key = null, key_encoding, time, headers = {}, ...place }) {
  const bytes = (text) => Uint8Array.from(atob(text), (character) => character.charCodeAt(0));
  return {
    ...place,
    id: `${place.epoch}:${place.offset}`,
    time: new Date(time),
    headers,
    text: encoding ? null : payload,
    value: encoding ? bytes(payload) : payload,
    key: key_encoding ? bytes(key) : key,
  };
}

function holds(record, wanted) {
  if (record.gap) return false;
  const texts = [record.text, typeof record.key === "string" ? record.key : null, ...Object.entries(record.headers).flat()];
  return texts.some((text) => text?.toLowerCase().includes(wanted));
}
