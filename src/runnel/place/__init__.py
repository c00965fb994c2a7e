"""Where brokers live: `open` turns a place into a broker. Several processes may live in one folder.

- `opening`: which place is meant, and what it needs.
- `shared_folder`: a broker in a folder that other processes open too; `joined`: the broker of those others;
  `heir`: takes a folder over; `folder_door`: the socket that the owner lets them in by.

Below: server, broker, client. Above: the user; cli; blocking, by its name.
"""

from runnel.place.opening import open

__all__ = ["open"]
