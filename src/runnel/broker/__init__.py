"""The local backend: topics as logs, subscribers as cursors on them, in this process.

topic/    topics in memory: log, order between topics, readers, publishing
durable/  topics on disk: commit queue, journal writer, retention, background threads
read/     cursors, overflow policies, readers
group/    consumer groups: leases, acks, redelivery, dead letters
tx/       commits of transactions, stages
A sub-package imports only those above it in this list. Beside them, `parts` builds the parts of a broker and `backend`
implements the `Backend` port (`core.backend`) over them.
"""
