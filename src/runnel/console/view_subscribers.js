// Who reads: how far behind they are, and what they lost.

import { el, field, later, say, attribute } from "./dom.js";
import { Pager, Table, number, text } from "./table.js";
import { rate, short, whole } from "./format.js";

/** In words what the numbers say, so that nobody has to see colours. */
const standing = {
  title: "State",
  show(row, cell) {
    const [word, mark] = row.dropped ? ["lost some", "warn"] : row.lag > row.buffer / 2 ? ["behind", "warn"] : row.lag ? ["reading", "ok"] : ["up to date", "ok"];
    if (!cell.firstChild) cell.append(el("span", { class: "mark" }));
    say(cell.firstChild, word);
    attribute(cell.firstChild, "data-mark", mark);
  },
};

export const subscriberColumns = [
  text("Subscriber", (row) => row.label, { sort: "label", head: true, class: "name mono" }),
  text("Reads", (row) => row.pattern, { sort: "pattern", class: "wide mono" }),
  standing,
  number("Lag", (row) => whole(row.lag), { sort: "lag", down: true }),
  number("Dropped", (row) => whole(row.dropped), { sort: "dropped", down: true }),
  number("Records/s", (row) => rate(row.rate), { sort: "rate", down: true, class: "wide" }),
  number("Delivered", (row) => short(row.delivered), { sort: "delivered", down: true, class: "wide" }),
  number("Expired", (row) => short(row.expired), { class: "wider" }),
  text("Policy", (row) => row.policy, { class: "wider" }),
  number("Buffer", (row) => short(row.buffer), { class: "wider" }),
];

/** @param {string} _ @param {() => void} changed @returns {import("./console.js").View} */
export function subscribers(_, changed) {
  const asked = { view: "subscribers", limit: 50, from: 0, sort: "-lag", filter: "" };
  const ask = (more) => {
    Object.assign(asked, more);
    table.sorted(asked.sort);
    changed();
  };
  const table = new Table({
    caption: "Subscribers",
    key: (row) => row.label,
    empty: "Nobody subscribes.",
    columns: subscriberColumns,
    onSort: (sort) => ask({ sort, from: 0 }),
  });
  table.sorted(asked.sort);
  const pager = new Pager((from) => ask({ from }), "subscribers");
  const filter = el("input", { type: "search", placeholder: "part of a name or pattern", autocomplete: "off", spellcheck: "false" });
  filter.addEventListener("input", later(() => ask({ filter: filter.value, from: 0 })));
  return {
    node: el(
      "div",
      {},
      el("h1", {}, "Subscribers"),
      el("p", { class: "lead" }, "Open subscriptions, in this process and at the other end of connections. Groups have a page of their own."),
      el("div", { class: "tools" }, field("Filter", filter), pager.node),
      table.node,
    ),
    title: "Subscribers",
    query: () => asked,
    update(figures) {
      if (figures.view !== "subscribers") return;
      table.update(figures.rows);
      pager.update(figures);
      if (!figures.rows.length && figures.total && asked.from) ask({ from: 0 });
    },
  };
}
