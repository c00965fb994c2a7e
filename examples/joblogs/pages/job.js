// One job: its lines so far, then those that come. A line's number is its offset, so that the page can prove what it shows.

import { subscribe } from "../bus/runnel.js";
import { clock, connection, element, painter, themes } from "./shared.js";

const MOST = 10_000; // lines that are kept in the page; older ones are in the raw log
const LEVELS = ["debug", "info", "warning", "error"];
const MARKS = { running: "◐", succeeded: "✓", failed: "✕" };

const $ = (id) => document.getElementById(id);
const id = decodeURIComponent(location.pathname.split("/").pop());
const topic = `joblogs.${id}`;
const log = $("log");
const fresh = []; // lines that are not in the page yet
const seen = { first: null, next: null, lines: 0, missed: 0, repeated: 0, reconnects: 0, gaps: 0 };
let following = true;
let place = { top: 0, whole: 0, part: 0 }; // where the log was scrolled to, and its sizes
let target = location.hash.slice(1); // a line to be shown

function take({ offset, time, value, text }) {
  if (seen.next !== null && offset !== seen.next) seen[offset > seen.next ? "missed" : "repeated"] += Math.abs(offset - seen.next);
  seen.first ??= offset;
  seen.next = offset + 1;
  seen.lines++;
  const level = LEVELS.includes(value?.level) ? value.level : "info";
  fresh.push({ offset, time, level, text: String(value?.text ?? text ?? "(bytes)") });
  if (typeof value?.state === "string") state(value.state);
  if (typeof value?.title === "string") $("about").textContent = value.title;
  draw();
}

function state(name) {
  $("state").dataset.state = name;
  $("state").textContent = `${MARKS[name] ?? ""} ${name}`;
}

function lineOf({ offset, time, level, text }) {
  const line = element("li", "line");
  line.id = `L${offset}`;
  line.dataset.level = level;
  const number = element("a", "number", String(offset));
  number.href = `#L${offset}`;
  number.ariaLabel = `Line ${offset}`;
  const when = element("time", "", clock(time));
  when.dateTime = time.toISOString();
  line.append(number, when, element("span", "level", level), element("span", "text", text));
  return line;
}

const matches = (line, words, level) =>
  (!level || line.dataset.level === level) && (!words || line.lastChild.textContent.toLowerCase().includes(words));

const draw = painter(() => {
  const words = $("filter").value.toLowerCase();
  const level = $("level").value;
  const lines = fresh.splice(0).map(lineOf);
  for (const line of lines) line.hidden = !matches(line, words, level);
  log.append(...lines);
  while (log.childElementCount > MOST) log.firstChild.remove();
  settle();
  found(words || level);
  const { first, next, missed, repeated, reconnects, gaps } = seen;
  if (!seen.lines) return;
  if (!$("state").textContent.trim()) state("running");
  const told = [`${seen.lines.toLocaleString()} lines, ${first} to ${next - 1}`, `${missed} missed`, `${repeated} repeated`];
  if (reconnects) told.push(`reconnected ${reconnects === 1 ? "once" : `${reconnects} times`}`);
  if (gaps) told.push(`${gaps} gaps: the journal no longer has these lines`);
  if (seen.lines > MOST) told.push(`the newest ${MOST.toLocaleString()} are here, all of them in the raw log`);
  $("status").textContent = told.join(" · ");
});

function found(filtered) {
  const shown = filtered ? log.querySelectorAll(".line:not([hidden])").length : 0;
  $("found").textContent = filtered ? `${shown.toLocaleString()} of ${log.childElementCount.toLocaleString()} lines` : "";
}

function filter() {
  const words = $("filter").value.toLowerCase();
  const level = $("level").value;
  for (const line of log.children) line.hidden = !matches(line, words, level);
  draw();
}

/** The end of the log if it is followed, or the line that the address names, as soon as it is there. */
function settle() {
  const named = target && document.getElementById(target);
  if (named) {
    named.scrollIntoView({ block: "center" });
    target = "";
  }
  if (following) log.scrollTop = log.scrollHeight;
  place = { top: log.scrollTop, whole: log.scrollHeight, part: log.clientHeight };
}

function follow(on) {
  following = on;
  $("follow").ariaPressed = String(on);
  $("follow").textContent = on ? "Following" : "Follow";
  settle();
}

// Who scrolls up wants to read; who comes back to the end wants to follow. What moves because lines came or went, or
// because the window changed, the user did not scroll.
log.addEventListener("scroll", () => {
  const { scrollTop, scrollHeight, clientHeight } = log;
  if (scrollHeight !== place.whole || clientHeight !== place.part) return settle();
  if (scrollTop < place.top - 2) follow(false);
  else if (!following && scrollHeight - scrollTop - clientHeight < 8) follow(true);
  place.top = log.scrollTop;
});
new ResizeObserver(settle).observe(log);
$("follow").addEventListener("click", () => follow(!following));
$("filter").addEventListener("input", filter);
$("level").addEventListener("change", filter);
$("title").textContent = `Job ${id}`;
document.title = `Job ${id}`;
$("raw").href = `../bus/topics/${encodeURIComponent(topic)}/records?format=ndjson&limit=10000`;
themes($("theme"));
follow(!target);

const show = connection($("connection"));
subscribe(topic, {
  url: new URL("../lines/", location.href),
  start: -MOST,
  onRecord: take,
  onGap: () => {
    seen.gaps++;
    seen.next = null; // what comes next may have any number
  },
  onState: (state, detail) => {
    if (state === "waiting") seen.reconnects++;
    show(state, detail);
    draw();
  },
});
