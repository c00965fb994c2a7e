"""The NATS backend: topics in a replicated JetStream cluster.

Only `opening` imports it, when an address begins with `nats://`. It loads neither `broker` nor `journal`.
"""
