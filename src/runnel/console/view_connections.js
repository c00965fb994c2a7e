// Connections of this server: who, from where, how much they read and write; and closed by an administrator.

import { el, field, say } from "./dom.js";
import { Outcome, ask, button } from "./dialogs.js";
import { Table, number, text } from "./table.js";
import { act } from "./requests.js";
import { hasRole } from "./session.js";
import { listing } from "./listing.js";
import { bytes, duration, whole } from "./format.js";

const rateOf = (value) => (value === undefined ? "–" : `${bytes(Math.round(value))}/s`);
const LISTENERS = { native: "native", json: "JSON lines", http: "HTTP", websocket: "WebSocket", nats: "NATS", unix: "Unix socket" };

/** @param {import("./address.js").Place} place @param {() => void} changed @returns {import("./console.js").View} */
export function connections(place, changed) {
  const list = listing(place, changed, { sort: "connection", filter: "", from: 0 }, "connections", "address, client or name");
  const outcome = new Outcome();
  const lead = el("p", { class: "lead" });
  const columns = [
    text("From", (row) => peer(row.peer), { sort: "peer", head: true, class: "name mono" }),
    text("Who", (row) => row.principal ?? "–", { class: "mono" }),
    text("Listener", (row) => LISTENERS[row.listener] ?? row.listener, { class: "wide" }),
    text("Client", (row) => row.client ?? "", { class: "wider mono" }),
    number("For", (row) => duration(row.since), { sort: "since", down: true, class: "wide" }),
    number("In", (row) => rateOf(row.received_rate), { sort: "received_rate", down: true, class: "wide" }),
    number("Out", (row) => rateOf(row.sent_rate), { sort: "sent_rate", down: true }),
    number("Unsent", (row) => bytes(row.unsent_bytes ?? 0), { class: "wider" }),
    number("Subscriptions", (row) => whole(row.subscriptions ?? 0), { sort: "subscriptions", down: true, class: "wide" }),
  ];
  if (hasRole("admin")) {
    columns.push({
      title: "",
      class: "actions",
      show(row, cell) {
        if (!cell.firstChild) cell.append(button("Close…", () => close(row), "small", { "aria-label": `Close the connection of ${peer(row.peer)}` }));
      },
    });
  }
  const table = new Table({
    caption: "Connections",
    key: (row) => row.connection,
    empty: "No connections here.",
    columns,
    onSort: (sort) => list.ask({ sort, from: 0 }),
  });
  list.follow(({ sort }) => table.sorted(sort));
  return {
    node: el("div", {}, el("h1", {}, "Connections"), lead, el("div", { class: "tools" }, field("Filter", list.filter), list.pager.node), outcome.node, table.node),
    title: "Connections",
    query: () => ({ view: "connections", limit: 50, ...list.asked }),
    update(figures) {
      if (figures.view !== "connections") return;
      const { accepted, refused, most } = figures.limits;
      const gateway = figures.totals.gateway ? " This is a gateway: these are its own clients, not those of the server behind it." : "";
      say(lead, `Clients of this server, at all of its listeners: ${whole(accepted)} accepted so far, ${whole(refused)} refused, at most ${whole(most)} at once.${gateway}`);
      table.update(figures.rows);
      list.update(figures);
    },
  };

  async function close({ connection, peer: from }) {
    const text = "The connection is cut. What a group member holds goes back to its group. A client that reconnects by itself comes back: to keep it out, revoke its token.";
    const work = () => act("close_connection", { connection });
    if (await ask({ title: `Close the connection of ${peer(from)}?`, text, action: "Close", kind: "danger", work })) outcome.say("Closed.");
  }
}

/** A peer's address, which comes as Python writes it. @param {string} said */
function peer(said) {
  const found = /^\('([^']*)', (\d+)/.exec(said);
  if (!found) return said || "Unix socket";
  return found[1].includes(":") ? `[${found[1]}]:${found[2]}` : `${found[1]}:${found[2]}`;
}
