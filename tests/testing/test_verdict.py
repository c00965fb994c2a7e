import pytest

from runnel.testing import History, HistoryViolated
from runnel.testing.verdict import SHOWN, LostRecord


def spoiled(lost: int) -> History:
    history = History()
    history.subscribed("alice", "orders", 0)
    for n in range(lost):
        history.intend("orders", f"o-{n}", "shop")
        history.acknowledged("orders", f"o-{n}", 1, n)
    history.delivered("bob", "orders", 1, 900, "ghost")
    history.ended("bob")
    return history


def test_a_clean_verdict_says_what_it_looked_at() -> None:
    history = History()
    history.intend("t", "a")
    history.acknowledged("t", "a", 1, 0)
    history.delivered("s", "t", 1, 0, "a")
    history.gap("s", "t", 1, 1, 3, 2)
    history.intend("t", "b")
    history.intend("t", "c")
    history.failed("t", "c")
    verdict = history.check()
    assert verdict.clean
    verdict.raise_if_any()
    assert str(verdict) == (
        "clean: 3 publishes (1 acknowledged, 1 failed, 1 unknown), 1 delivery to 1 subscriber, 1 reported gap"
    )


def test_a_spoiled_verdict_gives_the_tally_and_a_few_of_each_kind() -> None:
    verdict = spoiled(SHOWN + 2).check()
    assert not verdict.clean
    assert verdict.tally == {"lost": SHOWN + 2, "invented": 1}
    assert str(verdict).splitlines() == [
        "7 violations: 6 lost, 1 invented",
        "  in 6 publishes (6 acknowledged, 0 failed, 0 unknown), 1 delivery to 2 subscribers",
        *(
            f"  lost      'orders' offset {n} (epoch 1): 'o-{n}' of 'shop' was acknowledged, "
            "but 'alice' never got it, and no gap was reported"
            for n in range(SHOWN)
        ),
        "            … and 2 more lost",
        "  invented  'orders' offset 900 (epoch 1): 'bob' got 'ghost', which was never published",
    ]


def test_raising_carries_the_verdict_and_reads_as_an_assertion() -> None:
    verdict = spoiled(1).check()
    with pytest.raises(AssertionError, match="'o-0' of 'shop' was acknowledged") as caught:
        verdict.raise_if_any()
    assert isinstance(caught.value, HistoryViolated)
    assert caught.value.verdict is verdict


def test_violations_are_frozen_values() -> None:
    lost = LostRecord(topic="t", epoch=1, offset=0, id="a", publisher="p", reader="s")
    assert lost in {lost}
    with pytest.raises(AttributeError):
        lost.offset = 1  # type: ignore[misc]
