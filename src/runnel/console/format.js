// Numbers, sizes and times as people read them.

const WHOLE = new Intl.NumberFormat("en");
const UNITS = ["B", "kB", "MB", "GB", "TB", "PB"];

/** @param {number} value */
export const whole = (value) => WHOLE.format(Math.round(value));

/** Short: 950, 12.3 k, 4.56 M. @param {number | null | undefined} value */
export function short(value) {
  if (value === null || value === undefined) return "–";
  for (const [size, unit] of [[1e12, "T"], [1e9, "G"], [1e6, "M"], [1e4, "k"]]) {
    if (value >= size) return `${digits(unit === "k" ? value / 1e3 : value / size)}\u202f${unit}`;
  }
  return whole(value);
}

/** Of a rate: small ones have a decimal. @param {number | null | undefined} value */
export function rate(value) {
  if (value === null || value === undefined) return "–";
  return value > 0 && value < 10 ? trimmed(value, 1) : short(value);
}

/** @param {number | null | undefined} value */
export function bytes(value) {
  if (value === null || value === undefined) return "–";
  let unit = 0;
  while (value >= 1000 && unit < UNITS.length - 1) {
    value /= 1000;
    unit++;
  }
  return `${unit ? digits(value) : value}\u202f${UNITS[unit]}`;
}

/** Of seconds: 250 µs, 4 ms, 3.2 s, 5 min, 2 h, 7 d. @param {number | null | undefined} seconds */
export function duration(seconds) {
  if (seconds === null || seconds === undefined || seconds === Infinity) return "–";
  if (seconds === 0) return "0\u202fs";
  if (seconds < 1e-3) return `${digits(seconds * 1e6)}\u202fµs`;
  if (seconds < 1) return `${digits(seconds * 1e3)}\u202fms`;
  for (const [size, unit] of [[86400, "d"], [3600, "h"], [60, "min"]]) {
    if (seconds >= size) return `${digits(seconds / size)}\u202f${unit}`;
  }
  return `${digits(seconds)}\u202fs`;
}

const digits = (value) => (value >= 100 ? value.toFixed(0) : value >= 10 ? trimmed(value, 1) : trimmed(value, 2));
const trimmed = (value, places) => value.toFixed(places).replace(/\.?0+$/, "");

/** The time of day, to the millisecond. @param {Date} time */
export function clock(time) {
  const two = (value) => String(value).padStart(2, "0");
  const milliseconds = String(time.getMilliseconds()).padStart(3, "0");
  return `${two(time.getHours())}:${two(time.getMinutes())}:${two(time.getSeconds())}.${milliseconds}`;
}

/** Day and time. @param {Date} time */
export function moment(time) {
  const two = (value) => String(value).padStart(2, "0");
  const day = `${time.getFullYear()}-${two(time.getMonth() + 1)}-${two(time.getDate())}`;
  return `${day} ${two(time.getHours())}:${two(time.getMinutes())}:${two(time.getSeconds())}`;
}

/** What a topic keeps, in words. @param {Record<string, any>} kept */
export function retention(kept) {
  const parts = [];
  if (kept.age !== undefined) parts.push(duration(kept.age));
  if (kept.count !== undefined) parts.push(`${short(kept.count)} records`);
  if (kept.bytes !== undefined) parts.push(bytes(kept.bytes));
  if (kept.compact) parts.push("newest of each key");
  if (kept.until) parts.push(`until ${kept.until}`);
  return parts.length ? parts.join(", ") : "everything";
}

/** One and many. @param {number} count @param {string} one @param {string} [many] */
export const counted = (count, one, many = `${one}s`) => `${whole(count)} ${count === 1 ? one : many}`;

const SHOWN = 64 * 1024;

/** A payload or key as text: UTF-8 as it is, other bytes in hex, both cut at a bound.
 *  @param {string | Uint8Array | null} value @param {number} [most] */
export function payload(value, most = SHOWN) {
  if (value === null) return { text: "", cut: false, size: 0, binary: false };
  if (typeof value === "string") {
    const size = value.length > most ? new Blob([value]).size : new TextEncoder().encode(value).length;
    return { text: value.slice(0, most), cut: value.length > most, size, binary: false };
  }
  const shown = Array.from(value.subarray(0, most / 4), (byte) => byte.toString(16).padStart(2, "0"));
  return { text: shown.join(" "), cut: value.length > most / 4, size: value.length, binary: true };
}
