"""Files for browsers: the web console, and `runnel.js` for pages of users.

They ship with the package: no build step, no network.
"""

from runnel.console.assets import Asset, asset

__all__ = ["Asset", "asset"]
