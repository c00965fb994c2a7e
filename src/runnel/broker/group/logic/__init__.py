"""The state machine of a group: no clock, no loop, no log.

Time is an argument and effects are returned, so every backend and every listener can use it unchanged. A place is an
offset of a topic, or a sequence where the group reads a pattern.
"""
