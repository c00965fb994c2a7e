"""Files for browsers: the web console, and `runnel.js` and `runnel-socket.js` for pages of users.

They ship with the package: no build step, no network.
"""

from runnel.console.assets import MODULES, Asset, asset

__all__ = ["MODULES", "Asset", "asset"]
