"""What was missed, from when it is noticed to when it is told."""

from runnel.core.missed import Missed, joined


def test_two_stretches_are_told_as_one() -> None:
    one, two = Missed(3, 5, 2, "slow"), Missed(7, 9, 1, "slow")
    assert joined(None, None) is None
    assert joined(one, None) is one
    assert joined(None, two) is two
    assert joined(one, two) == Missed(3, 9, 3, "slow")


def test_each_reason_is_told_once_however_often_they_alternate() -> None:
    missed = None
    for at in range(100):
        missed = joined(missed, Missed(at, at + 1, 1, "slow" if at % 2 else "gone"))
    assert missed == Missed(0, 100, 100, "gone; slow")
