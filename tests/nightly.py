"""Cases and examples that `make test` leaves to `make nightly`."""

from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import settings


def nightly_beyond(short: int, cases: Iterable[Any]) -> list[Any]:
    """All cases for `parametrize`; those after the first `short` run in `make nightly` only."""
    return [
        pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=[pytest.mark.nightly] * (number >= short))
        for number, case in enumerate(cases)
    ]


def examples(short: int, long: int, **more: Any) -> settings:
    """Settings of a Hypothesis test: `long` examples with `--hypothesis-profile=nightly`, else `short`."""
    return settings(max_examples=long if settings.get_current_profile_name() == "nightly" else short, **more)
