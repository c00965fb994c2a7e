// Tables that are filled again every second: rows stay the same elements, so that focus and selection stay too.

import { arrange, attribute, el, say, sayName } from "./dom.js";
import { counted } from "./format.js";

/**
 * @typedef {object} Column
 * @property {string} title
 * @property {(row: any, cell: HTMLTableCellElement) => void} show fills the cell, again and again
 * @property {string} [sort] the key by which the server sorts; the column can be clicked then
 * @property {boolean} [down] whether the first click sorts downwards
 * @property {boolean} [number] aligned to the right
 * @property {string} [class] "wide" is left out on small screens, "wider" and "widest" on larger ones too
 * @property {boolean} [head] whether its cell names the row
 */

/** A table with a caption. `update(rows)` shows these. */
export class Table {
  #columns;
  #key;
  #body = el("tbody");
  #rows = new Map();
  #heads = [];
  #empty;

  /** @param {{caption: string, columns: Column[], key: (row: any) => string | number, empty?: string,
   *   onSort?: (sort: string) => void}} options */
  constructor({ caption, columns, key, empty = "There are none.", onSort }) {
    this.#columns = columns;
    this.#key = key;
    this.#empty = el("tr", {}, el("td", { colspan: columns.length, class: "empty" }, empty));
    const heads = columns.map((column) => {
      const cell = el("th", { scope: "col", class: classes(column) });
      if (column.sort && onSort) {
        const click = () => onSort(this.#next(column));
        cell.append(el("button", { type: "button", class: "sort", on: { click } }, column.title));
      } else cell.append(column.title);
      this.#heads.push(cell);
      return cell;
    });
    const table = el(
      "table",
      {},
      el("caption", { class: "visually-hidden" }, caption),
      el("thead", {}, el("tr", {}, ...heads)),
      this.#body,
    );
    this.node = el("div", { class: "table", role: "region", "aria-label": caption }, table);
  }

  #sort = "";

  #next(column) {
    const [up, down] = [column.sort, `-${column.sort}`];
    const [first, second] = column.down ? [down, up] : [up, down];
    return this.#sort === first ? second : first;
  }

  /** Say how it is sorted. @param {string} sort */
  sorted(sort) {
    this.#sort = sort;
    this.#columns.forEach((column, index) => {
      if (!column.sort) return;
      const mine = sort.replace(/^-/, "") === column.sort;
      attribute(this.#heads[index], "aria-sort", mine ? (sort.startsWith("-") ? "descending" : "ascending") : null);
    });
  }

  /** @param {any[]} rows */
  update(rows) {
    const kept = new Map();
    for (const row of rows) {
      const key = this.#key(row);
      let line = this.#rows.get(key);
      if (!line) {
        line = el("tr");
        for (const column of this.#columns) {
          line.append(el(column.head ? "th" : "td", { class: classes(column), scope: column.head ? "row" : null }));
        }
      }
      this.#columns.forEach((column, index) => column.show(row, line.cells[index]));
      kept.set(key, line);
    }
    arrange(this.#body, rows.length ? [...kept.values()] : [this.#empty]);
    this.#rows = kept;
    const scrolls = this.node.scrollWidth > this.node.clientWidth; // then the keyboard must reach it
    attribute(this.node, "tabindex", scrolls ? "0" : null);
  }
}

const classes = (column) => [column.number ? "number" : "", column.class ?? ""].join(" ").trim() || null;

/** A column of text. @param {string} title @param {(row: any) => unknown} text @param {object} [more] */
export const text = (title, text, more = {}) => ({
  title,
  show(row, cell) {
    if (more.head) sayName(cell, text(row));
    else say(cell, text(row));
  },
  ...more,
});

/** A column of numbers. @param {string} title @param {(row: any) => unknown} text @param {object} [more] */
export const number = (title, text, more = {}) => ({ title, number: true, show: (row, cell) => say(cell, text(row)), ...more });

/** A column of links. @param {string} title @param {(row: any) => [string, string] | null} link @param {object} [more] */
export function link(title, link, more = {}) {
  return {
    title,
    show(row, cell) {
      const [shown, href] = link(row) ?? ["", null];
      if (href === null) {
        say(cell, shown);
        return;
      }
      if (!(cell.firstChild instanceof HTMLAnchorElement)) cell.replaceChildren(el("a", { class: "mono" }));
      attribute(cell.firstChild, "href", href);
      attribute(cell.firstChild, "title", shown);
      sayName(cell.firstChild, shown);
    },
    ...more,
  };
}

/** Which rows of many are shown, and the way to the others. `onGo(first)`. */
export class Pager {
  #text = el("span", { role: "status" });
  #first = 0;
  #limit = 50;
  #total = 0;

  /** @param {(first: number) => void} onGo @param {string} what many of them are called, with an s */
  constructor(onGo, what) {
    this.what = what;
    const go = (step) => () => onGo(Math.max(0, this.#first + step * this.#limit));
    this.back = el("button", { type: "button", on: { click: go(-1) } }, "‹ Previous");
    this.on = el("button", { type: "button", on: { click: go(1) } }, "Next ›");
    this.node = el("div", { class: "pager" }, this.#text, this.back, this.on);
  }

  /** @param {{first: number, limit: number, total: number}} page */
  update({ first, limit, total }) {
    [this.#first, this.#limit, this.#total] = [first, limit, total];
    const last = Math.min(first + limit, total);
    const format = (value) => value.toLocaleString("en");
    const isAll = total <= limit && first === 0;
    const all = isAll ? counted(total, this.what.slice(0, -1)) : `${format(Math.min(first + 1, total))}–${format(last)} of ${format(total)} ${this.what}`;
    say(this.#text, total ? all : "");
    this.back.disabled = first === 0;
    this.on.disabled = last >= total;
    this.back.hidden = this.on.hidden = isAll;
  }
}
