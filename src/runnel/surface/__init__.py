"""What the broker in this process and the client of a server have in common, on an event loop.

Subscriptions that are read, woken and ended; deliveries; handlers and the tasks that run them. It knows no logs and
no sockets. Below: core. Above: broker, client.
"""
