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


async def test_an_archive_is_in_the_metrics_under_its_table(tmp_path: Path) -> None:
    async with runnel.open(tmp_path) as broker:
        report = RelayStatistics(kind="archive", slot="public.t", state="waiting", rows=7, last_error="away")
        await broker.backend.report_relay(report)
        text = render(broker.statistics())
        assert 'runnel_archive_rows_total{table="public.t"} 7' in text
        assert 'runnel_archive_copying{table="public.t"} 0' in text
        assert 'runnel_archive_state{table="public.t",state="waiting"} 1' in text
        assert 'runnel_archive_last_error_info{table="public.t",error="away"} 1' in text
        assert "runnel_relay_" not in text
