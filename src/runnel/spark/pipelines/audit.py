"""`audit`: check that the lake has every offset once, and every record as the journal has it.

Journal and lake are read by Spark and reduced to a digest for each block of offsets, so the driver compares little
data. Blocks that differ are compared record by record. A hole is fine if the journal recorded a reason for it. A block
that agreed once is remembered, and has to stay unchanged after the journal has dropped its records. Typed tables are
compared with the records of the lake: each is there once, in the table or in the quarantine.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from time import time
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import UNSET

from runnel.core.topic_bounds import TRIMMED, TopicBounds
from runnel.spark.pipelines.pipeline import Check, Context, Finding, Option, Pipeline

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from runnel.arrow.range_reader import RangeReader
    from runnel.lake import Lake, TypedTable

log = logging.getLogger("runnel.spark.pipelines")

BLOCK = 65_536
"""Offsets of one digest."""

SHOWN = 20
"""Problems of one kind that a report lists."""

LEDGER = "audit"
"""The table of the lake with the blocks that agreed."""

PLACE = ("topic", "epoch", "offset", "sequence", "time", "key")
"""The columns that every table of a lake has of a record."""

DELETED = "of a topic that was deleted"

UNKNOWN = "for a reason that this broker does not say"

TopicEpoch = tuple[str, int]
Range = tuple[int, int]

DESCRIPTION = """\
examples:
  runnel pipeline run audit                          once; exit code 1 if something is wrong
  runnel pipeline run audit --json                   the same, as a JSON line
  runnel pipeline run audit --every 1h --alert-topic alerts.lake

Of every topic and epoch: each offset is in the lake once, none is missing, holes have a reason (compacted, expired,
trimmed, retention), and journal and lake hold the same records, by a hash over all columns. Records that are not
archived yet are not missing. A typed table has each record of its topics once, with its place and key, or the
quarantine has it. With --every it goes on, logs what it finds wrong, counts it as runnel_pipeline_alerts_total, and
publishes it to --alert-topic.
"""


# -- Digests: plain functions of DataFrames ---------------------------------------------------------------------


def with_hash(records: DataFrame) -> DataFrame:
    """Topic, epoch, offset, block, and a hash over all columns of each record."""
    from pyspark.sql import functions as F  # noqa: N812

    headers = F.expr("case when size(headers) > 0 then headers end")  # none and an empty list are the same
    columns = ("topic", "epoch", "offset", "sequence", "time", "key", "value", "due", "expires")
    priority = F.expr("nullif(priority, 0)")  # a record without one has 0 or null, as its batch was packed
    nulls = (F.isnull(name) for name in ("key", "due", "expires"))  # a hash leaves nulls out, in whichever column
    hashed = F.xxhash64(*columns, priority, headers, *nulls).alias("hash")
    return records.select("topic", "epoch", "offset", F.floor(F.col("offset") / BLOCK).alias("block"), hashed)


def block_digests(hashed: DataFrame, *by: str) -> DataFrame:
    """A row for each block that has records: how many, and two sums over them that do not depend on their order.

    `by`: what a block is known by, if that is not topic, epoch and block.
    """
    from pyspark.sql import functions as F  # noqa: N812

    return hashed.groupBy(*(by or ("topic", "epoch", "block"))).agg(
        F.count("*").alias("rows"), F.bit_xor("hash").alias("hashes"), F.sum(F.col("offset") % BLOCK).alias("offsets")
    )


def differences(journal: DataFrame, lake: DataFrame) -> DataFrame:
    """Records, hashed, that are not the same on both sides: how often each side has them."""
    from pyspark.sql import functions as F  # noqa: N812

    key = ["topic", "epoch", "offset"]
    left = journal.groupBy(*key).agg(F.count("*").alias("in_journal"), F.min("hash").alias("journal_hash"))
    right = lake.groupBy(*key).agg(F.count("*").alias("in_lake"), F.min("hash").alias("lake_hash"))
    both = left.join(right, key, "full_outer").na.fill(0, ["in_journal", "in_lake"])
    return both.where("in_journal != 1 or in_lake != 1 or journal_hash != lake_hash").select(
        *key, "in_journal", "in_lake"
    )


# -- Judging: plain Python --------------------------------------------------------------------------------------


class Digest(msgspec.Struct, frozen=True, array_like=True):
    """The digest of a block."""

    rows: int
    hashes: int
    offsets: int

    def joined(self, other: Digest) -> Digest:
        """Both together."""
        return Digest(self.rows + other.rows, self.hashes ^ other.hashes, self.offsets + other.offsets)


class Problem(msgspec.Struct, frozen=True):
    """Something that is wrong.

    `kind` is missing, doubled, different, lake_only, unexplained, changed, ahead or hidden.
    """

    topic: str
    epoch: int
    kind: str
    first: int
    end: int
    why: str


class TopicReport(msgspec.Struct, kw_only=True):
    """What an audit found of one topic in one epoch.

    - `archived`: up to which offset the lake has it; `end`: of the journal, None if the topic was deleted.
    - `rows`: in the lake; `compared`: of them, with the journal.
    - `holes`: offsets without a record, by reason.
    """

    topic: str
    epoch: int
    archived: int
    first: int | None = None
    end: int | None = None
    rows: int = 0
    compared: int = 0
    holes: dict[str, int] = {}
    problems: list[Problem] = []

    @property
    def waiting(self) -> int:
        """Records that are published and not archived, about."""
        return 0 if self.end is None else max(0, self.end - max(self.archived, self.first or 0))


class TableReport(msgspec.Struct, kw_only=True):
    """What an audit found of a typed table: `rows` are in it, `quarantined` are of its topics and did not fit."""

    table: str
    rows: int = 0
    quarantined: int = 0
    problems: list[Problem] = []


class AuditReport(msgspec.Struct, kw_only=True):
    """The findings of an audit."""

    lake: str
    seconds: float
    topics: list[TopicReport]
    tables: list[TableReport] = []

    @property
    def problems(self) -> list[Problem]:
        """Of all topics and tables."""
        of_topics = [problem for one in self.topics for problem in one.problems]
        return of_topics + [problem for one in self.tables for problem in one.problems]

    @property
    def is_fine(self) -> bool:
        """Whether nothing is wrong."""
        return not self.problems

    @property
    def summary(self) -> str:
        """In a line."""
        rows, compared = sum(one.rows for one in self.topics), sum(one.compared for one in self.topics)
        checked = f"{len(self.topics):,} topics, {rows:,} records in the lake, {compared:,} compared with the journal"
        if self.tables:
            typed = sum(one.rows + one.quarantined for one in self.tables)
            checked += f"; {len(self.tables):,} typed tables with {typed:,} of them"
        if self.is_fine:
            return f"audit: every offset is there once: {checked}"
        kinds: dict[str, int] = {}
        for one in self.problems:
            kinds[one.kind] = kinds.get(one.kind, 0) + one.end - one.first
        return f"audit: NOT as it should be: {', '.join(f'{n:,} {kind}' for kind, n in kinds.items())}; {checked}"

    @property
    def text(self) -> str:
        """For people."""
        lines = [self.summary]
        holes: dict[str, int] = {}
        for one in self.topics:
            for reason, count in one.holes.items():
                holes[reason] = holes.get(reason, 0) + count
        lines += [f"  holes: {count:,} offsets {reason}" for reason, count in sorted(holes.items())]
        if waiting := sum(one.waiting for one in self.topics):
            lines.append(f"  not archived yet: {waiting:,}")
        for problem in self.problems[:SHOWN]:
            where = f"{problem.topic!r} epoch {problem.epoch} [{problem.first}, {problem.end})"
            lines.append(f"  ! {problem.kind}: {where}: {problem.why}")
        if len(self.problems) > SHOWN:
            lines.append(f"  ! and {len(self.problems) - SHOWN:,} more (--json has them all)")
        return "\n".join(lines)


def subtract(whole: Range, taken: Iterable[Range]) -> Iterator[Range]:
    """The part of a range that is in none of the others."""
    first, end = whole
    for one, behind in sorted(taken):
        if behind <= first or one >= end:
            continue
        if one > first:
            yield first, one
        first = max(first, behind)
    if first < end:
        yield first, end


def blocks_of(one: Range) -> Iterator[tuple[int, Range]]:
    """The blocks of a range, and what of each is in it."""
    first, end = one
    for block in range(first // BLOCK, -(-end // BLOCK)):
        yield block, (max(first, block * BLOCK), min(end, (block + 1) * BLOCK))


class TopicPlan(msgspec.Struct, frozen=True):
    """The ranges to compare of a topic: `live` is in the journal and in the lake, `old` only in the lake."""

    topic: str
    epoch: int
    archived: int
    bounds: TopicBounds | None  # None: this epoch of it was deleted

    @property
    def key(self) -> TopicEpoch:
        return self.topic, self.epoch

    @property
    def live(self) -> Range:
        """Offsets that journal and lake should both have."""
        if self.bounds is None:
            return 0, 0
        return min(self.bounds.first, self.archived), min(self.bounds.end, self.archived)

    @property
    def old(self) -> Range:
        """Offsets that the journal has no more."""
        return 0, self.archived if self.bounds is None else min(self.bounds.first, self.archived)

    @property
    def removed(self) -> tuple[tuple[int, int, str], ...]:
        """The ranges that the journal reports as removed, and the reasons."""
        if self.bounds is None:
            return ((0, self.archived, DELETED),)
        if self.bounds.removed is UNSET:
            return ((0, self.bounds.end, UNKNOWN),)
        return self.bounds.removed

    def removed_apart(self) -> Iterator[tuple[int, int, str]]:
        """The same for archived records, where no two ranges overlap: of two reasons the first one counts."""
        taken: list[Range] = []
        for first, end, reason in self.removed:
            for piece in subtract((first, min(end, self.archived)), taken):
                yield *piece, reason
            taken.append((first, end))


def plans_of(archived: Mapping[TopicEpoch, int], bounds: Iterable[TopicBounds]) -> list[TopicPlan]:
    """The ranges to compare, of all topics in the lake."""
    now = {(one.topic, one.epoch): one for one in bounds if one.durable}
    return [TopicPlan(*key, end, now.get(key)) for key, end in sorted(archived.items())]


def hidden(topic: str, epoch: int, archived: int) -> TopicReport:
    """The report of a topic that the login of the audit may not see: it is not compared, so it is not fine."""
    why = "this login may not see the topic, so it was not compared; use another, or name topics with --topic"
    problem = Problem(topic, epoch, "hidden", 0, archived, why)
    return TopicReport(topic=topic, epoch=epoch, archived=archived, problems=[problem])


Blocks = Mapping[tuple[str, int, int], Digest]


class Judgement:
    """Compares digests. `suspects` are blocks that differ, `gaps` are holes to explain: both need a closer look."""

    def __init__(self, plan: TopicPlan, journal: Blocks, live: Blocks, old: Blocks, ledger: Blocks) -> None:
        self.plan, self._ledger = plan, ledger
        self._journal, self._live, self._old = journal, live, old
        self.report = TopicReport(topic=plan.topic, epoch=plan.epoch, archived=plan.archived, holes={}, problems=[])
        if plan.bounds is not None:
            self.report.first, self.report.end = plan.bounds.first, plan.bounds.end
        self.suspects: list[int] = []
        self.gaps: list[Range] = []
        self.agreed: dict[tuple[str, int, int], Digest] = {}

    def judge(self) -> None:
        """Compare all blocks of the topic."""
        plan, report = self.plan, self.report
        if plan.bounds is not None and plan.archived > plan.bounds.end:
            why = "the lake has records that the journal never had: it is of another journal, or that was restored"
            self._tell("ahead", plan.bounds.end, plan.archived, why)
        mine = {block for topic, epoch, block in (*self._journal, *self._live) if (topic, epoch) == plan.key}
        for block in sorted(mine):
            key = (*plan.key, block)
            there, here = self._journal.get(key), self._live.get(key)
            if there != here:
                self.suspects.append(block)
            elif here is not None:
                report.compared += here.rows
        self._count_rows()
        self._find_holes()
        self._check_ledger()

    def _tell(self, kind: str, first: int, end: int, why: str) -> None:
        self.report.problems.append(Problem(self.plan.topic, self.plan.epoch, kind, first, end, why))

    def _count_rows(self) -> None:
        for blocks in (self._live, self._old):
            self.report.rows += sum(one.rows for key, one in blocks.items() if key[:2] == self.plan.key)

    def _find_holes(self) -> None:
        """Holes are those of the lake: what only the journal lacks is found where both are compared."""
        plan = self.plan
        for whole, lake in ((plan.old, self._old), (plan.live, self._live)):
            taken = [(max(first, whole[0]), min(end, whole[1])) for first, end, _ in plan.removed]
            for piece in subtract(whole, taken):
                for block, span in blocks_of(piece):
                    found = lake.get((*plan.key, block))
                    rows = 0 if found is None else found.rows
                    is_whole = span == next(inside for number, inside in blocks_of(whole) if number == block)
                    if not is_whole or rows < span[1] - span[0]:
                        self.gaps.append(span)

    def count_hole(self, reason: str, count: int) -> None:
        """Add offsets without a record to the report."""
        if count > 0:
            self.report.holes[reason] = self.report.holes.get(reason, 0) + count

    def _check_ledger(self) -> None:
        """A block that agreed with the journal once has to stay unchanged."""
        plan = self.plan
        for key, known in self._ledger.items():
            if key[:2] != plan.key:
                continue
            parts = [found for blocks in (self._live, self._old) if (found := blocks.get(key)) is not None]
            now = parts[0].joined(parts[1]) if len(parts) == 2 else parts[0] if parts else None
            first, end = key[2] * BLOCK, (key[2] + 1) * BLOCK
            if now == known:
                self.agreed[key] = known
            elif end > plan.live[0] or not any(
                one <= first and end <= behind and reason in (TRIMMED, DELETED) for one, behind, reason in plan.removed
            ):
                rows = 0 if now is None else now.rows
                why = f"an earlier audit found {known.rows} records that agreed with the journal, and now {rows} differ"
                self._tell("changed", first, end, why)

    def take_differences(self, rows: Iterable[Any], expired: Sequence[Range], now: TopicBounds | None) -> None:
        """Judge records that differ. `now`: the bounds after both were read.

        The journal may have dropped records meanwhile, or the topic may be gone.
        """
        later = TopicPlan(self.plan.topic, self.plan.epoch, self.plan.archived, now)
        fine = [(first, end) for first, end, _ in (*self.plan.removed, *later.removed)] + [later.old, *expired]
        erased = [(first, end) for first, end, reason in later.removed if reason in (TRIMMED, DELETED)]
        for row in rows:
            offset = row["offset"]
            if row["in_lake"] > 1:
                self._tell("doubled", offset, offset + 1, f"the lake has it {row['in_lake']} times")
            elif not row["in_lake"] and any(first <= offset < end for first, end in erased):
                continue  # after it was read of the journal
            elif not row["in_lake"]:
                self._tell("missing", offset, offset + 1, "the journal has it, and the lake does not")
            elif row["in_journal"]:
                self._tell("different", offset, offset + 1, "journal and lake hold other bytes, keys, headers or times")
            elif not any(first <= offset < end for first, end in fine):
                self._tell("lake_only", offset, offset + 1, "the lake has it; the journal does not, and says no reason")

    def remember(self) -> dict[tuple[str, int, int], Digest]:
        """The blocks that are whole and agree now or agreed before."""
        if self.report.problems:
            return self.agreed
        first, end = self.plan.live
        for block in range(-(-first // BLOCK), end // BLOCK):
            key = (*self.plan.key, block)
            if block not in self.suspects and (found := self._live.get(key)) is not None:
                self.agreed[key] = found
        return self.agreed


# -- The audit --------------------------------------------------------------------------------------------------


class Audit:
    """An audit of a lake against its journal: `Audit(context).run()`."""

    def __init__(self, context: Context, topics: Sequence[str] = (">",)) -> None:
        self._context, self._topics = context, tuple(topics)

    def run(self) -> AuditReport:
        """Compare everything now."""
        from runnel.arrow.reading import opened
        from runnel.core.pattern import matches
        from runnel.lake import Lake
        from runnel.spark.options import broker_location

        began, context = time(), self._context
        lake = Lake(context.lake, dict(context.storage_options) or None)
        archived = {
            key: end
            for key, end in lake.next_offsets(None).items()
            if any(matches(one, key[0]) for one in self._topics)
        }
        reader = opened(broker_location(context.broker))
        try:
            seen = reader.visible({topic for topic, _ in archived})
            shown = {key: end for key, end in archived.items() if key[0] in seen}
            plans = plans_of(shown, reader.journal_bounds(self._topics))
            reports = self._compared(lake, reader, plans)
            reports += [hidden(*key, end) for key, end in archived.items() if key not in shown]
        finally:
            reader.close()
        tables = TypedAudit(context.spark, lake, plans).run()
        return AuditReport(lake=context.lake, seconds=time() - began, topics=reports, tables=tables)

    def _compared(self, lake: Lake, reader: RangeReader, plans: Sequence[TopicPlan]) -> list[TopicReport]:
        journal, rows = self._journal(plans), self._lake(lake, plans)
        there = _collected(block_digests(journal)) if journal is not None else {}
        live = _collected(block_digests(rows.where("is_live")))
        old = _collected(block_digests(rows.where("not is_live")))
        ledger = self._ledger()
        found = []
        for plan in plans:
            one = Judgement(plan, there, live, old, ledger)
            one.judge()
            found.append(one)
        self._look_closer(found, journal, rows, reader)
        self._count_removed(found, lake)
        for one in found:
            self._explain(one, reader, rows)
        self._remember([one.remember() for one in found])
        return [one.report for one in found]

    def _journal(self, plans: Sequence[TopicPlan]) -> DataFrame | None:
        from runnel.spark.pipelines.lake_rows import LAKE_COLUMNS

        wanted = [one for one in plans if one.live[0] < one.live[1]]
        if not wanted:
            return None

        def places(at: int) -> str:
            said = {one.topic: {"epoch": one.epoch, "offset": one.live[at]} for one in wanted}
            return msgspec.json.encode(said).decode()

        records = self._context.records(
            ",".join(one.topic for one in wanted),
            columns=LAKE_COLUMNS,
            headersFormat="array",
            startingOffsets=places(0),
            endingOffsets=places(1),
            failOnDataLoss="false",
            lake=None,  # it is compared with the journal, not with itself
            lakeStorage=None,
        )
        return with_hash(records)

    def _lake(self, lake: Lake, plans: Sequence[TopicPlan]) -> DataFrame:
        from pyspark.sql import functions as F  # noqa: N812

        from runnel.spark.pipelines.lake_rows import lake_rows

        spark = self._context.spark
        bounds = [(one.topic, one.epoch, *one.live) for one in plans]
        known = spark.createDataFrame(bounds, "topic string, epoch bigint, first bigint, end bigint")
        rows = with_hash(lake_rows(spark, lake)).join(F.broadcast(known), ["topic", "epoch"])
        return rows.withColumn("is_live", F.expr("offset >= first and offset < end")).drop("first", "end")

    def _look_closer(
        self, found: Sequence[Judgement], journal: DataFrame | None, lake: DataFrame, reader: RangeReader
    ) -> None:
        """Compare the blocks that differ record by record."""
        from pyspark.sql import functions as F  # noqa: N812

        suspects = [(*one.plan.key, block) for one in found for block in one.suspects]
        if not suspects:
            return
        spark = self._context.spark
        wanted = F.broadcast(spark.createDataFrame(suspects, "topic string, epoch bigint, block bigint"))
        key = ["topic", "epoch", "block"]
        right = lake.where("is_live").drop("is_live").join(wanted, key)
        left = right.limit(0) if journal is None else journal.join(wanted, key)
        rows = differences(left, right)
        removed = [(*one.plan.key, first, end) for one in found for first, end, _ in one.plan.removed if one.suspects]
        if removed:  # of a compacted topic the journal lacks most of what the lake has: no need to collect that
            gone = F.broadcast(spark.createDataFrame(removed, "topic string, epoch bigint, gone bigint, behind bigint"))
            rows = rows.join(
                gone,
                (rows["topic"] == gone["topic"])
                & (rows["epoch"] == gone["epoch"])
                & (rows["offset"] >= gone["gone"])
                & (rows["offset"] < gone["behind"])
                & (rows["in_journal"] == 0)
                & (rows["in_lake"] == 1),
                "left_anti",
            )
        by_topic: dict[TopicEpoch, list[Any]] = {}
        for row in rows.orderBy("topic", "epoch", "offset").limit(100_000).collect():
            by_topic.setdefault((row["topic"], row["epoch"]), []).append(row)
        now = {(one.topic, one.epoch): one for one in reader.journal_bounds([topic for topic, _ in by_topic])}
        for one in found:
            if rows_here := by_topic.get(one.plan.key):
                one.take_differences(rows_here, self._expired(one, reader), now.get(one.plan.key))

    def _count_removed(self, found: Sequence[Judgement], lake: Lake) -> None:
        """Count the holes of each range that the journal says is removed: a lake may have some of its records."""
        from pyspark.sql import functions as F  # noqa: N812

        from runnel.spark.pipelines.lake_rows import lake_rows

        pieces = [(one, piece) for one in found for piece in one.plan.removed_apart()]
        if not pieces:
            return
        spark, key = self._context.spark, ["topic", "epoch"]
        places = [(number, *one.plan.key, *piece[:2]) for number, (one, piece) in enumerate(pieces)]
        wanted = spark.createDataFrame(places, "piece int, topic string, epoch bigint, first bigint, end bigint")
        rows = lake_rows(spark, lake, [*key, "offset"]).join(F.broadcast(wanted), key)
        inside = rows.where("offset >= first and offset < end").groupBy("piece")
        counted = {row["piece"]: row["there"] for row in inside.agg(F.countDistinct("offset").alias("there")).collect()}
        for number, (one, (first, end, reason)) in enumerate(pieces):
            one.count_hole(reason, end - first - counted.get(number, 0))

    def _expired(self, one: Judgement, reader: RangeReader) -> list[Range]:
        """Offsets in the suspect blocks whose records are in the journal, and have expired."""
        found: list[Range] = []
        for block in one.suspects:
            first, end = max(one.plan.live[0], block * BLOCK), min(one.plan.live[1], (block + 1) * BLOCK)
            found += [(at, at + 1) for at, expires in _raw(reader, one.plan, first, end) if expires]
        return found

    def _explain(self, one: Judgement, reader: RangeReader, lake: DataFrame) -> None:
        """Offsets that neither side has, and for which the journal says no reason: expired, or unexplained."""
        if not one.gaps:
            return
        condition = " or ".join(f"(offset >= {first} and offset < {end})" for first, end in one.gaps[:1000])
        topic = one.plan.topic.replace("'", "''")
        mine = lake.where(f"topic = '{topic}' and epoch = {one.plan.epoch}").where(condition)
        here = sorted({row["offset"] for row in mine.select("offset").collect()})
        reported = {at for problem in one.report.problems for at in range(problem.first, problem.end)}
        for first, end in one.gaps:
            known = [(at, at + 1) for at in here if first <= at < end]
            raw = dict(_raw(reader, one.plan, first, end))
            for hole, behind in subtract((first, end), known):
                for at in range(hole, behind):
                    if raw.get(at):
                        one.count_hole("expired", 1)
                    elif at not in raw and at not in reported:
                        why = "neither journal nor lake has it, and the journal says no reason"
                        one.report.problems.append(Problem(*one.plan.key, "unexplained", at, at + 1, why))

    # -- what agreed before -------------------------------------------------------------------------------------

    def _ledger(self) -> dict[tuple[str, int, int], Digest]:
        from runnel.lake.storage import need

        deltalake, errors = need("deltalake"), need("deltalake.exceptions")
        options = dict(self._context.storage_options) or None
        try:
            table = deltalake.DeltaTable(self._context.table(LEDGER), storage_options=options)
        except errors.TableNotFoundError:
            return {}
        rows = table.to_pyarrow_table().to_pylist()
        return {
            (row["topic"], row["epoch"], row["block"]): Digest(row["rows"], row["hashes"], row["offsets"])
            for row in rows
        }

    def _remember(self, agreed: Sequence[Mapping[tuple[str, int, int], Digest]]) -> None:
        from runnel.lake.storage import need

        rows = [(*key, *msgspec.structs.astuple(one)) for blocks in agreed for key, one in blocks.items()]
        if not rows:
            return
        pa, deltalake = need("pyarrow"), need("deltalake")
        names = ("epoch", "block", "rows", "hashes", "offsets")
        columns = list(zip(*rows, strict=True))
        arrays = [pa.array(columns[0], pa.string()), *(pa.array(one, pa.int64()) for one in columns[1:])]
        deltalake.write_deltalake(
            self._context.table(LEDGER),
            pa.table(arrays, names=["topic", *names]),
            mode="overwrite",
            storage_options=dict(self._context.storage_options) or None,
        )


class TypedAudit:
    """Compares the typed tables of a lake with its records."""

    KEY = ("name", "topic", "epoch")

    def __init__(self, spark: SparkSession, lake: Lake, plans: Sequence[TopicPlan]) -> None:
        self._spark, self._lake = spark, lake
        self._plans = {one.key: one for one in plans}

    def run(self) -> list[TableReport]:
        """One report for each table, by name."""
        reports: dict[str, TableReport] = {}
        bounds: list[tuple[str, str, int, int]] = []
        tables = self._lake.tables()
        for table in tables:
            reports[table.name] = TableReport(table=table.name, problems=[])
            for key, end in table.next_offsets().items():
                if key in self._plans:
                    bounds.append((table.name, *key, min(end, self._plans[key].archived)))
        if not bounds:
            return list(reports.values())
        records, rows = self._records(bounds), self._rows(tables, bounds)
        found = self._digests(rows)
        for (name, *_, is_quarantined), one in found.items():
            report = reports[name]
            report.rows += 0 if is_quarantined else one.rows
            report.quarantined += one.rows if is_quarantined else 0
        left, right = _joined(self._digests(records)), _joined(found)
        if suspects := [key for key in left if left[key] != right.get(key)]:
            self._look_closer(suspects, records, rows, reports)
        return list(reports.values())

    def _records(self, bounds: Sequence[tuple[str, str, int, int]]) -> DataFrame:
        """The records that each table should have."""
        from runnel.spark.pipelines.lake_rows import lake_rows

        found = lake_rows(self._spark, self._lake, [*PLACE, "expires"])
        return self._within(found.selectExpr("*", "false as quarantined"), bounds)

    def _rows(self, tables: Sequence[TypedTable], bounds: Sequence[tuple[str, str, int, int]]) -> DataFrame:
        """The rows that each table has, and those of the quarantine that are meant for it."""
        from runnel.lake import Quarantine
        from runnel.spark.pipelines.lake_rows import lake_rows

        kept = [
            lake_rows(self._spark, one, PLACE).selectExpr("*", f"'{one.name}' as name", "false as quarantined")
            for one in tables
        ]
        if (quarantine := Quarantine(self._lake.storage)).exists:
            aside = lake_rows(self._spark, quarantine, [*PLACE, "table"]).withColumnRenamed("table", "name")
            kept.append(aside.selectExpr(*PLACE, "name", "true as quarantined"))
        found = kept[0]
        for one in kept[1:]:
            found = found.unionByName(one)
        return self._within(found.selectExpr("*", "cast(null as double) as expires"), bounds)

    def _within(self, rows: DataFrame, bounds: Sequence[tuple[str, str, int, int]]) -> DataFrame:
        """Rows with their block and hash, with the columns that both sides have."""
        from pyspark.sql import functions as F  # noqa: N812

        known = self._spark.createDataFrame(list(bounds), "name string, topic string, epoch bigint, end bigint")
        key = [name for name in self.KEY if name in rows.columns]
        hashed = F.xxhash64(*PLACE, F.isnull("key")).alias("hash")
        block = F.floor(F.col("offset") / BLOCK).alias("block")
        found = rows.join(F.broadcast(known), key).where("offset < end")
        return found.select(*self.KEY, "offset", block, hashed, "quarantined", "expires")

    def _digests(self, rows: DataFrame) -> dict[tuple[Any, ...], Digest]:
        grouped = block_digests(rows, *self.KEY, "block", "quarantined").collect()
        return {
            (row["name"], row["topic"], row["epoch"], row["block"], row["quarantined"]): Digest(
                row["rows"], row["hashes"], row["offsets"]
            )
            for row in grouped
        }

    def _look_closer(
        self, suspects: Sequence[tuple[Any, ...]], records: DataFrame, rows: DataFrame, reports: dict[str, TableReport]
    ) -> None:
        """Compare the blocks that differ record by record."""
        from pyspark.sql import functions as F  # noqa: N812

        schema = "name string, topic string, epoch bigint, block bigint"
        wanted, key = F.broadcast(self._spark.createDataFrame(suspects, schema)), [*self.KEY, "offset"]

        def counted(side: DataFrame, name: str) -> DataFrame:
            grouped = side.join(wanted, [*self.KEY, "block"]).groupBy(*key)
            return grouped.agg(F.count("*").alias(name), F.min("hash").alias(f"{name}_hash"), F.max("expires"))

        both = counted(records, "expected").withColumnRenamed("max(expires)", "expires")
        both = both.join(counted(rows, "found").drop("max(expires)"), key, "left")
        wrong = both.where("found is null or found != 1 or expected_hash != found_hash").orderBy(*key).limit(100_000)
        for row in wrong.collect():
            plan, offset, report = self._plans[row["topic"], row["epoch"]], row["offset"], reports[row["name"]]
            has_expired = row["expires"] is not None and row["expires"] <= time()
            if not row["found"]:
                removed = (one for one in plan.removed if one[2] in (TRIMMED, DELETED))
                if has_expired or any(first <= offset < end for first, end, _ in removed):
                    continue  # before it was copied, or maintenance has erased it here, and not yet there
                kind, why = "missing", "the lake has the record, and neither the table nor its quarantine does"
            elif row["found"] > 1:
                kind, why = "doubled", f"the table and its quarantine have it {row['found']} times"
            else:
                kind, why = "different", "the table has another sequence, time or key"
            problem = Problem(*plan.key, kind, offset, offset + 1, f"typed table {row['name']!r}: {why}")
            report.problems.append(problem)


def _joined(digests: Mapping[tuple[Any, ...], Digest]) -> dict[tuple[Any, ...], Digest]:
    """The digests of blocks, quarantined or not."""
    found: dict[tuple[Any, ...], Digest] = {}
    for (*key, _), one in digests.items():
        known = found.get(tuple(key))
        found[tuple(key)] = one if known is None else known.joined(one)
    return found


def _collected(digests: DataFrame) -> dict[tuple[str, int, int], Digest]:
    return {
        (row["topic"], row["epoch"], row["block"]): Digest(row["rows"], row["hashes"], row["offsets"])
        for row in digests.collect()
    }


def _raw(reader: RangeReader, plan: TopicPlan, first: int, end: int) -> Iterator[tuple[int, bool]]:
    """The offsets that the journal has in a range, and whether the record has expired."""
    from runnel.arrow.range_reader import DecodedBatch
    from runnel.arrow.ranges import OffsetRange

    if plan.bounds is None or end <= plan.bounds.first:
        return
    now = time()
    for found in reader.read(OffsetRange(plan.topic, plan.epoch, max(first, plan.bounds.first), end)):
        if not isinstance(found, DecodedBatch):
            continue
        at, expires = found.at, found.batch.expires
        for run in found.runs:
            for number in range(run.count):
                until = None if expires is None else expires[at + number]
                yield run.offset + number, until is not None and until <= now
            at += run.count


def build(context: Context) -> Sequence[Check]:
    """The audit, once or on a schedule."""
    topics = tuple(context.options["topic"]) or (">",)
    alert_topic = context.options["alert_topic"]

    def work() -> Finding:
        found = Audit(context, topics).run()
        return Finding(found.is_fine, found.summary, found.text, {"report": found})

    def alert(found: Finding) -> None:
        from runnel import blocking

        where = context.broker.get("url") or context.broker["path"]
        with blocking.open(where) as broker:
            value = {"event": "audit", "summary": found.summary, "problems": found.facts["report"].problems[:100]}
            broker.publish(alert_topic, msgspec.json.encode(value))

    return [Check("audit", work, context.options["every"], alert if alert_topic else None)]


PIPELINE = Pipeline(
    "audit",
    "compare the lake with the journal, offset by offset",
    build,
    (
        Option(
            "topic", "a topic or a pattern, again and again (default: every topic)", (), metavar="TOPIC", repeats=True
        ),
        Option("every", "do it again after so long (default: once)", None, kind="seconds", metavar="TIME"),
        Option("alert_topic", "publish what is wrong to this topic", None, metavar="TOPIC"),
    ),
    DESCRIPTION,
)
