"""The handles that users hold: broker, topics, subscriptions, deliveries, transactions. One class for every backend."""
