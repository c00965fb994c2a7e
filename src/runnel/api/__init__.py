"""What users hold of a broker, whatever its backend: subscriptions, deliveries, handlers, bridges."""
