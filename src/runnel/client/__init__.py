"""The remote backend: the topics of a server, in another process.

`runnel.open` builds a broker over `backend`. Below it, `server_link` owns one connection at a time, `reconnect`
replaces it when it drops, and `outbox` resends unanswered publishes. The package imports no broker and no journal.
"""
