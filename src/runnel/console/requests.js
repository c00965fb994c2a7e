// Requests to the server, below whatever prefix the console is at.

import { check, proof, unattended } from "./session.js";

/** @param {string} path below the root @param {Record<string, any>} [asked] */
export function address(path, asked = {}) {
  const url = new URL(`../${path}`, import.meta.url);
  for (const [name, value] of Object.entries(asked)) {
    if (value !== "" && value !== null && value !== undefined) url.searchParams.set(name, String(value));
  }
  return url;
}

/** What the server answers to a GET. @param {string} path @param {Record<string, any>} [asked] @param {AbortSignal} [signal] */
export async function get(path, asked, signal) {
  return answered(await fetch(address(path, asked), { signal, headers: unattended() }));
}

/** Have something done. @param {string} path @param {unknown} body */
export async function post(path, body) {
  const headers = { "content-type": "application/json", ...proof() };
  return answered(await fetch(address(path), { method: "POST", headers, body: JSON.stringify(body) }));
}

/** One of the actions of operators. @param {string} what @param {Record<string, unknown>} facts */
export const act = (what, facts) => post("console/actions", { do: what, ...facts });

async function answered(response) {
  const answer = await response.json().catch(() => ({}));
  if (response.status === 401) await check().catch(() => {}); // the session may be over: then this leads to the login
  if (!response.ok) throw Object.assign(new Error(answer.detail ?? `the server answers ${response.status}`), { code: answer.code });
  return answer;
}
