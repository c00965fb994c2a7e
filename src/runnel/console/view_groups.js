// Groups: what is left to do, who does it, and what went wrong.

import { arrange, attribute, el, field, later, say } from "./dom.js";
import { Gauges } from "./gauge.js";
import { Pager, Table, number, text } from "./table.js";
import { duration, short, whole } from "./format.js";

/** @param {string} _ @param {() => void} changed @returns {import("./console.js").View} */
export function groups(_, changed) {
  const asked = { view: "groups", limit: 20, from: 0, sort: "name", filter: "" };
  const ask = (more) => {
    Object.assign(asked, more);
    changed();
  };
  const order = el(
    "select",
    { on: { change: () => ask({ sort: order.value, from: 0 }) } },
    ...[["name", "Name"], ["-lag", "Lag"], ["-in_flight", "In flight"], ["-redelivered", "Redeliveries"], ["-dead_lettered", "Dead letters"]].map(
      ([value, title]) => el("option", { value }, title),
    ),
  );
  const filter = el("input", { type: "search", placeholder: "part of a name or pattern", autocomplete: "off", spellcheck: "false" });
  filter.addEventListener("input", later(() => ask({ filter: filter.value, from: 0 })));
  const pager = new Pager((from) => ask({ from }), "groups");
  const list = el("div", { class: "groups" });
  const empty = el("p", { class: "notice", hidden: true }, "No groups here. A group is made when somebody joins it.");
  const cards = new Map();
  return {
    node: el(
      "div",
      {},
      el("h1", {}, "Groups"),
      el("div", { class: "tools" }, field("Filter", filter), field("Order", order), pager.node),
      empty,
      list,
    ),
    title: "Groups",
    query: () => asked,
    update(figures) {
      if (figures.view !== "groups") return;
      const kept = new Map();
      for (const group of figures.rows) {
        const key = `${group.name}\n${group.pattern}`;
        const card = cards.get(key) ?? new Card(group);
        card.update(group);
        kept.set(key, card);
      }
      arrange(list, [...kept.values()].map((card) => card.node));
      cards.clear();
      for (const [key, card] of kept) cards.set(key, card);
      empty.hidden = figures.total > 0;
      pager.update(figures);
    },
  };
}

class Card {
  #gauges = new Gauges([
    ["lag", "Lag"],
    ["flight", "In flight"],
    ["scheduled", "Scheduled"],
    ["oldest", "Oldest unacked"],
    ["acked", "Acked"],
    ["again", "Redelivered"],
    ["dead", "Dead letters"],
  ]);
  #state = el("span", { class: "mark" });
  #letters = el("a", {});
  #members;

  constructor(group) {
    this.#members = new Table({
      caption: `Members of ${group.name}`,
      key: (row) => row.name,
      empty: "Nobody is at work.",
      columns: [
        text("Member", (row) => row.name, { head: true, class: "name mono" }),
        number("Holds", (row) => whole(row.held)),
        number("Prefetch", (row) => whole(row.prefetch), { class: "wide" }),
        number("Granted", (row) => short(row.granted)),
        number("Acked", (row) => short(row.acked)),
      ],
    });
    this.node = el(
      "article",
      { class: "card", "aria-label": `Group ${group.name}` },
      el("header", {}, el("h2", { class: "mono" }, group.name), el("span", { class: "muted" }, "reads "), el("span", { class: "mono" }, group.pattern), this.#state, this.#letters),
      this.#gauges.node,
      this.#members.node,
    );
  }

  update(group) {
    const [word, mark] = group.paused ? ["paused", "warn"] : !group.members.length ? ["nobody at work", group.lag ? "warn" : "plain"] : group.lag > group.in_flight ? ["working, behind", "ok"] : ["working", "ok"];
    say(this.#state, word);
    attribute(this.#state, "data-mark", mark);
    this.#letters.hidden = !group.dead_letter;
    if (group.dead_letter) {
      attribute(this.#letters, "href", `#/dead-letters/${encodeURIComponent(group.dead_letter)}`);
      say(this.#letters, "its dead letters");
    }
    this.#gauges.update({
      lag: { value: whole(group.lag) },
      flight: { value: whole(group.in_flight), note: `members may hold ${whole(group.members.reduce((sum, one) => sum + one.prefetch, 0))}` },
      scheduled: { value: whole(group.scheduled) },
      oldest: { value: group.oldest_unacked_age ? duration(group.oldest_unacked_age) : "–" },
      acked: { value: short(group.acked) },
      again: { value: short(group.redelivered) },
      dead: { value: short(group.dead_lettered), note: losses(group), warn: group.missed > 0 },
    });
    this.#members.update(group.members);
  }
}

const losses = ({ expired, missed }) => [expired ? `${short(expired)} expired` : "", missed ? `${short(missed)} missed` : ""].filter(Boolean).join(", ");
