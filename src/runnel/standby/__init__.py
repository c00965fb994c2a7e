"""A warm standby: follows the journal of a primary, refuses clients, and is promoted."""
