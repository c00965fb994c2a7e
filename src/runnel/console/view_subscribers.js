// Subscriptions: how far behind they are, and what they lost; and names whose position is kept while nothing has them open.

import { attribute, el, field, say } from "./dom.js";
import { Outcome, ask, button, startOf } from "./dialogs.js";
import { Table, number, text } from "./table.js";
import { act } from "./requests.js";
import { listing } from "./listing.js";
import { may, mayHave } from "./session.js";
import { ringCharts } from "./ring_chart.js";
import { rate, short, whole } from "./format.js";

/** In words what the numbers say, so that colours need not be seen. */
export const standing = {
  title: "State",
  show(row, cell) {
    let [word, mark] = row.lag ? ["reading", "ok"] : ["up to date", "ok"];
    if (row.open === false) [word, mark] = ["not open", "plain"];
    else if (row.dropped) [word, mark] = ["lost some", "warn"];
    else if (row.lag > row.buffer / 2) [word, mark] = ["behind", "warn"];
    if (!cell.firstChild) cell.append(el("span", { class: "mark" }));
    say(cell.firstChild, word);
    attribute(cell.firstChild, "data-mark", mark);
  },
};

const shown = (value, format) => (value === undefined || value === null ? "–" : format(value));

export const subscriberColumns = [
  text("Subscriber", (row) => row.label, { sort: "label", head: true, class: "name mono" }),
  text("Reads", (row) => row.pattern, { sort: "pattern", class: "wide mono" }),
  standing,
  number("Lag", (row) => shown(row.lag, whole), { sort: "lag", down: true }),
  number("Dropped", (row) => shown(row.dropped, whole), { sort: "dropped", down: true, class: "wide" }),
  number("Records/s", (row) => shown(row.rate, rate), { sort: "rate", down: true, class: "wide" }),
  number("Delivered", (row) => shown(row.delivered, short), { sort: "delivered", down: true, class: "wide" }),
  number("Expired", (row) => shown(row.expired, short), { class: "widest" }),
  text("Policy", (row) => row.policy ?? "", { class: "widest" }),
  number("Buffer", (row) => shown(row.buffer, short), { class: "widest" }),
];

/** @param {import("./address.js").Place} place @param {() => void} changed @returns {import("./console.js").View} */
export function subscribers(place, changed) {
  const list = listing(place, changed, { sort: "-lag", filter: "", from: 0 }, "subscriptions", "part of a name or pattern");
  const outcome = new Outcome();
  const box = el("div");
  let chart = null;
  const actions = {
    title: "",
    class: "actions",
    show(row, cell) {
      const key = `${row.name} ${row.open}`;
      if (cell.key === key) return;
      cell.key = key;
      cell.replaceChildren(el("div", { class: "buttons" }, ...buttonsOf(row)));
    },
  };
  const table = new Table({
    caption: "Subscriptions",
    key: (row) => `${row.open} ${row.label}`,
    empty: "Nothing subscribes.",
    columns: [...subscriberColumns, actions],
    onSort: (sort) => list.ask({ sort, from: 0 }),
  });
  list.follow(({ sort }) => table.sorted(sort));
  if (place.params.chart) showChart(place.params.chart);
  return {
    node: el(
      "div",
      {},
      el("h1", {}, "Subscribers"),
      el("p", { class: "lead" }, "Open subscriptions, in this process and at the other end of connections, and named ones whose position is kept while they are not open. Groups have a page of their own."),
      el("div", { class: "tools" }, field("Filter", list.filter), list.pager.node),
      outcome.node,
      box,
      table.node,
    ),
    title: "Subscribers",
    query: () => ({ view: "subscribers", limit: 50, ...list.asked }),
    update(figures) {
      if (figures.view !== "subscribers") return;
      table.update(figures.rows);
      list.update(figures);
    },
    leave: () => chart?.close(),
  };

  function buttonsOf(row) {
    if (!row.name) return [];
    const found = [button("Chart", () => showChart(row.name), "small", { "aria-label": `Chart of the lag of ${row.name}` })];
    if (row.open) return found;
    if (row.pattern.split(" ").every((one) => may("subscribe", one)) && mayHave(row.owner)) found.push(button("Reset…", () => reset(row), "small", { "aria-label": `Reset ${row.name}` }));
    if (row.owner ? mayHave(row.owner) : may("admin", ">")) found.push(button("Forget…", () => forget(row), "small", { "aria-label": `Forget ${row.name}` }));
    return found;
  }

  function showChart(name) {
    chart?.close();
    place.set({ chart: name });
    chart = ringCharts({
      kind: "subscription",
      name,
      span: place.params.span ?? "1h",
      onSpan: (span) => place.set({ span }),
      plots: [{ title: `Lag of ${name}`, format: short, series: [["lag", "records not consumed"]] }],
    });
    const close = button("Close", () => {
      chart.close();
      place.set({ chart: "" });
      box.replaceChildren();
    });
    box.replaceChildren(el("section", { class: "first boxed" }, chart.node, el("div", { class: "buttons" }, close)));
  }

  async function reset({ name, pattern }) {
    const start = el("input", { type: "text", autocomplete: "off", required: true });
    const number = /[*> ]/.test(pattern) ? "sequence" : "offset";
    const fields = [{ name: "start", label: "Go on from", input: start, hint: `earliest, latest, ${number === "offset" ? "an offset" : "a sequence"}, or a time such as 2026-11-18 20:15` }];
    const text = `It goes on from there when it is opened again on ${pattern}.`;
    const work = async (said) => act("place_subscription", { name, topic: pattern, start: startOf(said.start) });
    const done = await ask({ title: `Reset ${name}`, text, action: "Reset", fields, work });
    if (done) outcome.say(`${name} goes on from ${number} ${done[number]}.`);
  }

  async function forget({ name }) {
    const text = "Forgets its position, and what it holds back from retention. Opened again it begins anew.";
    const work = () => act("forget_subscription", { name });
    if (await ask({ title: `Forget ${name}?`, text, action: "Forget", kind: "danger", typed: name, work })) outcome.say(`${name} is forgotten.`);
  }
}
