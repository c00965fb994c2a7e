"""What a broker shows of relays that report to it."""

from __future__ import annotations

from pathlib import Path

import runnel
from runnel.observe.prometheus import render
from runnel.postgres import RelayStatistics
from runnel.testing import JumpingClock


async def test_a_relay_that_reports_no_more_is_shown_as_silent(tmp_path: Path) -> None:
    clock = JumpingClock()
    async with runnel.open(tmp_path, clock=clock) as broker:
        await broker.backend.report_relay(RelayStatistics(slot="s", state="streaming"))
        await clock.advance(9.0)
        assert [one.state for one in broker.statistics().relays] == ["streaming"]
        await clock.advance(1.5)
        assert [one.state for one in broker.statistics().relays] == ["silent"]
        assert 'runnel_relay_state{slot="s",state="silent"' in render(broker.statistics())
