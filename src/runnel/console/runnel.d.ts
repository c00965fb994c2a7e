/** Types of runnel.js: follow and publish records from a web page. */

/** A number that is a string of digits beyond 2^53, where JavaScript would round it: `BigInt(offset)` reads both. */
export type Exact = number | string;

/** Where a record is stored. */
export interface Position {
  topic: string;
  epoch: Exact;
  offset: Exact;
}

/** A record, as it was published. `T` is what you expect its value to be; nothing checks it. */
export interface Record<T = any> {
  topic: string;
  /** Changes when the topic is deleted and made again. */
  epoch: Exact;
  /** Its number in the topic, from 0. */
  offset: Exact;
  /** Its number among the records of all topics. */
  sequence: Exact;
  time: Date;
  /** Bytes if it is no UTF-8. */
  key: string | Uint8Array | null;
  /** What was published: parsed if it is JSON, else the text; bytes if it is no UTF-8. */
  value: T;
  /** The value as text, as it came; null if it is no UTF-8. */
  text: string | null;
  headers: { [name: string]: string };
  /** Opaque; a subscription with this `lastEventId` begins right behind this record. */
  id: string;
}

/** What does not come, and why. */
export interface Gap {
  /** The topic, or all that were asked for. */
  topic: string;
  first: Exact;
  end: Exact;
  /** How many records; null where it cannot be known. */
  count: number | null;
  reason: string;
}

/** "waiting": the line is lost, and is tried again in a while. */
export type State = "connecting" | "open" | "waiting" | "closed";

export interface StateDetail {
  /** Of "waiting" and "closed": why. */
  error?: unknown;
  /** Of "waiting": milliseconds until the next try. */
  retryIn?: number;
}

export interface Options {
  /** The address that the routes of the server are below; by default where runnel.js came from. */
  url?: string | URL;
  /** What else goes into each request: headers such as Authorization, credentials. */
  request?: RequestInit;
  /** Aborted, it ends. */
  signal?: AbortSignal;
}

export interface SubscribeOptions<T = any> extends Options {
  /** "latest" (the default), "earliest", a time; of one topic also an offset, below 0 counted from the end. */
  start?: "latest" | "earliest" | number | Date | (string & {});
  /** Gets a ticket (`POST /tickets`) for each connection, where no header or cookie can be sent: across sites. */
  ticket?: () => Promise<string>;
  /** With authentication: of a pattern, only the topics that may be read. */
  partial?: boolean;
  /** Only records with this key, or one of these. */
  key?: string | string[];
  /** What happens when the page lags by more than `buffer`: "drop_oldest" (the default in memory), "disconnect:100", … */
  policy?: string;
  /** Records that may lie ahead unread. */
  buffer?: number;
  /** The same bound in bytes of values. */
  bufferBytes?: number;
  /** A gap ends the subscription with an error. */
  strict?: boolean;
  /** Gets each record; the next one comes when what it returns is settled. If it throws, the subscription ends. */
  onRecord?: (record: Record<T>) => unknown;
  /** Gets what is missing, in its place between the records; without it, the browser's console gets a warning. */
  onGap?: (gap: Gap) => unknown;
  /** Gets each change of state. */
  onState?: (state: State, detail: StateDetail) => void;
  /** Go on from here: the id of a record, or `lastEventId` of an earlier subscription to the same topics. */
  lastEventId?: string;
  /** Where `lastEventId` is kept: with `sessionStorage` a page that is loaded again goes on where it was. */
  store?: { getItem(key: string): string | null; setItem(key: string, value: string): void };
}

export interface PublishOptions extends Options {
  key?: string | Uint8Array;
  headers?: { [name: string]: string };
  /** Of the request. By default text/plain, application/octet-stream or application/json, after the value. */
  contentType?: string;
  /** Makes sending it again harmless; by default a random one. null: none, and it is sent once. */
  idempotencyKey?: string | null;
  /** Milliseconds until it is given up; 60,000 by default. */
  timeout?: number;
}

/** What went wrong. */
export class RunnelError extends Error {
  constructor(code: string, message: string, more?: { status?: number; retryAfter?: number; cause?: unknown });
  /** The same everywhere in runnel. */
  code: string;
  /** The HTTP status; 0 if there was no answer. */
  status: number;
  /** Milliseconds that the server wants to be left alone. */
  retryAfter: number;
}

/** Records of some topics: an async iterable, unless they go to `onRecord`. */
export class Subscription<T = any> implements AsyncIterableIterator<Record<T>> {
  constructor(topics: string | string[], options: SubscribeOptions<T>);
  readonly state: State;
  /** The id of the last event that the page is done with. */
  readonly lastEventId: string;
  /** Resolves when it is over; rejects with the error that ended it. */
  readonly finished: Promise<void>;
  /** End it. */
  close(): void;
  [Symbol.asyncIterator](): this;
  next(): Promise<IteratorResult<Record<T>, undefined>>;
  return(): Promise<IteratorResult<Record<T>, undefined>>;
}

/** Follow topics: names or patterns. */
export function subscribe<T = any>(topics: string | string[], options?: SubscribeOptions<T>): Subscription<T>;

/** Publish one record: a text, bytes, or anything that JSON can hold. Resolves once it is durable. */
export function publish(topic: string, value: unknown, options?: PublishOptions): Promise<Position>;

/** `subscribe` and `publish` of the server at `base`. */
export function connect(
  base: string | URL,
  defaults?: Pick<Options, "request">,
): { url: string; subscribe: typeof subscribe; publish: typeof publish };
