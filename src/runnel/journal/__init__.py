"""Disk: one journal for everything durable in a broker. Synchronous; who calls it brings the thread.

storage is the port to files · entry and segment are the format · index finds records · ledger is the
state that entries add up to · checkpoint and manifest shorten the way back to it · recovery walks
that way · journal writes · history reads · folder is who may.
"""
