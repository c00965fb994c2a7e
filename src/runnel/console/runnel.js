// @ts-check
/**
 * runnel.js: follow and publish records from a web page. No dependency, no build.
 *
 *     import { subscribe, publish } from "/runnel.js";
 *
 *     for await (const record of subscribe("jobs.42", { start: "earliest" })) show(record.value);
 *     await publish("greetings", { hello: "world" });
 *
 * A subscription comes back by itself when the line breaks or the server restarts, and goes on right behind the
 * last record: no gap, no duplicate. What can no longer be had is reported as a gap. It reads as fast as the page takes
 * records, and no faster. Types are in runnel.d.ts; the reference is docs/reference/runnel-js.md.
 *
 * @typedef {import("./runnel.d.ts").Record} Record
 * @typedef {import("./runnel.d.ts").State} State
 * @typedef {import("./runnel.d.ts").SubscribeOptions} SubscribeOptions
 * @typedef {import("./runnel.d.ts").PublishOptions} PublishOptions
 * @typedef {import("./runnel.d.ts").Position} Position
 * @typedef {{name: string, data: string, id: string}} Event
 */

const SILENCE = 45_000; // milliseconds without a byte (the server sends some every 15 s): the line is dead
const RETRY = 2_000; // milliseconds before coming back, until the server says
const LONGEST = 30_000; // milliseconds between two tries, at most
const PATIENCE = 60_000; // milliseconds that a publish is tried again; the server knows its key for two minutes
const AGAIN = [408, 425, 429, 500, 502, 503, 504]; // statuses after which the same request may succeed
const MANY = /ndjson|jsonl|cloudevents-batch/i; // bodies of many records, which no single key can name
export const HERE = import.meta.url ? new URL("./", import.meta.url).href : ""; // a bundle may know no place

/** What went wrong: `code` is the same everywhere in runnel, and listed in its reference of errors. */
export class RunnelError extends Error {
  /** @param {string} code @param {string} message
   *  @param {{status?: number, retryAfter?: number, cause?: unknown}} [more] */
  constructor(code, message, { status = 0, retryAfter = 0, cause } = {}) {
    super(message, { cause });
    this.name = "RunnelError";
    this.code = code;
    /** The HTTP status; 0 if there was no answer. */
    this.status = status;
    /** Milliseconds that the server wants to be left alone. */
    this.retryAfter = retryAfter;
  }
}

/** `subscribe` and `publish` of the server at `base`, the address that its routes are below.
 *  @param {string | URL} base @param {{request?: RequestInit}} [defaults] */
export function connect(base, defaults = {}) {
  const url = String(base);
  return {
    url,
    /** @param {string | string[]} topics @param {SubscribeOptions} [options] */
    subscribe: (topics, options) => subscribe(topics, { url, ...defaults, ...options }),
    /** @param {string} topic @param {unknown} value @param {PublishOptions} [options] */
    publish: (topic, value, options) => publish(topic, value, { url, ...defaults, ...options }),
  };
}

/** Follow topics: names or patterns. Records come to `onRecord`, or to a `for await` over what is returned.
 *  @param {string | string[]} topics @param {SubscribeOptions} [options] */
export function subscribe(topics, options = {}) {
  return new Subscription(topics, options);
}

/** Publish one record. Resolves with its position once it is durable; tries again, with the same key, until then.
 *  @param {string} topic @param {unknown} value @param {PublishOptions} [options] @returns {Promise<Position>} */
export async function publish(topic, value, options = {}) {
  const { key, headers = {}, contentType, url = HERE, timeout = PATIENCE, signal, request = {} } = options;
  const [body, kind] = encoded(value, contentType);
  const { idempotencyKey = MANY.test(kind) ? null : randomKey() } = options;
  const sent = new Headers(request.headers);
  sent.set("content-type", kind);
  if (idempotencyKey !== null) sent.set("idempotency-key", idempotencyKey);
  if (key !== undefined) sent.set("runnel-key", percent(key));
  for (const [name, text] of Object.entries(headers)) sent.set(`runnel-header-${name}`, percent(text));
  const address = new URL(`topics/${percent(topic)}`, folder(url));
  const deadline = performance.now() + timeout;
  let unknown = false; // whether a try may have been stored without our hearing of it
  for (let tries = 0; ; tries++) {
    let failure;
    try {
      const left = Math.max(1, Math.min(deadline - performance.now(), timeout / 3));
      const either = AbortSignal.any([AbortSignal.timeout(left), ...(signal ? [signal] : [])]);
      const response = await fetch(address, { ...request, method: "POST", headers: sent, body, signal: either });
      if (response.ok) return await response.json();
      failure = await refusal(response);
      if (!AGAIN.includes(failure.status)) throw failure;
    } catch (error) {
      signal?.throwIfAborted();
      if (error === failure) throw error;
      unknown = true;
      const why = `no answer from ${address}: it may be stored or not`;
      failure = new RunnelError("outcome_unknown", why, { cause: error });
    }
    const wait = backoff(RETRY / 8, tries, failure.retryAfter);
    if (idempotencyKey === null || performance.now() + wait > deadline) {
      if (!unknown || failure.code === "outcome_unknown") throw failure;
      throw new RunnelError("outcome_unknown", failure.message, { status: failure.status, cause: failure });
    }
    await sleep(wait, signal);
    signal?.throwIfAborted();
  }
}

/** What `subscribe` returns: an async iterable of records, with a state. */
export class Subscription {
  /** @type {State} */ #state = "connecting";
  /** @type {SubscribeOptions} */ #options;
  #address;
  #life = new AbortController();
  /** @type {ReadableStreamDefaultReader<Uint8Array> | null} */ #reader = null;
  /** @type {AbortController | null} */ #attempt = null;
  #parser = new Parser();
  /** @type {Event[]} */ #events = []; // of the last bytes read; no more are read until the page has had these
  #next = 0;
  #given = ""; // the id of the record that the page is working on
  #lastEventId;
  #failures = 0;
  #store;
  /** @type {Promise<unknown>} */ #turn;
  /** @type {unknown} */ #error = null;
  /** @type {(error: unknown) => void} */ #settle = () => {};

  /** @param {string | string[]} topics @param {SubscribeOptions} options */
  constructor(topics, options) {
    this.#options = options;
    this.#address = new URL("events", folder(options.url ?? HERE));
    const query = this.#address.searchParams;
    for (const topic of [topics].flat()) query.append("topic", topic);
    for (const key of [options.key ?? []].flat()) query.append("key", key);
    const start = options.start;
    if (start !== undefined) query.set("start", start instanceof Date ? start.toISOString() : String(start));
    if (options.policy !== undefined) query.set("policy", options.policy);
    if (options.buffer !== undefined) query.set("buffer", String(options.buffer));
    if (options.bufferBytes !== undefined) query.set("buffer_bytes", String(options.bufferBytes));
    if (options.strict !== undefined) query.set("strict", String(options.strict));
    this.#store = `runnel:${this.#address}`;
    this.#lastEventId = options.lastEventId ?? options.store?.getItem(this.#store) ?? "";
    options.signal?.addEventListener("abort", () => this.close(), { once: true, signal: this.#life.signal });
    /** Resolves when it is over; rejects with the error that ended it. @type {Promise<void>} */
    this.finished = new Promise((resolve, reject) => (this.#settle = (error) => (error ? reject(error) : resolve())));
    if (!options.onRecord || options.onState) this.finished.catch(() => {}); // it is reported in another way as well
    if (options.signal?.aborted) this.close();
    this.#turn = this.#fill(); // connects at once, whenever the first record is asked for
    if (options.onRecord) this.#pump(options.onRecord);
  }

  /** "connecting", "open", "waiting" (to try again) or "closed". */
  get state() {
    return this.#state;
  }

  /** The id of the last event that the page is done with, to go on from: see the option of that name. */
  get lastEventId() {
    return this.#lastEventId;
  }

  /** End it. What waits for a record gets the end. */
  close() {
    this.#end(null);
  }

  [Symbol.asyncIterator]() {
    if (this.#options.onRecord) {
      throw new RunnelError("subscription_misused", "its records go to onRecord: leave that out to iterate");
    }
    return this;
  }

  /** @returns {Promise<IteratorResult<Record, undefined>>} */
  next() {
    const turn = this.#turn.then(() => this.#take()); // one after the other, however often it is called
    this.#turn = turn.catch((error) => this.#end(error));
    return turn;
  }

  /** @returns {Promise<IteratorResult<Record, undefined>>} */
  async return() {
    this.#done(this.#given);
    this.close();
    return { done: true, value: undefined };
  }

  /** @returns {Promise<IteratorResult<Record, undefined>>} */
  async #take() {
    this.#done(this.#given); // who asks for the next is done with the one before
    for (;;) {
      if (this.#error) throw this.#error;
      if (this.#state === "closed") return { done: true, value: undefined };
      if (this.#next === this.#events.length) {
        await this.#fill();
        continue;
      }
      const event = this.#events[this.#next++];
      if (event.name === "message" && event.data) {
        this.#given = event.id;
        return { done: false, value: recordOf(event) };
      }
      await this.#told(event);
      this.#done(event.id);
    }
  }

  /** What is no record. @param {Event} event */
  async #told({ name, data }) {
    if (name === "ready") {
      this.#failures = 0;
      this.#become("open");
    } else if (name === "gap") {
      const gap = JSON.parse(data);
      if (this.#options.onGap) await this.#options.onGap(gap);
      else console.warn(`runnel: records of ${gap.topic} are missing: ${gap.reason}`);
    } else if (name === "end") {
      const { code, detail } = JSON.parse(data);
      await this.#lost(new RunnelError(code, detail));
    }
  }

  /** Read some bytes: connects first where that is needed, and afterwards there may still be no event. */
  async #fill() {
    if (this.#state === "closed") return;
    const attempt = (this.#attempt ??= new AbortController());
    // Only while something is awaited from the server: a page that takes its time is no silent line.
    const silent = () => attempt.abort(new RunnelError("connection_lost", "the server was silent"));
    const timer = setTimeout(silent, SILENCE);
    try {
      this.#reader ??= await this.#open(attempt);
      const { done, value } = await this.#reader.read();
      if (done) throw new RunnelError("connection_lost", "the server ended the stream");
      this.#events = this.#parser.feed(value);
      this.#next = 0;
    } catch (error) {
      const known = error instanceof RunnelError;
      await this.#lost(known ? error : new RunnelError("connection_lost", String(error), { cause: error }));
    } finally {
      clearTimeout(timer);
    }
  }

  /** @param {AbortController} attempt */
  async #open(attempt) {
    this.#become("connecting");
    const { request = {}, ticket } = this.#options;
    const headers = new Headers(request.headers);
    const address = new URL(this.#address);
    if (ticket) address.searchParams.set("ticket", await ticket()); // works once: a new one for every connection
    headers.set("accept", "text/event-stream");
    if (this.#lastEventId) headers.set("last-event-id", this.#lastEventId);
    const signal = AbortSignal.any([attempt.signal, this.#life.signal]);
    const response = await fetch(address, { ...request, headers, signal, cache: "no-store" });
    if (!response.ok || !response.body) throw await refusal(response);
    if (!response.headers.get("content-type")?.startsWith("text/event-stream")) {
      attempt.abort();
      throw new RunnelError("protocol_error", `${this.#address} is no event stream`, { status: response.status });
    }
    this.#parser = new Parser();
    return response.body.getReader();
  }

  /** The line is lost: wait, so that the next call connects, or give up if waiting is of no use.
   *  @param {RunnelError} error */
  async #lost(error) {
    this.#attempt?.abort();
    this.#attempt = this.#reader = null;
    if (this.#state === "closed") return;
    if (error.status && !AGAIN.includes(error.status)) {
      this.#end(error);
      return;
    }
    const wait = backoff(this.#parser.retry, this.#failures++, error.retryAfter);
    this.#become("waiting", { error, retryIn: wait });
    await sleep(wait, this.#life.signal);
  }

  /** @param {(record: Record) => unknown} onRecord */
  async #pump(onRecord) {
    try {
      for (let one = await this.next(); !one.done; one = await this.next()) await onRecord(one.value);
    } catch (error) {
      this.#end(error); // and the record that onRecord failed at is not done with
    }
  }

  /** @param {unknown} error */
  #end(error) {
    if (this.#state === "closed") return;
    this.#error = error;
    this.#become("closed", error ? { error } : {});
    this.#life.abort();
    this.#settle(error);
  }

  /** @param {State} state @param {{error?: unknown, retryIn?: number}} [detail] */
  #become(state, detail = {}) {
    if (state === this.#state && state !== "waiting" && state !== "connecting") return;
    this.#state = state;
    this.#options.onState?.(state, detail);
  }

  /** @param {string} id */
  #done(id) {
    this.#given = "";
    if (!id || id === this.#lastEventId) return;
    this.#lastEventId = id;
    this.#options.store?.setItem(this.#store, id);
  }
}

/** Server-sent events, as the standard has them: fed with bytes, it returns the events that are whole. */
class Parser {
  retry = RETRY;
  #decoder = new TextDecoder();
  /** @type {string[]} */ #line = []; // the pieces of one that is not whole
  #afterReturn = false;
  #name = "";
  /** @type {string[]} */ #data = [];
  #id = "";

  /** @param {Uint8Array} bytes @returns {Event[]} */
  feed(bytes) {
    let text = this.#decoder.decode(bytes, { stream: true });
    if (!text) return [];
    if (this.#afterReturn && text[0] === "\n") text = text.slice(1);
    this.#afterReturn = text ? text.endsWith("\r") : false;
    const lines = text.split(/\r\n|\r|\n/);
    const rest = lines.pop() ?? "";
    if (lines.length) {
      lines[0] = this.#line.join("") + lines[0];
      this.#line = [];
    }
    this.#line.push(rest);
    return lines.flatMap((line) => this.#read(line));
  }

  /** @param {string} line @returns {Event[]} */
  #read(line) {
    if (!line) {
      const event = { name: this.#name || "message", data: this.#data.join("\n"), id: this.#id };
      this.#name = "";
      this.#data = [];
      return [event];
    }
    const colon = line.indexOf(":");
    const field = colon < 0 ? line : line.slice(0, colon);
    const value = colon < 0 ? "" : line.slice(line[colon + 1] === " " ? colon + 2 : colon + 1);
    if (field === "data") this.#data.push(value);
    else if (field === "event") this.#name = value;
    else if (field === "id" && !value.includes("\0")) this.#id = value;
    else if (field === "retry" && /^\d+$/.test(value)) this.retry = Number(value);
    return [];
  }
}

// What follows and is exported is for runnel-socket.js, no other module: it has no types, and may change.

/** @param {Event} event @returns {Record} */
export function recordOf({ data, id }) {
  // A record of HTTP has `value`, a message of JSON lines `payload`.
  const { payload, value: sent = payload, encoding, key = null, key_encoding, headers = {}, time, ...place } = JSON.parse(data);
  const text = encoding ? null : sent;
  let value = encoding ? bytesOf(sent) : sent;
  if (text !== null && /^\s*[[{"\-\dtfn]/.test(text)) {
    try {
      value = JSON.parse(text);
    } catch {} // a text that looked like JSON
  }
  return { ...place, time: new Date(time), key: key_encoding ? bytesOf(key) : key, value, text, headers, id };
}

/** @param {string} base64 */
export const bytesOf = (base64) => Uint8Array.from(atob(base64), (character) => character.charCodeAt(0));

/** @param {unknown} value @param {string} [kind] @returns {[BodyInit, string]} */
function encoded(value, kind) {
  if (typeof value === "string") return [value, kind ?? "text/plain; charset=utf-8"];
  if (value instanceof Blob || value instanceof ArrayBuffer || ArrayBuffer.isView(value)) {
    return [/** @type {BodyInit} */ (value), kind ?? "application/octet-stream"];
  }
  return [jsonOf(value), kind ?? "application/json"];
}

/** @param {unknown} value @returns {string} */
export function jsonOf(value) {
  let json;
  try {
    json = JSON.stringify(value);
  } catch (error) {
    throw new RunnelError("invalid_value", String(error), { cause: error }); // a BigInt, or a circle
  }
  if (json === undefined) throw new RunnelError("invalid_value", `${typeof value} is nothing that JSON can hold`);
  return json;
}

/** @param {string | Uint8Array} text */
function percent(text) {
  try {
    if (typeof text === "string") return encodeURIComponent(text);
  } catch (error) {
    throw new RunnelError("invalid_value", "half of a surrogate pair is no text", { cause: error });
  }
  return Array.from(text, (byte) => `%${byte.toString(16).padStart(2, "0")}`).join("");
}

// Not crypto.randomUUID: a page that came over plain HTTP from another machine has none.
export const randomKey = () => percent(crypto.getRandomValues(new Uint8Array(16))).replaceAll("%", "");

/** The address that the routes of a server are below. @param {string | URL} url */
export function folder(url) {
  let base = null;
  try {
    base = new URL(url, globalThis.location?.href);
  } catch {} // no address at all
  if (!base || !/^https?:$/.test(base.protocol)) {
    const listener = "of the HTTP listener of a server, such as http://127.0.0.1:7780";
    throw new RunnelError("invalid_value", `"${url}" is no address ${listener}`);
  }
  if (!base.pathname.endsWith("/")) base.pathname += "/";
  return base;
}

/** The error that an answer tells of. @param {Response} response */
async function refusal(response) {
  const { status, url } = response;
  const problem = await response.json().catch(() => null);
  const said = response.headers.get("retry-after") ?? "";
  const retryAfter = Math.max(0, /^\d+$/.test(said) ? Number(said) * 1000 : Date.parse(said) - Date.now()) || 0;
  const code = problem?.code ?? (status >= 500 ? "unreachable" : "protocol_error");
  return new RunnelError(code, problem?.detail ?? `${url} answers ${status}`, { status, retryAfter });
}

/** Milliseconds until the next try: more with each failure, never the same twice. @param {number} base
 *  @param {number} failures @param {number} least */
export const backoff = (base, failures, least) =>
  least + Math.min(LONGEST, base * 2 ** failures) * (0.5 + Math.random() / 2);

/** Wait; no longer than until `signal`, or until the browser is online again.
 *  @param {number} milliseconds @param {AbortSignal} [signal] @returns {Promise<void>} */
export function sleep(milliseconds, signal) {
  return new Promise((resolve) => {
    const over = new AbortController();
    const wake = () => {
      clearTimeout(timer);
      over.abort();
      resolve();
    };
    const timer = setTimeout(wake, milliseconds);
    signal?.addEventListener("abort", wake, { signal: over.signal });
    globalThis.addEventListener?.("online", wake, { signal: over.signal });
    if (signal?.aborted) wake();
  });
}
