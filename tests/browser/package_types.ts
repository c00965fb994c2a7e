// What a TypeScript project may rely on; `tsc --strict` reads it in tests/browser/test_socket_js.py.
import { open, RunnelError, type Client, type Delivery, type SocketRecord } from "runnel-mq";
import { connect, publish, subscribe, type Record as EventRecord } from "runnel-mq/events";

interface Order {
  id: number;
}

const client: Client = open("http://127.0.0.1:7780", { token: async () => "fresh", onState: (state) => console.log(state) });
const { offset } = await client.publish("orders", { id: 42 }, { key: "42", delay: 1_000 });
for await (const record of client.subscribe<Order>("orders", { start: "earliest" })) {
  const typed: SocketRecord<Order> = record;
  const id: number = record.value.id;
  console.log(typed.offset, id);
}
for await (const job of client.group<Order>("orders", "workers", { backoff: [1_000] })) {
  const delivery: Delivery<Order> = job;
  await delivery.nack({ delay: delivery.value.id });
}
for await (const untyped of client.subscribe("orders")) console.log(untyped.value.anything);
try {
  const reply = await client.request<Order>("price", 1);
  const id: number = reply.value.id;
  console.log(id);
} catch (error) {
  if (error instanceof RunnelError) console.log(error.code);
}
for await (const { event, member } of client.presence("orders")) console.log(event === "join", member.since.getTime());
subscribe<Order>("orders", { onRecord: (record: EventRecord<Order>) => record.value.id, store: { getItem: () => null, setItem() {} } });
await publish("orders", offset, { url: connect("https://bus.example/").url });

// @ts-expect-error there is no such option
client.subscribe("orders", { strat: "earliest" });
// @ts-expect-error milliseconds are a number
await client.publish("orders", 1, { delay: "soon" });
// @ts-expect-error an order has no name
for await (const record of client.subscribe<Order>("orders")) console.log(record.value.name);
