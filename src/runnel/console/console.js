// The console: which view the address names, and the figures that it is given.

import { Place, parse } from "./address.js";
import { attribute, el, say } from "./dom.js";
import { short } from "./format.js";
import { keys } from "./help.js";
import { begin, look } from "./live.js";
import { learn } from "./session.js";
import { overview } from "./view_overview.js";
import { topics } from "./view_topics.js";
import { topic } from "./view_topic.js";
import { subscribers } from "./view_subscribers.js";
import { groups } from "./view_groups.js";
import { letters } from "./view_letters.js";
import { connections } from "./view_connections.js";
import { journal } from "./view_journal.js";
import { relays } from "./view_relays.js";
import { analytics } from "./view_analytics.js";

/**
 * A view: `node` is what is shown, `query()` what it wants to know, `update(figures)` is called with that, every
 * second; `leave()` when another one is shown.
 * @typedef {{node: Node, title: string, query: () => Record<string, any>, update: (figures: any) => void,
 *   leave?: () => void}} View
 */

const VIEWS = { overview, topics, subscribers, groups, "dead-letters": letters, connections, journal, relays, analytics };
const WITH_PART = ["topics", "dead-letters"]; // views of which one thing has a page of its own
const STATES = { connecting: "connecting", live: "live", lost: "no connection: trying again", refused: "you may not look at the console" };

const find = (id) => document.getElementById(id);

/** @type {View | null} */ let view = null;
let revealed = false;

/** For addresses that name nothing. @returns {View} */
const unknown = () => ({
  node: el("div", {}, el("h1", {}, "There is no such page"), el("p", { class: "notice" }, "The address names no page of this console. Go to the ", el("a", { href: "#/overview" }, "overview"), " instead.")),
  title: "No such page",
  query: () => ({ view: "topics", limit: 1 }),
  update: () => {},
});

function go() {
  const address = parse(location.hash);
  const name = address && (address.view || "overview");
  const known = name !== null && Object.hasOwn(VIEWS, name) && (!address.part || WITH_PART.includes(name));
  const place = new Place({ view: name ?? "", part: address?.part ?? "", params: address?.params ?? {} });
  const make = !known ? unknown : name === "topics" && place.part ? topic : VIEWS[name];
  view?.leave?.();
  view = null;
  const made = make(place, () => view === made && look(made.query()));
  view = made;
  find("view").replaceChildren(made.node);
  document.title = `${made.title} · runnel`;
  for (const link of document.querySelectorAll(".bar nav a")) attribute(link, "aria-current", known && link.dataset.view === name ? "page" : null);
  revealed = false;
  reveal();
  look(made.query());
}

/** Have the current link in sight: a phone has no room for all. Not scrollIntoView: the tab key would go on from there, past the skip link. */
function reveal() {
  const link = document.querySelector(".bar nav a[aria-current]");
  const nav = link?.closest("nav");
  if (nav) nav.scrollLeft += link.getBoundingClientRect().left - (nav.clientWidth - link.offsetWidth) / 2;
}

function show(figures) {
  const { totals } = figures;
  for (const node of document.querySelectorAll("[data-count]")) {
    const count = totals[node.dataset.count];
    const stuck = node.dataset.count === "groups" && totals.groups_stuck > 0;
    say(node, stuck ? `${short(totals.groups_stuck)} stuck` : count ? short(count) : "");
    attribute(node, "data-warn", count && (stuck || node.dataset.count === "dead_letters") ? "" : null);
  }
  const where = totals.gateway ? "gateway" : totals.durable ? "on disk" : "in memory";
  say(find("where"), `${where} · ${totals.version}`);
  find("relays").hidden = !totals.relays && view?.title !== "Relays"; // most brokers have none
  if (!revealed) reveal(); // the figures moved it, or made it appear
  revealed = true;
  find("trouble").hidden = !totals.trouble;
  say(find("trouble"), totals.trouble ?? "");
  view?.update(figures);
}

function state(name) {
  attribute(find("state"), "data-state", name);
  say(find("state-text"), STATES[name]);
}

addEventListener("hashchange", () => {
  go();
  scrollTo(0, 0);
  const heading = document.querySelector("#view h1");
  if (heading) {
    heading.setAttribute("tabindex", "-1"); // so that a screen reader says what is shown now
    heading.focus({ preventScroll: true });
  }
});
find("skip").addEventListener("click", (event) => {
  event.preventDefault(); // the part behind # is for views
  find("main").focus();
});
const bar = document.querySelector(".bar-end");
keys(bar);
await learn(bar); // what the reader may do decides what is shown
go();
begin(show, state);
