// Topics of runnel over its WebSocket: JSON lines, a credit for each subscription, and back after a broken line.

const CREDIT = 64; // records that may be on their way; half of it is given back at a time
const RETRY = [250, 4_000]; // milliseconds before connecting again: at first, and at most

/** The bytes of a value that may have been text by chance. */
export function bytesOf({ payload, encoding }) {
  if (!encoding) return new TextEncoder().encode(payload);
  return Uint8Array.from(atob(payload), (character) => character.charCodeAt(0));
}

/** Topics to follow for as long as the page is open. After a broken line a topic goes on behind its last record. */
export class Bus {
  #url;
  #onState;
  #socket = null;
  #failures = 0;
  #watched = new Map(); // topic → its members by id, and what takes them
  #topics = new Map(); // name → how it is followed, what takes its records, where it goes on, how many were not credited

  constructor(url, onState) {
    [this.#url, this.#onState] = [url, onState];
    this.#connect();
  }

  /** `options` are those of the command SUB. */
  follow(topic, options, onRecord) {
    this.#topics.set(topic, { options, onRecord, place: null, used: 0 });
    this.#subscribe(topic);
  }

  /** Who is subscribed to a topic, each with what it says of itself: at once, and after each change. */
  watch(topic, onMembers) {
    this.#watched.set(topic, { members: new Map(), onMembers });
    this.#send({ command: "PRESENCE", topic });
  }

  leave(topic) {
    if (this.#topics.delete(topic)) this.#send({ command: "UNSUB", id: topic });
  }

  #send(command) {
    if (this.#socket.readyState === WebSocket.OPEN) this.#socket.send(JSON.stringify(command));
  }

  #subscribe(topic) {
    const followed = this.#topics.get(topic);
    followed.used = 0;
    const place = followed.place && followed.options.from ? { from: followed.place } : {};
    this.#send({ command: "SUB", id: topic, topic, credit: CREDIT, ...followed.options, ...place });
  }

  #connect() {
    this.#socket = new WebSocket(this.#url);
    this.#onState("connecting");
    this.#socket.onopen = () => {
      this.#failures = 0;
      for (const topic of this.#topics.keys()) this.#subscribe(topic);
      for (const topic of this.#watched.keys()) this.#send({ command: "PRESENCE", topic });
      this.#onState("open");
    };
    this.#socket.onmessage = ({ data }) => this.#take(JSON.parse(data));
    this.#socket.onclose = () => {
      this.#onState("waiting");
      const pause = Math.min(RETRY[1], RETRY[0] * 2 ** this.#failures++);
      setTimeout(() => this.#connect(), pause * (0.5 + Math.random() / 2));
    };
  }

  #take(event) {
    if (event.event === "error") console.error(`runnel: ${event.message}`);
    if (["presence", "join", "leave"].includes(event.event)) return this.#change(this.#watched.get(event.topic), event);
    const followed = this.#topics.get(event.id);
    if (event.event !== "message" || !followed) return;
    followed.onRecord(event);
    followed.place = { epoch: event.epoch, offset: event.offset + 1 };
    if (++followed.used < CREDIT / 2) return;
    this.#send({ command: "CREDIT", id: event.id, records: followed.used });
    followed.used = 0;
  }

  #change({ members, onMembers }, { event, member, members: all }) {
    if (event === "presence") members.clear(); // also after a broken line
    for (const one of all ?? [member]) event === "leave" ? members.delete(one.id) : members.set(one.id, one.presence);
    onMembers(new Set(members.values()));
  }
}
