"""Topics as Arrow: record batches of journals, servers and lakes, without Spark."""
