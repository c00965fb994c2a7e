// A candlestick chart of one symbol, in SVG. A candle that rose is hollow, one that fell is filled: colour is not all.

const SHOWN = 36; // candles
const WIDTH = 560;
const HEIGHT = 240;
const RIGHT = 58; // for prices
const PRICES = 172; // the height that prices have; volumes are below, then times
const VOLUMES = { top: 184, height: 34 };

const money = (value) => value.toFixed(2);
const clock = (start) => new Date(start).toLocaleTimeString([], { hour12: false });

function make(name, className = "", text = "") {
  const made = document.createElement(name);
  made.className = className;
  made.textContent = text;
  return made;
}

function svg(name, attributes, text) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text !== undefined) made.textContent = text;
  return made;
}

/** Round prices between two, about five of them. */
function ticks(low, high) {
  const rough = (high - low) / 5 || 1;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((one) => one * power).find((one) => one >= rough);
  const found = [];
  for (let at = Math.ceil(low / step) * step; at <= high; at += step) found.push(at);
  return found;
}

export class Chart {
  constructor(symbol) {
    this.symbol = symbol;
    this.candles = new Map(); // by start
    this.pointed = null; // the start of the candle that the mouse is on
    this.element = make("article", "card chart");
    const head = make("header");
    this.price = make("span", "price");
    this.change = make("span", "change");
    this.details = make("span", "quiet details");
    head.append(make("h2", "", symbol), this.price, this.change, this.details);
    this.picture = svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img" });
    this.element.append(head, this.picture);
    this.picture.addEventListener("pointermove", (event) => this.point(event));
    this.picture.addEventListener("pointerleave", () => {
      this.pointed = null;
      this.draw();
    });
  }

  put(candle) {
    this.candles.set(candle.start, candle);
    if (this.candles.size > 4 * SHOWN) {
      const old = [...this.candles.keys()].sort((a, b) => a - b).slice(0, -SHOWN);
      for (const start of old) this.candles.delete(start);
    }
  }

  shown() {
    return [...this.candles.values()].sort((a, b) => a.start - b.start).slice(-SHOWN);
  }

  point(event) {
    const box = this.picture.getBoundingClientRect();
    const at = Math.floor(((event.clientX - box.left) / box.width) * (WIDTH / ((WIDTH - RIGHT) / SHOWN)));
    const candles = this.shown();
    const found = candles[at - (SHOWN - candles.length)]?.start ?? null;
    if (found === this.pointed) return;
    this.pointed = found;
    this.draw();
  }

  draw() {
    const candles = this.shown();
    if (!candles.length) return;
    const first = candles[0];
    const last = candles.at(-1);
    const change = last.close / first.open - 1;
    this.price.textContent = money(last.close);
    this.change.textContent = `${change < 0 ? "▼ −" : "▲ +"}${(Math.abs(change) * 100).toFixed(2)} %`;
    this.change.dataset.way = change < 0 ? "down" : "up";
    const chosen = candles.find((one) => one.start === this.pointed) ?? last;
    this.details.textContent =
      `${clock(chosen.start)}  O ${money(chosen.open)}  H ${money(chosen.high)}  L ${money(chosen.low)}  ` +
      `C ${money(chosen.close)}  V ${chosen.volume.toLocaleString()}`;
    this.picture.setAttribute(
      "aria-label",
      `${this.symbol}: ${candles.length} candles, the price is ${money(last.close)}, it was ${money(first.open)}`,
    );
    this.picture.replaceChildren(...this.parts(candles));
  }

  *parts(candles) {
    const low = Math.min(...candles.map((one) => one.low));
    const high = Math.max(...candles.map((one) => one.high));
    const spare = (high - low) * 0.06 || high * 0.001;
    const [bottom, top] = [low - spare, high + spare];
    const y = (price) => ((top - price) / (top - bottom)) * PRICES;
    const most = Math.max(...candles.map((one) => one.volume)) || 1;
    const step = (WIDTH - RIGHT) / SHOWN;
    const begin = (SHOWN - candles.length) * step; // the newest is at the right

    const now = candles.at(-1).close;
    for (const price of ticks(bottom, top)) {
      yield svg("line", { class: "grid", x1: 0, x2: WIDTH - RIGHT, y1: y(price), y2: y(price) });
      if (Math.abs(y(price) - y(now)) > 15) yield svg("text", { x: WIDTH - RIGHT + 8, y: y(price) + 4 }, money(price));
    }
    for (const [at, one] of candles.entries()) {
      const left = begin + at * step;
      const middle = left + step / 2;
      const way = one.close < one.open ? "down" : "up";
      if (one.start === this.pointed) yield svg("rect", { class: "pointed", x: left, y: 0, width: step, height: HEIGHT - 16 });
      const [upper, lower] = [y(Math.max(one.open, one.close)), y(Math.min(one.open, one.close))];
      yield svg("path", { class: `wick ${way}`, d: `M${middle} ${y(one.high)}V${upper}M${middle} ${lower}V${y(one.low)}` });
      const body = { x: left + 2, width: step - 4, y: upper, height: Math.max(1, lower - upper) };
      yield svg("rect", { class: `candle ${way}`, ...body });
      const height = Math.max(1, (one.volume / most) * VOLUMES.height);
      const place = { x: left + 2, width: step - 4, y: VOLUMES.top + VOLUMES.height - height, height };
      yield svg("rect", { class: `volume ${way}`, ...place });
      if (Math.round(one.start / 1000) % 30 === 0 && middle > 24 && middle < WIDTH - RIGHT - 20) {
        yield svg("text", { class: "time", x: middle, y: HEIGHT - 6 }, clock(one.start));
      }
    }
    yield svg("line", { class: "now", x1: 0, x2: WIDTH - RIGHT, y1: y(now), y2: y(now) });
    yield svg("rect", { class: "now", x: WIDTH - RIGHT + 2, y: y(now) - 9, width: RIGHT - 2, height: 18, rx: 4 });
    yield svg("text", { class: "now", x: WIDTH - RIGHT + 8, y: y(now) + 4 }, money(now));
  }
}
