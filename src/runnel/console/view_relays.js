// Relays of PostgreSQL that publish here: how far they are, their slots, and what went wrong the last time.

import { el } from "./dom.js";
import { Table, number, text } from "./table.js";
import { bytes, duration, rate, whole } from "./format.js";

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
      text("Slot's log", (row) => row.wal_status ?? "–"),
      number("Log kept", (row) => bytes(row.retained_bytes)),
      number("Until lost", (row) => bytes(row.safe_wal_bytes), { class: "wide" }),
      number("Dead letters", (row) => whole(row.dead_letters), { class: "wide" }),
      text("Snapshots", (row) => row.snapshots.map(progress).join(", "), { class: "wider" }),
      text("Last error", (row) => row.last_error ?? "", { class: "wide" }),
    ],
  });
  const lead = "Rows of PostgreSQL become records here. Lag is what a relay has not confirmed of PostgreSQL's log; log kept is what its slot holds back on PostgreSQL's disk.";
  return {
    node: el("div", {}, el("h1", {}, "Relays"), el("p", { class: "lead" }, lead), known.node),
    title: "Relays",
    query: () => ({ view: "relays", limit: 64 }),
    update(figures) {
      if (figures.view === "relays") known.update(figures.rows);
    },
  };
}

function progress({ table, rows, estimated, is_done: isDone }) {
  if (isDone) return `${table}: ${whole(rows)} rows`;
  return estimated > 0 ? `${table}: ${whole(rows)} of about ${whole(estimated)}` : `${table}: ${whole(rows)}`;
}
