"""Records, batches, positions, patterns, options and errors: the values that every package shares.

No I/O, no event loop, no clock: time is an argument, and effects are returned.
"""
