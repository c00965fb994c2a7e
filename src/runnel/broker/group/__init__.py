"""The logic of groups, and nothing else: no clock, no loop, no log.

Time is an argument and effects are returned, so the in-process broker, the durable one
and every door use it unchanged. Places are offsets of a topic, or sequences where a group
reads a pattern; what a place holds is opaque here.

lease    who holds which places, until when
ready    what may be handed out next: per-key order, priorities, delays
machine  the group: members, grants, acks, redelivery (`Group`)
"""
