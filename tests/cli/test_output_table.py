"""Tables that line up, and numbers that people read."""

import pytest

from runnel.cli.output import Size, human_age, human_size, human_time, many, not_synced, pairs, table


def test_columns_line_up_and_numbers_stand_to_the_right() -> None:
    shown = table(("TOPIC", "END", "SIZE"), [("a", 5, Size(100)), ("long.name", 12_345, Size(2048)), ("b", None, None)])
    assert shown.splitlines() == [
        "TOPIC         END     SIZE",
        "a               5    100 B",
        "long.name  12,345  2.0 KiB",
        "b               -        -",
    ]


def test_a_table_without_rows_is_its_heads() -> None:
    assert table(("A", "B"), []) == "A  B"


def test_a_column_of_nothing_stands_to_the_left() -> None:
    assert table(("OPTIONS",), [(None,)]).splitlines() == ["OPTIONS", "-"]


def test_pairs_line_up() -> None:
    assert pairs([("a", 1), ("longer", "x"), ("none", "")]) == "a       1\nlonger  x\nnone"


@pytest.mark.parametrize(
    ("size", "shown"),
    [(0, "0 B"), (1023, "1023 B"), (1024, "1.0 KiB"), (1536, "1.5 KiB"), (5 << 30, "5.0 GiB"), (1 << 62, "4096.0 PiB")],
)
def test_sizes(size: int, shown: str) -> None:
    assert human_size(size) == shown


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(-1, "0 s"), (0, "0 s"), (59.9, "59 s"), (60, "1 min"), (3725, "1 h 2 min"), (86400 * 3 + 7200, "3 d 2 h")],
)
def test_ages(seconds: float, shown: str) -> None:
    assert human_age(seconds) == shown


def test_times_and_counts() -> None:
    assert human_time(0) is None
    assert human_time(1_700_000_000_999_999) == "2023-11-14 22:13:20"
    assert (many(1, "topic"), many(1000, "topic")) == ("1 topic", "1,000 topics")


def test_what_a_look_leaves_out_is_said() -> None:
    assert not_synced(1, 2048) == "1 record (2.0 KiB) written and not yet synced are not shown"
    assert not_synced(2, 5, "are not in it") == "2 records (5 B) written and not yet synced are not in it"
