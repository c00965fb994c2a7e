// What a program does with the package in clients/js, in Node. Arguments: a scenario, the server's address, and more.
import assert from "node:assert/strict";
import { createInterface } from "node:readline";
import { RunnelError, open } from "../../clients/js/index.js";
import { NodeWebSocket } from "../../clients/js/runnel-node.js";

const [scenario, url, ...more] = process.argv.slice(2);
const states = [];
const options = { onState: (state, detail) => { states.push(state); if (process.env.SHOW) console.error(state, detail.error?.message ?? ""); } };

async function take(stream, count) {
  const found = [];
  while (found.length < count) found.push((await stream.next()).value);
  return found;
}

const scenarios = {
  async everything() {
    const client = open(url, options);
    await client.ready();
    assert.deepEqual(states, ["connecting", "open"]);
    const position = await client.publish("t", { a: 1 }, { key: "k", headers: { h: "é" } });
    assert.equal(position.offset, 0);
    assert.equal((await client.publish("t", "again", { messageId: "1" })).offset, 1);
    assert.equal((await client.publish("t", "again", { messageId: "1" })).offset, 1);
    await client.publish("t", new Uint8Array([255, 0]));
    const records = client.subscribe("t", { start: "earliest", presence: "me" });
    const [one, two, three] = await take(records, 3);
    assert.deepEqual([one.value, one.key, one.headers.h, two.value, [...three.value]], [{ a: 1 }, "k", "é", "again", [255, 0]]);
    await assert.rejects(client.publish("t", "x", { expectedOffset: 0 }), { code: "offset_conflict" });
    await assert.rejects(client.publish("no topic", "x"), RunnelError);
    await assert.rejects(client.subscribe("no topic").next(), { code: "invalid_pattern" });
    await assert.rejects(client.subscribe("t", { strat: "earliest" }).next(), { code: "bad_command", message: /"start"/ });
    await assert.rejects(client.publish("t", "x", { delay: "soon" }), { code: "invalid_value" });
    await assert.rejects(client.publish("t", 1n), { code: "invalid_value" });
    await assert.rejects(client.publish("t", "é".repeat(1 << 19)), { code: "too_large" }); // and nothing else is disturbed
    assert.deepEqual(states, ["connecting", "open"]);
    for (const nowhere of [undefined, "127.0.0.1:7780", "runnel://127.0.0.1"]) assert.throws(() => open(nowhere), { code: "invalid_value" });

    // A server that takes less than it says closes with 1009: only the message that is too large is given up.
    class Strict extends NodeWebSocket {
      send(text) {
        if (text.length > 1000) this.onclose({ code: 1009, wasClean: true });
        else super.send(text);
      }
    }
    const strict = open(url, { WebSocket: Strict });
    const [small, large] = [strict.publish("strict", "x"), strict.publish("strict", "x".repeat(1000))];
    await assert.rejects(large, { code: "too_large" });
    assert.equal((await small).offset, 0);
    strict.close();
    const long = "x".repeat(400_000); // in more than one piece
    await client.publish("long", long);
    assert.equal((await client.subscribe("long", { start: "earliest" }).next()).value.value, long);

    const comings = client.presence("t");
    assert.deepEqual((await client.members("t")).map((member) => member.presence), ["me"]);
    assert.equal((await comings.next()).value.event, "join");
    await records.return();
    const left = (await comings.next()).value;
    assert.deepEqual([left.event, left.member.presence], ["leave", "me"]);

    const group = client.group("t", "workers", { prefetch: 2 });
    const [job] = await take(group, 1);
    assert.deepEqual([job.value, job.attempt], [{ a: 1 }, 1]);
    await job.nack({ delay: 0 });
    for await (const other of group) {
      await other.ack();
      if (other.attempt === 2) break;
    }

    const questions = client.subscribe("square");
    while (!(await client.members("square")).length);
    const answer = client.request("square", 12);
    const [question] = await take(questions, 1);
    assert.equal(await client.reply(question, { square: question.value ** 2 }), true);
    assert.deepEqual((await answer).value, { square: 144 });
    const answers = client.requestMany("square", 3, { limit: 1 });
    await client.reply((await take(questions, 1))[0], "nine");
    assert.equal((await answers).replies[0].value, "nine");
    await assert.rejects(client.request("silence", "?"), { code: "no_responders" });

    const live = client.subscribe("many"); // more than it is sent ahead
    while (!(await client.members("many")).length);
    await Promise.all(Array.from({ length: 1000 }, (_, number) => client.publish("many", number)));
    assert.deepEqual((await take(live, 1000)).map((record) => record.offset), Array.from({ length: 1000 }, (_, at) => at));

    // A subscription that had no record yet goes on where it began, not at the end that it finds.
    const sockets = [];
    class Seen extends NodeWebSocket {
      constructor(url) {
        super(url);
        sockets.push(this);
      }
    }
    let [gate, open_gate] = [undefined, () => {}];
    const lost = open(url, { WebSocket: Seen, token: () => gate });
    const quiet = lost.subscribe("quiet");
    while (!(await client.members("quiet")).length);
    gate = new Promise((resolve) => (open_gate = resolve));
    sockets[0].close();
    while ((await client.members("quiet")).length);
    await client.publish("quiet", "meanwhile");
    open_gate();
    assert.equal((await quiet.next()).value.value, "meanwhile");
    const both = [quiet.next(), quiet.next()];
    await client.publish("quiet", 1);
    await client.publish("quiet", 2);
    assert.deepEqual((await Promise.all(both)).map((one) => one.value.value), [1, 2]);
    lost.close();

    client.close();
    await assert.rejects(client.publish("t", "x"), { code: "broker_closed" });
    assert.equal((await live.next()).done, true);
  },

  // Publishes and reads while the server is killed and comes back; "stop" on the input ends it.
  async killed() {
    const client = open(url, options);
    await client.ready();
    const topics = [client.subscribe("t", { start: "earliest" }), client.subscribe("t.*", { start: "earliest" })];
    const seen = [[], []];
    const reading = topics.map(async (stream, at) => {
      for await (const record of stream) seen[at].push(record.value);
    });
    let stopped = false;
    const input = createInterface({ input: process.stdin }).on("line", () => (stopped = true));
    let count = 0;
    for (; !stopped; count++) {
      await client.publish("t", count);
      await client.publish("t.a", count);
      if (count % 20 === 0) console.log(count);
    }
    input.close();
    process.stdin.destroy();
    const expected = Array.from({ length: count }, (_, number) => number);
    while (seen.some((values) => values.length < count)) await new Promise((resolve) => setTimeout(resolve, 10));
    client.close();
    await Promise.all(reading);
    assert.deepEqual(seen, [expected, expected]);
    assert.ok(states.filter((state) => state === "waiting").length > 0);
  },

  async token() {
    const [first, second, expiry] = more;
    const tokens = [first, second];
    const client = open(url, { ...options, token: async () => tokens.shift() ?? second, refresh: 200 });
    await client.publish("t", "with the first");
    while (Date.now() < Number(expiry) * 1000 + 500) await new Promise((resolve) => setTimeout(resolve, 50));
    await client.publish("t", "with the second");
    assert.deepEqual(states, ["connecting", "open"]); // renewed, not connected again
    client.close();
    const refused = open(url, { token: "rnl_wrong" });
    await assert.rejects(refused.ready(), { code: "not_authenticated" });
    await assert.rejects(open(url).ready(), { code: "not_authenticated" }); // no token at all
  },
};

await scenarios[scenario]();
console.log("ok");
