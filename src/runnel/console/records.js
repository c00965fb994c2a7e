// The records of a topic: as they come, the newest first; or from an offset or a time on, searched by the server.
//
// A list that moves cannot be clicked. So while the pointer is over it, it has the focus, or a record is open, what comes
// is held back and counted, and a bar shows it.

import { announce, arrange, attribute, el, field, later, say } from "./dom.js";
import { Outcome, button, startOf } from "./dialogs.js";
import { recordLine, shaped } from "./record.js";
import { counted, whole } from "./format.js";
import { follow } from "./live.js";
import { address, get } from "./requests.js";

const SHOWN = 200; // live records on the page
const KEPT = 1_000; // live records at hand, to be filtered again
const FOR_A_KEY = -10_000; // records that are looked through at first for those with a key
const PAGE = 100; // records of the past, at a time
const FRAME = 150; // milliseconds between two paintings
const SPOKEN = 5_000; // milliseconds between two announcements to a screen reader
const TOUCHED = 1_500; // milliseconds that the list stays still after a finger was on it

/** `node` shows the records of a topic; `close()` ends it. */
export class Records {
  #topic;
  #place;
  #follow = null;
  #records = []; // that are shown: live the newest first, of the past the oldest first
  #held = []; // live ones that came and are not shown yet, the newest first
  #missed = 0; // live ones that came and were let go unseen
  #fresh = 0; // since the last announcement
  #paused = false;
  #over = false; // the pointer is over the list
  #touched = -Infinity; // when a finger was on it
  #ended = false; // the subscription, by the server
  #absent = false; // there is no such topic: a subscription would make one
  #past = null; // what is shown of the past: {next, search: AbortController | null}
  #timer = 0;
  #speaking = 0;
  #lines = new Map();
  #words = "";

  /** @param {string} topic @param {import("./address.js").Place} place */
  constructor(topic, place) {
    [this.#topic, this.#place] = [topic, place];
    const asked = place.asked({ at: "", find: "", key: "" });
    const search = (placeholder, more = {}) => el("input", { type: "search", placeholder, spellcheck: "false", autocomplete: "off", ...more });
    this.find = search("in key, value or headers", { "data-search": true });
    this.key = search("exactly");
    this.at = el("input", { type: "text", placeholder: "offset, time or earliest", autocomplete: "off", spellcheck: "false" });
    [this.find.value, this.key.value, this.at.value] = [asked.find, asked.key, asked.at];
    this.pause = button("Pause", () => this.#togglePause(), "", { "aria-pressed": "false" });
    this.live = button("Back to live", () => this.#goLive());
    this.search = button("Search history", () => this.#goBack());
    this.stop = button("Stop", () => this.#past?.search?.abort());
    this.earlier = button("Earlier records", () => this.#earlier());
    this.more = button("Later records", () => this.#later());
    this.progress = el("progress", { max: 1, "aria-label": "Searched" });
    this.state = el("p", { class: "muted tail-state" });
    this.news = button("", () => this.#showHeld(), "news");
    this.list = el("ol", { class: "tail", tabindex: 0, "aria-label": `Records of ${topic}, the newest first` });
    this.outcome = new Outcome();
    this.files = el("div", { class: "buttons files" });
    this.find.addEventListener("input", () => this.#offerSearch());
    this.key.addEventListener("input", () => this.#offerSearch());
    this.find.addEventListener("input", later(() => !this.#past && this.#filtered(), 150));
    const onEnter = (work) => (event) => event.key === "Enter" && work();
    this.find.addEventListener("keydown", onEnter(() => this.find.value && this.#goBack()));
    this.key.addEventListener("change", () => (this.#past ? this.#goBack() : this.#goLive()));
    this.at.addEventListener("keydown", onEnter(() => this.#goBack()));
    this.list.addEventListener("pointerenter", (event) => event.pointerType === "mouse" && (this.#over = true));
    this.list.addEventListener("pointerleave", () => this.#release(() => (this.#over = false)));
    this.list.addEventListener("pointerdown", () => (this.#touched = performance.now()));
    this.list.addEventListener("focusout", () => this.#release(() => {}));
    this.list.addEventListener("toggle", () => this.#release(() => {}), true);
    this.node = el(
      "div",
      {},
      el(
        "div",
        { class: "tools" },
        field("Find", this.find),
        field("Key", this.key),
        el("div", { class: "joined" }, field("Go to", this.at), button("Go", () => this.#goBack())),
        el("div", { class: "buttons" }, this.search, this.pause, this.live),
      ),
      el("div", { class: "searching" }, this.progress, this.stop),
      this.state,
      this.outcome.node,
      this.earlier,
      el("div", { class: "tail-box" }, this.news, this.list),
      this.more,
      this.files,
    );
    if (asked.at || asked.find) this.#goBack();
    else this.#goLive();
  }

  close() {
    this.#follow?.close();
    this.#follow = null;
    this.#past?.search?.abort();
    clearTimeout(this.#timer);
    clearInterval(this.#speaking);
  }

  /** Whether the server can write Parquet. @param {boolean} parquet */
  offerFiles(parquet) {
    const link = (format, title) => {
      const anchor = el("a", { class: "button", download: true }, title);
      anchor.addEventListener("click", () => attribute(anchor, "href", String(this.#file(format))));
      attribute(anchor, "href", String(this.#file(format)));
      return anchor;
    };
    const hint = el("span", { class: "hint" }, parquet ? "what Find, Key and Go to select, 100,000 records at most" : "Parquet needs pyarrow on the server: pip install 'runnel-mq[lake]'");
    this.files.replaceChildren(link("ndjson", "Download NDJSON"), ...(parquet ? [link("parquet", "Download Parquet")] : []), hint);
  }

  #file(format) {
    let from = "";
    try {
      from = this.at.value ? startOf(this.at.value) : "";
    } catch {} // what is wrong is said by Go
    return address("console/download", { topic: this.#topic, from, find: this.find.value, key: this.key.value, format });
  }

  // -- live ------------------------------------------------------------------------------------------------------

  /** Whether the topic is there: it may have been made meanwhile. @param {boolean} there */
  seen(there) {
    if (!there && this.#ended) this.#absent = true; // it was deleted
    if (there && this.#absent && !this.#past) this.#goLive();
  }

  async #goLive() {
    this.close();
    this.#absent = this.#ended = false;
    this.at.value = "";
    this.#reset(null);
    this.#place.set({ at: "", find: "", key: this.key.value });
    this.#speaking = setInterval(() => this.#speak(), SPOKEN);
    this.#words = "Connecting…";
    this.#paint();
    const [lines, key] = [this.#lines, this.key.value];
    let from = "earliest";
    try {
      const page = await get("console/records", { topic: this.#topic, from: key ? FOR_A_KEY : -50, key, limit: key ? 500 : PAGE });
      from = { epoch: page.epoch, offset: String(page.next) };
      if (lines !== this.#lines) return; // it went elsewhere meanwhile
      for (const record of page.records) this.#came(shaped(record));
    } catch (error) {
      if (lines !== this.#lines) return;
      this.#absent = error.code === "unknown_topic";
      if (!this.#absent) this.outcome.say(error.message, true);
    }
    this.#take();
    if (this.#absent) {
      this.#words = "";
      this.#paint();
      return;
    }
    this.#follow = follow(this.#topic, from, {
      onRecord: (record) => (!this.key.value || record.key === this.key.value) && this.#came(shaped(record)),
      onGap: (gap) => this.#came({ gap, id: `gap-${gap.topic}-${gap.first}-${gap.end}`, time: new Date() }),
      onState: (state, error) => this.#became(state, error),
    });
  }

  #came(record) {
    this.#fresh++;
    this.#held.unshift(record);
    if (this.#held.length > KEPT) {
      this.#missed += this.#held.length - KEPT;
      this.#held.length = KEPT;
    }
    this.#paintSoon();
  }

  #became(state, error) {
    const words = { connecting: "Connecting…", open: "Live.", waiting: "No connection: trying again.", closed: error ? `Ended: ${error}` : "" };
    this.#words = words[state];
    this.#ended = state === "closed";
    this.#paintSoon();
  }

  /** Whether the list stays as it is. */
  get #isStill() {
    if (this.#paused || this.#over || this.list.matches(":focus-within, :has(details[open])")) return true;
    return performance.now() - this.#touched < TOUCHED;
  }

  #release(change) {
    change();
    this.#paintSoon();
  }

  /** Have what was held back among what is shown. */
  #take() {
    this.#records = [...this.#held, ...this.#records].slice(0, KEPT);
    this.#held = [];
  }

  #showHeld() {
    this.#take();
    this.list.scrollTop = 0;
    this.#paint();
    this.list.focus();
  }

  #togglePause() {
    this.#paused = !this.#paused;
    attribute(this.pause, "aria-pressed", String(this.#paused));
    this.#paint();
  }

  #speak() {
    if (this.#fresh && !this.#paused) announce(`${counted(this.#fresh, "new record")}`);
    this.#fresh = 0;
  }

  // -- the past --------------------------------------------------------------------------------------------------

  async #goBack() {
    let from;
    try {
      from = this.at.value ? startOf(this.at.value) : "earliest";
    } catch (error) {
      this.outcome.say(error.message, true);
      this.at.focus();
      return;
    }
    this.close();
    this.#reset({ from, next: from, search: null, searched: 0 });
    const { find, key } = this.#asked;
    this.#place.set({ at: this.at.value || (find ? "" : "earliest"), find, key });
    await this.#later();
  }

  get #asked() {
    return { find: this.find.value, key: this.key.value };
  }

  /** The next page: the server looks at some records at a time, and it can be stopped in between. */
  async #later() {
    const past = this.#past;
    const mine = (past.search = new AbortController());
    const wanted = this.#asked;
    let [found, end] = [0, null];
    this.#showSearch();
    try {
      while (found < PAGE) {
        const page = await get("console/records", { topic: this.#topic, from: past.next, ...wanted, limit: PAGE - found }, mine.signal);
        if (past !== this.#past) return;
        if (past.first === undefined) past.first = past.start = page.records[0]?.offset ?? page.next;
        this.#records = [...this.#records, ...page.records.map(shaped)];
        found += page.records.length;
        past.searched += page.searched;
        past.next = String(page.next);
        past.epoch = page.epoch;
        end = page.end;
        past.isOver = BigInt(past.next) >= BigInt(end);
        const [first, last] = [Number(past.from) > 0 ? Number(past.from) : Number(page.first), Number(end)];
        this.progress.value = last > first ? Math.min(1, (Number(past.next) - first) / (last - first)) : 1;
        this.#words = this.#progressWords(past, end);
        this.#paint();
        if (past.isOver) break;
        if (!wanted.find && !wanted.key && found) break;
      }
    } catch (error) {
      if (past !== this.#past) return;
      if (mine.signal.aborted) this.#words = `${this.#progressWords(past, end)} Stopped.`;
      else this.outcome.say(error.message, true);
    }
    past.search = null;
    this.#showSearch();
    this.#paint();
    announce(this.#words);
  }

  #progressWords(past, end) {
    const { find, key } = this.#asked;
    const where = this.at.value ? `From ${this.at.value} on` : "From the beginning on";
    if (find || key) return `${where}: ${whole(this.#records.length)} found among ${counted(past.searched, "record")}${past.isOver ? "." : `, up to offset ${past.next} of ${end}.`}`;
    return `${where}, the oldest first. ${past.isOver ? "That is all." : "There are later ones."}`;
  }

  /** The records before the first that is shown. */
  async #earlier() {
    const past = this.#past;
    const first = BigInt(past.first);
    const from = first > BigInt(PAGE) ? first - BigInt(PAGE) : 0n;
    await this.outcome.of(
      async () => {
        const page = await get("console/records", { topic: this.#topic, from: String(from), limit: PAGE });
        if (past !== this.#past) return 0;
        const records = page.records.filter((record) => BigInt(record.offset) < first);
        this.#records = [...records.map(shaped), ...this.#records];
        past.first = records.length ? records[0].offset : 0;
        past.isFirst = !records.length || BigInt(past.first) <= BigInt(page.first);
        this.#paint();
        return records.length;
      },
      (count) => (count ? `${counted(count, "earlier record")}.` : "There are no earlier ones."),
    );
    this.#showSearch();
  }

  #offerSearch() {
    this.search.disabled = !this.find.value && !this.key.value;
  }

  #showSearch() {
    this.#offerSearch();
    const past = this.#past;
    const busy = past?.search !== null && past !== null;
    this.progress.parentElement.hidden = !busy;
    this.more.hidden = !past || busy || past.isOver === true;
    const { find, key } = this.#asked;
    this.earlier.hidden = !past || busy || Boolean(find || key) || past.isFirst || past.first === undefined || Number(past.first) === 0;
    this.pause.hidden = past !== null;
    this.live.hidden = past === null;
  }

  #reset(past) {
    this.#past = past;
    [this.#records, this.#held] = [[], []];
    this.#missed = this.#fresh = 0;
    this.#paused = false;
    attribute(this.pause, "aria-pressed", "false");
    this.#lines = new Map();
    this.list.replaceChildren();
    attribute(this.list, "aria-label", `Records of ${this.#topic}, the ${past ? "oldest" : "newest"} first`);
    this.outcome.node.textContent = "";
    this.#words = "";
    this.progress.removeAttribute("value");
    this.#showSearch();
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
    if (!this.#past && !this.#isStill) this.#take();
    const wanted = this.#past ? "" : this.find.value.toLowerCase();
    const found = wanted ? this.#records.filter((record) => holds(record, wanted)) : this.#records;
    const shown = this.#past ? found : found.slice(0, SHOWN);
    const lines = new Map();
    for (const record of shown) lines.set(record.id, this.#lines.get(record.id) ?? recordLine(record));
    arrange(this.list, [...lines.values()]);
    this.#lines = lines;
    this.list.hidden = !shown.length;
    const held = this.#past ? 0 : this.#held.length;
    this.news.hidden = !held || this.#paused;
    if (held) say(this.news, `${whole(held)} new`);
    if (held && performance.now() - this.#touched < TOUCHED) this.#paintSoon(); // a finger leaves without a word
    say(this.state, [this.#words, ...this.#notes(found.length, wanted)].filter(Boolean).join(" "));
  }

  #notes(found, wanted) {
    if (this.#past) return [];
    const notes = [];
    if (this.#paused) notes.push(`Paused: ${counted(this.#held.length, "new record")} since.`);
    if (wanted) notes.push(`${whole(found)} of the last ${whole(this.#records.length)} fit; Enter searches all history.`);
    else if (this.key.value) notes.push(`With this key among the last ${whole(-FOR_A_KEY)}, and as they come.`);
    else if (found > SHOWN) notes.push(`The last ${whole(SHOWN)} are shown.`);
    if (!this.#records.length && !this.key.value && this.#words === "Live.") notes.push("Nothing was published yet, or nothing is kept.");
    return notes;
  }
}

function holds(record, wanted) {
  if (record.gap) return false;
  const texts = [record.text, typeof record.key === "string" ? record.key : null, ...Object.entries(record.headers).flat()];
  return texts.some((text) => text?.toLowerCase().includes(wanted));
}
