"""Run the tests beside this file, as `pytest examples/testing_with_runnel` would.

Prints::

    ....                                                                     [100%]
    4 passed in ...
"""

import sys
from pathlib import Path

import pytest

if __name__ == "__main__":
    sys.exit(pytest.main(["-q", "-p", "no:cacheprovider", str(Path(__file__).parent)]))
