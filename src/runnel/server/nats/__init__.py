"""The NATS core protocol, for clients of NATS in every language."""
