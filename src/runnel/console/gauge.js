// Figures in a row, each with its name and, where it moves, its last ten minutes.

import { el, say, attribute } from "./dom.js";
import { Sparkline } from "./chart.js";

/** A row of figures: `update({name: {value, note, rates, warn}})`. */
export class Gauges {
  #parts = new Map();

  /** @param {[string, string][]} named key and title of each */
  constructor(named) {
    this.node = el("dl", { class: "gauges" });
    for (const [key, title] of named) {
      const value = el("dd", { class: "value" });
      const note = el("dd", { class: "note" });
      const box = el("div", { class: "gauge" }, el("dt", {}, title), value, note);
      this.#parts.set(key, { box, value, note, spark: null });
      this.node.append(box);
    }
  }

  /** @param {Record<string, {value: unknown, note?: unknown, rates?: number[], warn?: boolean, hidden?: boolean, words?: boolean}>} figures */
  update(figures) {
    for (const [key, figure] of Object.entries(figures)) {
      const part = this.#parts.get(key);
      say(part.value, figure.value);
      say(part.note, figure.note ?? "");
      attribute(part.box, "data-warn", figure.warn ? "" : null);
      attribute(part.box, "data-words", figure.words ? "" : null); // no number: it may take more than a line
      attribute(part.box, "hidden", figure.hidden ? "" : null);
      if (!figure.rates) continue;
      if (!part.spark) {
        part.spark = new Sparkline({ width: 140, height: 26 });
        part.box.append(el("dd", { class: "trace" }, part.spark.node));
      }
      part.spark.update(figure.rates);
    }
  }
}
