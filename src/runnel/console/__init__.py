"""The files that browsers get: the console's page, and `runnel.js` for pages of yours.

They are part of the package and need nothing from elsewhere: no build, no network.
Below: nothing. Above: server.http.assets.
"""

from runnel.console.files import Asset, asset

__all__ = ["Asset", "asset"]
