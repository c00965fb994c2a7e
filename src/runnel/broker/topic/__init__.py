"""Topics in memory: the log of each, the order between them, who reads them, and how records get in."""
