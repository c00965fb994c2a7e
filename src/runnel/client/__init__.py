"""The remote backend: the topics of a server, in another process.

`backend` is what `runnel.open` builds a broker over. Below it, `server_link` owns one connection at a time, `reconnect`
replaces it when it drops, and `outbox` resends what was not answered. The package imports no broker and no journal.
"""
