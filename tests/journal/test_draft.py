"""Drafts, and how far a write came."""

from runnel.journal.format.entry import WriteFailed


def test_a_failed_write_says_what_is_there_and_what_may_be() -> None:
    failed = WriteFailed(2, 5, OSError("no"))
    assert (failed.done, failed.begun, str(failed)) == (2, 5, "2 entries were written, 3 perhaps: no")
