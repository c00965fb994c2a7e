// The keys of the console: / to search, ? for this help.

import { button } from "./dialogs.js";
import { el } from "./dom.js";

const KEYS = [
  ["/", "search or filter what is shown"],
  ["?", "this help"],
  ["Esc", "close a dialog, leave a field"],
  ["Enter", "open the record, letter or link that has the focus; search all history from the field Find"],
  ["Tab, Shift+Tab", "go on, go back"],
];

/** Listen to the keys of the page. The help can be opened by the button, too. @param {Element} bar */
export function keys(bar) {
  bar.append(button("Help", show, "", { "aria-keyshortcuts": "?" }));
  addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.defaultPrevented) return;
    const target = event.target;
    if (target instanceof HTMLElement && (target.matches("input, textarea, select") || target.closest("dialog"))) {
      if (event.key === "Escape" && target.matches("input")) target.blur();
      return;
    }
    if (event.key === "?") {
      event.preventDefault();
      show();
    } else if (event.key === "/") {
      const search = document.querySelector("#view [data-search]");
      if (!search) return;
      event.preventDefault();
      search.focus();
      search.select();
    }
  });
}

function show() {
  const dialog = el(
    "dialog",
    { "aria-labelledby": "help-title", class: "help" },
    el("h2", { id: "help-title" }, "Keys"),
    el("dl", { class: "facts" }, ...KEYS.flatMap(([key, what]) => [el("dt", {}, ...key.split(", ").flatMap((one, at) => [at ? ", " : null, el("kbd", {}, one)])), el("dd", {}, what)])),
    el("p", { class: "muted" }, "The address of a page holds what is filtered, sorted, chosen and searched: send it to others, or keep it."),
    el("div", { class: "buttons" }, button("Close", () => dialog.close(), "primary", { autofocus: true })),
  );
  dialog.addEventListener("close", () => dialog.remove());
  document.body.append(dialog);
  dialog.showModal();
}
