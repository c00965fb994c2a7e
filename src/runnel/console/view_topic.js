// One topic: its figures, its records, who reads it, its options and type, and its last hours.

import { el, say } from "./dom.js";
import { Outcome, ask, button, startOf } from "./dialogs.js";
import { href } from "./address.js";
import { Gauges } from "./gauge.js";
import { Records } from "./records.js";
import { Table, link, number, text } from "./table.js";
import { act, get } from "./requests.js";
import { changeOptions } from "./topic_form.js";
import { groupState } from "./view_groups.js";
import { may } from "./session.js";
import { publishForm } from "./publish_form.js";
import { ringCharts } from "./ring_chart.js";
import { nameOf, schemaView } from "./schema_view.js";
import { subscriberColumns } from "./view_subscribers.js";
import { bytes, duration, rate, retention, short, whole } from "./format.js";

const TABS = { records: "Records", readers: "Readers", options: "Options", chart: "Chart" };

/** Whether a topic can be called that: tokens joined by dots, none of them empty. @param {string} name */
const isName = (name) => name.length <= 255 && !/^$|^\.|\.\.|\.$|^\$|[*>\s\p{Cc}]/u.test(name);

/** For addresses with a typing error. @param {string} name @returns {import("./console.js").View} */
const odd = (name) => ({
  node: el("div", {}, el("h1", { class: "mono" }, name), el("p", { class: "notice" }, "No topic can be called that: names are tokens joined by dots.")),
  title: "Topics",
  query: () => ({ view: "topics", limit: 1 }),
  update: () => {},
});

/** How far the archive is. @param {Record<string, number> | null | undefined} archive */
const archive = (archive) =>
  archive
    ? {
        value: whole(archive.confirmed),
        note: `${bytes(archive.unconfirmed_bytes)} to be archived · moved below ${whole(archive.moved)} · gone below ${whole(archive.gone)}`,
      }
    : { value: "", hidden: true };

/** @param {import("./address.js").Place} place @returns {import("./console.js").View} */
export function topic(place) {
  const name = place.part;
  if (!isName(name)) return odd(name);
  const tab = place.params.tab in TABS ? place.params.tab : "records";
  const gauges = new Gauges([
    ["rate", "Records/s"],
    ["published", "Published"],
    ["kept", "Kept"],
    ["retention", "Retention"],
    ["archive", "Confirmed by the archive"],
    ["place", "Stored"],
    ["readers", "Readers"],
  ]);
  const missing = el("p", { class: "notice", hidden: true }, "There is no such topic. It is made when something is published to it; ", el("a", { href: "#/topics" }, "Topics"), " has those that are there.");
  const outcome = new Outcome();
  const tabs = el(
    "nav",
    { class: "tabs", "aria-label": `About ${name}` },
    ...Object.entries(TABS).map(([key, title]) =>
      el("a", { href: href("topics", name, key === "records" ? {} : { tab: key }), "aria-current": key === tab ? "page" : null }, title),
    ),
  );
  const parts = { records, readers, options, chart };
  const shown = parts[tab]();
  let absent = null; // whether the server says that there is no such topic; figures may be a second old
  const learn = async () => {
    try {
      const facts = await get("console/topic", { topic: name });
      absent = false;
      shown.know?.(facts);
    } catch (error) {
      absent = error.code === "unknown_topic"; // otherwise there may be no right to know of it
    }
  };
  let known = learn();
  const node = el(
    "div",
    {},
    el("nav", { class: "trail", "aria-label": "Where you are" }, el("a", { href: "#/topics" }, "Topics"), " /"),
    el("h1", { class: "mono" }, name),
    missing,
    gauges.node,
    tabs,
    outcome.node,
    ...shown.nodes,
  );

  return {
    node,
    title: name,
    query: () => ({ view: "topic", topic: name }),
    update(figures) {
      if (figures.view !== "topic" || figures.name !== name) return;
      const found = figures.topic;
      if (absent === (found !== null)) known = learn(); // it was made or deleted meanwhile
      missing.hidden = !absent || found !== null;
      gauges.node.hidden = tabs.hidden = !missing.hidden;
      if (!found) {
        shown.update?.({ subscribers: [], groups: [], topic: null });
        return;
      }
      gauges.update({
        rate: { value: rate(found.rate), rates: found.rates },
        published: { value: short(found.published), note: bytes(found.published_bytes) },
        kept: { value: whole(found.kept), note: `offsets ${found.first}–${lastOf(found)}` },
        retention: { value: retention(found.retention), note: found.retention.default ? "what memory keeps by default" : "", words: retention(found.retention).length > 8 },
        archive: archive(found.archive),
        place: { value: found.durable ? "on disk" : "in memory", note: bytes(found.bytes) },
        readers: { value: whole(found.subscribers) },
      });
      shown.update?.(figures);
    },
    async leave() {
      shown.close?.();
      await known;
    },
  };

  // -- tabs ------------------------------------------------------------------------------------------------------

  function records() {
    const list = new Records(name, place);
    const form = publishForm(name);
    const publishing = el("section", { hidden: !may("publish", name) }, el("h2", {}, "Publish"), form.node);
    return {
      nodes: [el("section", { class: "first", "aria-labelledby": "records" }, el("h2", { id: "records", class: "visually-hidden" }, "Records"), list.node), publishing],
      close: () => list.close(),
      update: (figures) => list.seen(figures.topic !== null),
      know(facts) {
        list.offerFiles(facts.parquet);
        if (facts.schema) form.typed(nameOf(facts.schema.schema));
      },
    };
  }

  function readers() {
    const subscribers = new Table({
      caption: `Subscribers of ${name}`,
      key: (row) => row.label,
      empty: "Nothing subscribes to it.",
      columns: subscriberColumns,
    });
    const groups = new Table({
      caption: `Groups on ${name}`,
      key: (row) => `${row.name}\n${row.pattern}`,
      empty: "No group works on it.",
      columns: [
        link("Group", (row) => [row.name, href("groups", "", { filter: row.name })], { head: true }),
        text("Reads", (row) => row.pattern, { class: "wide mono" }),
        groupState,
        number("Members", (row) => whole(row.members.length)),
        number("Lag", (row) => whole(row.lag)),
        number("In flight", (row) => whole(row.in_flight)),
        number("Redelivered", (row) => short(row.redelivered), { class: "wide" }),
        number("Oldest unacked", (row) => duration(row.oldest_unacked_age), { class: "wide" }),
      ],
    });
    return {
      nodes: [el("section", { class: "first" }, el("h2", {}, "Subscribers"), subscribers.node), el("section", {}, el("h2", {}, "Groups"), groups.node)],
      update(figures) {
        subscribers.update(figures.subscribers);
        groups.update(figures.groups);
      },
    };
  }

  function options() {
    const list = el("dl", { class: "facts" });
    const type = el("div", {}, el("p", { class: "muted" }, "It has no type: values are bytes."));
    const tools = el("div", { class: "buttons" });
    let now = {};
    if (may("admin", name)) {
      tools.append(
        button("Change options…", () => change()),
        button("Trim…", () => trim()),
        button("Delete…", () => remove(), "danger"),
      );
    }
    const show = (said) => {
      now = said;
      const rows = Object.entries(said).flatMap(([option, value]) => [el("dt", {}, option), el("dd", {}, JSON.stringify(value), el("span", { class: "muted" }, readable(option, value)))]);
      list.replaceChildren(...(rows.length ? rows : [el("dt", {}, "options"), el("dd", {}, "all have their defaults")]));
    };
    return {
      nodes: [el("section", { class: "first" }, el("h2", {}, "Options"), list, tools), el("section", {}, el("h2", {}, "Type"), type)],
      know(facts) {
        show(facts.options);
        if (facts.schema) type.replaceChildren(schemaView(facts.schema));
      },
    };

    async function change() {
      const changed = await changeOptions(name, now);
      if (!changed) return;
      outcome.say(changed === now ? "Nothing was changed." : "Changed.");
      show(changed);
    }

    async function trim() {
      const before = el("input", { type: "text", autocomplete: "off", required: true });
      const force = el("select", {}, el("option", { value: "" }, "keep what subscriptions hold"), el("option", { value: "yes" }, "remove that too"));
      const done = await ask({
        title: `Trim ${name}`,
        text: "Removes the records before an offset or a time, for good. Readers that have not read them get a gap.",
        action: "Trim",
        kind: "danger",
        typed: name,
        fields: [{ name: "before", label: "Before", input: before, hint: "an offset, or a time such as 2026-11-18 20:15" }, { name: "force", label: "Held records", input: force }],
        work: async (said) => act("trim_topic", { topic: name, before: startOf(said.before), force: said.force === "yes" }),
      });
      if (done) outcome.say(`The first offset is ${done.first} now.`);
    }

    async function remove() {
      const text = "Deletes the topic with all of its records, for good. Its subscriptions end with an error.";
      const work = () => act("delete_topic", { topic: name });
      if (await ask({ title: `Delete ${name}?`, text, action: "Delete", kind: "danger", typed: name, work })) location.hash = "#/topics";
    }
  }

  function chart() {
    const { span = "1h" } = place.params;
    const charts = ringCharts({
      kind: "topic",
      name,
      span,
      onSpan: (chosen) => place.set({ span: chosen }),
      plots: [{ title: "Records published", format: (value) => `${rate(value)}/s`, series: [["published", "records a second"]] }],
    });
    const days = el("p", { class: "muted" }, "The 200 busiest topics are sampled. For days see ", el("a", { href: "#/analytics?span=days" }, "Analytics"), ".");
    return { nodes: [el("section", { class: "first" }, el("h2", {}, "The last hours"), charts.node, days)], close: () => charts.close() };
  }
}

/** The value of an option as people read it, behind what is set. */
function readable(option, value) {
  if (option === "retention_age") return `  ${duration(value)}`;
  return option === "retention_bytes" ? `  ${bytes(value)}` : "";
}

/** The last offset of a topic. Offsets beyond 2^53 are strings. */
function lastOf({ first, end }) {
  const last = BigInt(end) - 1n;
  return String(last < BigInt(first) ? first : last);
}
