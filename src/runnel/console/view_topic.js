// One topic: its figures, its records as they come, who reads it, and a form to publish.

import { el, say } from "./dom.js";
import { Gauges } from "./gauge.js";
import { Table, link, number, text } from "./table.js";
import { publishForm } from "./publish_form.js";
import { Tail } from "./tail.js";
import { subscriberColumns } from "./view_subscribers.js";
import { bytes, duration, rate, retention, short, whole } from "./format.js";

/** Whether a topic can be called that: tokens joined by dots, none of them empty. @param {string} name */
const isName = (name) => name.length <= 255 && !/^$|^\.|\.\.|\.$|^\$|[*>\s\p{Cc}]/u.test(name);

/** For addresses that somebody mistyped. @param {string} name @returns {import("./console.js").View} */
const odd = (name) => ({
  node: el("div", {}, el("h1", { class: "mono" }, name), el("p", { class: "notice" }, "No topic can be called that: names are tokens joined by dots.")),
  title: "Topics",
  query: () => ({ view: "topics", limit: 1 }),
  update: () => {},
});

/** How far the archive is. @param {Record<string, number> | null | undefined} archive */
const archive = (archive) =>
  archive
    ? {
        value: whole(archive.confirmed),
        note: `${bytes(archive.unconfirmed_bytes)} to be archived · moved below ${whole(archive.moved)} · gone below ${whole(archive.gone)}`,
      }
    : { value: "", hidden: true };

/** @param {string} name @returns {import("./console.js").View} */
export function topic(name) {
  if (!isName(name)) return odd(name);
  const gauges = new Gauges([
    ["rate", "Records/s"],
    ["published", "Published"],
    ["kept", "Kept"],
    ["retention", "Retention"],
    ["archive", "Confirmed by the archive"],
    ["place", "Stored"],
    ["readers", "Readers"],
  ]);
  const tail = new Tail(name);
  const subscribers = new Table({
    caption: `Subscribers of ${name}`,
    key: (row) => row.label,
    empty: "Nobody subscribes to it.",
    columns: subscriberColumns,
  });
  const groups = new Table({
    caption: `Groups on ${name}`,
    key: (row) => `${row.name}\n${row.pattern}`,
    empty: "No group works on it.",
    columns: [
      link("Group", (row) => [row.name, "#/groups"], { head: true }),
      text("Reads", (row) => row.pattern, { class: "wide mono" }),
      number("Members", (row) => whole(row.members.length)),
      number("Lag", (row) => whole(row.lag)),
      number("In flight", (row) => whole(row.in_flight)),
      number("Redelivered", (row) => short(row.redelivered), { class: "wide" }),
      number("Oldest unacked", (row) => duration(row.oldest_unacked_age), { class: "wide" }),
    ],
  });
  const missing = el("p", { class: "notice", hidden: true }, "There is no such topic now. It is made when something is published to it.");
  const options = el("p", { class: "muted" });
  const form = publishForm(name);
  const node = el(
    "div",
    {},
    el("nav", { class: "trail", "aria-label": "Where you are" }, el("a", { href: "#/topics" }, "Topics"), " /"),
    el("h1", { class: "mono" }, name),
    missing,
    gauges.node,
    options,
    el("section", { "aria-labelledby": "records" }, el("h2", { id: "records" }, "Records"), tail.node),
    el("section", {}, el("h2", {}, "Publish"), form.node),
    el("section", {}, el("h2", {}, "Subscribers"), subscribers.node),
    el("section", {}, el("h2", {}, "Groups"), groups.node),
  );

  return {
    node,
    title: name,
    query: () => ({ view: "topic", topic: name }),
    update(figures) {
      if (figures.view !== "topic" || figures.name !== name) return;
      const found = figures.topic;
      missing.hidden = found !== null;
      gauges.node.hidden = found === null;
      if (!found) {
        subscribers.update([]);
        groups.update([]);
        return;
      }
      gauges.update({
        rate: { value: rate(found.rate), rates: found.rates },
        published: { value: short(found.published), note: bytes(found.published_bytes) },
        kept: { value: whole(found.kept), note: `offsets ${found.first}–${lastOf(found)}` },
        retention: { value: retention(found.retention), note: found.retention.default ? "what memory keeps unless told" : "" },
        archive: archive(found.archive),
        place: { value: found.durable ? "on disk" : "in memory", note: bytes(found.bytes) },
        readers: { value: whole(found.subscribers) },
      });
      const said = Object.entries(found.options).map(([option, value]) => `${option} = ${JSON.stringify(value)}`);
      say(options, said.join(" · "));
      subscribers.update(figures.subscribers);
      groups.update(figures.groups);
    },
    leave: () => tail.close(),
  };
}

/** The last offset of a topic. Offsets beyond 2^53 are strings. */
function lastOf({ first, end }) {
  const last = BigInt(end) - 1n;
  return String(last < BigInt(first) ? first : last);
}
