"""The journal: everything durable of a broker, in one folder. Synchronous; the caller brings the thread.

From the top: backup (archives, restore, snapshots), check (verify, repair, scrub), write (the open journal),
clean (what the cleaner keeps and drops), read (records, recovery, inspection), format (the bytes on disk).
Below them: storage (the port to files), folder_lock (one owner per folder), options.
"""
