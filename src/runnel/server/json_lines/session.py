"""The commands of a JSON lines connection: each is a call or two on the broker, and a reply.

Replies are sent in the order of the commands, apart from those to REQUEST, which come when they are there. Only the
broker's public API is used, so that a remote broker works too.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from datetime import UTC, datetime
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from runnel.api.presence import PresenceWatch
from runnel.core.clock import from_micros
from runnel.core.errors import BadCommand, InvalidOption, LimitExceeded, NotAuthenticated, RunnelError
from runnel.core.options import PolicyKind, SubscribeOptions
from runnel.core.record import REPLY_TO, Record
from runnel.server.json_lines.presence import PresenceStream
from runnel.server.json_lines.subscription import JsonLinesStream, JsonLinesSubscription, LineWriter
from runnel.server.options import MAX_REQUEST_SECONDS
from runnel.server.request_id import CURRENT
from runnel.wire import json_commands as commands
from runnel.wire import json_events as events
from runnel.wire.json_commands import Command, Id, Refusal, parse

if TYPE_CHECKING:
    from runnel.api.delivery import Delivery
    from runnel.api.topic import Topic
    from runnel.server.access.access import Access
    from runnel.server.served_broker import ServedBroker


MAX_UNSETTLED_BYTES = 8 << 20  # unsettled values that one member may have
MAX_BLOCK_SECONDS = 30.0  # that publishers wait for one subscriber with policy "block"
MAX_BOUNDS = {"buffer": 65_536, "buffer_bytes": 64 << 20, "max_ack_pending": 100_000}  # that SUB may ask for
MAX_TOPIC_HANDLES = 1024  # topics whose handles are kept
STALE_DELIVERIES = 1024  # unsettled deliveries, beyond which lapsed ones are forgotten

log = logging.getLogger("runnel")


class LoginFailed(Exception):
    """The client could not log in: the connection ends with why."""

    def __init__(self, error: RunnelError) -> None:
        super().__init__(error.code)
        self.error = error


class JsonLinesSession:
    """The subscriptions, deliveries and replies of one client."""

    def __init__(self, serving: ServedBroker, outlet: LineWriter, log_in: Callable[[str], Awaitable[Access]]) -> None:
        options = serving.options
        self._serving, self._log_in = serving, log_in
        self._broker, self._options, self._outlet = serving.broker, options, outlet
        self.number = 0  # of the connection
        self.answers = OrderedReplies(outlet.write, options.max_pending_bytes)
        self.streams: list[JsonLinesStream] = []
        self.deliveries: dict[int, Delivery[bytes]] = {}
        self._last_delivery = 0
        self._stale = STALE_DELIVERIES
        self._topics: dict[str, Topic[bytes]] = {}
        self._handlers: dict[type[Command], Callable[[Any], Awaitable[None]]] = {
            commands.Auth: self._auth,
            commands.Pub: self._pub,
            commands.Sub: self._sub,
            commands.Unsub: self._unsub,
            commands.Credit: self._credit,
            commands.Request: self._request,
            commands.Reply: self._reply,
            commands.Ack: self._ack,
            commands.Nack: self._nack,
            commands.Reject: self._reject,
            commands.Extend: self._extend,
            commands.Presence: self._presence,
            commands.Ping: self._ping,
            commands.Topics: self._list,
            commands.Info: self._info,
            commands.Help: self._help,
        }

    async def handle(self, line: bytes) -> commands.Quit | None:
        """Do what `line` says, and answer. A command that ends the connection comes back."""
        command = parse(line)
        if isinstance(command, Refusal):
            self.answers.now(events.error(command.error, command.command, command.id))
            return None
        if isinstance(command, commands.Quit):
            return command
        CURRENT.set(f"{self.number}" if command.id is None else f"{self.number}-{command.id}")
        try:
            if not self.is_ready and not isinstance(command, commands.Auth | commands.Help):
                raise NotAuthenticated("log in first: " + commands.FORMS["AUTH"])
            await self._handlers[type(command)](command)
        except LoginFailed as failure:
            raise failure.error from None
        except Exception as error:
            self.answers.now(_error_line(command, error))
        return None

    # -- logging in ---------------------------------------------------------------------------------------------

    @property
    def is_ready(self) -> bool:
        """Whether commands are taken: authentication is off, or the client has logged in."""
        return self._serving.auth is None or self._serving.access is not None

    async def _auth(self, command: commands.Auth) -> None:
        auth, access = self._serving.auth, self._serving.access
        if auth is None:
            self.answers.now(events.Authenticated("", command.id).line())
            return
        if access is not None:
            await auth.renew(access, command.token)
        else:
            try:
                access = await self._log_in(command.token)
            except RunnelError as error:
                raise LoginFailed(error) from None
            self._serving = self._serving.guarded(access)
            self._broker = self._serving.broker
        self.answers.now(events.Authenticated(access.principal.name, command.id).line())

    @property
    def is_busy(self) -> bool:
        """Whether the server sends without further requests: then a silent client is no idle one."""
        return bool(self.streams or len(self.answers))

    @property
    def access(self) -> Access | None:
        """The client's login."""
        return self._serving.access

    async def end_of_input(self) -> None:
        """No more commands come: subscriptions that need them end. Others continue: the client may still read.

        No delivery can be settled now, and a name is free at once: its owner may be reconnecting.
        """
        for stream in [one for one in self.streams if one.group is not None or one.name is not None]:
            await stream.close()

    async def close(self) -> None:
        """End the subscriptions, after the written ones."""
        for stream in list(self.streams):
            await stream.close()

    def lost(self) -> None:
        """The client disconnected: release everything."""
        for stream in list(self.streams):
            stream.cancel()
        self.deliveries.clear()

    # -- publishing ---------------------------------------------------------------------------------------------

    async def _pub(self, command: commands.Pub) -> None:
        value, options = command.value(), command.options()
        topic = self._topics.get(command.topic)
        if topic is None:
            topic = self._broker.topic(command.topic)
            if len(self._topics) >= MAX_TOPIC_HANDLES:
                self._topics.clear()
            self._topics[command.topic] = topic
        self.answers.later(self._publish(topic, command, value, options), len(value))

    async def _publish(
        self, topic: Topic[bytes], command: commands.Pub, value: bytes, options: dict[str, Any]
    ) -> bytes:
        try:
            position = await topic.publish(value, **options)
        except Exception as error:
            return _error_line(command, error)
        offset, epoch = events.json_number(position.offset), events.json_number(position.epoch)
        return events.Published(command.topic, offset, epoch, command.id).line()

    # -- requests -----------------------------------------------------------------------------------------------

    async def _request(self, command: commands.Request) -> None:
        value, key = command.value(), command.key_bytes()
        if command.timeout > MAX_REQUEST_SECONDS:
            raise LimitExceeded("timeout", command.timeout, MAX_REQUEST_SECONDS)
        self.answers.aside(self._answered(command, value, key), len(value))

    async def _answered(self, command: commands.Request, value: bytes, key: bytes | None) -> bytes:
        asked: dict[str, Any] = {"timeout": command.timeout, "key": key, "headers": command.headers}
        try:
            if command.limit is None:
                return events.reply(
                    command.topic, await self._broker.request(command.topic, value, **asked), command.id
                )
            found = await self._broker.request_many(command.topic, value, limit=command.limit, **asked)
            return events.replies(command.topic, found, command.id)
        except Exception as error:
            return _error_line(command, error)

    async def _reply(self, command: commands.Reply) -> None:
        value = command.value()
        self.answers.later(self._replied(command, value), len(value))

    async def _replied(self, command: commands.Reply, value: bytes) -> bytes:
        question = Record(command.reply_to, 0, 0, 0, None, b"", {REPLY_TO: command.reply_to}, from_micros(0))
        try:
            taken = await self._broker.reply(question, value, headers=command.headers)
        except Exception as error:
            return _error_line(command, error)
        return events.Replied(taken, command.id).line()

    # -- subscribing --------------------------------------------------------------------------------------------

    async def _sub(self, command: commands.Sub) -> None:
        if len(self.streams) >= (allowed := self._options.max_subscriptions):
            raise LimitExceeded("max_subscriptions", len(self.streams) + 1, allowed)
        if command.id is not None and any(stream.id == command.id for stream in self.streams):
            raise BadCommand(f'SUB: field "id": a subscription with id {command.id!r} is open already', field="id")
        options = command.options()
        _check_bounds(options)
        given = options.given()
        if options.group is not None:
            given["prefetch_bytes"] = min(options.prefetch_bytes or MAX_UNSETTLED_BYTES, MAX_UNSETTLED_BYTES)
            if command.credit is not None:
                why = 'SUB: field "credit": a group has prefetch: so many come, and more when you have settled some'
                raise BadCommand(why, field="credit", form=commands.FORMS["SUB"])
        stream = JsonLinesSubscription(
            self._broker.subscribe(command.topic, **given),
            self._outlet,
            events.Subscribed(command.topic, options.group, options.name, command.id).line(),
            self._number,
            topic=command.topic,
            id=command.id,
            group=options.group,
            name=options.name,
            credit=command.credit,
        )
        self.streams.append(stream)
        await stream.open(self.streams.remove)

    async def _presence(self, command: commands.Presence) -> None:
        members = await self._broker.presence(command.topic)  # with the rights of this client
        if not command.watch:
            self.answers.now(events.presence(command.topic, members, command.id))
            return
        if len(self.streams) >= (allowed := self._options.max_subscriptions):
            raise LimitExceeded("max_subscriptions", len(self.streams) + 1, allowed)
        watch = PresenceWatch(self._serving.watches, command.topic)  # shared by all clients
        stream = PresenceStream(watch, self._outlet, command.topic, command.id)
        if self.access is not None:
            self.access.opened(stream, "subscribe", (command.topic,))
        self.streams.append(stream)
        stream.open(self.streams.remove)

    async def _unsub(self, command: commands.Unsub) -> None:
        found = self._meant(command)
        for stream in found:
            await stream.close()
        self._forget_lapsed()
        self.answers.now(events.Unsubscribed(found[0].topic, len(found), command.id).line())

    async def _credit(self, command: commands.Credit) -> None:
        found = [one for one in self._meant(command) if isinstance(one, JsonLinesSubscription)]
        found = [one for one in found if one.credit is not None]
        if not found:
            why = 'CREDIT: it was opened without "credit": all of it is sent'
            raise BadCommand(why, field="records", form=commands.FORMS["CREDIT"])
        for stream in found:
            stream.allow(command.records)
        self.answers.now(events.Credited(found[0].topic, found[0].credit or 0, command.id).line())

    def _meant(self, command: commands.Unsub | commands.Credit) -> list[JsonLinesStream]:
        """The subscriptions that a command names, by topic or by id."""
        form = commands.FORMS[command.verb]
        if command.topic is None and command.id is None:
            raise BadCommand(f"{command.verb}: it needs a topic or an id", field="topic", form=form)
        by_topic = command.topic is not None
        found = [one for one in self.streams if (one.topic == command.topic if by_topic else one.id == command.id)]
        if not found:
            which, said = ("topic", command.topic) if by_topic else ("id", command.id)
            known = ", ".join(sorted({repr(one.topic) for one in self.streams}))[:200] or "nothing"
            why = f"{command.verb}: no subscription with {which} {str(said)[:100]!r} is open here, but {known}"
            raise BadCommand(why, field=which, form=form)
        return found

    # -- deliveries ---------------------------------------------------------------------------------------------

    def _number(self, delivery: Delivery[bytes]) -> int:
        """The number by which the client settles `delivery`."""
        if len(self.deliveries) >= self._stale:
            self._forget_lapsed()
            self._stale = max(STALE_DELIVERIES, 2 * len(self.deliveries))
        self._last_delivery += 1
        self.deliveries[self._last_delivery] = delivery
        return self._last_delivery

    def _forget_lapsed(self) -> None:
        """A client that never settles anything must not fill the memory."""
        self.deliveries = {number: one for number, one in self.deliveries.items() if not one.settled}

    def _delivery(self, command: commands.Ack | commands.Nack | commands.Reject | commands.Extend) -> Delivery[bytes]:
        found = self.deliveries.get(command.delivery)
        if found is not None:
            return found
        why = f"{command.verb}: delivery {command.delivery} is not open here: "
        if command.delivery > self._last_delivery:
            why += "there was none with this number; it comes with each message of a group"
        else:
            why += "it was settled already, or went back to the group"
        raise BadCommand(why, field="delivery", form=commands.FORMS[command.verb])

    async def _ack(self, command: commands.Ack) -> None:
        line = events.Acked(command.delivery, command.id).line()
        done = self._delivery(command).ack(durable=command.durable)
        del self.deliveries[command.delivery]
        if command.durable:
            self.answers.later(self._stored(command, done, line), len(line))
        else:
            await done
            self.answers.now(line)

    async def _stored(self, command: commands.Ack, done: Awaitable[None], line: bytes) -> bytes:
        try:
            await done
        except Exception as error:
            return _error_line(command, error)
        return line

    async def _nack(self, command: commands.Nack) -> None:
        await self._delivery(command).nack(command.delay, command.reason)
        del self.deliveries[command.delivery]
        self.answers.now(events.Nacked(command.delivery, command.id).line())

    async def _reject(self, command: commands.Reject) -> None:
        await self._delivery(command).reject(command.reason)
        del self.deliveries[command.delivery]
        self.answers.now(events.Rejected(command.delivery, command.id).line())

    async def _extend(self, command: commands.Extend) -> None:
        await self._delivery(command).extend(command.seconds)
        self.answers.now(events.Extended(command.delivery, command.id).line())

    # -- asking -------------------------------------------------------------------------------------------------

    async def _ping(self, command: commands.Ping) -> None:
        self.answers.now(events.Pong(command.id).line())

    async def _list(self, command: commands.Topics) -> None:
        await asyncio.sleep(0)  # publishes before this command have begun then
        self.answers.now(events.Topics(await self._broker.topics(), command.id).line())

    async def _info(self, command: commands.Info) -> None:
        options = self._options
        limits = {
            "max_line": options.max_line,
            "max_subscriptions": options.max_subscriptions,
            "max_pending_bytes": options.max_pending_bytes,
            "idle_timeout": options.idle_timeout,
        }
        now = datetime.fromtimestamp(self._broker.clock.time(), UTC)
        open_here = len(self.streams), len(self.deliveries)
        self.answers.now(events.Info("runnel", version("runnel-mq"), now, limits, *open_here, command.id).line())

    async def _help(self, command: commands.Help) -> None:
        self.answers.now(events.help_lines(command.id))


def _error_line(command: Command, error: Exception) -> bytes:
    """The line that says why `command` was not done."""
    id: Id | None = command.id
    if isinstance(error, RunnelError):
        return events.error(error, command.verb, id)
    log.error("the server failed at a %s of a JSON connection", command.verb, exc_info=error)
    return events.Error("runnel_error", "the server failed; its log says why", command.verb, None, id).line()


# -- Replies in order ------------------------------------------------------------------------------------
# A publish runs as a task while the commands behind it are read, so that many share one fsync. Its reply waits for
# those before it. Pending publishes cost memory, and are bounded.


REPLY_OVERHEAD = 1 << 10  # about what a command under way takes besides its bytes


class OrderedReplies:
    """Replies that are not written yet, in the order of their commands."""

    def __init__(self, write: Callable[[bytes], None], limit: int) -> None:
        self._write, self._limit = write, limit
        self._waiting: deque[_Reply] = deque()
        self._aside: dict[asyncio.Task[bytes], int] = {}  # and the bytes that each counts as
        self._flushing = False
        self._changed: asyncio.Future[None] | None = None
        self._gone = False
        self.bytes = 0

    def __len__(self) -> int:
        return len(self._waiting) + len(self._aside)

    def now(self, line: bytes) -> None:
        """An answer that is ready. It goes out behind those of earlier commands."""
        if self._waiting:
            self._append(_Reply(len(line), line))
        else:
            self._write(line)

    def later(self, work: Coroutine[Any, Any, bytes], size: int) -> None:
        """The answer is what `work` returns, which begins now, behind the work of earlier commands."""
        answer = _Reply(size)
        answer.task = asyncio.create_task(work)
        answer.task.add_done_callback(answer.done)
        answer.task.add_done_callback(self._flush_soon)
        self._append(answer)

    def aside(self, work: Coroutine[Any, Any, bytes], size: int) -> None:
        """The answer is what `work` returns, and goes out when it is there: it takes long, and nothing waits for it."""
        task = asyncio.create_task(work)
        self._aside[task] = size + REPLY_OVERHEAD
        self.bytes += size + REPLY_OVERHEAD
        task.add_done_callback(self._answer_aside)

    def _answer_aside(self, task: asyncio.Task[bytes]) -> None:
        self.bytes -= self._aside.pop(task)
        if not self._gone and not task.cancelled():
            self._write(task.result())
        self._tell()

    async def room(self) -> None:
        """Return when not too much is under way."""
        while self.bytes >= self._limit and not self._gone:
            await self._change()

    async def emptied(self) -> None:
        """Return when everything is answered."""
        while len(self) and not self._gone:
            await self._change()

    def abandon(self) -> None:
        """The client disconnected: cancel unfinished work."""
        self._gone = True
        for answer in self._waiting:
            if answer.task is not None:
                answer.task.cancel()
        for task in self._aside:
            task.cancel()
        self._tell()

    def _append(self, answer: _Reply) -> None:
        self._waiting.append(answer)
        self.bytes += answer.size

    def _flush_soon(self, _: object) -> None:
        if not self._flushing:  # all that one commit has made durable goes out with one write
            self._flushing = True
            asyncio.get_running_loop().call_soon(self._flush)

    def _flush(self) -> None:
        self._flushing = False
        ready: list[bytes] = []
        waiting = self._waiting
        while waiting and (line := waiting[0].line) is not None:
            self.bytes -= waiting.popleft().size
            ready.append(line)
        if ready:
            self._write(b"".join(ready))
            self._tell()

    def _change(self) -> asyncio.Future[None]:
        """Done when something was answered. One asks at a time: the task that reads the commands."""
        self._changed = asyncio.get_running_loop().create_future()
        return self._changed

    def _tell(self) -> None:
        if self._changed is not None and not self._changed.done():
            self._changed.set_result(None)


class _Reply:
    """One reply: its line, once it is known."""

    __slots__ = ("line", "size", "task")

    def __init__(self, size: int, line: bytes | None = None) -> None:
        self.size, self.line = size + REPLY_OVERHEAD, line
        self.task: asyncio.Task[bytes] | None = None

    def done(self, task: asyncio.Task[bytes]) -> None:
        self.line = b"" if task.cancelled() else task.result()
        self.task = None


def _check_bounds(options: SubscribeOptions) -> None:
    """Refuse what would let one connection hold back publishers for ever, or make the broker keep much for it."""
    if options.policy is not None and options.policy.kind is PolicyKind.BLOCK:
        limit = options.policy.timeout
        if limit is None or limit > MAX_BLOCK_SECONDS:
            why = f"over JSON lines publishers wait {MAX_BLOCK_SECONDS:g} s at most; say block:{MAX_BLOCK_SECONDS:g}"
            raise InvalidOption("policy", "block" if limit is None else f"block:{limit:g}", why)
    for option, allowed in MAX_BOUNDS.items():
        asked = getattr(options, option)
        if asked is not None and options.group is not None and option.startswith("buffer"):
            raise InvalidOption(option, asked, "it makes publishers wait for the group; set it where the group is made")
        if asked is not None and asked > allowed:
            raise LimitExceeded(option, asked, allowed)
