"""`archive`: copies topics to the lake, existing and new records, in one query.

Each record is added once by (topic, epoch, offset), whatever happens to the checkpoint: without one the query begins
behind the records in the lake. Maintenance compacts small files and removes left-over ones beside it.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from runnel.core.errors import InvalidOption, TopicDeleted, TopicHeld, UnknownTopic
from runnel.core.pattern import matches
from runnel.core.topic_bounds import TopicFloors
from runnel.spark.pipelines.pipeline import Check, Context, Finding, Option, Pipeline, Stream, counted

if TYPE_CHECKING:
    from runnel.lake import Lake

log = logging.getLogger("runnel.spark.pipelines")

TRIGGER_RECORDS = 1_000_000
"""Of one micro-batch at most, of all topics: about 150 MB of records of 100 bytes, and two seconds of work."""

DESCRIPTION = """\
examples:
  runnel pipeline run archive                              every topic of data/ to lake/records, and go on
  runnel pipeline run archive --once                       what is there now
  runnel pipeline run archive --topic 'orders.>' --topic payments
  runnel pipeline run archive --expire-after 365d          erase what is older, at each maintenance
  runnel pipeline run archive --typed orders               lake/tables/orders, too: a column for each field of its type
  runnel pipeline run archive --server runnel://127.0.0.1:7788 --lake s3://bucket/lake --storage AWS_REGION=eu-west-1

lake/records is a Delta table that Polars, DuckDB, pandas and Spark read: topic, epoch, offset, sequence, time, key,
value, headers, due, expires, priority, day, bucket. Topics that are made later join. Internal topics ($runnel.>) are
left out. With a topic option retention_until=archived the broker keeps records until the archive has confirmed them.
Maintenance makes larger files of small ones, in all tables, and erases what was trimmed, or deleted with its topic:
retention of the journal erases nothing. Values that do not fit the type of --typed go to lake/quarantine.
"""


def build(context: Context) -> Sequence[Stream | Check]:
    """The query from the topics to the lake, and its maintenance."""
    from runnel.arrow.reading import opened
    from runnel.lake import Lake
    from runnel.spark.options import broker_location
    from runnel.spark.pipelines.lake_sink import record_files, register, sink_options
    from runnel.spark.pipelines.range_source import read_ranges

    topics: tuple[str, ...] = tuple(context.options["topic"]) or (">",)
    lake = Lake(context.lake, dict(context.storage_options) or None)
    location, fail = broker_location(context.broker), bool(context.options["fail_on_data_loss"])
    reader = opened(location)
    try:
        lake.create(reader.journal)
    finally:
        reader.close()
    ranges = read_ranges(
        context.spark,
        context.broker,
        ",".join(topics),
        startingOffsets=starting_offsets(lake, topics),
        maxRecordsPerTrigger=context.options["batch_records"],
        failOnDataLoss=str(fail).lower(),
    )
    files = counted(record_files(ranges, lake, location, fail=fail), "records")
    writer = files.writeStream.format(register(context.spark)).options(**sink_options(lake, context.broker))
    typed = [copy_typed(lake, context)] if context.options["typed"] else []
    return [Stream("archive", writer.outputMode("append")), *typed, maintenance(lake, context, topics)]


def starting_offsets(lake: Lake, topics: Sequence[str]) -> str:
    """Where a query without a checkpoint begins: behind what the lake holds, and else at the first record."""
    newest: dict[str, tuple[int, int]] = {}
    for (topic, epoch), offset in lake.next_offsets(None).items():
        if any(matches(one, topic) for one in topics):
            newest[topic] = max(newest.get(topic, (0, 0)), (epoch, offset))
    begins: dict[str, Any] = dict.fromkeys(topics, "earliest")
    begins |= {topic: {"epoch": epoch, "offset": offset} for topic, (epoch, offset) in newest.items()}
    return json.dumps(begins)


def gone_below(
    archived: Mapping[tuple[str, int], int], floors: Mapping[str, TopicFloors]
) -> dict[tuple[str, int], int]:
    """By topic and epoch: below which offset a user removed the records, so that the lake may not keep them either.

    `floors`: of the topics that there are. Retention of the journal is no removal: that is what the lake is for.
    """
    found = {}
    for (topic, epoch), end in archived.items():
        now = floors.get(topic)
        gone = end if now is None or now.epoch != epoch else now.gone  # all of it, if the topic was deleted
        if gone:
            found[topic, epoch] = gone
    return found


def maintenance(lake: Lake, context: Context, topics: Sequence[str]) -> Check:
    """Compaction, erasure of trimmed and deleted records, and removal of files that no reader needs, on a schedule."""
    from runnel.arrow.reading import opened
    from runnel.spark.options import broker_location

    every = context.options["maintain_every"]
    if every is not None and every <= 0:
        raise InvalidOption("maintain_every", every, "expected a time above 0")

    oldest = context.options["expire_after"]
    if oldest is not None and oldest <= 0:
        raise InvalidOption("expire_after", oldest, "expected a time above 0")

    def work() -> Finding:
        archived = lake.next_offsets(None)  # before the floors: a topic that is new in them is in no lake yet
        reader = opened(broker_location(context.broker))
        try:
            named = {topic for topic, _ in archived if any(matches(one, topic) for one in topics)}
            seen = reader.visible(named)  # one that this login may not see is not one that was deleted
            if oldest is not None:
                expire(context, archived, reader.floors([*seen]), datetime.now(UTC) - timedelta(seconds=oldest))
            gone = gone_below({key: end for key, end in archived.items() if key[0] in seen}, reader.floors([*seen]))
        finally:
            reader.close()
        done = lake.maintain(gone)
        said = (
            f"maintenance: {done.compacted:,} files made {done.into:,}, {done.erased_rows:,} trimmed or deleted rows "
            f"erased, {done.removed_files:,} files removed"
        )
        return Finding(True, said, facts={"maintenance": done})

    return Check("maintenance", work, every=every)


def expire(
    context: Context, archived: Mapping[tuple[str, int], int], floors: Mapping[str, TopicFloors], before: datetime
) -> None:
    """Trim topics up to their first archived record that is not older than `before`. Trimmed records are then erased.

    The broker comes first: a reader of it never finds a hole where the lake has erased. Records that are not archived
    yet stay, however old.
    """
    from runnel.arrow.lake_reader import LakeReader
    from runnel.spark.connection import open_connection
    from runnel.spark.options import broker_location

    present = {key: end for key, end in archived.items() if key[0] in floors and floors[key[0]].epoch == key[1]}
    young = LakeReader.of(context.lake, dict(context.storage_options)).places(present, before, None) or {}
    firsts = {key: young.get(key, end) for key, end in present.items()}
    expired = {key: first for key, first in firsts.items() if first > floors[key[0]].gone}
    if not expired:
        return
    with open_connection(broker_location(context.broker)) as connection:
        for (topic, epoch), first in expired.items():
            try:
                connection.ask("trim", topic=topic, before=first, epoch=epoch)
            except (TopicHeld, TopicDeleted, UnknownTopic) as error:
                log.warning("records of topic %r do not expire yet: %s", topic, error)


def copy_typed(lake: Lake, context: Context) -> Check:
    """Copies of typed topics, each in a table of its own with a column for each field, on a schedule.

    The driver makes them, without Spark: a table's columns change with its topic's type between two copies.
    """
    from runnel.arrow import archive_typed
    from runnel.spark.options import broker_location

    every, topics = context.options["typed_every"], context.options["typed"]
    if every <= 0:
        raise InvalidOption("typed_every", every, "expected a time above 0")
    location = broker_location(context.broker)
    where = location.url or location.path
    assert where is not None, "one of them is there"

    def work() -> Finding:
        rows, waiting = {}, []
        for topic in topics:
            try:
                rows[topic] = archive_typed(where, topic, lake, client=location.client).rows
            except UnknownTopic:
                waiting.append(topic)  # it may be made later
        said = ", ".join([f"{count:,} rows of {topic}" for topic, count in rows.items()] + [f"no {t}" for t in waiting])
        return Finding(True, f"typed tables: {said}", facts={"rows": rows})

    return Check("typed", work, every=every)


PIPELINE = Pipeline(
    "archive",
    "copy topics into the lake, each record once",
    build,
    (
        Option(
            "topic", "a topic or a pattern; may be repeated (default: every topic)", (), metavar="TOPIC", repeats=True
        ),
        Option(
            "typed",
            "a typed topic to copy into a table of its own, lake/tables/TOPIC, too; may be repeated",
            (),
            metavar="TOPIC",
            repeats=True,
        ),
        Option("typed_every", "between two such copies (1min)", 60.0, kind="seconds", metavar="TIME"),
        Option(
            "batch_records",
            f"records of one micro-batch at most (default: {TRIGGER_RECORDS:,})",
            TRIGGER_RECORDS,
            kind="whole",
            metavar="N",
        ),
        Option(
            "fail_on_data_loss",
            "stop where records are gone before they were archived (default: log it, and go on)",
            False,
            kind="flag",
        ),
        Option(
            "maintain_every", "between two compactions of small files (10min)", 600.0, kind="seconds", metavar="TIME"
        ),
        Option(
            "expire_after",
            "trim topics and erase in the lake what is older (default: the lake keeps all)",
            kind="seconds",
            metavar="TIME",
        ),
    ),
    DESCRIPTION,
)
