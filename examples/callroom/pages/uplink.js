// What this page sends: to the program behind it, which makes each message a row. While it is open, the person is in the room.

const BEHIND = 128 * 1024; // bytes that have not left the page: then frames are skipped
const RETRY = [250, 4_000];
const CLOCK = [0, 60, 120, 250, 500, 1_000, 2_000]; // milliseconds after which a new line asks for the server's clock

export class Uplink {
  #url;
  #onState;
  #socket = null;
  #failures = 0;
  #unsure = new Map(); // messages by their id: sent again over a new line, until they are known to be stored
  #ahead = 0; // milliseconds by which the server's clock is ahead of ours
  #best = Infinity; // the shortest way there and back, which says it best

  constructor(url, onState) {
    this.#url = url;
    this.#onState = onState;
    this.#connect();
  }

  get isOpen() {
    return this.#socket.readyState === WebSocket.OPEN;
  }

  /** Milliseconds since 1970, by the server's clock. */
  now() {
    return performance.timeOrigin + performance.now() + this.#ahead;
  }

  send(told) {
    if (this.isOpen) this.#socket.send(JSON.stringify(told));
  }

  /** A message that must arrive; the same id is stored once. */
  sendSurely(told) {
    const id = Array.from(crypto.getRandomValues(new Uint8Array(16)), (byte) => byte.toString(16).padStart(2, "0")).join("");
    this.#unsure.set(id, { ...told, id });
    this.send({ ...told, id });
  }

  /** It is stored: it came back in the topic. */
  settle(id) {
    this.#unsure.delete(id.replaceAll("-", ""));
  }

  /** A frame: skipped if the line is behind. A late picture is useless. */
  sendFrame(kind, taken, bytes) {
    if (!this.isOpen || this.#socket.bufferedAmount > BEHIND) return false;
    const head = new DataView(new ArrayBuffer(9));
    head.setUint8(0, kind.charCodeAt(0));
    head.setFloat64(1, taken);
    this.#socket.send(new Blob([head, bytes]));
    return true;
  }

  #connect() {
    this.#socket = new WebSocket(this.#url);
    this.#onState("connecting");
    this.#socket.onopen = () => {
      this.#failures = 0;
      this.#best = Infinity;
      for (const told of this.#unsure.values()) this.send(told);
      for (const later of CLOCK) setTimeout(() => this.#askClock(), later);
      this.#onState("open");
    };
    this.#socket.onmessage = ({ data }) => {
      const { sent, now } = JSON.parse(data);
      const back = performance.timeOrigin + performance.now();
      if (back - sent > this.#best) return;
      this.#best = back - sent;
      this.#ahead = now - (sent + back) / 2;
    };
    this.#socket.onclose = ({ code }) => {
      if (code === 1008) return this.#onState("closed");
      this.#onState("waiting");
      const pause = Math.min(RETRY[1], RETRY[0] * 2 ** this.#failures++);
      setTimeout(() => this.#connect(), pause * (0.5 + Math.random() / 2));
    };
  }

  #askClock() {
    this.send({ kind: "clock", sent: performance.timeOrigin + performance.now() });
  }
}
