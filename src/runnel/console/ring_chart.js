// Charts of the last hours, from the server's ring of samples: they are full when the page opens.

import { el, say } from "./dom.js";
import { TimeChart } from "./chart.js";
import { get } from "./requests.js";

const SPANS = [
  ["15m", "15 minutes"],
  ["1h", "1 hour"],
  ["6h", "6 hours"],
];
const EVERY = 10_000; // milliseconds: a step of the ring

/** @param {{kind: string, name?: string, span: string, onSpan?: (span: string) => void,
 *   plots: {title: string, format: (value: number) => string, series: [string, string][], options?: object}[]}} wanted
 *   of each plot the figures, each with its name in the legend */
export function ringCharts({ kind, name = "", span, onSpan = () => {}, plots }) {
  let timer = 0;
  let asked = null;
  let chosen = SPANS.some(([one]) => one === span) ? span : "1h";
  const group = `ring-${kind}-${Math.random()}`;
  const spans = el("fieldset", { class: "spans" }, el("legend", { class: "visually-hidden" }, "How far back"));
  for (const [value, title] of SPANS) {
    const change = () => {
      chosen = value;
      onSpan(value);
      look();
    };
    spans.append(el("label", {}, el("input", { type: "radio", name: group, value, checked: value === chosen, on: { change } }), ` ${title}`));
  }
  const empty = el("p", { class: "notice", hidden: true }, "Nothing was sampled yet: the server takes a sample every 10 seconds.");
  const drawn = plots.map(({ title, format, series, options }) => {
    const chart = new TimeChart(format, `${title}, over time`, options);
    const legend = el("ul", { class: "legend" }, ...series.map(([, words], index) => el("li", { class: `series-${index}` }, words)));
    return { chart, series, node: el("section", {}, el("h3", {}, title), legend, chart.node) };
  });
  look();
  return {
    node: el("div", {}, spans, empty, el("div", { class: drawn.length > 1 ? "plots" : "plot" }, ...drawn.map((one) => one.node))),
    close() {
      clearTimeout(timer);
      asked?.abort();
    },
  };

  async function look() {
    clearTimeout(timer);
    asked?.abort();
    const mine = (asked = new AbortController());
    try {
      const found = await get("console/charts", { kind, name, span: chosen }, mine.signal);
      for (const { chart, series } of drawn) chart.update(series.map(([figure]) => found.series[figure] ?? []), found.start, found.end);
      empty.hidden = Object.keys(found.series).length > 0;
      say(empty, "Nothing was sampled yet: the server takes a sample every 10 seconds.");
    } catch (error) {
      if (mine.signal.aborted) return;
      empty.hidden = false;
      say(empty, error.message);
    }
    timer = setTimeout(look, EVERY);
  }
}
