"""Writing: the open journal, what its retention drops, and which segments archives hold."""
