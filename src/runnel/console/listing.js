// What pages with a long list have in common: filter, order and place, all of them in the address.

import { el, later } from "./dom.js";
import { Pager } from "./table.js";

/** @param {import("./address.js").Place} place @param {() => void} changed @param {Record<string, any>} defaults
 *  @param {string} what @param {string} [hint] */
export function listing(place, changed, defaults, what, hint = "part of a name") {
  const asked = place.asked(defaults);
  const listeners = [];
  const ask = (more) => {
    Object.assign(asked, more);
    const { view, limit, ...shown } = asked;
    place.set(shown);
    for (const one of listeners) one(asked);
    changed();
  };
  const filter = el("input", { type: "search", placeholder: hint, autocomplete: "off", spellcheck: "false", "data-search": true });
  filter.value = asked.filter ?? "";
  filter.addEventListener("input", later(() => ask({ filter: filter.value.trim(), from: 0 })));
  const pager = new Pager((from) => ask({ from }), what);
  return {
    asked,
    ask,
    filter,
    pager,
    /** Call with what is asked, now and when it changes. @param {(asked: any) => void} work */
    follow(work) {
      listeners.push(work);
      work(asked);
    },
    /** Show a page of rows. What was there may be gone: then the first page is asked for. @param {any} figures */
    update(figures) {
      pager.update(figures);
      if (!figures.rows.length && figures.total && asked.from) ask({ from: 0 });
    },
  };
}
