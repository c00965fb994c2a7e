"""The event loop that a broker belongs to.

A broker is bound to the first loop that uses it. Other threads post their publishes to that loop. After a
fork the child's copy of the broker is unusable and raises `Forked`.
"""

from __future__ import annotations

import asyncio
import logging
import os
import weakref
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Iterator
from functools import partial
from threading import Lock, get_ident
from typing import Any, Protocol, TypeVar

from runnel.core.errors import BrokerClosed, Forked, Full, NotSupported, RunnelError

T = TypeVar("T")

MAX_POSTED = 65_536  # calls that other threads may have handed over and the loop has not yet made

log = logging.getLogger("runnel")

_owners: weakref.WeakSet[LoopOwner] = weakref.WeakSet()


class PostedWriter(Protocol):
    """The writer of a topic, for values that other threads publish."""

    def appends(self, values: list[bytes]) -> Iterable[Any]:
        """The appends for these values, in order."""

    def take_over(self, append: Any) -> None:
        """Append it as soon as there is room."""


class PostedValues:
    """Plain values that other threads published to one topic, one behind the other."""

    __slots__ = ("values", "writer")

    def __init__(self, writer: PostedWriter, value: bytes) -> None:
        self.writer, self.values = writer, [value]

    def calls(self) -> Iterator[Callable[[], object]]:
        """Append them, with as few calls as the topic allows."""
        return (partial(self.writer.take_over, append) for append in self.writer.appends(self.values))


class LoopOwner:
    """Where a broker runs, and whether it still does."""

    def __init__(
        self,
        on_loop_bound: Callable[[asyncio.AbstractEventLoop], None],
        forked: Callable[[], None],
        *,
        entered: bool = True,
        before: str = "the folder is open",
        refused: Callable[[], object] | None = None,
    ) -> None:
        self.entered = entered  # a broker with a folder, or with a server, has none before its block is entered
        self._before = before
        self.loop: asyncio.AbstractEventLoop | None = None
        self.closed = self.forked = False
        self._on_loop_bound, self._on_fork, self._on_refused = on_loop_bound, forked, refused
        self._thread = 0
        self._posting = Lock()
        self._posted: deque[Callable[[], object] | PostedValues] = deque()
        self._waiting = 0  # calls and values in it
        self._taking = False  # whether the loop is scheduled to take posted calls
        _owners.add(self)

    @property
    def state(self) -> str:
        """In a word."""
        return "forked" if self.forked else "closed" if self.closed else "open"

    def check_usable(self, doing: str) -> None:
        """Raise unless the broker is open, in this process and on this loop. Takes the first loop that it meets."""
        self._check_open(doing)
        if self.loop is None:
            try:
                self.loop = asyncio.get_running_loop()
            except RuntimeError:
                why = "no event loop is running; call from a coroutine, or use runnel.blocking"
                raise NotSupported(doing, why) from None
            self._thread = get_ident()
            self._on_loop_bound(self.loop)
        elif get_ident() == self._thread:
            if asyncio._get_running_loop() is not self.loop:
                raise NotSupported(f"{doing} on another event loop", "open one broker for each loop")
        else:
            why = "a broker lives on one event loop; publish from anywhere, use runnel.blocking.attach for the rest"
            raise NotSupported(f"{doing} from another thread", why)

    def _check_open(self, doing: str) -> None:
        if self.forked:
            raise Forked
        if self.closed:
            raise BrokerClosed(doing)
        if not self.entered:
            raise NotSupported(f"{doing} before {self._before}", "use `async with runnel.open(...) as broker`")

    def is_here(self) -> bool:
        """Whether the caller is on the broker's own thread (or the broker has none yet)."""
        return self.loop is None or get_ident() == self._thread

    async def visit(self, call: Coroutine[Any, Any, T]) -> T:
        """Run `call` on the broker's loop, awaited from another one."""
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(call, self._reached(call)))

    def ask(self, look: Callable[[], T]) -> T:
        """The result of `look`, run on the broker's loop while this thread waits."""
        if self.is_here() or self.loop is None or not self.loop.is_running():
            return look()

        async def looking() -> T:
            return look()

        return asyncio.run_coroutine_threadsafe(looking(), self.loop).result()

    def _reached(self, call: Coroutine[Any, Any, Any]) -> asyncio.AbstractEventLoop:
        try:
            self._check_open("publishing")
        except BaseException:
            call.close()
            raise
        assert self.loop is not None, "only a broker with a loop can be visited"
        return self.loop

    def post(self, call: Callable[[], object]) -> None:
        """Have the loop make `call` at its next turn; from any thread."""
        self._check_open("publishing")
        with self._posting:
            self._check_room()
            self._posted.append(call)
            self._take_soon()

    def post_value(self, writer: PostedWriter, value: bytes) -> None:
        """Have the loop append a plain value at its next turn, together with those posted right before it."""
        self._check_open("publishing")
        with self._posting:
            self._check_room()
            last = self._posted[-1] if self._posted else None
            if isinstance(last, PostedValues) and last.writer is writer:
                last.values.append(value)
            else:
                self._posted.append(PostedValues(writer, value))
            self._take_soon()

    def _check_room(self) -> None:
        if self._waiting >= MAX_POSTED:
            raise Full("the loop's inbox", "event loop", MAX_POSTED)

    def _take_soon(self) -> None:
        self._waiting += 1
        if not self._taking:
            assert self.loop is not None, "only a broker with a loop can be posted to"
            self._taking = True
            self.loop.call_soon_threadsafe(self.take_posted)

    def take_posted(self) -> None:
        """Make the calls that were handed over. Their callers cannot receive an error: it is logged."""
        with self._posting:
            posted, self._posted = self._posted, deque()
            self._waiting, self._taking = 0, False
        for one in posted:
            for call in self._calls(one):
                try:
                    call()
                except RunnelError as error:
                    self._refused(error)

    def _calls(self, one: Callable[[], object] | PostedValues) -> Iterable[Callable[[], object]]:
        if not isinstance(one, PostedValues):
            return (one,)
        try:
            return one.calls()
        except RunnelError as error:
            self._refused(error)
            return ()

    def _refused(self, error: RunnelError) -> None:
        log.error("a record that another thread published was refused: %s", error)
        if self._on_refused is not None:
            self._on_refused()

    def fork(self) -> None:
        """Know that one is the copy in the child of a fork, and must not be used."""
        self.forked = True
        self._on_fork()

    def close(self) -> bool:
        """Refuse everything from now on; whether it was open."""
        if self.closed or self.forked:
            return False
        self.closed = True
        _owners.discard(self)
        return True


def _after_fork() -> None:
    for loop_owner in list(_owners):
        loop_owner.fork()


os.register_at_fork(after_in_child=_after_fork)


# -- Sockets after a fork --------------------------------------------------------------------------------


def detach_sockets(fds: Iterable[int]) -> None:
    """In the child of a fork: have no part in these files, though objects here still know their numbers.

    Nothing is said to the other end: a connection is the parent's, and ends with it. Nothing else gets the
    numbers, so that closing one of them later does no harm.
    """
    nothing = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    for fd in fds:
        if fd >= 0:
            os.dup2(nothing, fd, inheritable=False)
    os.close(nothing)
