"""The bus as plain lists: what every subscriber must see, drop and be told, by policy."""

from dataclasses import dataclass, field
from itertools import count

from runnel.core.pattern import is_pattern, matches


@dataclass(eq=False)
class Item:
    """One record. `gone` once its topic was deleted."""

    topic: str
    offset: int
    sequence: int
    value: bytes
    gone: bool = False
    missed: "Missed | None" = None  # right before it, for this one subscriber
    chunk: int = 0  # what was put aside together is handed out together
    old: bool = False  # it was there before the subscriber came

    @property
    def size(self) -> int:
        return 0 if self.gone else len(self.value)


@dataclass(frozen=True)
class Missed:
    first: int
    end: int
    count: int


def together(one: Missed | None, two: Missed | None) -> Missed | None:
    if one is None or two is None:
        return one or two
    return Missed(min(one.first, two.first), max(one.end, two.end), one.count + two.count)


@dataclass(eq=False)
class ModelSubscriber:
    """A queue with bounds. Names follow the life of a record: pending, (stash), hand, done."""

    pattern: str
    policy: str
    buffer: int
    buffer_bytes: int
    after: int
    eager: bool
    pending: list[Item] = field(default_factory=list)
    stash: list[Item] = field(default_factory=list)
    hand: list[Item] = field(default_factory=list)  # taken, and not asked beyond
    unread: list[Item] = field(default_factory=list)  # of those, not handed out yet
    untold: Missed | None = None  # to be told with what is taken next
    carried: Missed | None = None  # taken, and still to be told
    full: bool = False
    chunks: int = 0
    row: int = 0
    error: str | None = None
    old_bytes: int = 0  # of what was there before it came, and is not read
    published: int = 0
    delivered: int = 0
    told: int = 0
    handed_on: list[Item] = field(default_factory=list)

    @property
    def strict(self) -> bool:
        return self.policy in ("drop_newest", "block")

    def place(self, item: Item) -> int:
        return item.sequence if is_pattern(self.pattern) else item.offset

    def at(self, item: Item) -> Missed:
        return Missed(self.place(item), self.place(item) + 1, 1)

    # -- bounds -------------------------------------------------------------------------------------------------

    def held(self) -> list[Item]:
        return self.hand + self.stash if self.strict else []

    def excess(self) -> int:
        """How many of the oldest have to go."""
        if self.strict:
            return 0
        max_count, max_size = self.bounds()
        if len(self.pending) <= max_count and not self.too_heavy(max_size):
            return 0
        return max(0, len(self.pending) - self.buffer, self.too_heavy(self.buffer_bytes))

    def too_heavy(self, limit: int) -> int:
        """How many have to go so that the rest, or the last one, weighs no more than `limit`."""
        go = next(n for n in range(len(self.pending) + 1) if weight(self.pending[n:]) <= limit)
        return min(go, max(0, len(self.pending) - 1))

    def history(self) -> int:
        """How many records it has still to get through that were there before it came: they come on top."""
        return sum(item.old for item in self.pending + self.held())

    def bounds(self) -> tuple[int, int]:
        history = self.history()
        return self.buffer + history, self.buffer_bytes + (self.old_bytes if history else 0)

    def lag(self) -> int:
        if self.policy == "drop_newest":
            return len(self.held()) + (0 if self.full else len(self.pending))
        return len(self.pending) + len(self.held()) - self.excess()

    def dropped(self) -> int:
        waiting = sum(item.missed.count for item in self.stash if item.missed)
        rest = len(self.pending) if self.full else self.excess()
        return self.told + waiting + rest + (self.untold.count if self.untold else 0)

    def fits(self, sizes: list[int]) -> bool:
        """Whether a publisher need not wait for it."""
        if self.policy != "block":
            return True
        lag = len(self.pending) + len(self.hand)
        max_count, max_size = self.bounds()
        room = weight(self.pending) + stored(self.hand) + sum(sizes) <= max_size
        return lag + len(sizes) <= max_count and (lag == 0 or room)

    # -- what happens -------------------------------------------------------------------------------------------

    def appended(self, items: list[Item]) -> None:
        self.published += len(items)
        self.pending += items
        if self.policy == "drop_newest":
            self._accept()
        elif self.policy == "disconnect" and self.row + self.excess() >= self.after:
            self.error = "Disconnected"
        elif self.eager and self.policy != "block":
            if self.policy == "disconnect":
                self.row += self.excess()
            self._hand_on(self.excess())

    def _hand_on(self, how_many: int) -> None:
        """Drop so many; what is gone anyway, at the head, goes first and without a limit."""
        while how_many > 0:
            while self.pending and self.pending[0].gone:
                self._drop(1)
                how_many -= 1
            if how_many > 0:
                self._drop(1, hand_on=True)
                how_many -= 1

    def _accept(self) -> None:
        lag, size = len(self.held()) + len(self.pending), stored(self.held()) + weight(self.pending)
        max_count, max_size = self.bounds()
        if not self.full and (lag > max_count or (size > max_size and lag > 1)):
            self.full = True
            while self._pass_gone() and len(self.held()) < self.bounds()[0]:
                max_count, max_size = self.bounds()
                if self.held() and stored(self.held()) + self.pending[0].size > max_size:
                    break
                all_fit = stored(self.held()) + weight(self.pending) <= max_size
                self.pending[0].missed, self.untold = self.untold, None
                self.chunks += 1
                for _ in range(max_count - len(self.held()) if all_fit else 1):
                    if self.pending and not self.pending[0].gone:
                        self.pending[0].chunk = self.chunks
                        self.stash.append(self.pending.pop(0))
        if self.full and self.eager:
            self._hand_on(len(self.pending))

    def _pass_gone(self) -> bool:
        """Pass what is gone at the head; whether anything is left."""
        while self.pending and self.pending[0].gone:
            self.untold = together(self.untold, self.at(self.pending.pop(0)))
        return bool(self.pending)

    def _drop(self, how_many: int, *, hand_on: bool = False) -> None:
        if how_many and not self.strict:  # what is newer alone exceeds the bounds: no history any more
            for item in self.pending:
                item.old = False
        for item in self.pending[:how_many]:
            self.untold = together(self.untold, self.at(item))
            if hand_on and not item.gone:
                self.handed_on.append(item)
        del self.pending[:how_many]

    def settle(self) -> None:
        """A topic is about to go: what is in excess goes first."""
        if self.policy == "disconnect":
            self.row += self.excess()
        self._drop(len(self.pending) if self.full else self.excess())

    def done(self, how_many: int) -> None:
        """The subscriber asked beyond so many of what it had in hand."""
        if self.strict:
            self.old_bytes = max(0, self.old_bytes - stored(self.hand[:how_many]))
        del self.hand[:how_many]
        if self.full and how_many:
            self.settle()
            self.full = False

    def take(self, limit: int) -> list[Item] | None:
        """What the next look finds, its gap in `carried`; None: nothing, not even a gap."""
        taken: list[Item] = []
        missed: Missed | None = None
        if self.stash:
            taken.append(self.stash.pop(0))
            missed = taken[0].missed
            while self.stash and len(taken) < limit and self.stash[0].chunk == taken[0].chunk:
                taken.append(self.stash.pop(0))
        elif not self.full:
            if not self.strict:
                self._drop(self.excess())
                self.row = 0
            gone: Missed | None = None
            while self.pending and self.pending[0].gone:
                gone = together(gone, self.at(self.pending.pop(0)))
            while self.pending and not self.pending[0].gone and len(taken) < limit:
                taken.append(self.pending.pop(0))
            if not taken and gone is None:
                return None
            if not self.strict:
                self.old_bytes = max(0, self.old_bytes - stored(taken))
            missed, self.untold = together(self.untold, gone), None
        else:
            return None
        self.carried = together(self.carried, missed)
        self.told += missed.count if missed else 0
        self.delivered += len(taken)
        self.hand = list(taken)
        return taken

    def next_record(self) -> tuple[Item, Missed | None] | None:
        """Record by record; None: it would wait (or end)."""
        if self.hand and len(self.unread) < len(self.hand):
            self.done(1)
        while not self.unread:
            taken = self.take(10**9)
            if taken is None:
                return None
            self.unread = list(taken)
        gap, self.carried = self.carried, None
        return self.unread.pop(0), gap

    def ask_for_batch(self) -> None:
        self.done(len(self.hand))


def weight(items: list[Item]) -> int:
    """The bytes of what can still be read."""
    return sum(item.size for item in items)


def stored(items: list[Item]) -> int:
    """The bytes of what somebody holds, whether its topic is still there or not."""
    return sum(len(item.value) for item in items)


class ModelBus:
    """All topics and subscribers."""

    def __init__(self) -> None:
        self.topics: dict[str, list[Item]] = {}
        self.subscribers: list[ModelSubscriber] = []
        self.sequence = count()
        self.published = 0
        self.ended_delivered = 0
        self.ended_dropped = 0

    def readers(self, topic: str) -> list[ModelSubscriber]:
        return [one for one in self.subscribers if one.error is None and matches(one.pattern, topic)]

    def publish(self, topic: str, values: list[bytes]) -> list[Item]:
        log = self.topics.setdefault(topic, [])
        items = [Item(topic, len(log) + n, next(self.sequence), value) for n, value in enumerate(values)]
        log += items
        self.published += len(values)
        for one in self.readers(topic):
            one.appended([Item(i.topic, i.offset, i.sequence, i.value) for i in items])
            if one.error is not None:
                self.end(one)
        return items

    def subscribe(self, one: ModelSubscriber, start: str) -> None:
        if not is_pattern(one.pattern):
            self.topics.setdefault(one.pattern, [])
        if start == "earliest":
            items = sorted(
                (item for name, log in self.topics.items() if matches(one.pattern, name) for item in log),
                key=lambda item: item.sequence,
            )
            one.pending = [Item(i.topic, i.offset, i.sequence, i.value, old=True) for i in items]
            one.old_bytes = weight(one.pending)
            one.published = len(items)
        self.subscribers.append(one)

    def end(self, one: ModelSubscriber) -> None:
        self.subscribers.remove(one)
        readers = [other for other in self.subscribers if other.pattern == one.pattern]
        if one.pattern in self.topics and not self.topics[one.pattern] and not readers:
            del self.topics[one.pattern]  # nobody ever published to it, and the last one who waited for that is gone
        self.ended_delivered += one.delivered
        self.ended_dropped += one.dropped()

    def delete(self, topic: str) -> None:
        for one in self.subscribers:
            if is_pattern(one.pattern):
                one.settle()
        for one in list(self.subscribers):
            if one.pattern == topic:
                one.error = "TopicDeleted"
                self.end(one)
            else:
                for item in one.pending:
                    item.gone = item.gone or item.topic == topic
        self.topics.pop(topic, None)
