/** Types of runnel-socket.js: one WebSocket for publish, subscribe, groups, requests and presence. */

import type { Exact, Gap, Position, Record, RunnelError, State } from "./runnel.js";

export type { Exact, Gap, Position, State };

export interface StateDetail {
  /** Of "waiting" and "closed": why. */
  error?: RunnelError;
  /** Of "waiting": milliseconds until the next try. */
  retryIn?: number;
}

/** A record; unlike one of runnel.js it has no `id`. */
export type SocketRecord<T = any> = Omit<Record<T>, "id">;

export interface OpenOptions {
  /** Logs in with this token; a function is asked for one at each connection, and before the last one is over. */
  token?: string | (() => string | Promise<string>);
  /** Milliseconds after which the function is asked for another token; by default four fifths of the life of a JWT. */
  refresh?: number;
  /** Gets each change of state. */
  onState?: (state: State, detail: StateDetail) => void;
  /** Aborted, it ends. */
  signal?: AbortSignal;
  /** Another class than the global one. */
  WebSocket?: new (url: string) => any;
}

export interface PublishOptions {
  key?: string | Uint8Array;
  headers?: { [name: string]: string };
  /** Milliseconds until a group may have it. */
  delay?: number;
  /** Milliseconds until it is skipped. */
  expires?: number;
  /** In groups, from 0 to 9: the highest first. */
  priority?: number;
  /** Makes sending it again harmless; by default a random one. */
  messageId?: string;
  /** The offset that it must get; then it is sent once. */
  expectedOffset?: Exact;
  /** Milliseconds until it is given up; 60,000 by default. */
  timeout?: number;
}

export interface RequestOptions {
  key?: string | Uint8Array;
  headers?: { [name: string]: string };
  /** Milliseconds that responders have; 5,000 by default. */
  timeout?: number;
}

export interface Reply<T = any> {
  value: T;
  text: string | null;
  headers: { [name: string]: string };
}

export interface SubscribeOptions {
  /** "latest" (the default), "earliest", an offset of one topic, or a time. */
  start?: "latest" | "earliest" | number | Date | (string & {});
  /** Keeps the position on the server under this name. */
  name?: string;
  /** What happens when the reader lags by more than `buffer`. */
  policy?: string;
  buffer?: number;
  bufferBytes?: number;
  strict?: boolean;
  partial?: boolean;
  /** What `presence` shows of this subscriber. */
  presence?: string;
  /** Gets what is missing, in its place between the records. */
  onGap?: (gap: Gap) => unknown;
}

export interface GroupOptions {
  start?: "latest" | "earliest" | number | Date | (string & {});
  /** What the member is called. */
  name?: string;
  /** Records that it may hold; 64 by default. */
  prefetch?: number;
  /** Milliseconds to settle a delivery. */
  ackWait?: number;
  maxDeliver?: number;
  /** Milliseconds between attempts. */
  backoff?: number[];
  deadLetter?: string;
  presence?: string;
}

/** A record of a group, to be settled. */
export interface Delivery<T = any> extends SocketRecord<T> {
  attempt: number;
  ack(options?: { durable?: boolean }): Promise<void>;
  nack(options?: { delay?: number; reason?: string }): Promise<void>;
  reject(reason?: string): Promise<void>;
  extend(milliseconds: number): Promise<void>;
}

export interface Member {
  id: string;
  name: string;
  since: Date;
  group: string | null;
  presence: string | null;
  principal: string | null;
}

export interface PresenceEvent {
  event: "join" | "leave";
  member: Member;
}

/** An async iterable; leaving a `for await` over it, or `close()`, ends it. */
export interface Stream<T> extends AsyncIterableIterator<T> {
  close(): void;
  next(): Promise<IteratorResult<T, undefined>>;
  return(): Promise<IteratorResult<T, undefined>>;
}

export class Client {
  constructor(url?: string | URL, options?: OpenOptions);
  readonly state: State;
  ready(): Promise<void>;
  close(): void;
  publish(topic: string, value: unknown, options?: PublishOptions): Promise<Position>;
  request<T = any>(topic: string, value: unknown, options?: RequestOptions): Promise<Reply<T>>;
  requestMany<T = any>(
    topic: string,
    value: unknown,
    options?: RequestOptions & { limit?: number },
  ): Promise<{ replies: Reply<T>[]; failures: { error: string; why: string }[] }>;
  reply(
    record: { headers: { [name: string]: string } },
    value: unknown,
    options?: { headers?: { [name: string]: string } },
  ): Promise<boolean>;
  subscribe<T = any>(topic: string, options?: SubscribeOptions): Stream<SocketRecord<T>>;
  group<T = any>(topic: string, group: string, options?: GroupOptions): Stream<Delivery<T>>;
  members(topic: string): Promise<Member[]>;
  presence(topic: string): Stream<PresenceEvent>;
}

/** A client of the server at `url`. */
export function open(url?: string | URL, options?: OpenOptions): Client;

export { RunnelError } from "./runnel.js";
