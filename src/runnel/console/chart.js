// Small drawings of figures over time. The same is said in words beside them.

import { svg, say, attribute } from "./dom.js";

/** A line of the last minutes: `update(values)`. It says nothing to a screen reader: the number beside it does. */
export class Sparkline {
  #line = svg("path", { class: "line" });
  #area = svg("path", { class: "area" });
  #width;
  #height;
  #points;

  constructor({ width = 96, height = 22, points = 60 } = {}) {
    [this.#width, this.#height, this.#points] = [width, height, points];
    this.node = svg(
      "svg",
      { class: "spark", viewBox: `0 0 ${width} ${height}`, preserveAspectRatio: "none", "aria-hidden": "true" },
      this.#area,
      this.#line,
    );
  }

  /** @param {number[]} values the newest last */
  update(values) {
    const top = Math.max(...values, 1e-9);
    const step = this.#width / (this.#points - 1);
    const start = this.#width - (values.length - 1) * step;
    const at = (value, index) => {
      const y = this.#height - 1.5 - (value / top) * (this.#height - 3);
      return `${(start + index * step).toFixed(1)} ${y.toFixed(1)}`;
    };
    const line = values.length > 1 ? `M${values.map(at).join("L")}` : "";
    attribute(this.#line, "d", line);
    attribute(this.#area, "d", line && `${line}V${this.#height}H${start.toFixed(1)}Z`);
  }
}

const LEFT = 84; // of the labels, which are larger on a phone
const BOTTOM = 22;
const TOP = 16;

/** Lines over the last ten minutes, of what differs by orders of magnitude: `update([{name, values}])`. */
export class LineChart {
  #format;
  #least;
  #size = [640, 180];
  #title = svg("title");
  #plot = svg("g");

  /** @param {(value: number) => string} format @param {string} about @param {number} least a power of ten */
  constructor(format, about, least) {
    this.#format = format;
    this.#least = Math.log10(least);
    say(this.#title, about);
    const [width, height] = this.#size;
    this.node = svg(
      "svg",
      { class: "chart", viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": about },
      this.#title,
      this.#plot,
    );
  }

  /** @param {{name: string, values: (number | null)[]}[]} series @param {number} points */
  update(series, points = 60) {
    const [width, height] = this.#size;
    const least = this.#least;
    const highest = Math.max(...series.flatMap((one) => one.values.map((value) => value ?? 0)), 10 ** (least + 2));
    const most = Math.ceil(Math.log10(highest) - 1e-9);
    const y = (value) => {
      const share = (Math.log10(Math.max(value, 10 ** least)) - least) / (most - least);
      return height - BOTTOM - share * (height - BOTTOM - TOP);
    };
    const x = (index) => LEFT + (index / (points - 1)) * (width - LEFT - 6);
    const parts = [];
    for (let power = least; power <= most; power++) {
      const at = y(10 ** power);
      parts.push(svg("line", { class: "grid", x1: LEFT, x2: width - 6, y1: at, y2: at }));
      parts.push(label(LEFT - 8, at + 4, this.#format(10 ** power), "end"));
    }
    parts.push(label(LEFT, height - 3, "10 min ago", "start"), label(width - 6, height - 3, "now", "end"));
    series.forEach((one, number) => {
      const shift = points - one.values.length;
      let path = "";
      let pen = "M";
      one.values.forEach((value, index) => {
        if (value === null) {
          pen = "M"; // nothing was measured: a hole, not a zero
          return;
        }
        const place = `${x(index + shift).toFixed(1)} ${y(value).toFixed(1)}`;
        path += pen === "M" ? `M${place}h0` : `L${place}`;
        pen = "L";
      });
      parts.push(svg("path", { class: `series series-${number}`, d: path }));
    });
    this.#plot.replaceChildren(...parts);
  }
}

/** Lines over any time: `update(series, start, end)`. Linear from 0 up, or by orders of magnitude. */
export class TimeChart {
  #format;
  #log;
  #size = [640, 190];
  #plot = svg("g");

  /** @param {(value: number) => string} format @param {string} about
   *  @param {{least?: number}} [options] `least`: a power of ten, of a chart by orders of magnitude */
  constructor(format, about, { least } = {}) {
    this.#format = format;
    this.#log = least === undefined ? null : Math.log10(least);
    const [width, height] = this.#size;
    this.node = svg("svg", { class: "chart", viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": about }, this.#plot);
  }

  /** @param {(number | null)[][]} series @param {number} start @param {number} end seconds since 1970 */
  update(series, start, end) {
    const [width, height] = this.#size;
    const highest = Math.max(...series.flat().map((value) => value ?? 0));
    const marks = this.#log === null ? steps(highest) : powers(this.#log, highest);
    const [low, high] = [marks[0], marks[marks.length - 1]];
    const share = (value) => {
      if (this.#log === null) return value / high;
      return (Math.log10(Math.max(value, low)) - this.#log) / (Math.log10(high) - this.#log);
    };
    const y = (value) => height - BOTTOM - share(value) * (height - BOTTOM - TOP);
    const parts = [];
    for (const [index, mark] of marks.entries()) {
      parts.push(svg("line", { class: "grid", x1: LEFT, x2: width - 6, y1: y(mark), y2: y(mark) }));
      // Of many lines, a phone has room for every second name.
      parts.push(label(LEFT - 8, y(mark) + 4, this.#format(mark), "end", marks.length > 6 && index % 2 ? "minor" : null));
    }
    for (const [part, anchor] of [[0, "start"], [0.25, "middle"], [0.5, "middle"], [0.75, "middle"], [1, "end"]]) {
      const at = LEFT + part * (width - LEFT - 6);
      parts.push(label(at, height - 3, when(start + part * (end - start), end - start), anchor, part % 0.5 ? "minor" : null));
    }
    series.forEach((values, number) => {
      const x = (index) => LEFT + ((index + 0.5) / values.length) * (width - LEFT - 6);
      let path = "";
      let pen = "M";
      values.forEach((value, index) => {
        if (value === null) {
          pen = "M"; // nothing was measured: a hole, not a zero
          return;
        }
        const place = `${x(index).toFixed(1)} ${y(value).toFixed(1)}`;
        path += pen === "M" ? `M${place}h0` : `L${place}`;
        pen = "L";
      });
      parts.push(svg("path", { class: `series series-${number}`, d: path }));
    });
    this.#plot.replaceChildren(...parts);
  }
}

/** 0 and three or four round numbers up to at least `highest`. */
function steps(highest) {
  const rough = Math.max(highest, 1e-9) / 4;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 2.5, 5, 10].map((one) => one * power).find((one) => one >= rough);
  const count = Math.max(1, Math.ceil(highest / step - 1e-9));
  return highest > 0 ? Array.from({ length: count + 1 }, (_, index) => index * step) : [0, 1];
}

function powers(least, highest) {
  const most = Math.max(least + 2, Math.ceil(Math.log10(Math.max(highest, 1e-12)) - 1e-9));
  return Array.from({ length: most - least + 1 }, (_, index) => 10 ** (least + index));
}

/** A time on an axis that spans so many seconds. */
function when(time, span) {
  const date = new Date(time * 1000);
  const two = (value) => String(value).padStart(2, "0");
  const clock = `${two(date.getHours())}:${two(date.getMinutes())}`;
  if (span <= 3600) return `${clock}:${two(date.getSeconds())}`;
  return span <= 86400 * 1.5 ? clock : `${two(date.getMonth() + 1)}-${two(date.getDate())} ${clock}`;
}

/** How many fell between two bounds: `update(bounds, counts)`. */
export class Bars {
  #format;
  #size = [640, 180];
  #plot = svg("g");

  /** @param {(value: number) => string} format @param {string} about */
  constructor(format, about) {
    this.#format = format;
    const [width, height] = this.#size;
    this.node = svg("svg", { class: "chart", viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": about }, this.#plot);
  }

  /** @param {number[]} bounds @param {number[]} counts one more than bounds: what is above the last */
  update(bounds, counts) {
    const [width, height] = this.#size;
    const top = Math.max(...counts, 1);
    const slot = (width - 4) / counts.length;
    const parts = [];
    counts.forEach((count, index) => {
      const size = count ? Math.max(2, (count / top) * (height - 40)) : 0;
      const left = 2 + index * slot;
      const bar = svg("rect", { class: "bar-of", x: left + 2, y: height - 20 - size, width: slot - 4, height: size });
      const said = index < bounds.length ? `≤ ${this.#format(bounds[index])}` : "more";
      bar.append(svg("title", {}));
      say(bar.firstChild, `${said}: ${count}`);
      parts.push(bar);
      if (count) parts.push(label(left + slot / 2, height - 26 - size, compact(count), "middle"));
      const under = index < bounds.length ? tight(this.#format(bounds[index])) : "more";
      const anchor = index ? "middle" : "start"; // the first must not be cut
      parts.push(label(index ? left + slot / 2 : left, height - 5, under, anchor, index % 3 ? "minor" : null));
    });
    parts.push(svg("line", { class: "grid", x1: 2, x2: width - 2, y1: height - 20, y2: height - 20 }));
    this.#plot.replaceChildren(...parts);
  }
}

function compact(count) {
  const [size, unit] = count >= 1e6 ? [1e6, "M"] : [1e3, "k"];
  return count < 1e3 ? String(count) : `${(count / size).toFixed(count < 10 * size ? 1 : 0)}${unit}`;
}

const tight = (text) => text.replace("\u202f", "");

function label(x, y, text, anchor, kind = null) {
  const node = svg("text", { x, y, "text-anchor": anchor, class: kind });
  say(node, text);
  return node;
}
