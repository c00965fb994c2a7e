// All jobs: what was queued, and how each of them stands. One subscription, past first, then live.

import { publish, subscribe } from "../bus/runnel.js";
import { clock, connection, element, painter, themes } from "./shared.js";

const SHOWN = 200; // rows; with thousands of jobs, filter
const MARKS = { queued: "○", running: "◐", succeeded: "✓", failed: "✕" };
const TITLES = ["Import of orders", "Nightly report", "Thumbnails", "Search index", "Backup", "Mail campaign", "Clean-up"];

const $ = (id) => document.getElementById(id);
const jobs = new Map(); // by id, oldest first
const rows = new Map(); // of those that are shown
let wanted = "";

function jobOf(id, time) {
  if (!jobs.has(id)) jobs.set(id, { id, title: "", state: "queued", done: 0, lines: 0, time });
  return jobs.get(id);
}

function take({ topic, value, time }) {
  if (typeof value?.id !== "string") return; // any client may publish anything
  if (topic === "jobs.queue") Object.assign(jobOf(value.id, time), { title: String(value.title ?? ""), time });
  else Object.assign(jobOf(value.id, time), { state: String(value.state), done: +value.done, lines: +value.lines });
  draw();
}

function rowOf(job) {
  let row = rows.get(job.id);
  if (!row) {
    row = document.createElement("tr");
    const link = element("a", "number", job.id);
    link.href = `jobs/${encodeURIComponent(job.id)}`;
    const [state, name, title, progress, time] = Array.from({ length: 5 }, () => row.insertCell());
    state.append(element("span", "state"));
    name.append(link);
    title.className = "title";
    const bar = element("progress", "");
    bar.ariaLabel = `Progress of job ${job.id}`;
    progress.append(bar, element("span", "count"));
    time.className = "end";
    rows.set(job.id, row);
  }
  const [state, , title, progress, time] = row.cells;
  state.firstChild.dataset.state = job.state;
  state.firstChild.textContent = `${MARKS[job.state] ?? "?"} ${job.state}`;
  title.textContent = job.title;
  progress.firstChild.max = job.lines || 1;
  progress.firstChild.value = job.done;
  progress.lastChild.textContent = job.state === "queued" ? "" : `${job.done} of ${job.lines} lines`;
  time.textContent = clock(job.time);
  return row;
}

const draw = painter(() => {
  const words = $("filter").value.toLowerCase();
  const counts = { "": 0 };
  const found = [];
  for (const job of jobs.values()) {
    counts[""]++;
    counts[job.state] = (counts[job.state] ?? 0) + 1;
    const matches = !words || `${job.id} ${job.title}`.toLowerCase().includes(words);
    if (matches && (!wanted || job.state === wanted)) found.push(job);
  }
  for (const tile of document.querySelectorAll(".tile")) {
    tile.firstChild.textContent = (counts[tile.dataset.state] ?? 0).toLocaleString();
    tile.ariaPressed = String(tile.dataset.state === wanted);
  }
  const newest = found.slice(-SHOWN).reverse();
  const kept = new Set(newest.map((job) => job.id));
  for (const id of rows.keys()) if (!kept.has(id)) rows.delete(id);
  const list = newest.map(rowOf);
  // Only what is not in its place is moved: the row that has the focus keeps it.
  list.forEach((row, at) => $("jobs").rows[at] !== row && $("jobs").insertBefore(row, $("jobs").rows[at] ?? null));
  while ($("jobs").rows.length > list.length) $("jobs").lastChild.remove();
  $("empty").hidden = jobs.size > 0;
  const more = found.length > SHOWN ? `, the newest ${SHOWN} of them shown` : "";
  $("shown").textContent = jobs.size ? `${found.length.toLocaleString()} jobs${more}` : "";
});

async function start(count) {
  const made = Array.from({ length: count }, () => {
    const id = crypto.getRandomValues(new Uint32Array(1))[0].toString(36).padStart(7, "0");
    const title = TITLES[Math.floor(Math.random() * TITLES.length)];
    return { id, title, lines: 40 + Math.floor(Math.random() * 160), rate: 2 + Math.random() * 6 };
  });
  if (count === 1) await publish("jobs.queue", made[0]);
  else await publish("jobs.queue", made.map((job) => JSON.stringify(job)).join("\n"), { contentType: "application/x-ndjson" });
}

for (const tile of document.querySelectorAll(".tile")) {
  tile.addEventListener("click", () => {
    wanted = tile.dataset.state;
    draw();
  });
}
$("filter").addEventListener("input", draw);
$("one").addEventListener("click", () => start(1));
$("many").addEventListener("click", () => start(100));
themes($("theme"));
subscribe(["jobs.queue", "jobs.states"], { start: "earliest", onRecord: take, onState: connection($("connection")) });
