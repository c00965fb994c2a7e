"""The logic of groups, and nothing else: no clock, no loop, no log.

Time is an argument and effects are returned, so the in-process broker, the durable one
and every door use it unchanged. Places are offsets of a topic, or sequences where a group
reads a pattern; what a place holds is opaque here.

schedule  what waits for a moment, in little room
lease     who holds which places, until when
leases    all of those, and when to look at them
member    who takes part, and how much it may hold
ready     what may be handed out next: per-key order, priorities, delays
claim     places that are settled together with something that is on its way
machine   the group: members, grants, acks, redelivery (`Group`)
options   what a group can be told
"""
