// All topics, a page at a time.

import { el, field, say } from "./dom.js";
import { button } from "./dialogs.js";
import { href } from "./address.js";
import { Sparkline } from "./chart.js";
import { Table, link, number, text } from "./table.js";
import { createTopic } from "./topic_form.js";
import { listing } from "./listing.js";
import { maySome } from "./session.js";
import { publishForm } from "./publish_form.js";
import { bytes, rate, retention, short, whole } from "./format.js";

/** A cell with the rate of the last second, and a line of the last ten minutes. */
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

/** The name of a topic, which leads to its page. @param {object} [more] */
export const topicLink = (more = {}) => link("Topic", (row) => [row.name, href("topics", row.name)], { head: true, class: "name", ...more });

/** @param {import("./address.js").Place} place @param {() => void} changed @returns {import("./console.js").View} */
export function topics(place, changed) {
  const list = listing(place, changed, { sort: "name", filter: "", from: 0 }, "topics");
  const table = new Table({
    caption: "Topics",
    key: (row) => row.name,
    empty: "There is no topic, or none with this in its name.",
    onSort: (sort) => list.ask({ sort, from: 0 }),
    columns: [
      topicLink({ sort: "name" }),
      trend,
      number("Published", (row) => short(row.published), { sort: "published", down: true, class: "wide" }),
      number("Kept", (row) => whole(row.kept), { class: "wider" }),
      number("Size", (row) => bytes(row.bytes), { sort: "bytes", down: true }),
      text("Retention", (row) => retention(row.retention), { class: "wider" }),
      number("Readers", (row) => whole(row.subscribers), { sort: "subscribers", down: true, class: "wide" }),
    ],
  });
  list.follow(({ sort }) => table.sorted(sort));
  const form = publishForm(null);
  const create = button("Create a topic…", async () => {
    const made = await createTopic();
    if (made) location.hash = href("topics", made, { tab: "options" });
  });
  create.hidden = !maySome("create");
  const node = el(
    "div",
    {},
    el("h1", {}, "Topics"),
    el("div", { class: "tools" }, field("Filter", list.filter), el("div", { class: "buttons" }, create), list.pager.node),
    table.node,
    el("details", { class: "fold", hidden: !maySome("publish") }, el("summary", {}, "Publish a record"), form.node),
  );
  return {
    node,
    title: "Topics",
    query: () => ({ view: "topics", limit: 50, ...list.asked }),
    update(figures) {
      if (figures.view !== "topics") return;
      table.update(figures.rows);
      list.update(figures);
    },
  };
}
