"""Topics in memory: the log of each, the order between them, their readers, and how records get in."""
