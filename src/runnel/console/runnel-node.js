// @ts-check
/**
 * runnel-node.js: as much of a WebSocket as runnel-socket.js uses, for Node 20, which has none of its own.
 *
 * Text messages both ways, pings answered, a close frame at the end (RFC 6455). Newer versions of Node are not asked to
 * load it.
 */

import { createHash, randomBytes } from "node:crypto";
import * as http from "node:http";
import * as https from "node:https";

const GUID = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11";
const TEXT = 1;
const CLOSE = 8;
const PING = 9;
const PONG = 10;
const MOST = 64 << 20; // bytes of one message

export class NodeWebSocket {
  /** @type {any} */ onopen = null;
  /** @type {any} */ onmessage = null;
  /** @type {any} */ onclose = null;
  /** @type {any} */ onerror = null;
  /** @type {import("node:stream").Duplex | null} */ #socket = null;
  #request;
  /** @type {Buffer[]} */ #pieces = []; // of a frame that is not whole
  #held = 0; // bytes of them
  #needed = 2; // bytes without which there is nothing to be done
  /** @type {Buffer[]} */ #parts = []; // of a message that comes in several frames
  #over = false;

  /** @param {string} url */
  constructor(url) {
    this.url = url;
    const key = randomBytes(16).toString("base64");
    const address = new URL(url);
    const { request } = address.protocol === "wss:" ? https : http;
    address.protocol = address.protocol === "wss:" ? "https:" : "http:";
    const headers = { Connection: "Upgrade", Upgrade: "websocket", "Sec-WebSocket-Version": "13", "Sec-WebSocket-Key": key };
    this.#request = request(address, { headers });
    this.#request.on("error", (error) => this.#fail(error.message));
    this.#request.on("response", (response) => {
      response.resume();
      this.#fail(`it answers ${response.statusCode}`);
    });
    this.#request.on("upgrade", (response, socket, head) => {
      if (response.headers["sec-websocket-accept"] !== createHash("sha1").update(key + GUID).digest("base64")) {
        socket.destroy();
        return this.#fail("it is no WebSocket server");
      }
      this.#socket = socket;
      /** @type {import("node:net").Socket} */ (socket).setNoDelay(true);
      socket.on("data", (data) => this.#feed(data));
      socket.on("error", () => this.#closed(1006));
      socket.on("close", () => this.#closed(1006));
      this.onopen?.({});
      if (head.length) this.#feed(head);
    });
    this.#request.end();
  }

  /** @param {string} text */
  send(text) {
    this.#frame(TEXT, Buffer.from(text));
  }

  close() {
    if (this.#socket === null) {
      this.#over = true;
      this.#request.destroy();
      return;
    }
    this.#frame(CLOSE, Buffer.from([3, 232])); // 1000
    this.#socket.end();
  }

  /** @param {number} kind @param {Buffer} body */
  #frame(kind, body) {
    if (this.#socket === null || this.#over || !this.#socket.writable) return;
    const long = body.length > 65_535 ? 8 : body.length > 125 ? 2 : 0;
    const frame = Buffer.alloc(6 + long + body.length);
    frame[0] = 0x80 | kind;
    frame[1] = 0x80 | (long === 8 ? 127 : long === 2 ? 126 : body.length);
    if (long === 2) frame.writeUInt16BE(body.length, 2);
    else if (long === 8) frame.writeBigUInt64BE(BigInt(body.length), 2);
    const mask = randomBytes(4);
    mask.copy(frame, 2 + long);
    for (let at = 0; at < body.length; at++) frame[6 + long + at] = body[at] ^ mask[at & 3];
    this.#socket.write(frame);
  }

  /** @param {Buffer} data */
  #feed(data) {
    this.#pieces.push(data);
    this.#held += data.length;
    if (this.#held < this.#needed) return; // a large frame is joined once
    let bytes = Buffer.concat(this.#pieces);
    for (;;) {
      const size = sizeOf(bytes);
      if (size === null || size.head + size.length > bytes.length) {
        if (size && size.length > MOST) this.#socket?.destroy();
        this.#pieces = [bytes];
        this.#held = bytes.length;
        this.#needed = size ? size.head + size.length : bytes.length + 1;
        return;
      }
      this.#took(bytes[0], bytes.subarray(size.head, size.head + size.length));
      bytes = bytes.subarray(size.head + size.length);
    }
  }

  /** @param {number} first @param {Buffer} body */
  #took(first, body) {
    const kind = first & 0x0f;
    if (kind === PING) this.#frame(PONG, body);
    else if (kind === CLOSE) {
      this.#frame(CLOSE, body.subarray(0, 2));
      this.#socket?.end();
      this.#closed(body.length > 1 ? body.readUInt16BE(0) : 1005);
    } else if (kind <= 2) {
      this.#parts.push(Buffer.from(body));
      if (!(first & 0x80)) return;
      const data = Buffer.concat(this.#parts).toString();
      this.#parts = [];
      this.onmessage?.({ data });
    }
  }

  /** @param {string} message */
  #fail(message) {
    if (this.#over) return;
    this.#over = true;
    this.onerror?.({ message });
  }

  /** @param {number} code */
  #closed(code) {
    if (this.#over) return;
    this.#over = true;
    this.onclose?.({ code, wasClean: code !== 1006 });
  }
}

/** Of the frame that the bytes begin with: the bytes before its body, and those of its body; null: more are needed.
 *  @param {Buffer} bytes */
function sizeOf(bytes) {
  if (bytes.length < 2) return null;
  const short = bytes[1] & 0x7f;
  if (short < 126) return { head: 2, length: short };
  if (short === 126) return bytes.length < 4 ? null : { head: 4, length: bytes.readUInt16BE(2) };
  return bytes.length < 10 ? null : { head: 10, length: Number(bytes.readBigUInt64BE(2)) };
}
