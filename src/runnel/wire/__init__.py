"""What travels between clients and servers, as bytes: no socket, no clock, no loop."""
