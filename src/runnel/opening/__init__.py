"""`runnel.open`: from a location (memory, a folder, a server URL) to a broker.

Several processes may open one folder: the first owns it, the others connect to a socket in it, and when the owner dies
one of them takes over.
"""

from runnel.opening.opening import open

__all__ = ["open"]
