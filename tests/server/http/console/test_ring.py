"""The last hours of some figures: in the slot of their time, averaged over longer steps, and bounded."""

from runnel.server.http.console.ring import Key, SampleRing

LAG: Key = ("group", "g", "lag")


def test_values_come_back_in_their_slots_and_holes_stay_holes() -> None:
    ring = SampleRing(10.0, 60.0)
    for time, value in ((1000.0, 1.0), (1010.0, 2.0), (1030.0, 4.0)):
        ring.add(time, {LAG: value})
    assert ring.read("group", "g", 1030.0, 60.0, 6) == {"lag": [None, None, 1.0, 2.0, None, 4.0]}
    assert ring.read("group", "g", 1050.0, 60.0, 6) == {"lag": [1.0, 2.0, None, 4.0, None, None]}
    assert ring.read("group", "g", 1030.0, 60.0, 3) == {"lag": [None, 1.5, 4.0]}, "means of two steps"
    assert ring.read("group", "other", 1030.0, 60.0, 6) == {}
    assert ring.read("topic", "g", 1030.0, 60.0, 6) == {}


def test_what_is_older_than_the_ring_is_gone() -> None:
    ring = SampleRing(10.0, 30.0)
    for number in range(100):
        ring.add(number * 10.0, {LAG: float(number)})
    assert ring.read("group", "g", 990.0, 3600.0, 360) == {"lag": [97.0, 98.0, 99.0]}
    ring.add(2000.0, {})
    assert ring.read("group", "g", 2000.0, 30.0, 3) == {"lag": [None, None, None]}, "a pause is no old value"


def test_a_clock_that_is_put_back_changes_nothing() -> None:
    ring = SampleRing(10.0, 60.0)
    ring.add(1000.0, {LAG: 1.0})
    ring.add(900.0, {LAG: 9.0})
    ring.add(1005.0, {LAG: 9.0})
    assert ring.read("group", "g", 1000.0, 20.0, 2) == {"lag": [None, 1.0]}


def test_series_without_values_for_the_longest_make_room_for_new_ones() -> None:
    ring = SampleRing(10.0, 60.0, most=3)
    ring.add(0.0, {("topic", "old", "rate"): 1.0, ("topic", "kept", "rate"): 1.0})
    for slot in range(1, 4):
        ring.add(slot * 10.0, {("topic", "kept", "rate"): 1.0, ("topic", "third", "rate"): 1.0})
    ring.add(40.0, {("topic", "kept", "rate"): 1.0, ("topic", "new", "rate"): 5.0})
    assert len(ring) == 3
    assert ring.read("topic", "old", 40.0, 10.0, 1) == {}
    assert ring.read("topic", "new", 40.0, 10.0, 1) == {"rate": [5.0]}
    ring.add(50.0, {("topic", name, "rate"): 1.0 for name in ("kept", "third", "new", "too many")})
    assert ring.read("topic", "too many", 50.0, 10.0, 1) == {}, "all of them are in use"
