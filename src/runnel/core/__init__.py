"""The ground floor: values, names and rules that every other room shares.

Nothing here knows a socket, a file, an event loop or the time of day: time is
an argument and effects are returned.
Below: nothing. Above: everything.
"""
