"""The ledger: all durable state that is not a record, and the entry parts that change it.

Topics, cursors, groups, stages, markers, producers and message ids. `Ledger.apply` runs when an entry is written and
when it is read again, so a restart finds the same state. Changes since the last checkpoint are tracked for the next.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from heapq import heapify, heappop, heappush
from struct import Struct
from typing import Any, NamedTuple

import msgspec

from runnel.core.checksum import crc_of
from runnel.core.deduplication import MessageIdLimit, MessageIdWindow, ProducerTable
from runnel.core.errors import BadBatch, FormatUnknown
from runnel.core.markers import MarkerValue
from runnel.core.position import Position
from runnel.core.stages import StageKey
from runnel.journal.format import staged_block
from runnel.journal.format.entry import Part, PartKind, state_part
from runnel.journal.format.offset_sets import RangeSet
from runnel.journal.format.removed_offsets import RemovalReason, RemovedRange, add_removed


class DeliveryFailure(NamedTuple):
    """A record that was tried and not settled: how often, when it may be tried again, and why it failed."""

    attempts: int
    due: float
    reason: str


class GroupState:
    """A group on a topic or pattern. Everything below `floor` is settled, and so are the `settled` ranges."""

    __slots__ = ("_failed_end", "failed", "floor", "id", "name", "options", "pattern", "settled")

    def __init__(self, id: int, name: str, pattern: str, options: dict[str, Any], floor: int) -> None:
        self.id, self.name, self.pattern, self.options, self.floor = id, name, pattern, options, floor
        self.settled = RangeSet()
        self.failed: dict[int, DeliveryFailure] = {}
        self._failed_end = 0  # behind the last that ever failed: once it is settled, that is no further than `settled`

    def __repr__(self) -> str:
        return f"<GroupState {self.name!r} on {self.pattern!r} from {self.floor}, {len(self.failed)} failed>"

    @property
    def end(self) -> int:
        """Behind this place nothing was settled, and nothing failed."""
        return max(self.floor, self.settled.end, self._failed_end)

    def progress(self, settled: list[int], failed: list[tuple[int, int, float, str]]) -> None:
        """Places (flat ranges) were settled, others failed. Saying it twice changes nothing."""
        numbers = iter(settled)
        for first, end in zip(numbers, numbers, strict=True):
            if end > self.floor:
                self.settled.add(max(first, self.floor), end)
                self._forget_failed(max(first, self.floor), end)
        for place, attempts, due, reason in failed:
            if place >= self.floor and place not in self.settled:
                self.failed[place] = DeliveryFailure(attempts, due, reason)
                self._failed_end = max(self._failed_end, place + 1)
        self.floor = self.settled.cut_below(self.floor)

    def _forget_failed(self, first: int, end: int) -> None:
        """Settle failed records at [first, end). Costs as much as the smaller of the two: this runs for each ack."""
        if end - first <= len(self.failed):
            for place in range(first, end):
                self.failed.pop(place, None)
        else:
            for place in [place for place in self.failed if first <= place < end]:
                del self.failed[place]

    def encode(self) -> list[Any]:
        """For a checkpoint."""
        failed = [[place, *failure] for place, failure in self.failed.items()]
        return [self.id, self.name, self.pattern, self.options, self.floor, self.settled.flat(), failed]

    @classmethod
    def decode(cls, found: list[Any]) -> GroupState:
        """From a checkpoint."""
        group_id, name, pattern, options, floor, settled, failed = found
        group = cls(group_id, name, pattern, options, floor)
        group.settled = RangeSet(settled)
        group.failed = {place: DeliveryFailure(attempts, due, reason) for place, attempts, due, reason in failed}
        group._failed_end = max(group.failed, default=-1) + 1
        return group


# -- Stages ----------------------------------------------------------------------------------------------
# Batches that are on disk and invisible, until one small entry gives them their offsets.


class StageState(msgspec.Struct, array_like=True):
    """An open stage: durable, invisible, without offsets."""

    id: int
    writer: str
    batch: int
    part: int
    attempt: int
    topic: int
    time: int  # when it was opened, or written to last, in microseconds
    counts: list[int] = []  # records of each staged batch
    bytes: int = 0

    @property
    def key(self) -> StageKey:
        """The name that its writer gave it."""
        return StageKey(self.writer, self.batch, self.part, self.attempt)

    @property
    def records(self) -> int:
        """How many records are in it."""
        return sum(self.counts)


class BlockStageState(StageState):
    """An open stage of many topics: `topic` is 0, and how many records and bytes there are of each topic is counted.

    Its records are numbered through; the next one is `total`.
    """

    total: int = 0
    topics: dict[int, tuple[int, int]] = {}  # records and bytes, by topic; in the order in which they came

    @property
    def records(self) -> int:
        """How many records are in it."""
        return self.total

    def add(self, directory: staged_block.BlockDirectory, size: int, time: int) -> None:
        """A block of `size` bytes is staged."""
        for one in directory.topics.values():
            records, held = self.topics.get(one.topic, (0, 0))
            self.topics[one.topic] = (records + one.records, held + one.size)
        self.total += directory.records
        self.bytes += size
        self.time = max(self.time, time)


class CommittedStage(msgspec.Struct, array_like=True, gc=False):
    """A stage whose records [base, end) of `topic` are read from where they were staged."""

    id: int
    topic: int
    base: int
    end: int
    bytes: int


class CommittedBlocks(msgspec.Struct, array_like=True):
    """A stage of many topics whose records are read from its blocks: what each topic still has of it.

    `bytes` are those of all its topics when it was committed.
    """

    id: int
    bytes: int
    shares: dict[int, CommittedStage] = {}  # by topic


# -- Topics, cursors, and the ledger ---------------------------------------------------------------------


PIECE = 1000  # items in one piece of a checkpoint

_decode = msgspec.msgpack.Decoder().decode
_COUNT_AT = 8  # in the header of a packed batch: how many records it holds
_PRODUCER_AT = 20  # and its producer
_PRODUCER = Struct("<QQ")
_NO_PRODUCER = bytes(8)


class TopicState(msgspec.Struct, array_like=True, gc=False):
    """A durable topic: its records are [first, end), less the holes."""

    id: int
    name: str
    epoch: int
    options: dict[str, Any]
    schema: dict[str, Any] | None = None  # of a typed topic, with its encoding under "encoding"
    first: int = 0
    end: int = 0
    bytes: int = 0  # of all batches ever appended
    last_time: int = 0
    gone: tuple[RemovedRange, ...] = ()  # why offsets below `end` are not there
    compacted: int = 0  # below this offset only the newest record of each key was left, when it was looked at
    confirmed: int = 0  # below this offset its source of history has all records
    configured: tuple[str, ...] = ()  # options that an operator set: they win over those that publishers name

    def encode(self) -> TopicState | tuple[Any, ...]:
        """As it is stored: the last fields are left out where they say nothing, as before there were any."""
        if self.configured:
            return self
        return msgspec.structs.astuple(self)[: -1 if self.confirmed else -2]


class CursorState(msgspec.Struct, array_like=True, gc=False):
    """Where a named subscription stands: an offset in an epoch, or (epoch 0) a sequence.

    Nothing from there on is taken away while it asks to `hold`.
    """

    name: str
    pattern: str
    epoch: int
    place: int
    hold: bool = False


class Ledger:
    """Everything durable that is not a record."""

    def __init__(self) -> None:
        self.topics: dict[int, TopicState] = {}
        self.cursors: dict[str, CursorState] = {}
        self.groups: dict[int, GroupState] = {}
        self.marks: dict[str, MarkerValue] = {}
        self.producers = ProducerTable()
        self.ids: dict[int, MessageIdWindow] = {}  # by topic
        self._ids_allowed = MessageIdLimit()
        self.stages: dict[int, StageState] = {}  # that are open
        self.committed: dict[int, CommittedStage] = {}  # stages that are read from where they lie
        self.blocks: dict[int, CommittedBlocks] = {}  # the same, of many topics
        self._ends: dict[int, list[tuple[int, int]]] = {}  # by topic, a heap: where its committed stages end, and which
        self.next_topic = 1
        self.next_group = 1
        self.next_stage = 1
        self.epoch = 0  # the highest ever given
        self.sequence = 0  # the next one
        self.reserved = 0  # sequences below this may have been given to records that are not stored
        self.time = 0  # of the last entry, in microseconds
        self.changed_topics: set[int] = set()
        self.changed_cursors: set[str] = set()
        self.changed_groups: set[int] = set()
        self.changed_marks: set[str] = set()
        self.changed_producers: set[int] = set()
        self.changed_ids: set[int] = set()
        self.changed_stages: set[int] = set()
        self._apply_state: dict[int, Callable[[Part], None]] = {
            PartKind.TOPIC: self._make_topic,
            PartKind.TOPIC_DELETED: self._delete_topic,
            PartKind.TRIM: self._trim,
            PartKind.COMPACTED: self._compacted,
            PartKind.CONFIRMED: self._confirm,
            PartKind.CURSOR: self._move_cursor,
            PartKind.CURSOR_FORGOTTEN: self._forget_cursor,
            PartKind.GROUP: self._make_group,
            PartKind.PROGRESS: self._progress,
            PartKind.GROUP_DELETED: self._delete_group,
            PartKind.SEQUENCE: self._reserve,
            PartKind.MARK: self._mark,
            PartKind.MESSAGE_IDS: self._remember_ids,
            PartKind.STAGE: self._open_stage,
            PartKind.STAGED: self._stage,
            PartKind.STAGE_COMMIT: self._commit_stage,
            PartKind.STAGE_DROPPED: self._drop_stage,
            PartKind.STAGED_BLOCK: self._stage_block,
            PartKind.BLOCKS_COMMIT: self._commit_blocks,
        }

    def __repr__(self) -> str:
        return f"<Ledger, {len(self.topics)} topics, {len(self.cursors)} cursors, {len(self.groups)} groups>"

    # -- entries ------------------------------------------------------------------------------------------------

    def apply(self, parts: Iterable[Part], time: int) -> None:
        """An entry was written, or read."""
        if time > self.time:
            self.time = time
        for part in parts:
            if part.kind == PartKind.BATCH:
                self._append(part, len(part.body))
                if part.body[_PRODUCER_AT : _PRODUCER_AT + 8] != _NO_PRODUCER:
                    self._produced(part)
            elif (apply := self._apply_state.get(part.kind)) is not None:
                apply(part)
            elif part.kind < PartKind.OPTIONAL:
                raise FormatUnknown(f"an entry part of kind {part.kind}", part.kind, max(self._apply_state))

    def _append(self, part: Part, size: int) -> None:
        """Records were appended to a topic."""
        topic = self.topics.get(part.topic)
        if part.sequence + part.count > self.sequence:
            self.sequence = part.sequence + part.count
        if topic is not None:  # None: it was deleted, later, and the checkpoint already knows
            topic.end = part.last + 1
            topic.bytes += size
            topic.last_time = part.time
            self.changed_topics.add(part.topic)

    def _produced(self, part: Part) -> None:
        topic = self.topics.get(part.topic)
        if topic is not None:
            producer, sequence = _PRODUCER.unpack_from(part.body, _PRODUCER_AT)
            self.producers.remember(producer, sequence, part.count, Position(topic.epoch, part.base), part.time / 1e6)
            self.changed_producers.add(producer)

    # -- topics -------------------------------------------------------------------------------------------------

    def _make_topic(self, part: Part) -> None:
        topic = msgspec.convert(_decode(part.body), TopicState)
        known = self.topics.get(topic.id)
        if known is not None:
            for kept in ("first", "end", "bytes", "last_time", "gone", "compacted", "confirmed"):
                setattr(topic, kept, getattr(known, kept))
        self.topics[topic.id] = topic
        self.changed_topics.add(topic.id)
        self.next_topic = max(self.next_topic, topic.id + 1)
        self.epoch = max(self.epoch, topic.epoch)

    def _delete_topic(self, part: Part) -> None:
        deleted = self.topics.pop(part.topic, None)
        if deleted is None:
            return
        self.changed_topics.add(part.topic)
        for group in [one for one in self.groups.values() if one.pattern == deleted.name]:
            del self.groups[group.id]  # a group on one topic ends with it
            self.changed_groups.add(group.id)
        for stage in [one.id for one in self.stages.values() if is_for(one, part.topic)]:
            del self.stages[stage]
            self.changed_stages.add(stage)
        self._forget_committed(part.topic, deleted.end)
        if self.ids.pop(part.topic, None) is not None:
            self.changed_ids.add(part.topic)

    def _trim(self, part: Part) -> None:
        known = self.topics.get(part.topic)
        if known is not None:
            # A trim below the first offset takes nothing here, but from a source of history.
            first = min(known.first, part.base - 1) if part.sequence == RemovalReason.ASKED else known.first
            known.gone = add_removed(known.gone, max(0, first), part.base, part.sequence, part.time)
            known.gone = add_removed(known.gone, known.end, part.last, RemovalReason.SKIPPED, part.time)
            known.first = max(known.first, part.base)
            known.end = max(known.end, part.last)
            self.changed_topics.add(part.topic)
            self._forget_committed(part.topic, known.first)

    def _compacted(self, part: Part) -> None:
        known = self.topics.get(part.topic)
        if known is not None:
            known.gone = add_removed(known.gone, part.base, part.last, RemovalReason.COMPACTED, part.time)
            _, _, *rest = _decode(part.body)
            known.compacted = max(known.compacted, rest[0] if rest else part.last)
            self.changed_topics.add(part.topic)

    def _confirm(self, part: Part) -> None:
        known = self.topics.get(part.topic)
        if known is not None:
            known.confirmed = max(known.confirmed, part.base)
            self.changed_topics.add(part.topic)

    # -- readers ------------------------------------------------------------------------------------------------

    def _move_cursor(self, part: Part) -> None:
        cursor = msgspec.convert(_decode(part.body), CursorState)
        self.cursors[cursor.name] = cursor
        self.changed_cursors.add(cursor.name)

    def _forget_cursor(self, part: Part) -> None:
        name = _decode(part.body)
        if self.cursors.pop(name, None) is not None:
            self.changed_cursors.add(name)

    def _make_group(self, part: Part) -> None:
        group = GroupState.decode(_decode(part.body))
        self.groups[group.id] = group
        self.changed_groups.add(group.id)
        self.next_group = max(self.next_group, group.id + 1)

    def _progress(self, part: Part) -> None:
        if (found := self.groups.get(part.topic)) is not None:
            found.progress(*_decode(part.body))
            self.changed_groups.add(part.topic)

    def _delete_group(self, part: Part) -> None:
        if self.groups.pop(part.topic, None) is not None:
            self.changed_groups.add(part.topic)

    # -- the broker, its publishers -----------------------------------------------------------------------------

    def _reserve(self, part: Part) -> None:
        self.reserved = max(self.reserved, part.base)
        self.epoch = max(self.epoch, part.last)

    def _mark(self, part: Part) -> None:
        name, value = _decode(part.body)
        if value is None:
            self.marks.pop(name, None)
        else:
            self.marks[name] = value
        self.changed_marks.add(name)

    def _remember_ids(self, part: Part) -> None:
        topic = self.topics.get(part.topic)
        if topic is not None:
            window = self.ids.setdefault(part.topic, MessageIdWindow())
            names, offsets = _decode(part.body)
            for name, offset in zip(names, offsets, strict=True):
                window.remember(name, topic.epoch, offset, part.time / 1e6)
            self.changed_ids.add(part.topic)
            self._ids_allowed.take(len(names), self.ids.values)

    # -- stages -------------------------------------------------------------------------------------------------

    def _open_stage(self, part: Part) -> None:
        stage = _stage_of(_decode(part.body))
        self.next_stage = max(self.next_stage, stage.id + 1)
        # or it was deleted, later, and the checkpoint already knows
        if stage.topic in self.topics or isinstance(stage, BlockStageState):
            self.stages[stage.id] = stage
            self.changed_stages.add(stage.id)

    def _stage(self, part: Part) -> None:
        stage = self.stages.get(part.topic)
        if stage is not None and part.base == len(stage.counts):
            stage.counts.append(int.from_bytes(part.body[_COUNT_AT : _COUNT_AT + 4], "little"))
            stage.bytes += len(part.body)
            stage.time = max(stage.time, part.time)
            self.changed_stages.add(part.topic)

    def _stage_block(self, part: Part) -> None:
        stage = self.stages.get(part.topic)
        if not isinstance(stage, BlockStageState) or part.base != stage.total:
            return
        self.changed_stages.add(part.topic)
        try:
            directory = staged_block.directory_of(part.body)
        except BadBatch:  # then it cannot be committed
            directory = None
        if directory is None or not self.topics.keys() >= directory.topics.keys():
            del self.stages[part.topic]  # one was deleted, later: the checkpoint knows
            return
        stage.add(directory, len(part.body), part.time)

    def _commit_blocks(self, part: Part) -> None:
        if (share := staged_block.share_of(part.body)) is None:
            return  # a scan reports it
        self._append(part, share.bytes)
        self.sequence = max(self.sequence, part.sequence + share.records)
        self.stages.pop(share.stage, None)
        if (known := self.topics.get(part.topic)) is not None and part.last >= known.first:
            blocks = self.blocks.setdefault(share.stage, CommittedBlocks(share.stage, share.total))
            self._note_share(blocks, CommittedStage(share.stage, part.topic, part.base, part.last + 1, share.bytes))
        self.changed_stages.add(share.stage)

    def _note_share(self, blocks: CommittedBlocks, share: CommittedStage) -> None:
        blocks.shares[share.topic] = share
        heappush(self._ends.setdefault(share.topic, []), (share.end, share.id))

    def _commit_stage(self, part: Part) -> None:
        stage, _, size = _decode(part.body)
        self._append(part, size)
        self.stages.pop(stage, None)
        if (known := self.topics.get(part.topic)) is not None and part.last >= known.first:
            self._note_committed(CommittedStage(stage, part.topic, part.base, part.last + 1, size))
        self.changed_stages.add(stage)

    def _drop_stage(self, part: Part) -> None:
        if self.stages.pop(part.topic, None) is not None:
            self.changed_stages.add(part.topic)

    def _forget_committed(self, topic: int, first: int) -> None:
        """A topic begins at `first`: stages whose records lie before that are not read any more."""
        ends = self._ends.get(topic, [])
        while ends and ends[0][0] <= first:
            _, stage = heappop(ends)
            if self.committed.pop(stage, None) is not None:
                self.changed_stages.add(stage)
            elif (blocks := self.blocks.get(stage)) is not None and blocks.shares.pop(topic, None) is not None:
                self.changed_stages.add(stage)
                if not blocks.shares:
                    del self.blocks[stage]
        if not ends:
            self._ends.pop(topic, None)

    def _note_committed(self, one: CommittedStage) -> None:
        self.committed[one.id] = one
        heappush(self._ends.setdefault(one.topic, []), (one.end, one.id))

    def committed_shares(self) -> list[CommittedStage]:
        """The part of each committed stage in each topic. From any thread: a consistent snapshot."""
        shares = list(self.committed.values())
        for blocks in list(self.blocks.values()):
            shares += list(blocks.shares.values())
        return shares

    def is_read(self, stage: int) -> bool:
        """Whether the records of a committed stage are read from where they were staged."""
        return stage in self.committed or stage in self.blocks

    def stages_in_use(self) -> set[int]:
        """The stages whose batches and blocks are wanted."""
        return {*self.stages, *self.committed, *self.blocks}

    def forget_placed(self, stages: Iterable[int]) -> None:
        """The records of these committed stages lie in their topics now: they are not read as stages any more."""
        for stage in stages:
            blocks = self.blocks.pop(stage, None)
            found = [self.committed.pop(stage, None), *(blocks.shares.values() if blocks is not None else ())]
            for one in found:
                if one is None:
                    continue
                self.changed_stages.add(stage)
                if (ends := self._ends.get(one.topic)) is not None and (one.end, stage) in ends:
                    ends.remove((one.end, stage))
                    heapify(ends)

    # -- checkpoints --------------------------------------------------------------------------------------------

    def changes(self, *, everything: bool) -> list[list[Any]]:
        """The contents of a checkpoint, in pieces: all of it, or the changes. Forgets nothing: see `checked`."""
        scalars = [
            self.next_topic,
            self.next_group,
            self.epoch,
            self.sequence,
            self.reserved,
            self.time,
            self.next_stage,
        ]
        pieces: list[list[Any]] = [["ledger", scalars]]
        if everything:
            self._expire()

        def add(kind: str, known: Iterable[Any], changed: set[Any], encode: Callable[[Any], Any], size: int) -> None:
            names = list(known) if everything else sorted(changed)
            starts = range(0, len(names), size)
            pieces.extend([kind, [encode(one) for one in names[start : start + size]]] for start in starts)

        def encoded_topic(one: int) -> Any:
            return one if (found := self.topics.get(one)) is None else found.encode()

        def encoded_group(one: int) -> Any:
            return one if (found := self.groups.get(one)) is None else found.encode()

        def encoded_ids(one: int) -> Any:
            return one if (found := self.ids.get(one)) is None else [one, found.encode(everything=everything)]

        def encoded_stage(one: int) -> Any:
            return self.stages.get(one) or self.committed.get(one) or self.blocks.get(one) or one

        def has_blocks(one: int) -> bool:
            return one in self.blocks or isinstance(self.stages.get(one), BlockStageState)

        add("topics", self.topics, self.changed_topics, encoded_topic, PIECE)
        add("cursors", self.cursors, self.changed_cursors, lambda one: self.cursors.get(one, one), PIECE)
        add("groups", self.groups, self.changed_groups, encoded_group, 1)
        add("marks", self.marks, self.changed_marks, lambda one: [one, self.marks.get(one)], PIECE)
        add("producers", self.producers, self.changed_producers, self.producers.encode, PIECE)
        add("ids", self.ids, self.changed_ids, encoded_ids, 1)
        stages = [*self.stages, *self.committed, *self.blocks]
        blocks = set(filter(has_blocks, stages))
        plain = [one for one in stages if one not in blocks]
        add("stages", plain, self.changed_stages - blocks, encoded_stage, PIECE)
        add("blocks", filter(has_blocks, stages), self.changed_stages & blocks, encoded_stage, 1)
        return pieces

    def _expire(self) -> None:
        """Forget ids and producers that have expired."""
        now = self.time / 1e6
        self.producers.expire(now)
        for topic, window in list(self.ids.items()):
            window.expire(now)
            if not len(window):
                del self.ids[topic]

    def checked(self) -> None:
        """A checkpoint holds all that changed."""
        for topic in self.changed_ids:
            if (window := self.ids.get(topic)) is not None:
                window.fresh = 0
        for changed in (
            self.changed_topics,
            self.changed_cursors,
            self.changed_groups,
            self.changed_marks,
            self.changed_producers,
            self.changed_ids,
            self.changed_stages,
        ):
            changed.clear()

    def restore(self, pieces: Iterable[list[Any]]) -> None:
        """Apply a checkpoint to the current state. An id without contents was deleted."""
        for kind, items in pieces:
            if kind == "ledger":
                self.next_topic, self.next_group, self.epoch, self.sequence, self.reserved, self.time, *rest = items
                self.next_stage = rest[0] if rest else self.next_stage
            for item in items if kind != "ledger" else ():
                self._restore(kind, item)

    def _restore(self, kind: str, item: Any) -> None:
        if kind == "topics":
            if isinstance(item, int):
                self.topics.pop(item, None)
            else:
                topic = msgspec.convert(item, TopicState)
                self.topics[topic.id] = topic
        elif kind == "cursors":
            if isinstance(item, str):
                self.cursors.pop(item, None)
            else:
                cursor = msgspec.convert(item, CursorState)
                self.cursors[cursor.name] = cursor
        elif kind == "groups":
            if isinstance(item, int):
                self.groups.pop(item, None)
            else:
                group = GroupState.decode(item)
                self.groups[group.id] = group
        elif kind == "marks":
            if item[1] is None:
                self.marks.pop(item[0], None)
            else:
                self.marks[item[0]] = item[1]
        elif kind == "producers":
            self.producers.restore(item)
        elif kind == "ids":
            if isinstance(item, int):
                self.ids.pop(item, None)
            else:
                self.ids.setdefault(item[0], MessageIdWindow()).restore(item[1])
        elif kind in ("stages", "blocks"):
            self._restore_stage(item)
        else:
            raise FormatUnknown(f"a piece of a checkpoint, {kind!r}", 0, 0)

    def _restore_stage(self, item: Any) -> None:
        stage = item if isinstance(item, int) else item[0]
        self.stages.pop(stage, None)
        self.committed.pop(stage, None)
        self.blocks.pop(stage, None)
        if isinstance(item, int):
            return
        if len(item) == len(CommittedBlocks.__struct_fields__):
            found = msgspec.convert(item, CommittedBlocks)
            shares, found.shares = found.shares, {}
            self.blocks[stage] = found
            for share in shares.values():
                self._note_share(found, share)
        elif len(item) == len(CommittedStage.__struct_fields__):
            self._note_committed(msgspec.convert(item, CommittedStage))
        else:
            self.stages[stage] = _stage_of(item)


def is_for(stage: StageState, topic: int) -> bool:
    """Whether a stage holds records of a topic."""
    return stage.topic == topic or (isinstance(stage, BlockStageState) and topic in stage.topics)


def _stage_of(item: list[Any]) -> StageState:
    has_blocks = len(item) > len(StageState.__struct_fields__)
    return msgspec.convert(item, BlockStageState if has_blocks else StageState)


# -- The parts of entries that change the ledger ---------------------------------------------------------


_encode = msgspec.msgpack.Encoder().encode


def topic_part(topic: TopicState) -> Part:
    """A topic was made, or its options changed."""
    return state_part(PartKind.TOPIC, _encode(topic.encode()))


def trim_part(topic: int, first: int, end: int, reason: RemovalReason = RemovalReason.UNKNOWN, time: int = 0) -> Part:
    """A topic begins at `first` now, for this reason, and continues at `end` at the earliest."""
    return Part(PartKind.TRIM, b"", 0, topic, first, end, reason, time)


def compacted_part(
    topic: int, first: int, end: int, kept: int, removed: int, time: int, up_to: int | None = None
) -> Part:
    """In [first, end) of a topic older records of keys were taken; below `up_to` none is left (None: below `end`)."""
    body = _encode([kept, removed, end if up_to is None else up_to])
    return Part(PartKind.COMPACTED, body, crc_of(body), topic, first, end, 0, time)


def confirmed_part(topic: int, before: int) -> Part:
    """The source of history of a topic has all records below `before`."""
    return state_part(PartKind.CONFIRMED, topic=topic, base=before)


def sequence_part(reserved: int, epoch: int) -> Part:
    """Sequences below `reserved`, and epochs up to `epoch`, may have been given."""
    return Part(PartKind.SEQUENCE, b"", 0, 0, reserved, epoch)


def cursor_part(cursor: CursorState) -> Part:
    """A named subscription moved."""
    return state_part(PartKind.CURSOR, _encode(cursor))


def cursor_forgotten_part(name: str) -> Part:
    """The name of a subscription is given up, and its position with it."""
    return state_part(PartKind.CURSOR_FORGOTTEN, _encode(name))


def marker_part(name: str, value: MarkerValue | None) -> Part:
    """A mark has another value, or (None) is forgotten."""
    return state_part(PartKind.MARK, _encode([name, value]))


def ids_part(topic: int, ids: list[str], offsets: list[int], time: int) -> Part:
    """Records were published with these message ids."""
    body = _encode([ids, offsets])
    return Part(PartKind.MESSAGE_IDS, body, crc_of(body), topic, 0, 0, 0, time)


def stage_part(stage: StageState) -> Part:
    """A stage was opened."""
    return state_part(PartKind.STAGE, _encode(stage), stage.id)


def staged_part(stage: int, ordinal: int, batch: bytes, time: int) -> Part:
    """A packed batch is staged: it is the `ordinal`th of its stage."""
    return Part(PartKind.STAGED, batch, int.from_bytes(batch[:4], "little"), stage, ordinal, ordinal, 0, time)


def stage_commit_part(stage: StageState, base: int, sequence: int, time: int) -> Part:
    """All that was staged is visible from `base` on."""
    body = _encode([stage.id, stage.counts, stage.bytes])
    last = base + stage.records - 1
    return Part(PartKind.STAGE_COMMIT, body, crc_of(body), stage.topic, base, last, sequence, time)


def stage_dropped_part(stage: int) -> Part:
    """A stage was dropped: it will not be committed."""
    return state_part(PartKind.STAGE_DROPPED, topic=stage)


def group_part(group: GroupState) -> Part:
    """A group was made, or set back."""
    return state_part(PartKind.GROUP, _encode(group.encode()))


def progress_part(group: int, settled: list[int], failed: list[tuple[int, int, float, str]]) -> Part:
    """A group settled places (flat ranges), and failed at others."""
    return state_part(PartKind.PROGRESS, _encode([settled, failed]), group)
