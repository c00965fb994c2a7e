"""The bytes on disk, and the state (ledger) that they add up to. Formats: docs/reference/disk.md."""
