// @ts-check
/**
 * runnel-socket.js: one WebSocket for everything: publish, subscribe, groups, requests, presence. No dependency, no build.
 *
 *     import { open } from "/runnel-socket.js";
 *
 *     const client = open("https://example.com", { token: () => freshToken() });
 *     for await (const record of client.subscribe("jobs.42", { start: "earliest" })) show(record.value);
 *
 * The connection comes back by itself. Then what was not answered is published again, once; subscriptions go on right
 * behind their last record, and groups are joined again. A page that follows a topic and publishes now and then
 * needs runnel.js only. Types are in runnel-socket.d.ts.
 *
 * @typedef {import("./runnel-socket.d.ts").OpenOptions} OpenOptions
 * @typedef {import("./runnel-socket.d.ts").State} State
 * @typedef {import("./runnel-socket.d.ts").StateDetail} StateDetail
 */

import { HERE, RunnelError, backoff, bytesOf, folder, jsonOf, randomKey, recordOf, sleep } from "./runnel.js";

const SILENCE = 10_000; // milliseconds without a message before a ping, and again before the connection counts as dead
const RETRY = 500; // milliseconds before the first try to connect again
const PATIENCE = 60_000; // milliseconds that a publish is tried; the server knows its message id for two minutes
const AHEAD = 256; // records that a subscription is sent ahead of its reader
const TOO_BIG = 1009; // the code with which a server closes at a message that is too large
const EXACT = BigInt(Number.MAX_SAFE_INTEGER);
const FATAL = ["not_authenticated", "token_expired", "access_revoked", "not_authorized"]; // trying again is of no use

/** A client of the server at `url`: of its HTTP listener, or of the prefix that its routes are below.
 *  @param {string | URL} [url] @param {OpenOptions} [options] */
export function open(url, options) {
  return new Client(url, options);
}

/** One connection, and all that is done over it. */
export class Client {
  /** @type {State} */ #state = "connecting";
  /** @type {OpenOptions} */ #options;
  #address;
  /** @type {any} */ #socket = null;
  /** @type {RunnelError | null} */ #failure = null;
  #life = new AbortController();
  #failures = 0;
  #ids = 0;
  /** Commands that wait for an answer, by id, in the order in which they were given.
   *  @type {Map<string, {line: string, again: boolean, settle: (event: any, error?: unknown) => void}>} */
  #calls = new Map();
  /** Calls with more than one event: subscriptions and presence, by id. @type {Map<string, Stream>} */
  #streams = new Map();
  /** @type {any} */ #watch = null;
  /** @type {any} */ #renewal = null;
  #heard = 0;
  #most = Infinity; // bytes of a message that the server takes
  /** @type {(() => void)[]} */ #waiting = [];

  /** @param {string | URL} [url] @param {OpenOptions} [options] */
  constructor(url = HERE, options = {}) {
    this.#address = new URL("ws", folder(String(url).replace(/^ws/i, "http")));
    this.#address.protocol = this.#address.protocol.replace("http", "ws");
    this.#options = options;
    options.signal?.addEventListener("abort", () => this.close(), { once: true });
    if (options.signal?.aborted) this.close();
    else this.#run();
  }

  /** "connecting", "open", "waiting" (to try again) or "closed". */
  get state() {
    return this.#state;
  }

  /** Resolves when it is connected and logged in; rejects if it is closed before. */
  async ready() {
    while (this.#state !== "open") {
      if (this.#state === "closed") throw this.#failure ?? closed();
      await /** @type {Promise<void>} */ (new Promise((resolve) => this.#waiting.push(resolve)));
    }
  }

  /** End it: the iterations of readers end, and unanswered calls fail. */
  close() {
    this.#end(null);
  }

  // -- what it does ------------------------------------------------------------------------------------------------

  /** Publish one record: text, bytes, or what JSON can hold. Resolves with its position once it is durable. After a
   *  lost connection it is sent again with the same message id, and stored once.
   *  @param {string} topic @param {unknown} value @param {import("./runnel-socket.d.ts").PublishOptions} [options] */
  async publish(topic, value, options = {}) {
    const { messageId = randomKey(), expectedOffset, timeout = PATIENCE, ...rest } = options;
    const again = expectedOffset === undefined;
    const more = { ...rest, message_id: messageId, expected_offset: expectedOffset };
    const command = { command: "PUB", topic, ...payloadOf(value), ...keyed(more) };
    const { epoch, offset } = await this.#ask(command, { again, timeout });
    return { topic, epoch, offset };
  }

  /** Publish a request, and return the reply: its value and headers.
   *  @param {string} topic @param {unknown} value @param {import("./runnel-socket.d.ts").RequestOptions} [options] */
  async request(topic, value, options = {}) {
    const { timeout = 5_000, ...rest } = options;
    const command = { command: "REQUEST", topic, ...payloadOf(value), ...keyed(rest), timeout: seconds(timeout) };
    const event = await this.#ask(command, { timeout: timeout + PATIENCE });
    return replyOf(event);
  }

  /** Publish a request, and return all replies that come within `timeout`, or the first `limit`.
   *  @param {string} topic @param {unknown} value
   *  @param {import("./runnel-socket.d.ts").RequestOptions & {limit?: number}} [options] */
  async requestMany(topic, value, options = {}) {
    const { timeout = 5_000, limit = 1000, ...rest } = options;
    const command = { command: "REQUEST", topic, ...payloadOf(value), ...keyed(rest), timeout: seconds(timeout), limit };
    const { replies, failures } = await this.#ask(command, { timeout: timeout + PATIENCE });
    return { replies: replies.map(replyOf), failures };
  }

  /** Answer a request; false if the requester no longer waits.
   *  @param {{headers: {[name: string]: string}}} record @param {unknown} value
   *  @param {{headers?: {[name: string]: string}}} [options] @returns {Promise<boolean>} */
  async reply(record, value, { headers } = {}) {
    const reply_to = record.headers["runnel-reply-to"];
    if (!reply_to) throw new RunnelError("invalid_value", "the record is no request: it has no reply address");
    return (await this.#ask({ command: "REPLY", reply_to, ...payloadOf(value), headers })).taken;
  }

  /** Follow a topic or pattern: an async iterable of records.
   *  @param {string} topic @param {import("./runnel-socket.d.ts").SubscribeOptions} [options] */
  subscribe(topic, options = {}) {
    return new SocketSubscription(this.#link, topic, options);
  }

  /** Join a group: an async iterable of deliveries, to be settled with `ack`, `nack` or `reject`.
   *  @param {string} topic @param {string} group @param {import("./runnel-socket.d.ts").GroupOptions} [options] */
  group(topic, group, options = {}) {
    return new GroupMember(this.#link, topic, group, options);
  }

  /** Who is subscribed to a topic now. @param {string} topic */
  async members(topic) {
    const { members } = await this.#ask({ command: "PRESENCE", topic, watch: false }, { again: true });
    return members.map(memberOf);
  }

  /** Who is subscribed, then who comes and goes: an async iterable of `{event, member}`. @param {string} topic */
  presence(topic) {
    return new PresenceWatch(this.#link, topic);
  }

  // -- what streams use of it -----------------------------------------------------------------------------------------

  #link = {
    /** @param {Stream} stream */
    begin: (stream) => {
      const id = `s${++this.#ids}`;
      if (this.#state === "closed") return stream.end(this.#failure);
      this.#streams.set(id, stream);
      stream.id = id;
      if (this.#state === "open") this.#begin(stream);
    },
    /** @param {Stream} stream */
    leave: (stream) => {
      if (this.#streams.delete(stream.id) && this.#state === "open") this.#send({ command: "UNSUB", id: stream.id });
    },
    /** @param {object} command */
    tell: (command) => this.#state === "open" && this.#send(command),
    /** @param {object} command */
    ask: (command) => this.#ask(command),
    /** Counts connections, so that a delivery knows whether it is of this one. */
    life: () => this.#lives,
  };
  #lives = 0;

  /** @param {object} command @param {{again?: boolean, timeout?: number}} [how] @returns {Promise<any>} */
  #ask(command, { again = false, timeout = PATIENCE } = {}) {
    return new Promise((resolve, reject) => {
      if (this.#state === "closed") return reject(this.#failure ?? closed());
      seconds(timeout); // refuses what is no number
      const id = `c${++this.#ids}`;
      const timer = setTimeout(() => {
        this.#calls.delete(id);
        reject(new RunnelError(again ? "outcome_unknown" : "no_answer", "the server did not answer in time"));
      }, timeout);
      /** @param {any} event @param {unknown} [error] */
      const settle = (event, error) => {
        clearTimeout(timer);
        this.#calls.delete(id);
        if (error) reject(error);
        else resolve(event);
      };
      const call = { line: JSON.stringify({ ...command, id }), again, settle };
      this.#calls.set(id, call);
      if (this.#state === "open") this.#call(call);
    });
  }

  /** @param {{line: string, settle: (event: any, error?: unknown) => void}} call */
  #call({ line, settle }) {
    if (line.length * 3 > this.#most && new TextEncoder().encode(line).length > this.#most) settle(null, tooLarge(this.#most));
    else this.#socket.send(line);
  }

  /** @param {object} command */
  #send(command) {
    this.#socket.send(JSON.stringify(command));
  }

  // -- the connection -------------------------------------------------------------------------------------------------

  async #run() {
    while (this.#state !== "closed") {
      let error;
      try {
        await this.#live();
        error = new RunnelError("connection_lost", "the connection was closed");
      } catch (failure) {
        error = failure instanceof RunnelError ? failure : new RunnelError("connection_lost", String(failure));
      }
      if (this.#is("closed")) return;
      if (FATAL.includes(error.code) && typeof this.#options.token !== "function") return this.#end(error);
      if (FATAL.includes(error.code) && this.#failures >= 3) return this.#end(error); // new tokens are refused as well
      this.#lost();
      const wait = backoff(RETRY, this.#failures++, 0);
      this.#become("waiting", { error, retryIn: wait });
      await sleep(wait, this.#life.signal);
    }
  }

  /** @param {State} state */
  #is(state) {
    return this.#state === state;
  }

  /** Connect, and return when the connection is over. */
  async #live() {
    this.#become("connecting");
    const { token, WebSocket: Given } = this.#options;
    const Kind = Given ?? globalThis.WebSocket ?? (await ofNode());
    const said = typeof token === "function" ? await token() : token;
    if (this.#is("closed")) return;
    const socket = (this.#socket = new Kind(String(this.#address)));
    try {
      await new Promise((resolve, reject) => {
        this.#heard = Date.now();
        this.#watch = setInterval(() => this.#listen(reject), SILENCE / 4);
        socket.onerror = (/** @type {any} */ event) => reject(new RunnelError("unreachable", reason(event, socket.url)));
        socket.onclose = (/** @type {any} */ event) => {
          if (event.code === TOO_BIG) this.#refused();
          if (event.wasClean) resolve(null);
          else reject(new RunnelError("connection_lost", `closed with ${event.code}`));
        };
        socket.onmessage = (/** @type {any} */ { data }) => {
          this.#heard = Date.now();
          const event = JSON.parse(data);
          if (!this.#is("connecting")) this.#take(event);
          else if (event.event === "error") reject(new RunnelError(event.code, event.message));
          else if (event.event === "info") {
            this.#most = event.limits.max_line;
            this.#opened(said);
          }
        };
        socket.onopen = () => {
          if (said !== undefined) this.#send({ command: "AUTH", token: said });
          this.#send({ command: "INFO" }); // answered once it is logged in
        };
      });
    } finally {
      clearInterval(this.#watch);
      clearTimeout(this.#renewal);
      socket.onopen = socket.onmessage = socket.onclose = null;
      socket.onerror = () => {}; // of Node: an error without a listener would end the program
      socket.close();
    }
  }

  /** @param {(error: RunnelError) => void} reject */
  #listen(reject) {
    const silent = Date.now() - this.#heard;
    if (silent > 2 * SILENCE) reject(new RunnelError("connection_lost", "the server was silent"));
    else if (silent > SILENCE && this.#state === "open") this.#send({ command: "PING", id: "ping" });
  }

  /** Connected and logged in: what was under way goes on. @param {string | undefined} token */
  #opened(token) {
    this.#failures = 0;
    this.#lives++;
    this.#become("open");
    for (const stream of this.#streams.values()) this.#begin(stream);
    for (const call of this.#calls.values()) this.#call(call);
    for (const resolve of this.#waiting.splice(0)) resolve();
    this.#plan(token);
  }

  /** Renew the token before it is over, if it says when, or when the page says. @param {string | undefined} token */
  #plan(token) {
    const { token: source, refresh = lifetime(token) } = this.#options;
    if (typeof source !== "function" || !refresh) return;
    this.#renewal = setTimeout(async () => {
      try {
        const next = await source();
        if (this.#state !== "open") return;
        await this.#ask({ command: "AUTH", token: next });
        this.#plan(next);
      } catch {
        this.#renewal = setTimeout(() => this.#plan(token), RETRY * 10); // the old one may hold for a while
      }
    }, Math.min(refresh, 2 ** 31 - 1));
  }

  /** @param {any} event */
  #take(event) {
    const call = this.#calls.get(event.id);
    if (call) {
      if (event.event === "error") call.settle(null, new RunnelError(event.code, event.message));
      else call.settle(event);
      return;
    }
    const stream = this.#streams.get(event.id);
    if (!stream) return; // it was left, or nothing has to be known of it
    if (event.event === "error" || (event.event === "end" && event.code)) {
      this.#streams.delete(event.id);
      stream.end(new RunnelError(event.code, event.message));
    } else if (event.event === "end") {
      this.#streams.delete(event.id);
      stream.end(null);
    } else stream.take(event);
  }

  /** @param {Stream} stream */
  #begin(stream) {
    for (const command of stream.commands()) this.#send(command);
  }

  /** Something between here and the broker takes less than the server said: it refused the largest, whatever else it had. */
  #refused() {
    const [largest] = [...this.#calls.values()].sort((one, other) => other.line.length - one.line.length);
    largest?.settle(null, tooLarge());
  }

  /** The connection is lost: fail what must not be sent twice. */
  #lost() {
    for (const { again, settle } of [...this.#calls.values()]) {
      if (!again) settle(null, new RunnelError("connection_lost", "the connection was lost before the answer came"));
    }
  }

  /** @param {RunnelError | null} failure */
  #end(failure) {
    if (this.#state === "closed") return;
    this.#failure = failure;
    this.#become("closed", failure ? { error: failure } : {});
    this.#life.abort();
    this.#socket?.close();
    for (const { settle } of [...this.#calls.values()]) settle(null, failure ?? closed());
    for (const stream of this.#streams.values()) stream.end(failure);
    this.#streams.clear();
    for (const resolve of this.#waiting.splice(0)) resolve();
  }

  /** @param {State} state @param {StateDetail} [detail] */
  #become(state, detail = {}) {
    if (this.#state === "closed") return;
    this.#state = state;
    this.#options.onState?.(state, detail);
  }
}

// -- Calls with more than one event ---------------------------------------------------------------------------------------

/** An async iterable of what comes for one id. */
class Stream {
  id = "";
  /** @type {any[]} */ _items = [];
  _link;
  #over = false;
  /** @type {unknown} */ #error = null;
  /** @type {(() => void)[]} */ #readers = [];

  /** @param {any} link */
  constructor(link) {
    this._link = link;
  }

  /** What opens it, also on the next connection. @returns {object[]} */
  commands() {
    return [];
  }

  /** @param {any} event */
  take(event) {
    this._items.push(event);
    this.#wake();
  }

  /** @param {unknown} error */
  end(error) {
    this.#over = true;
    this.#error = error;
    this.#wake();
  }

  #wake() {
    for (const resolve of this.#readers.splice(0)) resolve();
  }

  /** Called before an item is handed out. @param {any} item @returns {any} */
  _opened(item) {
    return item;
  }

  /** Leave. The iteration ends after what is there. */
  close() {
    this._link.leave(this);
    this.end(null);
  }

  [Symbol.asyncIterator]() {
    return this;
  }

  /** @returns {Promise<IteratorResult<any, undefined>>} */
  async next() {
    for (;;) {
      if (this._items.length) {
        const value = await this._opened(this._items.shift());
        if (value === undefined) continue;
        return { done: false, value };
      }
      if (this.#error) throw this.#error;
      if (this.#over) return { done: true, value: undefined };
      await /** @type {Promise<void>} */ (new Promise((resolve) => this.#readers.push(resolve)));
    }
  }

  /** @returns {Promise<IteratorResult<any, undefined>>} */
  async return() {
    this._items = [];
    this.close();
    return { done: true, value: undefined };
  }
}

/** Records of a topic or pattern, each once, also over lost connections. */
export class SocketSubscription extends Stream {
  #topic;
  #start;
  #onGap;
  #command;
  /** @type {any} */ #last = null; // the record that was taken last
  /** @type {string | null} */ #since = null; // the server's time when it began at the end of the topic
  #credit = 0;

  /** @param {any} link @param {string} topic @param {import("./runnel-socket.d.ts").SubscribeOptions} options */
  constructor(link, topic, options) {
    super(link);
    const { start, onGap, bufferBytes, ...rest } = options;
    this.#topic = topic;
    this.#start = timeOf(start);
    this.#onGap = onGap;
    this.#command = { ...rest, command: "SUB", topic, buffer_bytes: bufferBytes }; // what it does not know, the server refuses
    link.begin(this);
  }

  commands() {
    const from = this.#last ? this.#behind() : (this.#since ?? this.#start);
    this.#credit = AHEAD - this._items.length;
    const command = { ...this.#command, from, credit: Math.max(0, this.#credit), id: this.id };
    // Where the end was is known by the time alone, if the connection is lost before the first record.
    return from === undefined || from === "latest" ? [{ command: "INFO", id: this.id }, command] : [command];
  }

  /** Where to go on: right behind the last record. Of a pattern at its time, and what was seen is left out. */
  #behind() {
    const { epoch, offset, time } = this.#last;
    if (/[*>]/.test(this.#topic)) return time;
    const next = BigInt(offset) + 1n;
    return { epoch, offset: next > EXACT ? String(next) : Number(next) };
  }

  /** @param {any} event */
  take(event) {
    if (event.event === "message") {
      const last = this.#last;
      if (last && event.time <= last.time && BigInt(event.sequence) <= BigInt(last.sequence)) return this.#taken();
      this.#last = event;
      super.take(event);
    } else if (event.event === "gap") super.take(event);
    else if (event.event === "info") this.#since ??= event.time;
  }

  /** @param {any} event */
  async _opened(event) {
    if (event.event === "gap") {
      const { event: _, id: __, ...gap } = event;
      if (this.#onGap) await this.#onGap(gap);
      else console.warn(`runnel: records of ${gap.topic} are missing: ${gap.reason}`);
      return undefined;
    }
    this.#taken();
    return opened(event);
  }

  #taken() {
    if (--this.#credit > AHEAD / 2) return;
    const records = AHEAD - this._items.length - Math.max(0, this.#credit);
    if (records <= 0) return;
    this.#credit += records;
    this._link.tell({ command: "CREDIT", id: this.id, records });
  }
}

/** Deliveries of a group to this member. After a lost connection it joins again, and gets what was not settled again. */
export class GroupMember extends Stream {
  #command;

  /** @param {any} link @param {string} topic @param {string} group
   *  @param {import("./runnel-socket.d.ts").GroupOptions} options */
  constructor(link, topic, group, options) {
    super(link);
    const { start, ackWait, maxDeliver, backoff, deadLetter, ...rest } = options;
    this.#command = {
      ...{ ...rest, command: "SUB", topic, group, from: timeOf(start), ack_wait: seconds(ackWait) },
      ...{ max_deliver: maxDeliver, backoff: backoff?.map(seconds), dead_letter: deadLetter },
    };
    link.begin(this);
  }

  commands() {
    this._items = []; // they are given out again
    return [{ ...this.#command, id: this.id }];
  }

  /** @param {any} event */
  take(event) {
    if (event.event === "message") super.take({ ...event, life: this._link.life() });
  }

  /** @param {any} event */
  _opened({ delivery, attempt, life, ...event }) {
    const link = this._link;
    /** @param {object} command */
    const settle = async (command) => {
      if (life !== link.life()) {
        throw new RunnelError("lease_ended", "the connection was lost: the record went back to its group");
      }
      await link.ask({ ...command, delivery });
    };
    return {
      ...opened(event),
      attempt,
      ack: ({ durable = false } = {}) => settle({ command: "ACK", durable }),
      /** @param {{delay?: number, reason?: string}} [why] */
      nack: ({ delay, reason } = {}) => settle({ command: "NACK", delay: seconds(delay), reason }),
      /** @param {string} [reason] */
      reject: (reason) => settle({ command: "REJECT", reason }),
      /** @param {number} milliseconds */
      extend: (milliseconds) => settle({ command: "EXTEND", seconds: seconds(milliseconds) }),
    };
  }
}

/** Joins and leaves of a topic. After a lost connection only changes are reported. */
export class PresenceWatch extends Stream {
  #topic;
  /** @type {Map<string, any>} */ #known = new Map();

  /** @param {any} link @param {string} topic */
  constructor(link, topic) {
    super(link);
    this.#topic = topic;
    link.begin(this);
  }

  commands() {
    return [{ command: "PRESENCE", topic: this.#topic, id: this.id }];
  }

  /** @param {any} event */
  take(event) {
    if (event.event === "presence") {
      const now = new Map(event.members.map((/** @type {any} */ member) => [member.id, member]));
      for (const [id, member] of this.#known) if (!now.has(id)) this.#tell("leave", member);
      for (const [id, member] of now) if (!this.#known.has(id)) this.#tell("join", member);
      this.#known = now;
    } else if (event.event === "join") {
      this.#known.set(event.member.id, event.member);
      this.#tell("join", event.member);
    } else if (event.event === "leave") {
      this.#known.delete(event.member.id);
      this.#tell("leave", event.member);
    }
  }

  /** @param {string} event @param {any} member */
  #tell(event, member) {
    super.take({ event, member: memberOf(member) });
  }
}

// -- Values ------------------------------------------------------------------------------------------------------------

/** @param {unknown} value */
function payloadOf(value) {
  if (typeof value === "string") return { payload: value };
  if (value instanceof ArrayBuffer) return { payload: base64(new Uint8Array(value)), encoding: "base64" };
  if (ArrayBuffer.isView(value)) {
    const bytes = new Uint8Array(value.buffer, value.byteOffset, value.byteLength);
    return { payload: base64(bytes), encoding: "base64" };
  }
  return { payload: jsonOf(value) };
}

/** @param {any} options */
function keyed({ key, delay, expires, ...rest }) {
  const named = key instanceof Uint8Array ? { key: base64(key), key_encoding: "base64" } : { key };
  return { ...rest, ...named, delay: seconds(delay), expires: seconds(expires) };
}

/** @param {number | undefined} milliseconds */
function seconds(milliseconds) {
  if (milliseconds === undefined) return undefined;
  if (Number.isFinite(milliseconds)) return milliseconds / 1000;
  throw new RunnelError("invalid_value", `${milliseconds} is no number of milliseconds`); // JSON would have it as null
}

/** @param {unknown} start */
const timeOf = (start) => (start instanceof Date ? start.toISOString() : start);

/** @param {Uint8Array} bytes */
function base64(bytes) {
  let text = "";
  for (let at = 0; at < bytes.length; at += 8192) text += String.fromCharCode(...bytes.subarray(at, at + 8192));
  return btoa(text);
}

/** @param {any} event */
function opened({ event: _, id: __, ...rest }) {
  const { id, ...record } = recordOf({ name: "message", data: JSON.stringify(rest), id: "" });
  return record;
}

/** @param {any} event */
function replyOf({ payload, encoding, headers = {} }) {
  const { value, text } = recordOf({ name: "message", data: JSON.stringify({ payload, encoding }), id: "" });
  return { value, text, headers };
}

/** @param {any} member */
const memberOf = (member) => ({ group: null, presence: null, principal: null, ...member, since: new Date(member.since) });

/** Milliseconds until a token should be renewed: four fifths of its life, if it says when that ends.
 *  @param {string | undefined} token */
function lifetime(token) {
  try {
    const part = (token ?? "").split(".")[1].replaceAll("-", "+").replaceAll("_", "/");
    const { exp } = JSON.parse(new TextDecoder().decode(bytesOf(part)));
    return Math.max(1_000, (exp * 1000 - Date.now()) * 0.8) || 0;
  } catch {
    return 0;
  }
}

/** @param {any} event @param {string} url */
const reason = (event, url) => `${url} cannot be reached${event?.message ? `: ${event.message}` : ""}`;

/** @param {number} [most] */
const tooLarge = (most) =>
  new RunnelError("too_large", `the message is larger than ${most ? `${most} bytes (max_line of the server)` : "what is taken on the way"}`);

const closed = () => new RunnelError("broker_closed", "the client is closed");

/** The WebSocket of Node 20, which has none of its own. */
async function ofNode() {
  return (await import(/* @vite-ignore */ /* webpackIgnore: true */ "./runnel-node.js")).NodeWebSocket;
}
