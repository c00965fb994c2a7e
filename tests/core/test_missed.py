"""What was missed, from when it is noticed to when it is told."""

from runnel.core.record import MissedRange, joined_missed


def test_two_stretches_are_told_as_one() -> None:
    one, two = MissedRange(3, 5, 2, "slow"), MissedRange(7, 9, 1, "slow")
    assert joined_missed(None, None) is None
    assert joined_missed(one, None) is one
    assert joined_missed(None, two) is two
    assert joined_missed(one, two) == MissedRange(3, 9, 3, "slow")


def test_each_reason_is_told_once_however_often_they_alternate() -> None:
    missed = None
    for at in range(100):
        missed = joined_missed(missed, MissedRange(at, at + 1, 1, "slow" if at % 2 else "gone"))
    assert missed == MissedRange(0, 100, 100, "gone; slow")
