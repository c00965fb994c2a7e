"""Spark reads and writes topics: the format `runnel`, batch and streaming.

`runnel.spark.session()` gives a session that works; `spark.read.format("runnel")` and `df.write.format("runnel")` need
only this package to be installed. Importing it loads neither Spark nor Arrow: executors load what they use.
"""

from runnel.spark.session import session  # now, not on first access: the name is also that of a module

__all__ = ["session"]
