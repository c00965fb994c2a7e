// The journal: files, how long a sync takes, the cleaner, and the disk.

import { el, say } from "./dom.js";
import { Bars, LineChart } from "./chart.js";
import { Gauges } from "./gauge.js";
import { Pager, Table, number, text } from "./table.js";
import { bytes, counted, duration, moment, short, whole } from "./format.js";

const NONE = "This broker lives in memory: there is no journal. Open it with a folder to keep what is published.";
const ELSEWHERE = "This server is a gateway and has no journal of its own: see the console of the server behind it, or the cluster's own tools.";

/** @param {import("./address.js").Place} place @param {() => void} changed @returns {import("./console.js").View} */
export function journal(place, changed) {
  const asked = { view: "journal", limit: 20, ...place.asked({ from: 0 }) };
  const gauges = new Gauges([
    ["disk", "On disk"],
    ["free", "Free"],
    ["segments", "Segments"],
    ["syncs", "Syncs"],
    ["p50", "Sync p50"],
    ["p99", "Sync p99"],
    ["pending", "Not durable yet"],
  ]);
  const recent = new LineChart(duration, "How long syncs took in the last ten minutes", 1e-4);
  const spread = new Bars(duration, "How long syncs took since the broker was opened");
  const summary = el("p", { class: "legend" });
  const segments = new Table({
    caption: "Segments, the newest first",
    key: (row) => row.name,
    columns: [
      text("Segment", (row) => row.name, { head: true, class: "name mono" }),
      text("State", (row) => (row.sealed ? (row.generation ? "cleaned" : "sealed") : "being written")),
      number("Size", (row) => bytes(row.bytes)),
      number("Records", (row) => (row.records === null ? "–" : whole(row.records)), { class: "wide" }),
      text("From", (row) => moment(new Date(row.from * 1000)), { class: "wide" }),
      text("To", (row) => (row.to === null ? "" : moment(new Date(row.to * 1000))), { class: "wider" }),
    ],
  });
  const pager = new Pager((from) => {
    asked.from = from;
    place.set({ from });
    changed();
  }, "segments");
  const cleaner = new Gauges([
    ["live", "Wanted"],
    ["given", "Given back"],
    ["read", "Read"],
    ["written", "Written"],
    ["cleaned", "Segments cleaned"],
    ["amplification", "Written per byte published"],
    ["scrubbed", "Checked for damage"],
  ]);
  const trouble = el("ul", { class: "trouble", hidden: true });
  const holders = new Table({
    caption: "What holds records back",
    key: (row) => row.name,
    columns: [
      text("Held for", (row) => row.name, { head: true, class: "name mono" }),
      text("Reads", (row) => row.pattern, { class: "mono" }),
      number("Kept for it", (row) => bytes(row.bytes)),
    ],
  });
  const held = el("section", { hidden: true }, el("h2", {}, "Held back"), holders.node);
  const legend = el(
    "ul",
    { class: "legend" },
    el("li", { class: "series-0" }, "p50"),
    el("li", { class: "series-1" }, "p99"),
  );
  const inside = el(
    "div",
    { hidden: true },
    trouble,
    gauges.node,
    el(
      "section",
      {},
      el("h2", {}, "Sync latency"),
      el("div", { class: "plots" }, el("section", {}, el("h3", {}, "The last ten minutes"), legend, recent.node), el("section", {}, el("h3", {}, "Since the broker was opened"), summary, spread.node)),
    ),
    el("section", {}, el("h2", {}, "Segments"), el("div", { class: "tools" }, pager.node), segments.node),
    el("section", {}, el("h2", {}, "Cleaner"), cleaner.node),
    held,
  );
  const none = el("p", { class: "notice", hidden: true }, "");
  return {
    node: el("div", {}, el("h1", {}, "Journal"), none, inside),
    title: "Journal",
    query: () => asked,
    update(figures) {
      if (figures.view !== "journal") return;
      say(none, figures.totals.gateway ? ELSEWHERE : NONE);
      const found = figures.journal;
      none.hidden = found !== null;
      inside.hidden = found === null;
      if (!found) return;
      const { sync } = found;
      const now = sync.recent.length ? sync.recent[sync.recent.length - 1][0] : null;
      gauges.update({
        disk: { value: bytes(found.disk_bytes), note: found.stages ? `${counted(found.stages, "open stage")}, ${bytes(found.staged_bytes)}` : "" },
        free: { value: bytes(found.free_bytes), note: `at least ${bytes(found.min_free)} stays free`, warn: found.low },
        segments: { value: whole(found.segments) },
        syncs: { value: now === null ? "–" : `${short(now)}/s`, note: `${short(found.syncs)} in all`, rates: sync.recent.map(([count]) => count) },
        p50: { value: `≤ ${duration(sync.p50)}`, note: "since it was opened" },
        p99: { value: `≤ ${duration(sync.p99)}`, note: "since it was opened" },
        pending: { value: bytes(found.pending_bytes), note: `fsync: ${found.fsync}` },
      });
      recent.update([
        { name: "p50", values: sync.recent.map(([count, half]) => (count ? half : null)) },
        { name: "p99", values: sync.recent.map(([count, , most]) => (count ? most : null)) },
      ]);
      const { bounds, counts, sum } = found.sync_durations;
      spread.update(bounds, counts);
      say(summary, found.syncs ? `${counted(found.syncs, "sync")} by the time they took at most; ${duration(sum / found.syncs)} on average` : "Nothing was synced yet.");
      segments.update(figures.rows);
      pager.update(figures);
      clean(found);
      holders.update(found.holders);
      held.hidden = !found.holders.length;
    },
  };

  function clean(found) {
    const one = found.cleaner ?? { read: 0, written: 0, given_back: 0, segments: 0, live: 0, on_disk: 0, amplification: 0, error: null };
    cleaner.update({
      live: { value: bytes(one.live), note: `of ${bytes(one.on_disk)} in sealed segments` },
      given: { value: bytes(one.given_back) },
      read: { value: bytes(one.read) },
      written: { value: bytes(one.written) },
      cleaned: { value: whole(one.segments) },
      amplification: { value: one.amplification ? one.amplification.toFixed(2) : "–" },
      scrubbed: { value: bytes(found.scrubbed_bytes), note: found.damage.length ? `${found.damage.length} damaged` : "no damage found", warn: found.damage.length > 0 },
    });
    const said = [found.failed, one.error && `the cleaner: ${one.error}`, ...found.damage].filter(Boolean);
    trouble.hidden = !said.length;
    trouble.replaceChildren(...said.map((text) => el("li", {}, text)));
  }
}
