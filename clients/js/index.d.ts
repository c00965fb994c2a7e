export * from "./runnel-socket.js";
