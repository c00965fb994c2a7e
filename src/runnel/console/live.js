// The one connection of this page to the server: figures once a second, and the records of a topic as they come.
//
// A WebSocket, since a browser has six HTTP connections for all tabs of a server together, and these would use them up.

import { check, renew } from "./session.js";

const SILENCE = 15_000; // milliseconds without figures after which the line counts as dead
const LONGEST = 5_000; // milliseconds between two tries

/** @typedef {{onRecord: (record: any) => void, onGap: (gap: any) => void, onState: (state: string, error?: string) => void}} Handlers */

let socket = null;
let query = null;
let heard = 0;
let tries = 0;
let timer = 0;
let numbers = 0;
let onFigures = (_) => {};
let onState = (_) => {};
/** @type {Map<number, Follow>} */ const follows = new Map();

/** Begin. @param {(figures: any) => void} figures @param {(state: string) => void} state */
export function begin(figures, state) {
  onFigures = figures;
  onState = state;
  addEventListener("pagehide", stop);
  addEventListener("pageshow", (event) => event.persisted && connect());
  addEventListener("online", connect);
  setInterval(() => socket?.readyState === WebSocket.OPEN && performance.now() - heard > SILENCE && socket.close(), 3_000);
  connect();
}

/** Say what is looked at. @param {Record<string, string | number | null | undefined>} asked */
export function look(asked) {
  const said = new URLSearchParams();
  for (const [name, value] of Object.entries(asked)) {
    if (value !== "" && value !== null && value !== undefined) said.set(name, String(value));
  }
  query = String(said);
  renew();
  send({ command: "LOOK", query });
}

/** Have the records of a topic from a position on. @param {string} topic
 *  @param {{epoch: any, offset: any} | "earliest"} from @param {Handlers} handlers */
export function follow(topic, from, handlers) {
  const one = new Follow(topic, from, handlers);
  follows.set(one.id, one);
  one.ask();
  return one;
}

class Follow {
  constructor(topic, from, handlers) {
    [this.id, this.topic, this.from, this.handlers] = [++numbers, topic, from, handlers];
  }

  ask() {
    this.handlers.onState(send({ command: "SUB", topic: this.topic, id: this.id, from: this.from }) ? "connecting" : "waiting");
  }

  close() {
    if (follows.delete(this.id)) send({ command: "UNSUB", id: this.id });
  }

  /** @param {any} event */
  take(event) {
    if (event.event === "message") {
      this.from = { epoch: event.epoch, offset: String(BigInt(event.offset) + 1n) };
      this.handlers.onRecord(event);
    } else if (event.event === "gap") this.handlers.onGap(event);
    else if (event.event === "subscribed") this.handlers.onState("open");
    else if (event.event === "end" || event.event === "error") {
      follows.delete(this.id);
      this.handlers.onState("closed", event.message ?? "");
    }
  }
}

function send(command) {
  if (socket?.readyState !== WebSocket.OPEN) return false;
  socket.send(JSON.stringify(command));
  return true;
}

function stop() {
  clearTimeout(timer);
  const old = socket;
  socket = null;
  old?.close();
}

function connect() {
  stop();
  const url = new URL("live", import.meta.url);
  url.protocol = url.protocol.replace("http", "ws");
  const mine = (socket = new WebSocket(url));
  heard = performance.now();
  mine.addEventListener("open", () => {
    if (mine !== socket) return;
    if (query !== null) send({ command: "LOOK", query });
    for (const one of follows.values()) one.ask();
  });
  mine.addEventListener("message", ({ data }) => {
    if (mine !== socket) return;
    heard = performance.now();
    const event = JSON.parse(data);
    if (event.event === "figures") {
      tries = 0;
      onState("live");
      onFigures(event);
    } else if (event.id !== undefined) follows.get(event.id)?.take(event);
    else if (event.event === "error") onState(event.code === "not_authorized" ? "refused" : "lost");
  });
  mine.addEventListener("close", async () => {
    if (mine !== socket) return;
    onState("lost");
    for (const one of follows.values()) one.handlers.onState("waiting");
    timer = setTimeout(connect, Math.min(LONGEST, 250 * 2 ** tries++) * (0.75 + Math.random() / 2));
    await check().catch(() => {}); // the server may be away; or the session is over, and this leads to the login
  });
}
