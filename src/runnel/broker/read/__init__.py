"""Reading: cursors in memory and on disk, what happens when a subscriber lags, and subscriptions."""
