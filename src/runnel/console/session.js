// Who is signed in, and what a request that changes something has to carry.

import { el, say } from "./dom.js";

const SIGNED_IN = /(^|; )runnel_signed_in=1(;|$)/; // set beside the session's cookie, which a page cannot see

/** @type {{principal: string | null, csrf: string | null}} */
let known = { principal: null, csrf: null };

/** Show who is signed in, if anyone is. @param {Element} bar */
export async function learn(bar) {
  await check();
  if (!known.principal) return;
  const who = el("p", { class: "where" });
  say(who, known.principal);
  bar.append(who, el("button", { type: "button", on: { click: signOut } }, "Sign out"));
}

/** Ask the server whether the session goes on; if it is over, go to the login page. */
export async function check() {
  if (!SIGNED_IN.test(document.cookie)) return;
  const response = await fetch(new URL("../session", import.meta.url), { cache: "no-store" });
  if (response.status === 401) leave();
  else if (response.ok) known = await response.json();
}

/** The headers that show that a page of ours asks. @returns {Record<string, string>} */
export function proof() {
  return known.csrf ? { "x-runnel-csrf": known.csrf } : {};
}

function leave() {
  location.assign(new URL("../login", import.meta.url));
}

async function signOut() {
  await fetch(new URL("../logout", import.meta.url), { method: "POST", headers: proof(), redirect: "manual" });
  leave();
}
