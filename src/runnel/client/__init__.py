"""The remote backend: a broker in another process, with the API of a local one.

Users hold `broker`, `topic`, `producer`, `stage`, `transaction`, `subscription`, `group` and `delivery`. Below them,
`server_link` owns one connection at a time, `reconnect` replaces it when it drops, and `outbox` resends what was not
answered. The package imports no broker and no journal.
"""
