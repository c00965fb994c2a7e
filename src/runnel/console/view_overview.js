// How the broker does: what needs attention, rates and lag of the last hours, the busiest topics, the slowest readers.

import { el, say } from "./dom.js";
import { href } from "./address.js";
import { Gauges } from "./gauge.js";
import { Table, link, number, text } from "./table.js";
import { groupState } from "./view_groups.js";
import { ringCharts } from "./ring_chart.js";
import { standing } from "./view_subscribers.js";
import { topicLink, trend } from "./view_topics.js";
import { bytes, duration, rate, short, whole } from "./format.js";

const perSecond = (value) => `${rate(value)}/s`;

/** @param {import("./address.js").Place} place @returns {import("./console.js").View} */
export function overview(place) {
  const gauges = new Gauges([
    ["published", "Published"],
    ["delivered", "Delivered"],
    ["bytes", "Written"],
    ["acked", "Acked in groups"],
    ["lag", "Lag"],
    ["dropped", "Dropped"],
    ["dead", "Dead letters"],
  ]);
  const health = el("p", { class: "health", role: "status" });
  const alerts = el("ul", { class: "alerts", "aria-label": "What needs attention" });
  const charts = ringCharts({
    kind: "totals",
    span: place.params.span ?? "1h",
    onSpan: (span) => place.set({ span }),
    plots: [
      { title: "Throughput", format: perSecond, series: [["published", "published"], ["delivered", "delivered"], ["dropped", "dropped"]] },
      { title: "Lag of all readers", format: short, series: [["lag", "records not consumed"]] },
    ],
  });
  const topics = new Table({
    caption: "The busiest topics",
    key: (row) => row.name,
    empty: "Nothing is published now.",
    columns: [topicLink(), { ...trend, sort: undefined }, number("Size", (row) => bytes(row.bytes), { class: "wide" }), number("Readers", (row) => whole(row.subscribers))],
  });
  const slow = new Table({
    caption: "The slowest subscribers",
    key: (row) => row.label,
    empty: "All subscribers keep up.",
    columns: [
      link("Subscriber", (row) => [row.label, href("subscribers", "", { filter: row.label })], { head: true, class: "name" }),
      standing,
      number("Lag", (row) => whole(row.lag)),
      number("Dropped", (row) => whole(row.dropped)),
    ],
  });
  const groups = new Table({
    caption: "Groups with the most to do",
    key: (row) => `${row.name}\n${row.pattern}`,
    empty: "No group has anything to do.",
    columns: [
      link("Group", (row) => [row.name, href("groups", "", { filter: row.name })], { head: true, class: "name" }),
      groupState,
      number("Lag", (row) => whole(row.lag)),
      text("Reason", (row) => row.reason, { class: "wide" }),
    ],
  });
  const part = (title, table) => el("section", {}, el("h2", {}, title), table.node);
  return {
    node: el(
      "div",
      {},
      el("h1", {}, "Overview"),
      health,
      alerts,
      gauges.node,
      el("section", {}, el("h2", {}, "The last hours"), charts.node),
      el("div", { class: "halves" }, part("Busiest topics", topics), part("Slowest subscribers", slow)),
      part("Groups at work", groups),
    ),
    title: "Overview",
    query: () => ({ view: "overview" }),
    update(figures) {
      if (figures.view !== "overview") return;
      const { totals } = figures;
      const bad = figures.alerts.some((one) => one.level === "bad");
      health.dataset.level = bad ? "bad" : figures.alerts.length ? "warn" : "ok";
      const words = bad ? "Something is wrong" : figures.alerts.length ? "Works, with something to look at" : "Healthy";
      say(health, `${words} · ${whole(totals.connections)} connection${totals.connections === 1 ? "" : "s"} · serving for ${duration(figures.uptime)}`);
      alerts.replaceChildren(...figures.alerts.map(alert));
      alerts.hidden = !figures.alerts.length;
      gauges.update({
        published: { value: perSecond(totals.published_rate), note: `${short(totals.published)} in all`, rates: totals.published_rates },
        delivered: { value: perSecond(totals.delivered_rate), note: `${short(totals.delivered)} in all`, rates: totals.delivered_rates },
        bytes: { value: `${bytes(Math.round(totals.published_bytes_rate ?? 0))}/s`, note: `${bytes(totals.published_bytes)} in all`, rates: totals.published_bytes_rates },
        acked: { value: perSecond(totals.acked_rate), note: `${short(totals.acked)} in all`, rates: totals.acked_rates },
        lag: { value: short(totals.lag), note: "records not consumed" },
        dropped: { value: short(totals.dropped), note: totals.waiting_publishers ? `${short(totals.waiting_publishers)} publishers wait` : "by slow subscribers" },
        dead: { value: short(totals.dead_letters), note: totals.dead_letters ? "to be dealt with" : "none", warn: totals.dead_letters > 0 },
      });
      topics.update(figures.rows);
      slow.update(figures.slow);
      groups.update(figures.busy);
    },
    leave: () => charts.close(),
  };
}

const alert = ({ level, text, link }) => el("li", { "data-level": level }, el("span", { class: "visually-hidden" }, `${level === "bad" ? "Wrong" : "Look at"}: `), el("a", { href: link }, text));
