"""Reading the journal: records by topic or by sequence, recovery when it opens, inspection by other processes."""
