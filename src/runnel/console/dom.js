// Elements, made and changed. Text goes in as text only: what records hold may come from anyone.

/** An element. `props` are attributes; `class`, `on` (listeners) and booleans are known.
 *  @param {string} tag @param {Record<string, any>} [props] @param {...(Node | string | null)} children */
export function el(tag, props = {}, ...children) {
  return filled(document.createElement(tag), props, children);
}

/** The same, of a drawing. @param {string} tag @param {Record<string, any>} [props] @param {...Node} children */
export function svg(tag, props = {}, ...children) {
  return filled(document.createElementNS("http://www.w3.org/2000/svg", tag), props, children);
}

function filled(node, props, children) {
  for (const [name, value] of Object.entries(props)) {
    if (name === "on") for (const [event, listener] of Object.entries(value)) node.addEventListener(event, listener);
    else if (value === true) node.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) node.setAttribute(name, String(value));
  }
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}

/** Put a text into a node, if it is another. @param {Node} node @param {unknown} text */
export function say(node, text) {
  const said = String(text ?? "");
  if (node.textContent !== said) node.textContent = said;
}

/** Put a name into a node, that may be cut into lines behind its dots only. @param {Element} node @param {unknown} name */
export function sayName(node, name) {
  const said = String(name ?? "");
  if (node.textContent === said) return;
  node.replaceChildren(...said.split(/(?<=[.-])/).flatMap((part, at) => (at ? [el("wbr"), part] : [part])));
}

/** @param {Element} node @param {string} name @param {string | null} value */
export function attribute(node, name, value) {
  if (value === null) node.removeAttribute(name);
  else if (node.getAttribute(name) !== value) node.setAttribute(name, value);
}

/** Have exactly these children, in this order. Those that stay are not touched: what has the focus keeps it.
 *  @param {Element} parent @param {Node[]} wanted */
export function arrange(parent, wanted) {
  const kept = new Set(wanted);
  for (const child of [...parent.childNodes]) if (!kept.has(child)) child.remove();
  let place = parent.firstChild;
  for (const child of wanted) {
    if (child === place) place = place.nextSibling;
    else parent.insertBefore(child, place);
  }
}

/** Tell those who listen to the page. @param {string} text */
export function announce(text) {
  const node = document.getElementById("announcer");
  node.textContent = "";
  requestAnimationFrame(() => (node.textContent = text));
}

/** Call `work` when calls have stopped for a while. @param {(...args: any[]) => void} work @param {number} wait */
export function later(work, wait = 250) {
  let timer = 0;
  return (...args) => {
    clearTimeout(timer);
    timer = setTimeout(() => work(...args), wait);
  };
}

let numbers = 0;

/** An id that nothing else on the page has. @param {string} what */
export const unique = (what) => `${what}-${++numbers}`;

/** A field with its label. @param {string} label @param {HTMLElement} input @param {string} [hint] */
export function field(label, input, hint) {
  input.id ||= unique("field");
  const parts = [el("label", { for: input.id }, label), input];
  if (hint) {
    const said = el("span", { class: "hint", id: unique("hint") }, hint);
    input.setAttribute("aria-describedby", said.id);
    parts.push(said);
  }
  return el("div", { class: "field" }, ...parts);
}
