"""The pytest plugin as its user meets it: in a test run of its own."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest_plugins = ["pytester"]

USERS_TEST = """
import asyncio

def test_expiry_without_waiting(runnel_broker, runnel_clock):
    async def scenario():
        await runnel_broker.publish("offers", "today only", expires=3600)
        await runnel_broker.publish("offers", "for ever")
        await runnel_clock.advance(3601)
        async with runnel_broker.subscribe("offers", start="earliest") as offers:
            return (await anext(offers)).value
    assert asyncio.run(scenario()) == b"for ever"

def test_each_test_has_a_broker_of_its_own(runnel_broker):
    async def scenario():
        return await runnel_broker.topics()
    assert asyncio.run(scenario()) == []
"""


def test_the_fixtures_work_with_no_async_plugin_at_all(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(USERS_TEST)
    result = pytester.runpytest_subprocess("-p", "no:asyncio", "-p", "no:hypothesispytest", "-q")
    result.assert_outcomes(passed=2)


async def test_the_fixtures_work_in_an_async_test(runnel_broker, runnel_clock, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    assert runnel_broker.clock is runnel_clock
    await runnel_broker.publish("t", "x")
    assert await runnel_broker.topics() == ["t"]
