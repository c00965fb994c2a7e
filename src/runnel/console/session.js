// Who is signed in, what they may do, and what a request that changes something has to carry.

import { el, say } from "./dom.js";

const SIGNED_IN = /(^|; )runnel_signed_in=1(;|$)/; // set beside the session's cookie, which a page cannot see
const RETURN = "runnel:return";
const ATTENDED = 10_000; // milliseconds after the user did something in which requests count as the user's
const ROLES = ["none", "viewer", "operator", "admin"];

/** @type {{principal: string | null, console: string, rules: Record<string, string[]> | null, owners: string[], csrf: string | null}} */
let known = { principal: null, console: "admin", rules: null, owners: [], csrf: null };

let used = performance.now(); // when the user did something
let renewed = used;
for (const kind of ["pointerdown", "keydown"]) addEventListener(kind, () => (used = performance.now()), { capture: true, passive: true });

/** Headers of requests that the page sends by itself, such as those of charts: they keep no session. @returns {Record<string, string>} */
export const unattended = () => (performance.now() - used > ATTENDED ? { "x-runnel-unattended": "1" } : {});

/** The user looks at something else: that keeps the session, though it is said over the WebSocket alone. */
export function renew() {
  if (performance.now() - renewed < ATTENDED) return;
  renewed = performance.now();
  check().catch(() => {}); // the server may be away
}

/** Learn who is signed in, if the server asks for a login, and show it. @param {Element} bar */
export async function learn(bar) {
  await check().catch(() => {});
  if (!known.principal) return;
  const before = remember("");
  if (before && !location.hash) history.replaceState(null, "", before);
  const who = el("p", { class: "where" });
  say(who, known.principal);
  bar.append(who, el("button", { type: "button", on: { click: signOut } }, "Sign out"));
}

/** Ask the server whether the session goes on; if it is over, go to the login page. */
export async function check() {
  if (!SIGNED_IN.test(document.cookie)) return;
  const response = await fetch(new URL("../session", import.meta.url), { cache: "no-store", headers: unattended() });
  if (response.status === 401) {
    remember(location.hash);
    leave();
  } else if (response.ok) known = await response.json();
}

/** Whether the signed-in user has this role of the console, or a higher one. @param {"viewer" | "operator" | "admin"} role */
export const hasRole = (role) => ROLES.indexOf(known.console) >= ROLES.indexOf(role);

/** Whether a rule allows an action with a topic or pattern. The server decides; this is for what is shown.
 *  @param {"publish" | "subscribe" | "create" | "admin"} action @param {string} topic */
export const may = (action, topic) => known.rules === null || (known.rules[action] ?? []).some((rule) => covers(rule, topic));

/** Whether there is any topic with which a rule allows an action. @param {"publish" | "create"} action */
export const maySome = (action) => known.rules === null || Boolean(known.rules[action]?.length);

/** Whether the signed-in user may move the name of a subscription: its owner may, and who may do everything.
 *  @param {string | null | undefined} owner */
export const mayHave = (owner) => !owner || known.owners.includes(owner) || may("admin", ">");

/** The headers that show that a page of ours asks. @returns {Record<string, string>} */
export function proof() {
  return known.csrf ? { "x-runnel-csrf": known.csrf } : {};
}

/** Whether every topic of `asked` is one of `allowed`. @param {string} allowed @param {string} asked */
function covers(allowed, asked) {
  const [wide, narrow] = [allowed.split("."), asked.split(".")];
  if (narrow[0].startsWith("$") && wide[0] !== narrow[0]) return false;
  for (const [index, token] of wide.entries()) {
    if (token === ">") return narrow.length > index;
    if (index >= narrow.length || narrow[index] === ">" || (token !== "*" && token !== narrow[index])) return false;
  }
  return wide.length === narrow.length;
}

/** Keep the address of the view for after the next sign-in in this tab; the one that was kept. @param {string} hash */
function remember(hash) {
  try {
    const before = sessionStorage.getItem(RETURN);
    if (hash) sessionStorage.setItem(RETURN, hash);
    else sessionStorage.removeItem(RETURN);
    return before;
  } catch {
    return null; // storage may be forbidden
  }
}

function leave() {
  location.assign(new URL("../login", import.meta.url));
}

async function signOut() {
  await fetch(new URL("../logout", import.meta.url), { method: "POST", headers: proof(), redirect: "manual" });
  leave();
}
