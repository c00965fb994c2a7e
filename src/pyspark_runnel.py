"""How Spark finds the format `runnel` without registering: it looks for a module `pyspark_` and the format's name."""

from runnel.spark.format import RunnelSource as DefaultSource

__all__ = ["DefaultSource"]
