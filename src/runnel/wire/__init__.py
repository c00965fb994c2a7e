"""The protocols between clients and servers, sans-IO: bytes in, messages out. No socket, no clock, no event loop.

The native protocol is `frames`, `binary_messages`, `msgpack_messages` and `errors`; JSON lines are
`json_lines`, `json_commands` and `json_events`.
"""
