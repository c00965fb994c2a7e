"""Without pyspark the tests of the example that needs it are not collected; the summary says so: tests/conftest.py."""

from importlib.util import find_spec

collect_ignore = [] if find_spec("pyspark") else ["test_trades.py"]
