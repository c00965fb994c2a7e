// The console: which view the address names, and the figures that it is given.

import { say, attribute } from "./dom.js";
import { short } from "./format.js";
import { learn } from "./session.js";
import { Updates } from "./updates.js";
import { topics } from "./view_topics.js";
import { topic } from "./view_topic.js";
import { subscribers } from "./view_subscribers.js";
import { groups } from "./view_groups.js";
import { letters } from "./view_letters.js";
import { journal } from "./view_journal.js";
import { relays } from "./view_relays.js";
import { analytics } from "./view_analytics.js";

/**
 * A view: `node` is what is shown, `query()` what it wants to know, `update(figures)` is called with that, every
 * second; `leave()` when another one is shown.
 * @typedef {{node: Node, title: string, query: () => Record<string, any>, update: (figures: any) => void,
 *   leave?: () => void}} View
 */

const VIEWS = { topics, subscribers, groups, "dead-letters": letters, journal, relays, analytics };
const STATES = { connecting: "connecting", live: "live", lost: "no connection: trying again" };

const find = (id) => document.getElementById(id);
const updates = new Updates(show, (state) => {
  attribute(find("state"), "data-state", state);
  say(find("state-text"), STATES[state]);
});

/** @type {View | null} */ let view = null;

/** The parts of an address such as #/topics/a%2Fb. */
function parts() {
  const found = location.hash.replace(/^#\/?/, "").split("/").filter(Boolean);
  try {
    return found.map(decodeURIComponent);
  } catch {
    return []; // somebody wrote an odd address
  }
}

function go() {
  const [name = "topics", ...rest] = parts();
  const make = name === "topics" && rest.length ? topic : VIEWS[name] ?? topics;
  view?.leave?.();
  const made = make(rest.join("/"), () => view === made && updates.look(made.query()));
  view = made;
  find("view").replaceChildren(made.node);
  document.title = `${made.title} · runnel`;
  for (const link of document.querySelectorAll("nav a")) {
    const here = link.dataset.view === (VIEWS[name] ? name : "topics");
    attribute(link, "aria-current", here ? "page" : null);
    // A phone has no room for all. Not scrollIntoView: the tab key would go on from there, past the skip link.
    if (here) link.closest("nav").scrollLeft = link.offsetLeft - 80;
  }
  updates.look(made.query());
}

function show(figures) {
  const { totals } = figures;
  for (const node of document.querySelectorAll("[data-count]")) {
    const count = totals[node.dataset.count];
    say(node, count ? short(count) : "");
    if (node.dataset.count === "dead_letters") attribute(node, "data-warn", count ? "" : null);
  }
  say(find("where"), `${totals.durable ? "on disk" : "in memory"} · ${totals.version}`);
  find("relays").hidden = !totals.relays && view?.title !== "Relays"; // most brokers have none
  find("trouble").hidden = !totals.trouble;
  say(find("trouble"), totals.trouble ?? "");
  view?.update(figures);
}

addEventListener("hashchange", () => {
  go();
  scrollTo(0, 0);
  const heading = document.querySelector("#view h1");
  if (heading) {
    heading.setAttribute("tabindex", "-1"); // so that whoever listens hears where they are
    heading.focus({ preventScroll: true });
  }
});
find("skip").addEventListener("click", (event) => {
  event.preventDefault(); // the part behind # is for views
  find("main").focus();
});
go();
learn(document.querySelector(".bar-end"));
