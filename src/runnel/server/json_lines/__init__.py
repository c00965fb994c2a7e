"""JSON lines: one JSON object per line, for `nc`, scripts and other languages."""
