"""Durations and sizes are written as people write them, and read back as what they are."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runnel.config.units import seconds, show_seconds, show_size, size


@pytest.mark.parametrize(
    ("text", "found"),
    [("15s", 15.0), ("15", 15.0), ("250ms", 0.25), ("5min", 300.0), ("5m", 300.0), ("1.5h", 5400.0), ("7d", 604_800.0)],
)
def test_a_duration_is_read(text: str, found: float) -> None:
    assert seconds(text) == pytest.approx(found)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("0", 0),
        ("1048576", 1 << 20),
        ("1_000", 1000),
        ("512 KiB", 512 * 1024),
        ("64MiB", 64 << 20),
        ("64m", 64 << 20),
        ("2GB", 2_000_000_000),
        ("1.5KiB", 1536),
        ("10B", 10),
    ],
)
def test_a_size_is_read(text: str, found: int) -> None:
    assert size(text) == found


@pytest.mark.parametrize("text", ["", "soon", "-5s", "5 parsecs", "1h30m", "s", "5MiB"])
def test_an_invalid_duration_gets_an_example(text: str) -> None:
    with pytest.raises(ValueError, match="expected"):
        seconds(text)


@pytest.mark.parametrize("text", ["", "big", "-1", "5s", "1.5B", "1e6", "MiB"])
def test_an_invalid_size_gets_an_example(text: str) -> None:
    with pytest.raises(ValueError, match="expected"):
        size(text)


@given(st.integers(0, 1 << 50))
def test_a_size_is_shown_as_it_can_be_read(value: int) -> None:
    assert size(show_size(value)) == value


@given(st.integers(0, 10_000_000))
def test_a_duration_is_shown_as_it_can_be_read(milliseconds: int) -> None:
    value = milliseconds / 1000
    assert seconds(show_seconds(value)) == pytest.approx(value, rel=1e-5)


def test_they_are_shown_in_the_largest_unit_that_fits() -> None:
    assert [show_size(one) for one in (0, 1500, 1 << 20, 80 << 20, 4 << 30)] == ["0B", "1500B", "1MiB", "80MiB", "4GiB"]
    assert [show_seconds(one) for one in (0, 0.05, 15.0, 90, 3600, 604_800)] == ["0s", "50ms", "15s", "90s", "1h", "1w"]
