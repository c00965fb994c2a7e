"""Backup: archives with point-in-time restore, and snapshots."""
