// All topics, a page at a time, and what the whole broker does.

import { el, say, field, later } from "./dom.js";
import { Sparkline } from "./chart.js";
import { Gauges } from "./gauge.js";
import { Pager, Table, link, number, text } from "./table.js";
import { publishForm } from "./publish_form.js";
import { bytes, rate, retention, short, whole } from "./format.js";

/** Where the page of a topic is. @param {string} name */
export const addressOf = (name) => `#/topics/${encodeURIComponent(name)}`;

/** A cell with the rate of the last second, and a line of the last minute. */
export const trend = {
  title: "Records/s",
  number: true,
  sort: "rate",
  down: true,
  class: "trend",
  show(row, cell) {
    cell.spark ??= new Sparkline();
    if (!cell.firstChild) cell.append(cell.spark.node, el("span"));
    cell.spark.update(row.rates);
    say(cell.lastChild, rate(row.rate));
  },
};

const last = (rates) => (rates.length ? rates[rates.length - 1] : null);

/** @param {string} _ @param {() => void} changed @returns {import("./console.js").View} */
export function topics(_, changed) {
  const asked = { view: "topics", limit: 50, from: 0, sort: "name", filter: "" };
  const ask = (more) => {
    Object.assign(asked, more);
    table.sorted(asked.sort);
    changed();
  };
  const gauges = new Gauges([
    ["published", "Published"],
    ["delivered", "Delivered"],
    ["bytes", "Written"],
    ["acked", "Acked in groups"],
    ["dropped", "Dropped"],
    ["dead", "Dead letters"],
  ]);
  const table = new Table({
    caption: "Topics",
    key: (row) => row.name,
    empty: "No topics here.",
    onSort: (sort) => ask({ sort, from: 0 }),
    columns: [
      link("Topic", (row) => [row.name, addressOf(row.name)], { sort: "name", head: true, class: "name" }),
      trend,
      number("Published", (row) => short(row.published), { sort: "published", down: true, class: "wide" }),
      number("Kept", (row) => whole(row.kept), { class: "wider" }),
      number("Size", (row) => bytes(row.bytes), { sort: "bytes", down: true }),
      text("Retention", (row) => retention(row.retention), { class: "wider" }),
      number("Readers", (row) => whole(row.subscribers), { sort: "subscribers", down: true, class: "wide" }),
    ],
  });
  table.sorted(asked.sort);
  const pager = new Pager((from) => ask({ from }), "topics");
  const filter = el("input", { type: "search", placeholder: "part of a name", autocomplete: "off", spellcheck: "false" });
  filter.addEventListener("input", later(() => ask({ filter: filter.value, from: 0 })));
  const form = publishForm(null);
  const node = el(
    "div",
    {},
    el("h1", {}, "Topics"),
    gauges.node,
    el("div", { class: "tools" }, field("Filter", filter), pager.node),
    table.node,
    el("details", { class: "fold" }, el("summary", {}, "Publish a record"), form.node),
  );

  return {
    node,
    title: "Topics",
    query: () => asked,
    update(figures) {
      if (figures.view !== "topics") return;
      const { totals } = figures;
      gauges.update({
        published: { value: `${rate(last(totals.published_rates))}/s`, note: `${short(totals.published)} in all`, rates: totals.published_rates },
        delivered: { value: `${rate(last(totals.delivered_rates))}/s`, note: `${short(totals.delivered)} in all`, rates: totals.delivered_rates },
        bytes: { value: `${bytes(Math.round(last(totals.published_bytes_rates) ?? 0))}/s`, note: `${bytes(totals.published_bytes)} in all`, rates: totals.published_bytes_rates },
        acked: { value: `${rate(last(totals.acked_rates))}/s`, note: `${short(totals.acked)} in all`, rates: totals.acked_rates },
        dropped: { value: short(totals.dropped), note: waiting(totals.waiting_publishers) },
        dead: { value: short(totals.dead_letters), note: totals.dead_letters ? "to be dealt with" : "none", warn: totals.dead_letters > 0 },
      });
      table.update(figures.rows);
      pager.update(figures);
      if (!figures.rows.length && figures.total && asked.from) ask({ from: 0 }); // what was there is gone
    },
  };
}

const waiting = (count) => (count ? `${short(count)} publishers wait` : "by slow subscribers");
