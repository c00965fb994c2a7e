"""Series for the console's plots: of every span, for all viewers at once."""

from __future__ import annotations

import asyncio

import pytest

import runnel
from runnel.observe.analytics import SPANS, read_series
from runnel.server.http import analytics
from runnel.testing.clock import JumpingClock
from tests.server.http.browser import web


async def test_every_span_has_series_of_what_telemetry_says(runnel_clock: JumpingClock) -> None:
    async with web(runnel.open(clock=runnel_clock, telemetry=10)) as (broker, client):
        await broker.topic("t").publish_many([b"x"] * 500)
        await runnel_clock.advance(10)
        for span, (seconds, bucket) in SPANS.items():
            answer = await client.get("/console/analytics", params={"span": span})
            assert answer.status_code == 200
            found = answer.json()
            assert found["totals"]["published"] == 500
            assert found["end"] - found["start"] == seconds
            assert len(found["series"]["published"]) == seconds / bucket
            assert found["topics"][0]["topic"] == "t"


async def test_an_unknown_span_is_named() -> None:
    async with web(runnel.open()) as (_, client):
        answer = await client.get("/console/analytics?span=years")
        assert (answer.status_code, answer.json()["code"]) == (400, "invalid_option")
        assert "minutes, hours, days" in answer.text


async def test_viewers_share_one_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[object] = []

    async def counting(*given: object) -> object:
        asked.append(given)
        return await read_series(*given)  # type: ignore[arg-type]

    monkeypatch.setattr(analytics, "read_series", counting)
    async with web(runnel.open()) as (_, client):
        answers = await asyncio.gather(*(client.get("/console/analytics") for _ in range(5)))
        assert {answer.status_code for answer in answers} == {200}
    assert len(asked) == 1
