// What works beside the broker: relays and archives of PostgreSQL, pipelines of Spark, and archives of the journal.

import { el } from "./dom.js";
import { href } from "./address.js";
import { Table, link, number, text } from "./table.js";
import { bytes, duration, moment, rate, short, whole } from "./format.js";

/** @returns {import("./console.js").View} */
export function relays() {
  const known = new Table({
    caption: "Relays, by slot",
    key: (row) => row.slot,
    empty: "No relay publishes to this broker.",
    columns: [
      text("Slot", (row) => row.slot, { head: true, class: "name mono" }),
      text("State", (row) => row.state),
      number("Rows/s", (row) => rate(row.rows_per_second)),
      number("Lag", (row) => bytes(row.lag_bytes)),
      number("Behind", (row) => duration(row.lag_seconds)),
      text("Slot's log", (row) => row.wal_status ?? "–", { class: "wide" }),
      number("Log kept", (row) => bytes(row.retained_bytes), { class: "wide" }),
      number("Until lost", (row) => bytes(row.safe_wal_bytes), { class: "wide" }),
      number("Dead letters", (row) => whole(row.dead_letters), { class: "wide" }),
      text("Snapshots", (row) => row.snapshots.map(progress).join(", "), { class: "widest" }),
    ],
  });
  const tables = new Table({
    caption: "Archives, by table",
    key: (row) => row.slot,
    columns: [
      text("Table", (row) => row.slot, { head: true, class: "name mono" }),
      text("State", (row) => row.state),
      number("Rows/s", (row) => rate(row.rows_per_second)),
      number("Rows", (row) => short(row.rows)),
      number("Behind", (row) => duration(row.lag_seconds)),
      number("Missed", (row) => whole(row.missed), { class: "wide" }),
      number("Misfits", (row) => whole(row.misfits), { class: "wide" }),
      number("Connected again", (row) => whole(row.errors), { class: "wide" }),
    ],
  });
  const pipelines = new Table({
    caption: "Pipelines",
    key: (row) => row.name,
    empty: "No pipeline reads this broker.",
    columns: [
      text("Pipeline", (row) => row.name, { head: true, class: "name mono" }),
      text("State", (row) => (row.state === "starting" || (row.state === "running" && row.batch < 0) ? "Spark is starting" : row.state)),
      number("Records/s", (row) => rate(row.records_per_second)),
      number("Behind", (row) => short(row.behind)),
      number("Batch", (row) => (row.batch < 0 ? "–" : whole(row.batch)), { class: "wide" }),
      number("Batch took", (row) => duration(row.batch_seconds), { class: "wide" }),
      number("Restarts", (row) => whole(row.restarts), { class: "wide" }),
      number("Alerts", (row) => whole(row.alerts), { class: "wide" }),
    ],
  });
  const archives = new Table({
    caption: "Archives of segments",
    key: (row) => row.place,
    empty: "No archive holds segments of this journal.",
    columns: [
      text("Archive", (row) => row.place, { head: true, class: "name mono" }),
      number("Has segments through", (row) => whole(row.through)),
      text("Since", (row) => moment(new Date(row.since * 1000)), { class: "wide" }),
      text("Seen", (row) => moment(new Date(row.seen * 1000))),
    ],
  });
  const topics = new Table({
    caption: "Topics that stay until they are archived",
    key: (row) => row.place,
    empty: "No topic waits for an archive.",
    columns: [
      link("Topic", (row) => [row.place, href("topics", row.place)], { head: true, class: "name" }),
      number("Confirmed before", (row) => whole(row.confirmed)),
      number("Not archived yet", (row) => bytes(row.unconfirmed_bytes)),
      number("Moved below", (row) => whole(row.moved), { class: "wide" }),
      number("Gone below", (row) => whole(row.gone), { class: "wide" }),
    ],
  });
  const list = (what) => ({ node: el("ul", { class: "alerts", "aria-label": `Last errors of ${what}` }) });
  const errors = { relays: list("relays"), tables: list("archives in PostgreSQL"), pipelines: list("pipelines") };
  const part = (title, lead, ...tables) => el("section", {}, el("h2", {}, title), el("p", { class: "muted" }, lead), ...tables.map((one) => one.node));
  const parts = {
    relays: part("Relays of PostgreSQL", "Rows become records here. Lag is what a relay has not confirmed of PostgreSQL's log; log kept is what its slot holds back on PostgreSQL's disk.", known, errors.relays),
    tables: part("Archives in PostgreSQL", "Records become rows of a table. Behind is the age of the oldest record that was read and is not written; missed records were gone before they were read.", tables, errors.tables),
    pipelines: part("Pipelines", "Spark reads records of this broker. What the analytics pipeline finds is under Analytics.", pipelines, errors.pipelines),
    archives: part("Archives of the journal", "Copies of old records elsewhere: what they do not have yet stays here.", archives, topics),
  };
  const none = el("p", { class: "notice" }, "No relay, pipeline or archive works with this broker.");
  return {
    node: el("div", {}, el("h1", {}, "Relays and pipelines"), none, ...Object.values(parts)),
    title: "Relays",
    query: () => ({ view: "relays", limit: 64 }),
    update(figures) {
      if (figures.view !== "relays") return;
      const segments = figures.archives.filter((one) => !one.topic);
      const waiting = figures.archives.filter((one) => one.topic);
      const [slots, written] = [figures.rows.filter((one) => one.kind !== "archive"), figures.rows.filter((one) => one.kind === "archive")];
      known.update(slots);
      tables.update(written);
      pipelines.update(figures.totals.pipelines);
      archives.update(segments);
      topics.update(waiting);
      tell(errors.relays.node, slots.map(({ slot, last_error: error }) => [slot, error]));
      tell(errors.tables.node, written.map(({ slot, last_error: error }) => [slot, error]));
      tell(errors.pipelines.node, figures.totals.pipelines.map(({ name, last_error: error }) => [name, error]));
      parts.relays.hidden = !slots.length;
      parts.tables.hidden = !written.length;
      parts.pipelines.hidden = !figures.totals.pipelines.length;
      parts.archives.hidden = !figures.archives.length;
      archives.node.hidden = !segments.length;
      topics.node.hidden = !waiting.length;
      none.hidden = figures.totals.relays > 0;
    },
  };
}

/** Show the last error of each that has one. @param {HTMLElement} list @param {[string, string | null][]} said */
function tell(list, said) {
  const found = said.filter(([, error]) => error);
  list.hidden = !found.length;
  list.replaceChildren(...found.map(([name, error]) => el("li", {}, `The last error of ${name}: ${error}`)));
}

function progress({ table, rows, estimated, is_done: isDone }) {
  if (isDone) return `${table}: ${whole(rows)} rows`;
  return estimated > 0 ? `${table}: ${whole(rows)} of about ${whole(estimated)}` : `${table}: ${whole(rows)}`;
}
