"""The key of a stage: checked when it is said, told by name."""

import msgspec
import pytest

from runnel.core.errors import InvalidOption
from runnel.core.stages import StageInfo, StageKey, checked_stage_key, stage_name


@pytest.mark.parametrize(
    "key",
    [("", 1, 0, 0), ("w" * 257, 1, 0, 0), (7, 1, 0, 0), ("w", -1, 0, 0), ("w", 1, True, 0), ("w", 1, 0, 2**63)],
)
def test_a_key_is_checked_when_it_is_said(key: tuple[str, int, int, int]) -> None:
    with pytest.raises(InvalidOption):
        checked_stage_key(key)


def test_a_key_has_four_parts() -> None:
    assert checked_stage_key(("w", 1, 2, 3)) == StageKey("w", 1, 2, 3)
    for wrong in (("w", 1), ["w", 1, 2, 3], "wxyz"):
        with pytest.raises(InvalidOption, match=r"expected a stage, or \(writer, batch, part, attempt\)"):
            checked_stage_key(wrong)  # type: ignore[arg-type]


def test_the_report_of_a_stage_knows_its_key() -> None:
    assert StageInfo(7, "w", 1, 2, 3, "t", 10, 100, 0.5).key == StageKey("w", 1, 2, 3)


def test_the_report_of_a_stage_survives_the_wire() -> None:
    info = StageInfo(7, "w", 1, 2, 3, "t", 10, 100, 0.5)
    sent = msgspec.msgpack.decode(msgspec.msgpack.encode(info))
    assert msgspec.convert(sent, StageInfo) == info


def test_errors_call_a_stage_by_all_of_its_key() -> None:
    assert stage_name(StageKey("w", 2, 3, 4)) == "'w' batch 2 part 3 attempt 4"
