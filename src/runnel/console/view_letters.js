// Dead letters: what failed for good and why, by reason; searched, put back where it came from, or discarded.

import { arrange, attribute, el, field, later, say } from "./dom.js";
import { Outcome, ask, button } from "./dialogs.js";
import { href } from "./address.js";
import { Table, link, number, text } from "./table.js";
import { inside, shaped } from "./record.js";
import { get, post } from "./requests.js";
import { hasRole, may } from "./session.js";
import { counted, moment, payload, whole } from "./format.js";

const PAGE = 50;
const AT_ONCE = 10_000; // letters that one request settles

/** @param {import("./address.js").Place} place @returns {import("./console.js").View} */
export function letters(place) {
  const chosen = place.part;
  const topics = new Table({
    caption: "Topics of dead letters",
    key: (row) => row.name,
    empty: "There are no dead letters. What fails for good in a group comes here.",
    columns: [
      link("Topic", (row) => [row.name, href("dead-letters", row.name)], { head: true, class: "name" }),
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
        box.replaceChildren(...(chosen ? [el("p", { class: "notice" }, `There are no dead letters in ${chosen}.`)] : []));
        open = null;
        return;
      }
      if (open?.topic !== wanted) {
        open = new Letters(wanted, place);
        box.replaceChildren(open.node);
      }
      open.seen(`${row.open} ${row.first} ${row.end}`);
    },
  };
}

class Letters {
  #place;
  #asked;
  #before = []; // where earlier pages began
  #from = 0;
  #page = { letters: [], offsets: [], reasons: [], next: null, epoch: 0, open: 0, looked_at: 0 };
  #picked = new Set();
  #state = "";
  #loading = false;

  constructor(topic, place) {
    [this.topic, this.#place] = [topic, place];
    this.#asked = place.asked({ find: "", reason: "" });
    this.find = el("input", { type: "search", placeholder: "in value, key or reason", autocomplete: "off", spellcheck: "false", "data-search": true });
    this.find.value = this.#asked.find;
    this.find.addEventListener("input", later(() => this.#ask({ find: this.find.value.trim() })));
    this.all = el("input", { type: "checkbox", "aria-label": "Choose all on this page", on: { change: () => this.#pickAll() } });
    this.list = el("ol", { class: "letters", "aria-label": `Dead letters of ${topic}` });
    this.outcome = new Outcome();
    this.count = el("p", { class: "muted", role: "status" });
    const chosen = (what) => () => this.#settle(what, [...this.#picked], counted(this.#picked.size, "dead letter"));
    this.replay = button("Replay chosen", chosen("replay"), "primary");
    this.discard = button("Discard chosen", chosen("discard"), "danger");
    this.replayAll = button("Replay all", () => this.#settleAll("replay"));
    this.discardAll = button("Discard all", () => this.#settleAll("discard"));
    this.back = button("‹ Previous", () => this.#go(this.#before.pop() ?? 0));
    this.on = button("Next ›", () => {
      this.#before.push(this.#from);
      this.#go(this.#nextFrom());
    });
    this.reasons = new Table({
      caption: `Reasons of the dead letters of ${topic}`,
      key: (row) => row.reason,
      empty: "No letter fits.",
      columns: [
        {
          title: "Reason",
          head: true,
          class: "reason-cell",
          show: (row, cell) => {
            if (!cell.firstChild) cell.append(button(row.reason || "no reason given", () => this.#ask({ reason: this.#asked.reason === row.reason ? "" : row.reason }), "plain"));
            attribute(cell.firstChild, "aria-pressed", String(this.#asked.reason === row.reason));
          },
        },
        number("Letters", (row) => whole(row.count)),
      ],
    });
    this.mayWork = hasRole("operator") || may("admin", topic);
    const work = this.mayWork ? [el("div", { class: "buttons" }, this.replay, this.discard, this.replayAll, this.discardAll)] : [];
    this.node = el(
      "section",
      {},
      el("h2", { class: "mono" }, topic),
      el("div", { class: "tools" }, field("Find", this.find)),
      el("h3", {}, "By reason"),
      this.reasons.node,
      el("h3", {}, "Letters"),
      el(
        "div",
        { class: "tools" },
        this.mayWork ? el("label", { class: "check" }, this.all, " all on this page") : null,
        ...work,
        el("div", { class: "pager" }, this.back, this.on),
      ),
      this.count,
      this.outcome.node,
      this.list,
    );
    this.#show();
  }

  /** Something changed, or nothing did. @param {string} state */
  seen(state) {
    if (state === this.#state || this.#loading) return;
    this.#load().then((loaded) => loaded && (this.#state = state));
  }

  #ask(more) {
    Object.assign(this.#asked, more);
    this.#place.set(this.#asked);
    this.#before = [];
    this.#go(0);
  }

  #go(from) {
    this.#from = from;
    this.#picked.clear();
    this.#load();
  }

  /** Where the next page begins: behind the last letter that is shown, or where the server stopped looking. */
  #nextFrom() {
    const { letters: shown, offsets, next } = this.#page;
    return offsets.length > shown.length ? String(offsets[shown.length]) : next;
  }

  async #load() {
    this.#loading = true;
    try {
      const found = await get("console/letters", { topic: this.topic, from: this.#from, ...this.#asked, limit: PAGE });
      if (!found.letters.length && this.#before.length) {
        this.#from = this.#before.pop();
        return false; // the page is empty now: the one before it, at the next look
      }
      this.#page = found;
      this.#show();
      return true;
    } catch (error) {
      this.outcome.say(error.message, true);
      return false;
    } finally {
      this.#loading = false;
    }
  }

  #show() {
    const { letters: shown, offsets, reasons, looked_at: lookedAt, next } = this.#page;
    const there = new Set(shown.map((one) => one.offset));
    for (const offset of this.#picked) if (!there.has(offset)) this.#picked.delete(offset);
    const known = new Map([...this.list.children].map((line) => [line.dataset.offset, line]));
    arrange(this.list, shown.map((one) => known.get(String(one.offset)) ?? this.#line(one)));
    this.reasons.update(reasons);
    const more = next === null ? "" : ", and there are more behind them";
    say(this.count, lookedAt ? `${counted(offsets.length, "letter")} of ${whole(lookedAt)} fit${more}.` : "");
    this.back.hidden = this.on.hidden = !this.#before.length && this.#nextFrom() === null;
    this.back.disabled = !this.#before.length;
    this.on.disabled = this.#nextFrom() === null;
    this.#picks();
  }

  #picks() {
    const count = this.#picked.size;
    const { letters: shown, offsets, open } = this.#page;
    const isAll = !this.#asked.find && !this.#asked.reason;
    this.replay.disabled = this.discard.disabled = !count;
    this.replayAll.disabled = this.discardAll.disabled = isAll ? !open : !offsets.length;
    this.all.checked = count > 0 && count === shown.length;
    this.all.indeterminate = count > 0 && count < shown.length;
    this.all.disabled = !shown.length;
    say(this.replay, count ? `Replay ${whole(count)}` : "Replay chosen");
    say(this.discard, count ? `Discard ${whole(count)}` : "Discard chosen");
    say(this.replayAll, isAll ? "Replay all" : `Replay all ${whole(offsets.length)} that fit`);
    say(this.discardAll, isAll ? "Discard all" : `Discard all ${whole(offsets.length)} that fit`);
  }

  #line(letter) {
    const { story } = letter;
    const record = shaped(letter);
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
    const one = (what) => () => this.#settle(what, [letter.offset], "1 dead letter");
    const tools = [
      button("Replay", one("replay"), "", { "aria-label": `Replay the letter at ${letter.offset}` }),
      button("Discard", one("discard"), "", { "aria-label": `Discard the letter at ${letter.offset}` }),
    ];
    return el("li", { "data-offset": letter.offset, class: this.mayWork ? null : "bare" }, this.mayWork ? pick : null, details, this.mayWork ? el("div", { class: "buttons" }, ...tools) : null);
  }

  #pickAll() {
    this.#picked = new Set(this.all.checked ? this.#page.letters.map((one) => one.offset) : []);
    for (const line of this.list.children) line.firstChild.checked = this.all.checked;
    this.#picks();
  }

  /** @param {"replay" | "discard"} what */
  #settleAll(what) {
    const { offsets, open } = this.#page;
    const isAll = !this.#asked.find && !this.#asked.reason;
    if (isAll) return this.#settle(what, null, `all ${counted(open, "dead letter")}`);
    return this.#settle(what, offsets.slice(0, AT_ONCE), counted(Math.min(offsets.length, AT_ONCE), "dead letter"));
  }

  /** @param {"replay" | "discard"} what @param {(number | string)[] | null} offsets null: all @param {string} many */
  async #settle(what, offsets, many) {
    const [title, text] =
      what === "replay"
        ? [`Replay ${many}?`, "Each is published again at the end of the topic that it came from."]
        : [`Discard ${many}?`, "They are never offered again. This cannot be undone."];
    const [action, kind] = what === "replay" ? ["Replay", "primary"] : ["Discard", "danger"];
    if (!(await ask({ title, text, action, kind }))) return;
    const body = { ...(offsets ? { offsets } : { all: true }), epoch: this.#page.epoch };
    const work = () => post(`dead-letters/${encodeURIComponent(this.topic)}/${what}`, body);
    const words = (answer) => (what === "replay" ? `${counted(answer.replayed, "letter")} put back.` : `${counted(answer.discarded, "letter")} discarded.`);
    if (await this.outcome.of(work, words)) this.#picked.clear();
    await this.#load();
    this.outcome.node.focus(); // the button that was pressed may be gone with its letter
  }
}
