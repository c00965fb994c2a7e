"""The local backend: topics as logs, subscribers as cursors on them, in this process.

topic/    topics in memory: log, order between topics, readers, publishing
durable/  topics on disk: commit queue, journal writer, retention, background threads
read/     cursors, overflow policies, subscriptions
group/    consumer groups: leases, acks, redelivery, dead letters
tx/       transactions, markers, stages
remote/   what a server uses: packed batches in, packed batches out
A sub-package imports only those above it in this list. The modules beside them put the parts together.
"""
