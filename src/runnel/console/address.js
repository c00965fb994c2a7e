// The address of a page: #/view/part?name=value. What is looked at, and how, is in it: it can be sent to others.

/** @typedef {{view: string, part: string, params: Record<string, string>}} Address */

/** What an address says; null where it cannot be read. @param {string} hash @returns {Address | null} */
export function parse(hash) {
  const text = hash.replace(/^#\/?/, "");
  const cut = text.indexOf("?");
  const path = cut < 0 ? text : text.slice(0, cut);
  try {
    const [view = "", ...rest] = path.split("/").filter(Boolean).map(decodeURIComponent);
    const params = Object.fromEntries(new URLSearchParams(cut < 0 ? "" : text.slice(cut + 1)));
    return { view, part: rest.join("/"), params };
  } catch {
    return null; // half of a percent-encoded byte
  }
}

/** @param {string} view @param {string} [part] @param {Record<string, any>} [params] */
export function href(view, part = "", params = {}) {
  const query = new URLSearchParams();
  for (const [name, value] of Object.entries(params)) {
    if (value !== "" && value !== null && value !== undefined) query.set(name, String(value));
  }
  const asked = String(query);
  return `#/${view}${part ? `/${encodeURIComponent(part)}` : ""}${asked ? `?${asked}` : ""}`;
}

/** The page at an address, and its parameters: `set` changes them in the address too, without leaving the page. */
export class Place {
  #defaults = {};

  /** @param {Address} address */
  constructor({ view, part, params }) {
    this.view = view;
    this.part = part;
    this.params = params;
  }

  /** What the page asks for: `defaults`, and what the address says otherwise. Numbers stay numbers.
   *  @param {Record<string, any>} defaults */
  asked(defaults) {
    this.#defaults = defaults;
    const found = { ...defaults };
    for (const name of Object.keys(defaults)) {
      const said = this.params[name];
      if (said === undefined) continue;
      if (typeof defaults[name] !== "number") found[name] = said;
      else if (/^\d{1,9}$/.test(said)) found[name] = Number(said);
    }
    return found;
  }

  /** @param {Record<string, any>} changes */
  set(changes) {
    for (const [name, value] of Object.entries(changes)) {
      if (value === this.#defaults[name] || value === "" || value === null || value === undefined) delete this.params[name];
      else this.params[name] = String(value);
    }
    history.replaceState(null, "", href(this.view, this.part, this.params));
  }
}
