"""The native protocol: binary frames over TCP, TLS, a Unix socket or a WebSocket."""
