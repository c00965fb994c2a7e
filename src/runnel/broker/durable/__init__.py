"""Topics on disk: the commit queue, the journal writer thread, and the cleaner that keeps the journal small."""
