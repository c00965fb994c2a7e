"""Prometheus text: the names users expect, exact values, bounded labels."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import runnel
from runnel.core.position import Position
from runnel.journal.backup.archive import archive
from runnel.observe import prometheus
from tests.patience import PATIENCE


def samples(text: str) -> dict[str, float]:
    return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in text.splitlines() if line[0] != "#")}


async def test_published_delivered_and_dropped_are_counted_by_topic_and_subscriber() -> None:
    async with runnel.open() as broker:
        async with (
            broker.subscribe("jobs", name="slow", start="latest", buffer=2) as slow,
            broker.subscribe("jobs", name="fast", start="latest") as fast,
        ):
            await broker.topic("jobs").publish_many([b"12345"] * 5)
            assert len(await anext(slow.batches())) == 2
            assert len(await anext(fast.batches())) == 5
            found = samples(prometheus.render(broker.statistics()))
    assert found['runnel_events_published_total{topic="jobs"}'] == 5
    assert found['runnel_events_published_bytes_total{topic="jobs"}'] == 25
    assert found['runnel_events_delivered_total{topic="jobs",subscriber="slow"}'] == 2
    assert found['runnel_events_dropped_total{topic="jobs",subscriber="slow"}'] == 3
    assert found['runnel_events_delivered_total{topic="jobs",subscriber="fast"}'] == 5
    assert found['runnel_events_dropped_total{topic="jobs",subscriber="fast"}'] == 0
    assert found['runnel_subscriber_lag{topic="jobs",subscriber="fast"}'] == 0
    assert found['runnel_subscribers{topic="jobs"}'] == 2


async def test_counters_do_not_go_back_when_a_subscriber_leaves_or_a_topic_is_deleted() -> None:
    async with runnel.open() as broker:
        async with broker.subscribe("jobs") as jobs:
            await broker.publish("jobs", "x")
            await anext(jobs)
        await broker.delete("jobs")
        assert broker.statistics().published == 1
        found = samples(prometheus.render(broker.statistics()))
    assert found['runnel_events_delivered_total{topic="jobs",subscriber="anonymous"}'] == 1


async def test_labels_stay_bounded_however_many_topics_there_are() -> None:
    async with runnel.open() as broker:
        for number in range(50):
            await broker.publish(f"t.{number}", "x")
        await broker.publish("t.7", "x")
        found = samples(prometheus.render(broker.statistics(), max_topics=10))
        assert samples(prometheus.render(broker.statistics(limit=10), max_topics=10)) == found
    published = {name: value for name, value in found.items() if name.startswith("runnel_events_published_total")}
    assert len(published) == 11
    assert published['runnel_events_published_total{topic="t.7"}'] == 2
    assert sum(published.values()) == 51


async def test_every_family_is_declared_once_before_its_samples() -> None:
    async with runnel.open() as broker, broker.subscribe("a.>"):
        await broker.publish("a.b", "x")
        text = prometheus.render(broker.statistics())
    declared: list[str] = []
    for line in text.splitlines():
        if found := re.match(r"# TYPE (\w+) (counter|gauge)$", line):
            declared.append(found[1])
        elif line[0] != "#":
            assert line.split("{")[0].split(" ")[0] == declared[-1]
    assert len(declared) == len(set(declared))


async def test_a_name_with_quotes_cannot_break_out_of_its_label() -> None:
    async with runnel.open() as broker:
        await broker.publish('sneaky"}\\', "x")
        text = prometheus.render(broker.statistics())
    assert 'runnel_events_published_total{topic="sneaky\\"}\\\\"} 1' in text


async def test_groups_and_handlers_are_there_with_their_histogram() -> None:
    async with runnel.open() as broker:

        @broker.on("jobs", group="workers", retries=0)
        async def work(job: str) -> None:
            if job == "bad":
                raise ValueError(job)
            if job == "last":
                broker.stop()

        for job in ("good", "bad", "last"):
            await broker.publish("jobs", job)
        await broker.run(signals=False)
        lines = [line for line in prometheus.render(broker.statistics()).splitlines() if line[0] != "#"]
        found = dict(line.rsplit(" ", 1) for line in lines)
    group = '{group="workers",topic="jobs"}'
    assert found[f"runnel_group_acked_total{group}"] == "2"
    assert found[f"runnel_group_dead_lettered_total{group}"] == "1"
    assert found[f"runnel_group_lag{group}"] == "0"
    name = "test_groups_and_handlers_are_there_with_their_histogram.work"
    labels = f'handler="{name}",topic="jobs",group="workers"'
    assert found[f"runnel_handler_duration_seconds_count{{{labels}}}"] == "3"
    assert found[f'runnel_handler_duration_seconds_bucket{{{labels},le="+Inf"}}'] == "3"
    assert found[f"runnel_handler_failures_total{{{labels}}}"] == "1"


async def test_a_journal_shows_its_figures_and_memory_has_none(tmp_path: Path) -> None:
    async with runnel.open() as broker:
        assert "journal_" not in prometheus.render(broker.statistics())
    async with runnel.open(tmp_path, segment_bytes=8192, min_free=0) as broker:
        async with broker.subscribe("jobs", name="archive", hold=True):
            for _ in range(10):
                await broker.publish("jobs", bytes(1000))
            found = samples(prometheus.render(broker.statistics()))
    assert found["runnel_journal_segments"] >= 2
    assert 10_000 < found["runnel_journal_disk_bytes"] < 20_000
    assert found["runnel_journal_syncs_total"] > 10
    assert found["runnel_journal_sync_duration_seconds_count"] == found["runnel_journal_syncs_total"]
    assert found['runnel_journal_sync_duration_seconds_bucket{le="+Inf"}'] == found["runnel_journal_syncs_total"]
    assert 0 < found["runnel_journal_sync_duration_seconds_sum"] < 60
    for name in ("pending_bytes", "disk_low", "disk_full", "failed"):
        assert found[f"runnel_journal_{name}"] == 0, name
    assert (found["runnel_journal_scrubbed_bytes_total"], found["runnel_journal_damaged_segments"]) == (0, 0)
    assert found['runnel_journal_held_bytes{subscriber="archive",topic="jobs"}'] >= 0


async def test_a_backup_that_holds_shows_when_it_came_by(tmp_path: Path) -> None:
    async with runnel.open(tmp_path / "data", min_free=0) as broker:
        await broker.publish("jobs", b"x")
    came = archive(tmp_path / "data", tmp_path / "archive", hold=True).through / 1e6
    name = f'runnel_journal_archive_timestamp_seconds{{archive="{tmp_path / "archive"}"}}'
    async with runnel.open(tmp_path / "data", min_free=0) as broker, asyncio.timeout(PATIENCE):
        while name not in (found := samples(prometheus.render(broker.statistics()))):  # noqa: ASYNC110  # a thread looks
            await asyncio.sleep(0.01)
    assert abs(found[name] - came) < 5


async def test_the_cleaner_shows_what_it_did(tmp_path: Path) -> None:
    async with runnel.open(tmp_path) as broker:
        await broker.publish("jobs", bytes(1000))
        found = samples(prometheus.render(broker.statistics()))
    assert 1 < found["runnel_journal_write_amplification"] < 2
    for name in ("read_bytes_total", "written_bytes_total", "freed_bytes_total", "segments_total", "live_bytes"):
        assert found[f"runnel_cleaner_{name}"] == 0


async def test_a_name_without_a_reader_here_lags_too() -> None:
    async with runnel.open() as broker:
        span = await broker.topic("t").publish_many([b"x"] * 5)
        await broker.place({"query/t": ("t", Position(span[0].epoch, 2))})
        assert (
            'runnel_subscriber_lag{topic="t",subscriber="query/t"} 3'
            in prometheus.render(broker.statistics()).splitlines()
        )
        few = prometheus.render(broker.statistics(), max_topics=0)
        assert "query/t" not in few  # labels stay bounded


async def test_the_last_ack_of_members_and_named_subscriptions_has_its_time() -> None:
    async with runnel.open() as broker:
        before = broker.clock.time()
        async with (
            broker.subscribe("jobs", name="reader") as records,
            broker.subscribe("jobs", group="work", name="ann") as deliveries,
        ):
            await broker.publish("jobs", "one")
            await anext(records)
            assert "last_ack_timestamp_seconds{" not in prometheus.render(broker.statistics()), "there was none"
            await broker.publish("jobs", "two")
            await anext(records)  # the first one is processed
            await (await anext(deliveries)).ack()
            found = samples(prometheus.render(broker.statistics()))
    member = 'runnel_group_member_last_ack_timestamp_seconds{group="work",topic="jobs",member="ann"}'
    assert found[member] >= before
    assert found['runnel_subscriber_last_ack_timestamp_seconds{topic="jobs",subscriber="reader"}'] >= before
