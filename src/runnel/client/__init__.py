"""The client: the broker of another process, with the API of the one in this process.

`link` keeps a connection; `outbox` holds what is published until it is answered; `broker` and `topic`
are what users hold. Below: surface, wire, core. Above: place.
"""
