"""W3C trace context: its shape, and the one derived for records that were given none."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runnel.core.trace_context import derived_traceparent, is_traceparent

TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
NUMBERS = st.integers(0, 2**63 - 1)


@pytest.mark.parametrize(
    "text",
    [
        "",
        TRACE[:-1],
        TRACE + "0",
        TRACE + "\n",
        TRACE.upper(),
        "01" + TRACE[2:],
        "00-" + "0" * 32 + "-b7ad6b7169203331-01",
        "00-0af7651916cd43dd8448eb211c80319c-" + "0" * 16 + "-01",
        TRACE.replace("-", "_"),
        TRACE.replace("a", "g"),
    ],
)
def test_what_is_not_version_00_with_ids_is_no_traceparent(text: str) -> None:
    assert not is_traceparent(text)


def test_the_example_of_the_standard_is_one() -> None:
    assert is_traceparent(TRACE)


@given(NUMBERS, NUMBERS)
def test_a_derived_one_is_valid_unsampled_and_always_the_same(epoch: int, offset: int) -> None:
    trace = derived_traceparent(epoch, offset)
    assert is_traceparent(trace)
    assert trace.endswith("-00")
    assert trace == derived_traceparent(epoch, offset)


@given(st.sets(st.tuples(NUMBERS, NUMBERS), min_size=2, max_size=20))
def test_two_records_never_share_one(places: set[tuple[int, int]]) -> None:
    assert len({derived_traceparent(epoch, offset)[:35] for epoch, offset in places}) == len(places)


def test_the_value_is_fixed_for_ever() -> None:
    # Other processes and later versions must derive the same: a change of this line breaks traces.
    assert derived_traceparent(1, 2) == "00-6987beb04d317e2740074059430aa75f-1610933624423bb7-00"
