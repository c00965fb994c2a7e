"""Columns against a list of what each record carries."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from runnel.core.columns import KEYS, Columns
from runnel.core.record import Meta
from tests.carried import columns_of, metas_of

METAS = st.lists(
    st.none()
    | st.builds(
        Meta,
        key=st.none() | st.binary(max_size=2),
        headers=st.dictionaries(st.sampled_from("ab"), st.text("x", max_size=2), max_size=2),
        due=st.none() | st.just(1.5),
        expires=st.none() | st.just(2.5),
        priority=st.integers(0, 9),
    ).map(lambda meta: None if meta == Meta() else meta),
    max_size=6,
)


@given(METAS, METAS)
def test_columns_hold_what_each_record_carries(some: list[Meta | None], others: list[Meta | None]) -> None:
    columns = columns_of(some) or Columns()
    columns.extend(len(some), columns_of(others) or Columns())
    every = some + others
    assert metas_of(columns, len(every)) == every
    assert columns.rows(100) == {100 + index: meta for index, meta in enumerate(every) if meta is not None}
    assert columns.weight == sum(meta.weight for meta in every if meta is not None)


@given(METAS, st.integers(0, 6), st.integers(0, 6))
def test_a_part_and_what_is_left_without_it(metas: list[Meta | None], start: int, end: int) -> None:
    start, end = min(start, end), max(start, end)
    columns = columns_of(metas) or Columns()
    part = columns.part(start, end)
    assert metas_of(part, len(metas[start:end])) == metas[start:end]
    assert (part is None) == (not any(metas[start:end]))
    columns.remove(start, end)
    rest = metas[:start] + metas[end:]
    assert metas_of(columns, len(rest)) == rest


def test_an_empty_key_is_a_key() -> None:
    columns = Columns({KEYS: [None, b""]})
    assert columns.rows() == {1: Meta(b"")}
    assert columns.part(1, 2) == {KEYS: [b""]}
    assert columns.part(0, 1) is None
