// The figures, by the server's own events: one stream at a time, of what is looked at now.

import { check } from "./session.js";

const AGAIN = 3_000; // milliseconds, when the server refused

/** Follows `/console/updates`. `look(query)` says what is shown. */
export class Updates {
  #source = null;
  #query = "";
  #timer = 0;
  #onFigures;
  #onState;

  /** @param {(figures: any) => void} onFigures @param {(state: string) => void} onState */
  constructor(onFigures, onState) {
    this.#onFigures = onFigures;
    this.#onState = onState;
    addEventListener("pagehide", () => this.#close());
    addEventListener("pageshow", (event) => event.persisted && this.#open());
  }

  /** @param {Record<string, string | number | null | undefined>} asked */
  look(asked) {
    const query = new URLSearchParams();
    for (const [name, value] of Object.entries(asked)) {
      if (value !== "" && value !== null && value !== undefined) query.set(name, String(value));
    }
    if (String(query) === this.#query && this.#source) return;
    this.#query = String(query);
    this.#open();
  }

  #open() {
    this.#close();
    const url = new URL(`updates?${this.#query}`, import.meta.url);
    const source = (this.#source = new EventSource(url));
    source.addEventListener("figures", (event) => {
      if (source !== this.#source) return;
      this.#onState("live");
      this.#onFigures(JSON.parse(event.data));
    });
    source.addEventListener("error", () => {
      if (source !== this.#source) return;
      this.#onState("lost");
      if (source.readyState !== EventSource.CLOSED) return;
      check();
      this.#timer = setTimeout(() => this.#open(), AGAIN);
    });
  }

  #close() {
    clearTimeout(this.#timer);
    this.#source?.close();
    this.#source = null;
  }
}
