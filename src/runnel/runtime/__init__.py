"""Event loop ownership, waiting, the system clock and tracing, shared by all backends."""
