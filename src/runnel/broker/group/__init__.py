"""Consumer groups: each record goes to one member, and stays with the group until it is acked or fails for good.

`logic/` decides and does no I/O. The other modules bring records to it and carry its effects out.
"""
