"""Cleaning: neighbouring sealed segments are written again, with what lives in them and nothing else.

What is written consists of *blocks*: stretches of the journal's order in which records lie grouped by
topic. A job reads sealed files and writes new ones that no manifest names; it changes nothing else.
Whoever runs it calls `step` until it is `done`, and then has the journal put its segments in place.
Damage that it meets ends it: what cannot be read is never dropped. The commit of a stage stays as it is, unless the
job is told to place that stage: then its records are read from where they lie, and written where the commit was.
Below: merging, entry, segment, staged, living. Above: segments (puts in place), broker.cleaning (runs).
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Sequence
from contextlib import suppress
from operator import attrgetter

import msgspec

from runnel.core.errors import BadBatch
from runnel.core.journal_errors import FormatUnknown, JournalDamaged
from runnel.core.packing import read_header
from runnel.journal import entry, merged, segment
from runnel.journal.block_index import BlockIndex, block_of
from runnel.journal.entry import HEADER, HOLDS_RECORDS, STAGE_TOPIC, Head, Kind, Part, body_crc, size_of, state
from runnel.journal.found import Lost, Staged
from runnel.journal.history import History
from runnel.journal.living import Living
from runnel.journal.merged import Run
from runnel.journal.merging import BLOCK, Item, Merging, Piece, Spans, parted, runs_of_batch
from runnel.journal.opened import staged_in
from runnel.journal.segment import START, TEMPORARY, SegmentInfo
from runnel.journal.source import Source
from runnel.journal.staged import followed
from runnel.journal.storage import File, Storage
from runnel.journal.swap import write_new

STEP = 64 * 1024  # bytes that are read, or written, at a time: some 3 ms, less than others wait for the interpreter

_KNOWN = frozenset(int(kind) for kind in Kind)


class _Output:
    """A cleaned segment that is being written."""

    def __init__(self, info: SegmentInfo, file: File) -> None:
        self.info, self.file = info, file
        self.index = BlockIndex()
        self.end = START
        self._pieces: list[bytes] = []
        self._from = START

    def put(self, part: Part, block: int, runs: Sequence[Run] | None = None) -> int:
        """One entry more, of the block that begins at `block`; how many bytes wait to be written now."""
        self.index.add(self.end, block, part, runs)
        self._pieces += entry.encode([part], self.info.id, self.end, block, part.time)
        self.end += size_of([part])
        return self.end - self._from

    def write(self) -> int:
        """Write what waits; how many bytes that were."""
        size = self.end - self._from
        if size:
            self.file.write(self._from, self._pieces)
            self._pieces, self._from = [], self.end
        return size


class Job:
    """One cleaning of some neighbouring segments. `step` until `done`, or `abandon`."""

    def __init__(
        self,
        storage: Storage,
        sources: Sequence[Source],
        living: Living,
        segment_bytes: int,
        now: int,
        history: History | None = None,
        placing: frozenset[int] = frozenset(),
    ) -> None:
        self.sources = tuple(sources)
        self.made: list[SegmentInfo] = []
        self.files: set[str] = set()  # names that are ours as long as no manifest has them
        self.done = False
        self.read = self.written = 0  # bytes
        self.taken: dict[int, int] = {}  # by topic: records that compaction took
        self.living = living
        self.reading: Source | None = None  # while it is read: whose fault it is if that fails
        self.following: int | None = None  # while a stage is: the same
        self.placed: set[int] = set()  # stages whose records are in what was written
        self.left: dict[int, list[tuple[int, int]]] = {}  # by topic: offsets of stages that stay where they lie
        self._history, self._placing = history or History(list(sources)), placing
        self._storage, self._limit, self._now = storage, segment_bytes, now
        self._block_bytes = min(BLOCK, segment_bytes)
        self._generation = 1 + max(source.info.generation for source in sources)
        self._output: _Output | None = None
        self._block, self._staged = Merging(), Merging()
        self._sequence, self._time = sources[0].info.first_sequence, sources[0].info.first_time  # behind all written
        self._work: Iterator[None] | None = self._run()

    def __repr__(self) -> str:
        numbers = ", ".join(str(source.info.number) for source in self.sources)
        return f"<Job on segments {numbers}, {self.read:,} bytes read, {self.written:,} written>"

    @property
    def size(self) -> int:
        """The bytes that it reads in all."""
        return sum(source.info.end for source in self.sources)

    def step(self) -> None:
        """Do a little. An error ends the job, and leaves nothing behind."""
        assert self._work is not None, "this job is over"
        try:
            next(self._work, None)
        except BaseException:
            self.abandon()
            raise

    def abandon(self) -> None:
        """End it, and remove what it wrote. Harmless when it is over."""
        self._work = None
        self.done = False
        if self._output is not None:
            self._output.file.close()
            self._output = None
        files, self.files = self.files, set()
        for name in files:
            with suppress(OSError):
                self._storage.remove(name)

    def _run(self) -> Iterator[None]:
        for source in self.sources:
            self.reading = source
            segment.check_header(source.file.read(0, START), source.info)
            self.reading = None
            yield from self._take(source)
        if missing := self._placing - self.placed:  # what was passed over of them would be lost
            self.following = min(missing)
            raise JournalDamaged(f"stage {self.following}", 0, "its commit is not where its records should be")
        yield from self._write(self._block)
        yield from self._write_staged()
        if self._output is not None:
            last = self.sources[-1].info
            yield from self._finish(self._output, last.end_sequence, last.last_time)
        self._work = None
        self.done = True

    # -- reading ------------------------------------------------------------------------------------------------

    def _take(self, source: Source) -> Iterator[None]:
        """Gather what lives in a segment, an entry at a time, or of a cleaned one a block at a time."""
        info = source.info
        position, unit, items = START, START, list[Item]()
        while position < info.end:
            self.reading = source
            data = _read(source, position)
            self.reading = None
            self.read += len(data)
            at = 0
            while at < len(data):
                head = entry.read_head(data, at, info.id, position)
                if head is None or at + head.end - position > len(data):
                    if at == 0:
                        raise JournalDamaged(info.name, position, "an entry is not whole")
                    break
                if not info.generation or block_of(head) != unit:
                    yield from self._gather(items, in_order=not info.generation)
                    unit, items = block_of(head), []
                try:
                    items += self._living_of(head, data, at, info)
                except BadBatch as error:
                    raise JournalDamaged(info.name, position, f"a batch is not one: {error.why}") from error
                at += head.end - position
                position = head.end
            yield
        yield from self._gather(items, in_order=not info.generation)

    def _living_of(self, head: Head, data: bytes, at: int, info: SegmentInfo) -> Iterator[Item]:
        """What lives in an entry."""
        wants = self.living.wants
        body_at = at + head.bodies
        for kind, _, _, length, crc, topic, base, last, sequence, time in head.table:
            body_at += length
            if kind not in HOLDS_RECORDS and kind != Kind.STAGED:
                if kind < Kind.OPTIONAL and kind not in _KNOWN:
                    raise FormatUnknown(f"an entry part of kind {kind}", kind, max(_KNOWN))
                continue  # state: the checkpoints that were written since hold it
            place = STAGE_TOPIC | topic if kind == Kind.STAGED else topic
            if not wants(place, last) or (kind == Kind.STAGED and topic in self._placing):
                continue
            body = data[body_at - length : body_at]
            if body_crc(kind, body) != crc:
                raise JournalDamaged(info.name, head.position, "the crc of a batch is wrong")
            part = Part(kind, body, crc, topic, base, last, sequence, time)
            if kind == Kind.STAGED:
                yield Item(place, sequence, time, length, None, part)
            elif kind == Kind.STAGE_COMMIT:
                staged = staged_in(body, Run(base, sequence, time, part.count), topic)
                if staged is not None and staged.stage in self._placing:
                    yield Item(topic, sequence, time, 0, None, part, staged)
                else:
                    self.left.setdefault(topic, []).append((base, last + 1))
                    yield Item(topic, sequence, time, length, None, part)
            elif (piece := self._piece(part)) is not None:
                yield Item(topic, piece.runs[0].sequence, piece.runs[0].time, piece.raw, piece)

    def _piece(self, part: Part) -> Piece | None:
        """What lives of a batch; None: nothing does."""
        if part.kind == Kind.MERGED:
            batch: bytes | memoryview = merged.batch_of(part.body)
            header = read_header(batch)
            runs: Sequence[Run] = merged.runs_of(part.body)
        else:
            batch, header = part.body, read_header(part.body)
            runs = runs_of_batch(part, header)
        first, taken = self.living.firsts[part.topic], self.living.taken.get(part.topic)
        if part.base >= first and not taken:
            return Piece(runs, header, batch)
        living: list[Run] = []
        spans: Spans = []
        at = 0
        for run in runs:
            start, end = max(run.offset, first), run.offset + run.count
            found = taken.spans_without(start, end) if taken else [(start, end)] if start < end else []
            for low, high in found:
                living.append(Run(low, run.sequence + low - run.offset, run.time, high - low))
                spans.append((at + low - run.offset, at + high - run.offset))
            if taken and start < end:
                gone = end - start - sum(high - low for low, high in found)
                self.taken[part.topic] = self.taken.get(part.topic, 0) + gone
            at += run.count
        left = sum(run.count for run in living)
        return Piece(living, header, batch, None if left == at else spans) if left else None

    def _gather(self, items: list[Item], *, in_order: bool) -> Iterator[None]:
        """Put items into the block; write it when they would be too many."""
        records: list[Item] = []
        for item in items:
            if item.topic < STAGE_TOPIC:
                records.append(item)
            else:
                if self._staged.size + item.size > self._block_bytes:
                    yield from self._write_staged()
                self._staged.add(item)
        if in_order:
            records.sort(key=attrgetter("sequence"))
            for item in records:
                if item.staged is not None:
                    yield from self._place(item.staged)
                else:
                    yield from self._add([item])
            return
        commits = sorted((item for item in records if item.staged is not None), key=attrgetter("sequence"))
        records = [item for item in records if item.staged is None]
        for commit in commits:  # the block is parted: what is behind the commit is behind all of its records
            assert commit.staged is not None
            before, records = parted(records, commit.sequence)
            yield from self._add(before)
            yield from self._place(commit.staged)
        yield from self._add(records)

    def _add(self, items: list[Item]) -> Iterator[None]:
        """Put items into one block: into the one that there is, unless they would be too many."""
        if self._block.size + sum(item.size for item in items) > self._block_bytes:
            yield from self._write(self._block)
        for item in items:
            self._block.add(item)

    def _place(self, staged: Staged) -> Iterator[None]:
        """Put what lives of a stage where its commit was."""
        self.following = staged.stage
        place = max(staged.base, self.living.firsts[staged.topic])
        for found in followed(self._history, staged, place, by_sequence=False):
            if isinstance(found, int):
                self.read += found
                yield
                continue
            if isinstance(found, Lost):
                raise JournalDamaged(f"stage {staged.stage}", found.first, found.reason)
            crc = int.from_bytes(found.body[:4], "little")
            part = Part(Kind.BATCH, found.body, crc, staged.topic, found.base, found.last, found.sequence, found.time)
            try:
                piece = self._piece(part)
            except BadBatch as error:
                raise JournalDamaged(f"stage {staged.stage}", found.base, f"not a batch: {error.why}") from error
            if piece is not None:
                run = piece.runs[0]
                yield from self._add([Item(staged.topic, run.sequence, run.time, piece.raw, piece)])
        self.following = None
        self.placed.add(staged.stage)

    # -- writing ------------------------------------------------------------------------------------------------

    def _write_staged(self) -> Iterator[None]:
        """Write what is staged. It has no sequence, so it lies before the next record to come."""
        if self._staged:
            first = self._block if self._block else None
            self._staged.sequence = self._staged.end_sequence = first.sequence if first else self._sequence
            self._staged.time = self._staged.end_time = first.time if first else self._time
            yield from self._write(self._staged)

    def _write(self, block: Merging) -> Iterator[None]:
        if not block:
            return
        output = self._output
        may_split = len(self.made) + 1 < len(self.sources) or self._placing  # or it is as large as what was read
        if output is not None and output.end >= self._limit and may_split:
            yield from self._finish(output, block.sequence, self._time)
            output = None
        if output is None:
            output = self._output = self._begin(block)
        begin = output.end
        self._sequence, self._time = max(self._sequence, block.end_sequence), max(self._time, block.end_time)
        for part, runs in block.parts():
            # An entry says where its block begins, where others say how far was synced.
            if output.put(part, begin, runs) >= STEP:
                self.written += output.write()
                yield
        self.written += output.write()
        yield
        output.file.sync()  # little by little: one large sync would hold up those of the commits
        yield

    def _begin(self, block: Merging) -> _Output:
        """The next segment, under the lowest number that is left of those that were read.

        What was staged elsewhere may take more segments than were read: they share the last number.
        """
        number = self.sources[min(len(self.made), len(self.sources) - 1)].info.number
        oldest, there = self.sources[0].info, set(self._storage.names())
        info = SegmentInfo(number, secrets.randbits(63), 0, block.sequence, 0, block.time, 0, self._generation)
        while info.name in there:
            info.generation += 1
        if not self.made:
            info.first_sequence, info.first_time = oldest.first_sequence, oldest.first_time
        self.files |= {info.name, info.name + TEMPORARY, info.index_name, info.index_name + TEMPORARY}
        file = self._storage.create(info.name + TEMPORARY)
        output = self._output = _Output(info, file)  # at once: whatever happens now, it is let go of
        file.write(0, [segment.encode_header(info, self._now)])
        topics = {topic for source in self.sources for topic, _ in source.index.topics()}
        if names := [name for topic in sorted(topics) if (name := self.living.names.get(topic)) is not None]:
            output.put(state(Kind.NAMES, msgspec.msgpack.encode(names)), START)
        return output

    def _finish(self, output: _Output, end_sequence: int, last_time: int) -> Iterator[None]:
        """Name a segment, all of which is synced, and write its index; both are durable but for their names."""
        info = output.info
        info.end, info.end_sequence, info.last_time = output.end, end_sequence, last_time
        output.file.close()
        self._output = None
        self._storage.rename(info.name + TEMPORARY, info.name)
        yield
        index = output.index.finish(info).encode(info)
        write_new(self._storage, info.index_name, [index])
        self.written += len(index)
        self.files -= {info.name + TEMPORARY, info.index_name + TEMPORARY}
        self.made.append(info)
        yield


def _read(source: Source, position: int) -> bytes:
    """A piece of a segment: at least one whole entry, however long, unless it is damaged."""
    left = source.info.end - position
    data = source.file.read(position, min(STEP, left))
    if len(data) >= HEADER.size:
        magic, _, length, *_ = HEADER.unpack_from(data)
        if magic == entry.MAGIC and len(data) < length <= left:
            data += source.file.read(position + len(data), length - len(data))
    if not data:
        raise JournalDamaged(source.info.name, position, "the file is shorter than it was")
    return data
