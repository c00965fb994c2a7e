"""What a user would reach for instead, one file each, called the best way it allows.

Each peer has `one_by_one` and `in_lists`: publishing value by value, and handing over whole lists
where the peer lets one. Readers drain what is there on every wake-up, where the peer has a way to.
"""
