// @ts-check
/** The client of a runnel server: `open` for everything over one WebSocket, and server-sent events in "runnel-mq/events". */
export { Client, open } from "./runnel-socket.js";
export { RunnelError } from "./runnel.js";
