"""Transactions: publishes, acks, markers and staged records that are committed together or not at all."""
