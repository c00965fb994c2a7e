"""A life of a journal, made up from a seed: what a broker would ask of it, in an order that no broker would dare.

A `World` drives one journal on one storage that can lose its power, and keeps what it was promised: `states[0]` is
what was acknowledged as durable, the later ones are what it may hold besides, one entry more each. `judge` opens
what a crash left behind and compares. Everything depends on the seed alone.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

from runnel.core.batch_format import pack
from runnel.core.record import Meta
from runnel.journal.clean import key_compaction
from runnel.journal.clean.cleaning_job import CleaningJob, joined_runs
from runnel.journal.clean.key_compaction import Compaction, KeyPass
from runnel.journal.clean.planning import LiveShares, choose_segments, stages_to_place
from runnel.journal.format import staged_block
from runnel.journal.format.entry import Draft, Part, PartKind, WriteFailed, state_part
from runnel.journal.format.ledger import (
    BlockStageState,
    CursorState,
    GroupState,
    StageState,
    TopicState,
    cursor_forgotten_part,
    cursor_part,
    group_part,
    ids_part,
    marker_part,
    progress_part,
    stage_commit_part,
    stage_dropped_part,
    stage_part,
    staged_part,
    topic_part,
    trim_part,
)
from runnel.journal.format.merged_batch import RecordRun
from runnel.journal.format.staged_block import BlocksShare, TopicRuns, blocks_commit_part, staged_block_part
from runnel.journal.options import JournalOptions
from runnel.journal.storage import Storage
from runnel.journal.write.journal import Journal
from runnel.testing.memory_storage import PowerLost
from tests.carried import columns_of
from tests.crash.model import State, Stored, Violation
from tests.crash.observing import observe
from tests.crash.watching import Watched, watched

SECOND = 1_000_000
PAGES = ((4096, 512), (512, 512), (64, 64))  # bytes of a page, and of a sector
NAMES = ("a", "b.c", "d", "e")


class Promises:
    """What a world was promised so far, and so what it must find after a crash."""

    def __init__(self) -> None:
        self.states: list[State] = [State()]
        self.returned = 0  # how many entries behind states[0] were reported as written
        self.positions: dict[tuple[int, int], Stored] = {}  # by epoch and offset: all that was ever handed out
        self.sequences: dict[int, tuple[int, int]] = {}
        self.sequence = 0  # the first that was not handed out

    def hand_out(self, epoch: int, record: Stored) -> None:
        """Somebody was told, or could read, that this position names this record."""
        place = (epoch, record.offset)
        if self.positions.setdefault(place, record) != record:
            raise Violation(f"{place} names {record} and {self.positions[place]}")
        if self.sequences.setdefault(record.sequence, place) != place:
            raise Violation(f"sequence {record.sequence} names {place} and {self.sequences[record.sequence]}")
        self.sequence = max(self.sequence, record.sequence + 1)

    def hand_out_all(self, of: State, before: State | None = None) -> None:
        """Everything in a state can be read."""
        for number, topic in of.topics.items():
            known = len(before.topics[number].records) if before is not None and number in before.topics else 0
            if known and before is not None and topic.first != before.topics[number].first:
                known = 0
            for record in topic.records[known:]:
                self.hand_out(topic.epoch, record)

    def match(self, found: State, *, killed: bool, exact: bool) -> int:
        """Which of the states it is."""
        why: list[str] = []
        for at in range(self.returned if killed else 0, len(self.states)):
            difference = self.states[at].differs(found, exact=exact)
            if difference is None:
                return at
            why.append(difference)
        raise Violation(f"none of {len(why)} states that may be found: {why[0]}; {why[-1]}")

    def check(self, journal: Journal, *, killed: bool, exact: bool) -> tuple[int, State]:
        """Everything promised is there, and nothing that was handed out can be handed out again."""
        found = observe(journal)
        at = self.match(found, killed=killed, exact=exact)
        if journal.ledger.sequence < self.sequence:
            raise Violation(f"sequence {journal.ledger.sequence} is next, and {self.sequence - 1} was given")
        highest: dict[int, int] = {}
        for epoch, offset in self.positions:
            highest[epoch] = max(highest.get(epoch, -1), offset)
        for topic in found.topics.values():
            if topic.end <= highest.get(topic.epoch, -1):
                raise Violation(f"{topic.name} goes on at {topic.end}, and {highest[topic.epoch]} was given")
        if journal.ledger.epoch < max(highest, default=0):
            raise Violation(f"epoch {journal.ledger.epoch} was the last, and {max(highest)} was given")
        if journal.report.notes:
            raise Violation(f"opening found something: {journal.report.notes}")
        return at, found

    def copy(self) -> Promises:
        """For somebody who goes on differently."""
        other = Promises()
        other.states, other.returned = list(self.states), self.returned
        other.positions, other.sequences = dict(self.positions), dict(self.sequences)
        other.sequence = self.sequence
        return other


class World:
    """One journal and those who use it."""

    def __init__(self, seed: int, storage: Watched | None = None) -> None:
        self.random = random = Random(seed)
        page, sector = random.choice(PAGES)
        self.storage = storage if storage is not None else Watched(page, sector=sector)
        self.promises = Promises()
        self.now = 1_000 * SECOND
        self.fsync = random.choice(("commit", "commit", "interval", "os"))
        self.exact = True  # whether the last life ended, or will end, without a need to skip offsets
        self.intact = True  # whether all that was written can still be found: no power was lost on the way
        self.segment_bytes = random.choice((4096, 4096, 8192))
        self.disk: Callable[[Watched], Storage] = lambda storage: storage  # what the journal gets to see of it
        self.journal: Journal
        self.compaction: Compaction
        self.under_way: KeyPass | None = None  # a look for keys
        self.made = 0  # values, so that no two are the same
        self.placed = 0  # stages whose records the cleaner put into their topics

    # -- opening ------------------------------------------------------------------------------------------------

    def options(self) -> JournalOptions:
        return JournalOptions(
            fsync=self.fsync, segment_bytes=self.segment_bytes, segment_age=60.0, min_free=0, tail_bytes=1
        )

    def open(self) -> None:
        """Open the journal, compare it with what was promised, and go on from there."""
        self.journal = Journal.open(self.disk(self.storage), self.options(), now=self.now)
        self.recall()
        _, found = self.promises.check(self.journal, killed=self.intact, exact=self.exact)
        promises = self.promises
        promises.hand_out_all(found)
        promises.states, promises.returned = [found], 0
        self.exact, self.intact = self.fsync == "commit", True

    def recall(self) -> None:
        """Go on looking for keys from where it was noted."""
        self.compaction = Compaction(self.journal.history, tombstone_age=60.0)
        note = key_compaction.load_state(self.journal.storage, self.journal.manifest.journal)
        if note is not None:
            list(self.compaction.recall(note, self.journal.living()))
        self.under_way = self.compaction.under_way

    def note(self, job: CleaningJob | None = None) -> None:
        """Note what is known of keys; or not, for it must do no harm."""
        if self.random.random() < 0.7:
            key_compaction.save_state(
                self.journal.storage, self.compaction.note(self.journal.manifest.journal, job, self.under_way)
            )

    # -- steps --------------------------------------------------------------------------------------------------

    def write(self, drafts: list[Draft]) -> None:
        """Write, and remember what was promised."""
        if not drafts:
            return
        promises = self.promises
        before = promises.states[-1]
        for draft in drafts:
            promises.states.append(promises.states[-1].after(draft))
        try:
            self.journal.write(drafts)
        except WriteFailed as failed:
            self.stopped(failed, len(drafts))
            raise
        promises.hand_out_all(promises.states[-1], before)
        promises.returned = len(promises.states) - 1
        if self.fsync == "commit":
            self.is_durable()

    def stopped(self, failed: WriteFailed, drafts: int) -> None:
        """Entries before `done` were written, those before `begun` perhaps, and the others were not."""
        promises = self.promises
        states = promises.states
        before = len(states) - 1 - drafts
        promises.hand_out_all(states[before + failed.done], states[before])
        del states[before + failed.begun + 1 :]
        promises.returned = before + failed.done
        if self.fsync == "commit":
            del states[: promises.returned]
            promises.returned = 0

    def is_durable(self) -> None:
        promises = self.promises
        promises.states, promises.returned = promises.states[-1:], 0

    def step(self) -> None:
        """Do something."""
        self.now += self.random.choice((1, 10, 1000, SECOND))
        kinds, weights = zip(*STEPS, strict=True)
        self.random.choices(kinds, weights)[0](self)

    def packed(self, records: int, size: int, *, keyed: bool = False, producer: tuple[int, int] = (0, 0)) -> bytes:
        """A batch of records that are like no others."""
        values, metas = [], []
        for _ in range(records):
            self.made += 1
            key = self.random.choice((b"k1", b"k2", b"k3", None)) if keyed else None
            gone = key is not None and self.random.random() < 0.2
            values.append(b"" if gone else b"%d:" % self.made + self.random.randbytes(size))
            metas.append(Meta(key))
        number, sequence = producer
        return pack(values, columns_of(metas if keyed else None), producer=number, producer_sequence=sequence)

    def batch(
        self, topic: int, ends: dict[int, int], records: int, size: int, producer: tuple[int, int] = (0, 0)
    ) -> Part:
        known = self.journal.ledger.topics.get(topic)
        keyed = known is not None and bool(known.options.get("compact"))
        body = self.packed(records, size, keyed=keyed, producer=producer)
        base = ends[topic]
        ends[topic] = base + records
        sequence, ends[0] = ends[0], ends[0] + records
        crc = int.from_bytes(body[:4], "little")
        return Part(PartKind.BATCH, body, crc, topic, base, base + records - 1, sequence, self.now)

    def some_topic(self) -> TopicState | None:
        topics = self.journal.ledger.topics
        return topics[self.random.choice(sorted(topics))] if topics else None

    def ends(self) -> dict[int, int]:
        """Where each topic goes on, and under 0 the next sequence."""
        ends = {number: topic.end for number, topic in self.journal.ledger.topics.items()}
        ends[0] = max(self.journal.ledger.sequence, self.promises.sequence)
        return ends

    def publish(self) -> None:
        """One to four entries with batches for several topics, and some state with them."""
        random, ends = self.random, self.ends()
        topics = sorted(self.journal.ledger.topics)
        if not topics:
            return self.create_topic()
        drafts: list[Draft] = []
        for _ in range(random.choice((1, 1, 1, 2, 4))):
            size = random.choices((8, 60, 700, 2500, 9000), (50, 50, 8, 2, 0.4))[0]
            parts = [
                self.batch(random.choice(topics), ends, random.choice((1, 1, 2, 5)), size)
                for _ in range(random.choice((1, 1, 1, 2, 3)))
            ]
            if random.random() < 0.2:
                parts.append(self.moved(topics, ends))
            drafts.append(Draft(parts, self.now))
        self.write(drafts)
        return None

    def create_topic(self) -> None:
        ledger = self.journal.ledger
        names = {topic.name for topic in ledger.topics.values()}
        free = [name for name in NAMES if name not in names]
        if free:
            options: dict[str, Any] = self.random.choice(({}, {"retention_count": 9}, {"compact": True}))
            made = TopicState(ledger.next_topic, self.random.choice(free), ledger.epoch + 1, options)
            drafts = [Draft([topic_part(made)], self.now)]
            if self.random.random() < 0.5:  # with its first records, in one entry or in two
                ends = {made.id: 0, 0: max(ledger.sequence, self.promises.sequence)}
                parts = [self.batch(made.id, ends, 2, 20)]
                if self.random.random() < 0.5:
                    drafts = [Draft([*drafts[0].parts, *parts], self.now)]
                else:
                    drafts.append(Draft(parts, self.now))
            self.write(drafts)

    def change_topic(self) -> None:
        if known := self.some_topic():
            options = {**known.options, "retention_count": self.random.randrange(100)}
            self.write([Draft([topic_part(TopicState(known.id, known.name, known.epoch, options))], self.now)])

    def publish_numbered(self) -> None:
        """A producer publishes what it has not published yet, with a message id besides."""
        topics, ends = sorted(self.journal.ledger.topics), self.ends()
        if topics:
            producer, topic = self.random.choice((7, 8)), self.random.choice(topics)
            number = self.promises.states[-1].producers.get(producer, 0)
            part = self.batch(topic, ends, self.random.choice((1, 3)), 30, (producer, number))
            self.made += 1
            self.write([Draft([part, ids_part(topic, [f"id{self.made}"], [part.base], self.now)], self.now)])

    def transact(self) -> None:
        """Several topics, a mark and a group's progress, in one entry."""
        topics, ends = sorted(self.journal.ledger.topics), self.ends()
        if not topics:
            return
        parts = [self.batch(topic, ends, 1, 40) for topic in topics]
        self.made += 1
        parts.append(marker_part(self.random.choice(("m", "n")), self.random.choice((self.made, "x", b"y", None))))
        if groups := self.promises.states[-1].groups:
            number = self.random.choice(sorted(groups))
            end = {topic.name: topic.end for topic in self.journal.ledger.topics.values()}
            if groups[number].floor < end.get(groups[number].pattern, self.journal.ledger.sequence):
                floor = groups[number].floor
                parts.append(progress_part(number, [floor, floor + 1], []))
        self.write([Draft(parts, self.now)])

    # -- stages -------------------------------------------------------------------------------------------------

    def stage(self) -> None:
        """Open a stage, or write to one that is open; sometimes beside what others publish."""
        ledger, known = self.journal.ledger, self.some_topic()
        if known is None:
            return
        stages = [number for number, one in sorted(ledger.stages.items()) if not isinstance(one, BlockStageState)]
        drafts: list[Draft] = []
        if not stages or (len(stages) < 3 and self.random.random() < 0.3):
            opened = StageState(ledger.next_stage, "w", self.made, 0, 0, known.id, self.now)
            number, topic, ordinal = opened.id, known, 0
            parts = [stage_part(opened)]
        else:
            number, parts = self.random.choice(stages), []
            topic, ordinal = ledger.topics[ledger.stages[number].topic], len(ledger.stages[number].counts)
        keyed = bool(topic.options.get("compact"))
        for more in range(self.random.choice((1, 1, 2))):
            parts.append(staged_part(number, ordinal + more, self.packed(3, 200, keyed=keyed), self.now))
            if self.random.random() < 0.3:
                parts.append(self.batch(topic.id, self.ends(), 1, 20))
            drafts.append(Draft(parts, self.now))
            parts = []
            if any(part.kind == PartKind.BATCH for part in drafts[-1].parts):
                break
        self.write(drafts)

    def commit_stage(self) -> None:
        """One small entry makes stages visible, with other records before and behind them."""
        ledger, ends = self.journal.ledger, self.ends()
        stages = [stage for stage in ledger.stages.values() if stage.records]
        if not stages:
            return self.stage()
        parts: list[Part] = []
        for stage in self.random.sample(stages, self.random.randint(1, len(stages))):
            if isinstance(stage, BlockStageState):
                parts += self.committed_blocks(stage, ends)
                continue
            parts.append(self.batch(stage.topic, ends, 1, 20))
            parts.append(stage_commit_part(stage, ends[stage.topic], ends[0], self.now))
            ends[stage.topic] += stage.records
            ends[0] += stage.records
        parts.append(marker_part("staged", self.made))
        self.write([Draft(parts, self.now)])
        return None

    def stage_blocks(self) -> None:
        """Open a stage of many topics, or write to one that is open: blocks in which topics take turns, or do not."""
        ledger, random = self.journal.ledger, self.random
        topics = sorted(ledger.topics)
        if not topics:
            return
        open_ones = [one for one in ledger.stages.values() if isinstance(one, BlockStageState)]
        parts: list[Part] = []
        if not open_ones or (len(open_ones) < 3 and random.random() < 0.3):
            stage = BlockStageState(ledger.next_stage, "w", self.made, 1, 0, 0, self.now)
            parts.append(stage_part(stage))
        else:
            stage = random.choice(open_ones)
        before = {topic: records for topic, (records, _) in stage.topics.items()}
        first, drafts = stage.total, list[Draft]()
        for _ in range(random.choice((1, 1, 2, 3))):
            turns = [random.choice(topics) for _ in range(random.choice((1, 2, 5, 12)))]
            parts.append(staged_block_part(stage.id, self.block(turns, first, before), self.now))
            first += len(turns)
            if random.random() < 0.5:
                drafts.append(Draft(parts, self.now))
                parts = []
        if parts:
            drafts.append(Draft(parts, self.now))
        self.write(drafts)

    def block(self, turns: list[int], first: int, before: dict[int, int]) -> bytes:
        """A block of records of these topics, in that order."""
        contents = []
        for topic in dict.fromkeys(turns):
            runs: list[RecordRun] = []
            offset = before.get(topic, 0)
            for number, one in enumerate(turns, first):
                if one == topic:
                    runs = joined_runs([*runs, RecordRun(offset, number, 0, 1)])
                    offset += 1
            keyed = bool(self.journal.ledger.topics[topic].options.get("compact"))
            size = self.random.choice((8, 60, 300))
            contents.append(TopicRuns(topic, runs, self.packed(turns.count(topic), size, keyed=keyed)))
            before[topic] = offset
        return staged_block.encode(first, contents)

    def committed_blocks(self, stage: BlockStageState, ends: dict[int, int]) -> list[Part]:
        """What makes a stage of many topics visible."""
        parts: list[Part] = []
        size = sum(held for _, held in stage.topics.values())
        for topic, (records, held) in stage.topics.items():
            share = BlocksShare(stage.id, stage.total, size, held)
            base = ends[topic]
            ends[topic] += records
            parts.append(blocks_commit_part(share, topic, base, ends[topic] - 1, ends[0], self.now))
        ends[0] += stage.total
        return parts

    def drop_stage(self) -> None:
        if stages := sorted(self.journal.ledger.stages):
            self.write([Draft([stage_dropped_part(self.random.choice(stages))], self.now)])

    # -- cleaning -----------------------------------------------------------------------------------------------

    def clean(self) -> None:
        """Write old segments again, as the broker's cleaner would, while others go on writing."""
        journal = self.journal
        living = journal.living()
        while (look := self.under_way or self.compaction.due(living, {}, self.now)) is not None:
            self.under_way = look
            while not look.done and self.random.random() < 0.9:  # or it is gone on with later
                look.step()
            if not look.done:
                self.note()
                break
            self.under_way = None
            if (part := self.compaction.over(look, self.now)) is not None:
                self.write([Draft([part], self.now)])
            self.note()
        living.taken = self.compaction.taken({})
        shares = LiveShares()
        for _ in shares.look(tuple(journal.history.sources), living):
            pass
        bound = self.random.choice((0.02, 0.5))
        chosen = choose_segments(shares.now, self.segment_bytes, bound, 1 << 30)
        if not chosen:
            return
        self.work_off(journal.clean(chosen, living, stages_to_place(shares.now, chosen, bound)))

    def place_stage(self) -> None:
        """Write a segment again in which stages were committed, with their records, or what lives of them."""
        living = self.journal.living()
        committed = [
            (source, stages)
            for source in self.journal.history.sources
            if source.info.id in living.segments
            and (stages := [one.id for topic, found in source.index.topics() for one in living.stages_in(topic, found)])
        ]
        if not committed:
            return self.commit_stage()
        source, stages = self.random.choice(committed)
        some = self.random.sample(stages, self.random.randint(1, len(stages)))
        living.taken = self.compaction.taken({})
        return self.work_off(self.journal.clean([source], living, some))

    def work_off(self, job: CleaningJob) -> None:
        """Do what a job does, while others go on writing, and put it in place."""
        journal = self.journal
        try:
            while not job.done:
                job.step()
                if self.random.random() < 0.2:
                    self.random.choice((World.publish, World.trim, World.progress, World.commit_stage))(self)
            self.note(job)
            if journal.replace(job):
                self.placed += len(job.placed)
                if parts := self.compaction.replaced(job, self.now):
                    self.write([Draft(parts, self.now)])
                if job.placed:
                    journal.retain(self.now)
        finally:
            job.abandon()
            journal.let_go(job)

    def delete_topic(self) -> None:
        if known := self.some_topic():
            self.write([Draft([state_part(PartKind.TOPIC_DELETED, topic=known.id)], self.now)])

    def trim(self) -> None:
        if known := self.some_topic():
            records = self.promises.states[-1].topics[known.id].records
            newest = records[-1].offset + 1 if records else known.first
            first = self.random.choice((known.first, newest, self.random.choice(records).offset if records else 0))
            self.write([Draft([trim_part(known.id, first, known.end)], self.now)])
            if self.random.random() < 0.5:
                self.journal.retain(self.now)

    def retain(self) -> None:
        self.journal.retain(self.now)

    def move_cursor(self) -> None:
        topics = sorted(self.journal.ledger.topics)
        if topics:
            self.write([Draft([self.moved(topics, self.ends())], self.now)])

    def forget_cursor(self) -> None:
        if names := sorted(self.promises.states[-1].cursors):
            self.write([Draft([cursor_forgotten_part(self.random.choice(names))], self.now)])

    def moved(self, topics: list[int], ends: dict[int, int]) -> Part:
        known = self.journal.ledger.topics[self.random.choice(topics)]
        name = self.random.choice(("x", "y", "z"))
        if self.random.random() < 0.3:
            return cursor_part(CursorState(name, ">", 0, ends[0]))
        place = self.random.randint(max(known.first, ends[known.id] - 20), ends[known.id])
        return cursor_part(CursorState(name, known.name, known.epoch, place))

    def create_group(self) -> None:
        ledger = self.journal.ledger
        if len(ledger.groups) < 3 and (known := self.some_topic()):
            number = ledger.next_group
            floor = self.random.choice((known.first, known.end))
            group = GroupState(number, f"g{number}", known.name, {}, floor)
            if self.random.random() < 0.3:
                group = GroupState(number, f"g{number}", ">", {}, ledger.sequence)
            self.write([Draft([group_part(group)], self.now)])

    def delete_group(self) -> None:
        if groups := sorted(self.journal.ledger.groups):
            self.write([Draft([state_part(PartKind.GROUP_DELETED, topic=self.random.choice(groups))], self.now)])

    def progress(self) -> None:
        """A group settles some, and fails at some."""
        groups = sorted(self.promises.states[-1].groups)
        if not groups:
            return self.create_group()
        number = self.random.choice(groups)
        group = self.promises.states[-1].groups[number]
        ends = {topic.name: topic.end for topic in self.journal.ledger.topics.values()}
        end = min(ends.get(group.pattern, self.journal.ledger.sequence), group.floor + 30)
        places = [place for place in range(group.floor, end) if place not in group.settled]
        if not places:
            return None
        settled: list[int] = []
        for _ in range(self.random.randint(0, 3)):
            place = self.random.choice(places)
            settled += (place, min(end, place + self.random.choice((1, 1, 4))))
        ranges = [range(*pair) for pair in zip(settled[::2], settled[1::2], strict=True)]
        left = [place for place in places if not any(place in one for one in ranges)]
        failed = [(self.random.choice(left), 2, 5.5, "no")] if left and self.random.random() < 0.5 else []
        self.write([Draft([progress_part(number, settled, failed)], self.now)])
        return None

    def sync(self) -> None:
        self.journal.sync()
        self.is_durable()

    def publish_in_memory(self) -> None:
        """Records that are not stored take sequences as well."""
        self.promises.sequence = max(self.promises.sequence, self.journal.ledger.sequence) + self.random.randint(1, 50)

    def grow_old(self) -> None:
        self.now += 61 * SECOND

    def close(self) -> None:
        """Leave in order, and come back, perhaps with another way to sync."""
        ledger = self.journal.ledger
        ledger.sequence = max(ledger.sequence, self.promises.sequence)
        self.journal.close()
        self.is_durable()
        self.fsync = self.random.choice((self.fsync, "commit", "interval", "os"))
        self.exact = True
        self.open()

    def crash(self) -> None:
        """Be killed or lose the power, now or in the middle of the next steps, and come back."""
        self.storage.crash_at = self.storage.calls + self.random.randint(1, 12)
        try:
            for _ in range(12):
                self.random.choice((World.publish, World.publish, World.progress, World.grow_old, World.close))(self)
        except PowerLost:
            pass
        except BaseException:  # the disk failed first: the power stays on
            self.storage.crash_at = None
            raise
        self.come_back()

    def come_back(self) -> None:
        """What was left, opened until that is not cut off as well."""
        killed = True  # as long as nothing but processes was lost
        for tries in range(4):
            now_killed = self.random.random() < 0.4
            killed = killed and now_killed
            found = self.storage.after_kill() if now_killed else self.storage.after_power_loss(self.random)
            watch, self.storage = self.storage.watch, watched(found, self.storage)
            self.storage.watch = watch
            self.storage.crash_at = self.random.randint(1, 30) if tries < 3 and self.random.random() < 0.5 else None
            self.intact, self.exact = killed, self.exact and self.fsync == "commit"
            try:
                self.open()
            except PowerLost:
                continue
            self.storage.crash_at = None
            return


STEPS: list[tuple[Callable[[World], Any], float]] = [
    (World.publish, 45),
    (World.publish_numbered, 4),
    (World.transact, 5),
    (World.stage, 6),
    (World.stage_blocks, 8),
    (World.commit_stage, 5),
    (World.drop_stage, 1),
    (World.create_topic, 5),
    (World.change_topic, 3),
    (World.delete_topic, 2),
    (World.trim, 5),
    (World.retain, 2),
    (World.clean, 6),
    (World.place_stage, 6),
    (World.move_cursor, 8),
    (World.forget_cursor, 1),
    (World.create_group, 3),
    (World.delete_group, 1),
    (World.progress, 10),
    (World.sync, 5),
    (World.publish_in_memory, 3),
    (World.grow_old, 2),
    (World.close, 4),
    (World.crash, 3),
]
