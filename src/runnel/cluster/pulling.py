"""Pull consumers that are made again when they fall silent: the base of readers, members and the catalog.

A pull asks for a number of messages and expires; while it waits the consumer sends heartbeats. Silence, a status that
reports a missing consumer, or a new connection make the session begin again. An `OrderedConsumer` continues after the
last message that it received, so that no message is missed or received twice.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import datetime
from secrets import token_hex
from typing import Any

import msgspec

from runnel.cluster.jetstream import Acknowledged, JetStream, read_reply
from runnel.core.errors import RunnelError
from runnel.wire import nats
from runnel.wire.nats import Message

log = logging.getLogger("runnel")

EXPIRES = 30.0  # seconds that a pull waits
HEARTBEAT = 2.0
SILENCE = 2.5 * HEARTBEAT
INACTIVE = 60  # seconds after which the cluster removes a consumer that no client pulls from
SECOND = 10**9

_STILL_THERE = ("message size exceeds", "exceeded max", "batch completed", "no messages")


class PullSession:
    """Pulls from one consumer. Subclasses make the consumer, and take the messages.

    `is_new_each_time`: messages of an earlier consumer are not taken any more. Those of a durable one are.
    """

    is_new_each_time = True

    def __init__(self, js: JetStream, batch: int, max_bytes: int | None) -> None:
        self.js, self._batch = js, batch
        self._max_bytes = None if max_bytes is None else max(max_bytes, js.link.max_payload + 65536)
        self.name = ""
        self.is_ended = False
        self._inbox, self._sid = "", 0
        self._asked = 0  # messages asked for and not received
        self._heard, self._is_heard = 0.0, False  # when, and whether something came since it was looked at
        self._refusals = 0
        self._timer: asyncio.TimerHandle | None = None
        self._beginning: asyncio.Task[None] | None = None
        js.link.on_connected.append(self.begin_again)

    # -- for subclasses -----------------------------------------------------------------------------------------

    async def make(self) -> None:
        """Make the consumer, or find it; set `name`."""
        raise NotImplementedError

    def take(self, message: Message, about: Acknowledged) -> bool:
        """Take a message; False: begin again."""
        raise NotImplementedError

    def has_room(self) -> bool:
        """Whether to request more."""
        return True

    def gone(self) -> None:
        """The consumer was deleted."""

    def failed(self, error: RunnelError) -> bool:
        """The consumer could not be made; whether to try again."""
        return True

    # -- its life -----------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Make the consumer, and pull."""
        self._subscribe()
        await self.make()
        self._watch()
        self.pull()

    def end(self) -> None:
        """Stop pulling."""
        if not self.is_ended:
            self.is_ended = True
            with suppress(ValueError):
                self.js.link.on_connected.remove(self.begin_again)
            self.js.link.unsubscribe(self._sid)
            if self._timer is not None:
                self._timer.cancel()
            if self._beginning is not None:
                self._beginning.cancel()

    def pause(self) -> None:
        """Take no more messages, not even requested ones, until `resume`."""
        if self._sid:
            self.js.link.unsubscribe(self._sid)
            self._sid = self._asked = 0

    def resume(self) -> None:
        """Continue after a pause."""
        if not self._sid and not self.is_ended:
            self._subscribe()
            self.pull()

    def _subscribe(self) -> None:
        if self._sid:
            if not self.is_new_each_time:
                return
            self.js.link.unsubscribe(self._sid)
        self._inbox = self.js.link.new_inbox()
        self._sid = self.js.link.subscribe(self._inbox, self._arrived)
        self._asked = 0

    def begin_again(self) -> None:
        """The consumer may be missing: make it again, and continue."""
        if self.is_ended or not self._sid or self._beginning is not None:
            return
        self._subscribe()
        self._beginning = asyncio.get_running_loop().create_task(self._begin_again())

    async def _begin_again(self) -> None:
        pause = 0.01
        while not self.is_ended:
            try:
                await self.make()
            except RunnelError as error:
                if not self.failed(error):
                    self._beginning = None
                    self.end()
                    return
                log.debug("a consumer could not be made again: %s", error)
                await asyncio.sleep(pause)
                pause = min(1.0, pause * 2)
                continue
            self._beginning = None
            self._asked = 0
            self._watch()
            self.pull()
            return

    def _watch(self) -> None:
        loop = asyncio.get_running_loop()
        self._heard = loop.time()
        if self._timer is not None:
            self._timer.cancel()

        def look() -> None:
            if self.is_ended:
                return
            if self._is_heard:
                self._heard, self._is_heard = loop.time(), False
            if self._asked and loop.time() - self._heard > SILENCE:
                self.begin_again()
            self._timer = loop.call_later(HEARTBEAT, look)

        self._timer = loop.call_later(HEARTBEAT, look)

    # -- pulling ------------------------------------------------------------------------------------------------

    def pull(self) -> None:
        """Ask for more messages, if there is room."""
        if (
            self.is_ended
            or not self._sid
            or self._beginning is not None
            or self._asked > self._batch // 2
            or not self.has_room()
        ):
            return
        if not self._asked:
            self._heard = asyncio.get_running_loop().time()
        said = {"batch": self._batch, "expires": int(EXPIRES * SECOND), "idle_heartbeat": int(HEARTBEAT * SECOND)}
        if self._max_bytes is not None:
            said["max_bytes"] = self._max_bytes
        subject = f"$JS.API.CONSUMER.MSG.NEXT.{self.js.stream}.{self.name}"
        if self.js.link.publish(subject, msgspec.json.encode(said), self._inbox):
            self._asked += self._batch

    def _arrived(self, message: Message) -> None:
        if self.is_ended:
            return
        self._is_heard = True
        if message.reply is None or not message.reply.startswith("$JS.ACK."):
            if message.head is not None and (status := nats.read_status(message.head)) is not None:
                self._said(status[0], status[1].lower(), message.head)
            return
        self._refusals = 0
        self._asked -= 1
        if not self.take(message, read_reply(message.reply)):
            self.begin_again()
        elif self._asked <= self._batch // 2:
            self.pull()

    def _said(self, code: int, why: str, head: bytes) -> None:
        """A status: a heartbeat, the end of a pull, or the end of the consumer."""
        if code == 100:
            return
        if code == 503:  # right after it was made, or it is missing
            self._refusals += 1
            self._asked = 0
            if self._refusals > 5:
                self.begin_again()
            else:
                asyncio.get_running_loop().call_later(0.01 * self._refusals, self.pull)
            return
        left = nats.read_headers(head).get("Nats-Pending-Messages", "")
        self._asked = max(0, self._asked - (int(left) if left.isdigit() else self._batch))
        if code == 408 or code == 404 or why.startswith(_STILL_THERE):
            self.pull()
        else:  # 409: deleted, leadership change, server shutdown
            if "deleted" in why:
                self.gone()
            asyncio.get_running_loop().call_later(0.01, self.begin_again)


Receive = Callable[[Message, Acknowledged], None]


class OrderedConsumer(PullSession):
    """Every message of some subjects from a sequence or a time on, in order, each once."""

    def __init__(
        self,
        js: JetStream,
        filters: Sequence[str],
        receive: Receive,
        *,
        start: int = 1,
        time: datetime | None = None,
        last_per_subject: bool = False,
        batch: int = 512,
        max_bytes: int | None = None,
        room: Callable[[], bool] | None = None,
        caught_up: Callable[[], None] | None = None,
        headers_only: bool = False,
    ) -> None:
        """`caught_up` is called when the cluster reports no messages behind the received ones."""
        super().__init__(js, batch, max_bytes)
        self._filters, self._receive, self._room, self._caught_up = list(filters), receive, room, caught_up
        self._headers_only = headers_only
        self.next = max(1, start)  # the stream sequence to continue at
        self._time, self._last_per_subject = time, last_per_subject
        self._number = 0  # of the last message in this consumer
        self.pending = 0  # messages that the consumer had behind the last one that came

    def has_room(self) -> bool:
        """Whether the receiver can take more."""
        return self._room is None or self._room()

    async def make(self) -> None:
        """Make a new consumer that begins behind the last message that came."""
        if self.name:
            self.js.delete_consumer(self.name)
        self.name, self._number = f"r{token_hex(8)}", 0
        config: dict[str, Any] = {
            "ack_policy": "none",
            "mem_storage": True,
            "num_replicas": 1,
            "inactive_threshold": INACTIVE * SECOND,
            "filter_subjects": self._filters,
            "max_waiting": 16,
            "headers_only": self._headers_only,
        }
        if self._last_per_subject:
            config["deliver_policy"] = "last_per_subject"
        elif self._time is not None:
            config |= {"deliver_policy": "by_start_time", "opt_start_time": self._time.isoformat()}
        else:
            config |= {"deliver_policy": "by_start_sequence", "opt_start_seq": self.next}
        made = await self.js.create_consumer(self.name, config)
        self.pending = int(made.get("num_pending", 0))
        if not self.pending and self._caught_up is not None:
            self._caught_up()

    def take(self, message: Message, about: Acknowledged) -> bool:
        """Take a message, if it is the next one of this consumer."""
        if about.number != self._number + 1:
            return False
        self._number = about.number
        self.next, self.pending = about.sequence + 1, about.pending
        self._time, self._last_per_subject = None, False
        self._receive(message, about)
        if not about.pending and self._caught_up is not None:
            self._caught_up()
        return True

    def begin_at(self, sequence: int) -> None:
        """Continue at a stream sequence, whatever it was to begin with."""
        self.next, self._time, self._last_per_subject = max(1, sequence), None, False

    def rewind(self, sequence: int) -> None:
        """Go back, or on, to a stream sequence."""
        self.begin_at(sequence)
        self.begin_again()

    def end(self) -> None:
        """Stop, and delete the consumer."""
        if not self.is_ended:
            super().end()
            if self.name:
                self.js.delete_consumer(self.name)
