// Groups: how they do and why, what is left to do, who does it, and what operators can do about it.

import { arrange, attribute, el, field, say } from "./dom.js";
import { Outcome, ask, button, startOf } from "./dialogs.js";
import { href } from "./address.js";
import { Gauges } from "./gauge.js";
import { Table, number, text } from "./table.js";
import { act } from "./requests.js";
import { hasRole, may } from "./session.js";
import { listing } from "./listing.js";
import { ringCharts } from "./ring_chart.js";
import { duration, rate, short, whole } from "./format.js";

const MARKS = { stuck: "bad", behind: "warn", paused: "warn", working: "ok", idle: "plain" };
const ORDERS = [["name", "Name"], ["-lag", "Lag"], ["-in_flight", "In flight"], ["-redelivered", "Redeliveries"], ["-dead_lettered", "Dead letters"]];

/** How a group does: a word, and a mark beside it. */
export const groupState = {
  title: "State",
  show(row, cell) {
    if (!cell.firstChild) cell.append(el("span", { class: "mark" }));
    mark(cell.firstChild, row);
  },
};

function mark(node, { state, reason }) {
  say(node, state);
  attribute(node, "data-mark", MARKS[state] ?? "plain");
  attribute(node, "title", reason);
}

/** @param {import("./address.js").Place} place @param {() => void} changed @returns {import("./console.js").View} */
export function groups(place, changed) {
  const list = listing(place, changed, { sort: "name", filter: "", from: 0 }, "groups", "part of a name or pattern");
  const order = el(
    "select",
    { on: { change: () => list.ask({ sort: order.value, from: 0 }) } },
    ...ORDERS.map(([value, title]) => el("option", { value, selected: value === list.asked.sort }, title)),
  );
  const shown = el("div", { class: "groups" });
  const empty = el("p", { class: "notice", hidden: true }, "No groups here. A group is made when a member joins it.");
  const cards = new Map();
  return {
    node: el(
      "div",
      {},
      el("h1", {}, "Groups"),
      el("div", { class: "tools" }, field("Filter", list.filter), field("Order", order), list.pager.node),
      empty,
      shown,
    ),
    title: "Groups",
    query: () => ({ view: "groups", limit: 20, ...list.asked }),
    update(figures) {
      if (figures.view !== "groups") return;
      const kept = new Map();
      for (const group of figures.rows) {
        const key = `${group.name}\n${group.pattern}`;
        const card = cards.get(key) ?? new Card(group);
        card.update(group);
        kept.set(key, card);
      }
      for (const [key, card] of cards) if (!kept.has(key)) card.close();
      arrange(shown, [...kept.values()].map((card) => card.node));
      cards.clear();
      for (const [key, card] of kept) cards.set(key, card);
      empty.hidden = figures.total > 0;
      list.update(figures);
    },
    leave: () => cards.forEach((card) => card.close()),
  };
}

class Card {
  #gauges = new Gauges([
    ["lag", "Lag"],
    ["flight", "In flight"],
    ["rate", "Acks/s"],
    ["scheduled", "Scheduled"],
    ["oldest", "Oldest unacked"],
    ["acked", "Acked"],
    ["again", "Redelivered"],
    ["dead", "Dead letters"],
  ]);
  #state = el("span", { class: "mark" });
  #reason = el("span", { class: "reason muted" });
  #letters = el("a", {});
  #outcome = new Outcome();
  #members;
  #chart = null;
  #group;

  constructor(group) {
    this.#group = group;
    this.#members = new Table({
      caption: `Members of ${group.name}`,
      key: (row) => row.name,
      empty: "No member is connected.",
      columns: [
        text("Member", (row) => row.name, { head: true, class: "name mono" }),
        number("Holds", (row) => whole(row.held)),
        number("Prefetch", (row) => whole(row.prefetch), { class: "wide" }),
        number("Granted", (row) => short(row.granted), { class: "wide" }),
        number("Acked", (row) => short(row.acked)),
        number("Last ack", (row) => (row.last_ack ? `${duration(Math.max(0, Date.now() / 1000 - row.last_ack))} ago` : "–"), { class: "wide" }),
      ],
    });
    const { name, pattern } = group;
    const about = { "aria-label": `Lag of ${name} over time`, "aria-expanded": "false" };
    this.chartButton = button("Lag over time", () => this.#toggleChart(), "", about);
    this.pause = button("Pause", () => this.#pause());
    this.chartBox = el("div", { class: "card-chart", hidden: true });
    const tools = el("div", { class: "buttons card-tools" }, this.chartButton);
    if (hasRole("operator") || may("admin", pattern)) tools.append(this.pause);
    if (may("admin", pattern)) tools.append(button("Reset…", () => this.#reset(), "", { "aria-label": `Reset ${name}` }), button("Forget…", () => this.#forget(), "danger", { "aria-label": `Forget ${name}` }));
    this.node = el(
      "article",
      { class: "card", "aria-label": `Group ${name}` },
      el(
        "header",
        {},
        el("h2", { class: "mono" }, name),
        el("span", {}, el("span", { class: "muted" }, "reads "), el("span", { class: "mono" }, pattern)),
        this.#letters,
        el("p", { class: "verdict" }, this.#state, this.#reason),
      ),
      this.#gauges.node,
      this.#members.node,
      this.chartBox,
      tools,
      this.#outcome.node,
    );
  }

  close() {
    this.#chart?.close();
    this.#chart = null;
  }

  update(group) {
    this.#group = group;
    mark(this.#state, group);
    say(this.#reason, group.reason);
    say(this.pause, group.paused ? "Resume" : "Pause");
    this.#letters.hidden = !group.dead_letter;
    if (group.dead_letter) {
      attribute(this.#letters, "href", href("dead-letters", group.dead_letter));
      say(this.#letters, "its dead letters");
    }
    this.#gauges.update({
      lag: { value: whole(group.lag), note: losses(group), warn: group.missed > 0 },
      flight: { value: whole(group.in_flight), note: `of ${whole(group.members.reduce((sum, one) => sum + one.prefetch, 0))} at most` },
      rate: { value: rate(group.rate) },
      scheduled: { value: whole(group.scheduled) },
      oldest: { value: group.oldest_unacked_age ? duration(group.oldest_unacked_age) : "–" },
      acked: { value: short(group.acked) },
      again: { value: short(group.redelivered) },
      dead: { value: short(group.dead_lettered) },
    });
    this.#members.update(group.members);
  }

  #toggleChart() {
    const open = this.chartBox.hidden;
    this.chartBox.hidden = !open;
    attribute(this.chartButton, "aria-expanded", String(open));
    this.close();
    if (!open) return;
    const { name, pattern } = this.#group;
    this.#chart = ringCharts({
      kind: "group",
      name: `${name}\n${pattern}`,
      span: "1h",
      plots: [{ title: "Lag, and records in flight", format: short, series: [["lag", "lag"], ["in_flight", "in flight"]] }],
    });
    this.chartBox.replaceChildren(this.#chart.node);
  }

  async #pause() {
    const { name, pattern, paused } = this.#group;
    const work = () => act("pause_group", { group: name, pattern, paused: !paused });
    await this.#outcome.of(work, () => (paused ? "It goes on." : "Paused: no more records are handed out."));
  }

  async #reset() {
    const { name, pattern } = this.#group;
    const start = el("input", { type: "text", autocomplete: "off", required: true });
    const fields = [{ name: "start", label: "Go on from", input: start, hint: "earliest, latest, an offset, or a time such as 2026-11-18 20:15" }];
    const text = "The group forgets what it settled, and goes on from there. Deliveries that are out become void.";
    const work = async (said) => act("reset_group", { group: name, pattern, start: startOf(said.start) });
    if (await ask({ title: `Reset ${name}`, text, action: "Reset", kind: "danger", fields, work })) this.#outcome.say(`It goes on from ${start.value.trim()}.`);
  }

  async #forget() {
    const { name, pattern } = this.#group;
    const text = "Forgets the group and its progress. It must have no members; joined again it begins anew.";
    const work = () => act("forget_group", { group: name, pattern });
    if (await ask({ title: `Forget ${name}?`, text, action: "Forget", kind: "danger", typed: name, work })) this.#outcome.say(`${name} is forgotten.`);
  }
}

/** What a group will never get: it expired, or retention took it away. */
const losses = ({ expired, missed }) => [expired ? `${short(expired)} expired` : "", missed ? `${short(missed)} lost` : ""].filter(Boolean).join(", ");
