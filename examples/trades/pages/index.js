// Candles and alerts, past ones first, then live. A candle that grows comes again, and takes the place of what it was.

import { subscribe } from "../bus/runnel.js";
import { Chart } from "./chart.js";

const ALERTS = 100; // shown; older ones are in the topic
const WORDS = { connecting: "connecting …", open: "live", waiting: "reconnecting …", closed: "ended" };

const $ = (id) => document.getElementById(id);
const charts = new Map(); // by symbol
const seen = { candles: 0, alerts: 0, last: null };
const clock = (time) => time.toLocaleTimeString([], { hour12: false });
const money = (value) => value.toFixed(2);

function chartOf(symbol) {
  if (!charts.has(symbol)) {
    const chart = new Chart(symbol);
    charts.set(symbol, chart);
    const later = [...charts.keys()].sort().find((other) => other > symbol);
    $("charts").insertBefore(chart.element, later ? charts.get(later).element : null);
    $("empty").hidden = true;
  }
  return charts.get(symbol);
}

function takeCandle(value) {
  const start = Date.parse(value?.start);
  const numbers = [value?.open, value?.high, value?.low, value?.close, value?.volume];
  if (typeof value?.symbol !== "string" || Number.isNaN(start) || !numbers.every(Number.isFinite)) return; // no candle
  const [open, high, low, close, volume] = numbers;
  chartOf(value.symbol).put({ start, open, high, low, close, volume });
  seen.candles++;
}

function takeAlert(value) {
  if (typeof value?.symbol !== "string" || ![value.before, value.price, value.change].every(Number.isFinite)) return;
  const line = document.createElement("li");
  const rose = value.change > 0;
  line.dataset.way = rose ? "up" : "down";
  line.append(
    part("b", typeof value.name === "string" ? `${value.symbol} · ${value.name}` : value.symbol),
    part("span", `${rose ? "▲ +" : "▼ −"}${(Math.abs(value.change) * 100).toFixed(1)} %`, "change"),
    part("span", `${money(value.before)} → ${money(value.price)}`, "quiet"),
    part("time", clock(new Date(value.at)), "quiet"),
  );
  $("alerts").prepend(line);
  while ($("alerts").childElementCount > ALERTS) $("alerts").lastChild.remove();
  $("calm").hidden = true;
  $("count").textContent = (++seen.alerts).toLocaleString();
}

/** An element with text. Text is all that a value ever becomes. */
function part(name, text, className = "") {
  const made = document.createElement(name);
  made.className = className;
  made.textContent = text;
  return made;
}

let asked = false;
/** Draw once before the next picture, however much came. */
function draw() {
  if (asked) return;
  asked = true;
  // A tab in the background has no next picture; it draws a little later.
  (document.hidden ? (call) => setTimeout(call, 200) : requestAnimationFrame)(() => {
    asked = false;
    for (const chart of charts.values()) chart.draw();
    $("status").textContent = seen.last
      ? `${seen.candles.toLocaleString()} records of candles, the last at ${clock(seen.last)}`
      : "";
  });
}

function themes(button) {
  const system = matchMedia("(prefers-color-scheme: dark)");
  const show = () => {
    const chosen = localStorage.getItem("theme");
    document.documentElement.style.colorScheme = chosen ?? "light dark";
    const dark = (chosen ?? (system.matches ? "dark" : "light")) === "dark";
    button.textContent = dark ? "☀ Light" : "☾ Dark";
    button.dataset.next = dark ? "light" : "dark";
  };
  button.addEventListener("click", () => {
    localStorage.setItem("theme", button.dataset.next);
    show();
  });
  system.addEventListener("change", show);
  show();
}

const STATES = {
  starting: "Spark is starting, which takes a while the first time. Ticks are kept until it is there.",
  running: "Spark is there. Waiting for the first candles.",
};

themes($("theme"));
subscribe(["trades.candles", "trades.alerts", "trades.pipeline"], {
  start: "earliest",
  onRecord: ({ topic, value, time }) => {
    if (topic === "trades.pipeline") {
      $("empty").textContent = STATES[value?.state] ?? "";
      return;
    }
    if (topic === "trades.candles") takeCandle(value);
    else takeAlert(value);
    seen.last = time;
    draw();
  },
  onGap: () => {}, // candles that are too old to be kept are too old to be shown
  onState: (state, { error } = {}) => {
    $("connection").dataset.state = state;
    $("connection").textContent = WORDS[state];
    $("connection").title = error?.message ?? "";
  },
});
