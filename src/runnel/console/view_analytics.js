// Analytics: throughput, latency, lag, drops and dead letters over minutes, hours and days.

import { el, say } from "./dom.js";
import { Sparkline, TimeChart } from "./chart.js";
import { Gauges } from "./gauge.js";
import { href } from "./address.js";
import { Table, link, number, text } from "./table.js";
import { get } from "./requests.js";
import { bytes, counted, duration, rate, short, whole } from "./format.js";

const SPANS = [
  ["minutes", "15 minutes", 3_000],
  ["hours", "24 hours", 30_000],
  ["days", "7 days", 120_000],
];
const OTHER = "(other)"; // what telemetry adds up of the topics for which it has no row
const percent = (share) => `${share === 0 || share >= 0.1 ? Math.round(share * 100) : (share * 100).toPrecision(2)}\u202f%`;
const perSecond = (value) => `${rate(value)}/s`;

/** @param {import("./address.js").Place} place @returns {import("./console.js").View} */
export function analytics(place) {
  let chosen = SPANS.some(([name]) => name === place.params.span) ? place.params.span : "minutes";
  let timer = 0;
  let asked = null;
  const state = el("p", { class: "lead", role: "status" });
  const notice = el("p", { class: "notice", hidden: true });
  const spans = el("fieldset", { class: "spans" }, el("legend", { class: "visually-hidden" }, "How far back"));
  for (const [name, title] of SPANS) {
    const change = () => {
      chosen = name;
      place.set({ span: name });
      look();
    };
    const button = el("input", { type: "radio", name: "span", value: name, checked: name === chosen, on: { change } });
    spans.append(el("label", {}, button, ` ${title}`));
  }
  const gauges = new Gauges([
    ["published", "Published"],
    ["delivered", "Delivered"],
    ["latency", "Delivery p99"],
    ["lag", "Lag"],
    ["dropped", "Dropped"],
    ["letters", "Dead letters"],
  ]);
  const plots = [
    plot("Throughput", perSecond, ["published", "delivered", "dropped"], (series) => [series.published, series.delivered, series.dropped]),
    plot("Lag of all subscribers", short, ["records not consumed"], (series) => [series.lag]),
    plot("From publish to delivery", duration, ["p50", "p95", "p99"], quantiles("deliver"), { least: 1e-4 }),
    plot("From delivery to ack", duration, ["p50", "p95", "p99"], quantiles("ack"), { least: 1e-4 }),
    plot("Bytes published", (value) => `${bytes(Math.round(value))}/s`, ["bytes a second"], (series) => [series.published_bytes]),
    plot("Redeliveries and dead letters", short, ["redelivered", "dead letters"], (series) => [series.redelivered, series.dead_letters]),
  ];
  const subscribers = new Table({
    caption: "Subscribers, slow ones first",
    key: (row) => `${row.kind}\n${row.topic}\n${row.subscriber}`,
    empty: "No subscriber has received anything.",
    columns: [
      text("Subscriber", (row) => row.subscriber, { head: true, class: "name mono" }),
      text("Topic", (row) => row.topic, { class: "wide mono" }),
      text("State", (row) => (row.slow ? (row.drop_warning ? "slow: drops" : "slow: lag grows") : "keeps up"), { class: "wide" }),
      trend("Records/s", (row) => row.rates),
      number("p50", (row) => duration(row.deliver.p50), { class: "widest" }),
      number("p99", (row) => duration(row.deliver.p99)),
      number("Ack p99", (row) => duration(row.ack.p99), { class: "widest" }),
      number("Drop rate", (row) => percent(row.drop_rate), { class: "wide" }),
      trend("Lag", (row) => row.lags, "wide"),
      number("Redelivered", (row) => whole(row.redelivered), { class: "wider" }),
    ],
  });
  const topics = new Table({
    caption: "Topics with the most records",
    key: (row) => row.topic,
    empty: "Nothing was published.",
    columns: [
      link("Topic", (row) => [row.topic, row.topic === OTHER ? null : href("topics", row.topic)], { head: true, class: "name" }),
      trend("Records/s", (row) => row.rates),
      number("Published", (row) => short(row.published)),
      number("Bytes", (row) => bytes(row.published_bytes), { class: "wide" }),
    ],
  });
  const letters = new Table({
    caption: "Dead letters by reason",
    key: (row) => `${row.topic}\n${row.subscriber}\n${row.reason}`,
    empty: "There are no dead letters.",
    columns: [
      text("Reason", (row) => row.reason, { head: true, class: "name" }),
      text("Subscriber", (row) => row.subscriber),
      text("Topic", (row) => row.topic, { class: "wide mono" }),
      number("Letters", (row) => whole(row.count)),
    ],
  });
  look();
  return {
    node: el(
      "div",
      {},
      el("h1", {}, "Analytics"),
      state,
      spans,
      notice,
      gauges.node,
      el("div", { class: "plots" }, ...plots.map((one) => one.node)),
      el("section", {}, el("h2", {}, "Subscribers"), subscribers.node),
      el("section", {}, el("h2", {}, "Topics"), topics.node),
      el("section", {}, el("h2", {}, "Dead letters"), letters.node),
    ),
    title: "Analytics",
    query: () => ({ view: "analytics" }),
    update: (figures) => say(state, pipelines(figures.totals.pipelines)),
    leave() {
      clearTimeout(timer);
      asked?.abort();
    },
  };

  async function look() {
    clearTimeout(timer);
    asked?.abort();
    const mine = (asked = new AbortController());
    const [name, , every] = SPANS.find(([one]) => one === chosen);
    try {
      show(await get("console/analytics", { span: name }, mine.signal));
    } catch (error) {
      if (mine.signal.aborted) return;
      notice.hidden = false;
      say(notice, error.message); // the next look comes all the same
    }
    if (!mine.signal.aborted) timer = setTimeout(look, every);
  }

  function show(found) {
    const { totals, series, start, end } = found;
    notice.hidden = found.rows > 0;
    say(notice, found.rows ? "" : "There is no telemetry in this time. A server publishes it every 10 seconds while something happens; see --telemetry of runnel serve.");
    gauges.update({
      published: { value: perSecond(last(series.published)), note: `${short(totals.published)} in all`, rates: series.published },
      delivered: { value: perSecond(last(series.delivered)), note: `${short(totals.delivered)} in all`, rates: series.delivered },
      latency: { value: duration(last(series.deliver.p99)), note: `p50: ${duration(last(series.deliver.p50))}` },
      lag: { value: short(totals.lag), rates: series.lag },
      dropped: { value: percent(totals.drop_rate), note: counted(totals.dropped, "record"), warn: totals.drop_warning },
      letters: { value: whole(totals.dead_letters), note: counted(totals.redelivered, "redelivery", "redeliveries"), warn: totals.dead_letters > 0 },
    });
    for (const one of plots) one.update(series, start, end);
    subscribers.update(found.subscribers);
    topics.update(found.topics);
    letters.update(found.dead_letters);
  }
}

/** What the pipelines that read this broker do, in words. */
function pipelines(found) {
  if (!found?.length) return "Telemetry of this broker. No pipeline reports to it; runnel pipeline run analytics keeps windows of it in the lake.";
  return found
    .map((one) => {
      if (one.state === "starting" || (one.state === "running" && one.batch < 0)) return `${one.name}: Spark is starting`;
      const behind = one.behind ? `, ${short(one.behind)} records behind` : "";
      return `${one.name}: ${one.state}${behind}`;
    })
    .join(" · ");
}

const quantiles = (name) => (series) => [series[name].p50, series[name].p95, series[name].p99];
const last = (values) => values.findLast((value) => value !== null) ?? null;

function plot(title, format, names, pick, options) {
  const chart = new TimeChart(format, `${title}, over time`, options);
  const legend = el("ul", { class: "legend" }, ...names.map((name, index) => el("li", { class: `series-${index}` }, name)));
  return {
    node: el("section", {}, el("h2", {}, title), legend, chart.node),
    update: (series, start, end) => chart.update(pick(series), start, end),
  };
}

function trend(title, values, kind = null) {
  return {
    title,
    number: true,
    class: ["trend", kind].filter(Boolean).join(" "),
    show(row, cell) {
      const found = values(row);
      if (cell.points !== found.length) {
        cell.points = found.length; // another span
        cell.spark = new Sparkline({ points: found.length });
        cell.replaceChildren(cell.spark.node, el("span"));
      }
      cell.spark.update(found);
      say(cell.lastChild, rate(found[found.length - 1] ?? 0));
    },
  };
}
