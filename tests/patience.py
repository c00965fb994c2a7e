"""How long a test waits for what ought to happen: it costs time only where something hangs, and then the test fails.

So it is far beyond what anything takes, on a slow machine that does something else as well. A test that waits for
something *not* to happen, or that says how long something may take, has a number of its own.
"""

import os

PATIENCE = float(os.environ.get("RUNNEL_TEST_PATIENCE", "180"))  # seconds
