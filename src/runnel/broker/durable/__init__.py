"""Topics on disk: what waits to be written, the thread that writes it, and what keeps the journal small."""
