"""The same scripts of nats-py against a real nats-server and this listener observe the same."""

from __future__ import annotations

import asyncio
import uuid
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import nats
import pytest
from nats.errors import NoRespondersError

from tests.cluster.single import single
from tests.patience import PATIENCE
from tests.server.nats.raw import port_of, served

Script = Callable[[str, str], Awaitable[Any]]


async def flushed(client: Any) -> None:
    """The server has handled what the client said. nats-py sends the PING of a flush before what it has gathered."""
    await client.flush()
    await client.flush()


async def received(subscription: Any, count: int) -> list[tuple[str, bytes, str, Any]]:
    found = [await subscription.next_msg(PATIENCE) for _ in range(count)]
    return [(one.subject, one.data, one.reply, one.headers) for one in found]


async def wildcards(url: str, root: str) -> Any:
    async with await nats.connect(url) as client:
        patterns = (">", "*", "a.*", "*.b", "a.>", "a.b.*", "a.b.c")
        subscriptions = [await client.subscribe(f"{root}.{one}") for one in patterns]
        for subject in ("a", "a.b", "a.b.c", "x.b", "a.b.c.d"):
            await client.publish(f"{root}.{subject}", subject.encode())
        await flushed(client)
        counts = (5, 1, 1, 2, 3, 1, 1)
        found = [await received(one, count) for one, count in zip(subscriptions, counts, strict=True)]
        assert not any(one.pending_msgs for one in subscriptions)
        return [[data for _, data, _, _ in some] for some in found]


async def headers(url: str, root: str) -> Any:
    async with await nats.connect(url) as client:
        subscription = await client.subscribe(root)
        await client.publish(root, b"x", headers={"A": "1", "b-c": "text with spaces", "Nats-Msg-Id": "7"})
        await client.publish(root, b"", headers={"empty": ""})
        await client.publish(root, b"y", reply=f"{root}.reply")
        return [(data, reply.removeprefix(root), found) for _, data, reply, found in await received(subscription, 3)]


async def requests(url: str, root: str) -> Any:
    async with await nats.connect(url) as asker, await nats.connect(url) as service:

        async def answer(request: Any) -> None:
            await request.respond(request.data + b"!")

        await service.subscribe(f"{root}.svc", cb=answer)
        await flushed(service)
        found: list[Any] = [(await asker.request(f"{root}.svc", b"a")).data]
        found.append((await asker.request(f"{root}.svc", b"b", old_style=True)).data)
        for subject in (f"{root}.none", "$JS.NO.SUCH.API"):
            with pytest.raises(NoRespondersError):
                await asker.request(subject, b"c")
        return found


async def unsubscribing(url: str, root: str) -> Any:
    async with await nats.connect(url) as client:
        limited, ended = await client.subscribe(root), await client.subscribe(root)
        await limited.unsubscribe(limit=2)
        for number in range(2):
            await client.publish(root, b"%d" % number)
        found = [await received(one, 2) for one in (limited, ended)]  # nats-py may send its PING before them
        await ended.unsubscribe()
        later = await client.subscribe(root)
        await client.publish(root, b"3")
        await received(later, 1)
        return found, limited.pending_msgs, ended.pending_msgs


async def echo(url: str, root: str) -> Any:
    async with await nats.connect(url, no_echo=True) as silent, await nats.connect(url) as other:
        subscription = await silent.subscribe(root)
        await flushed(silent)
        await silent.publish(root, b"own")
        await flushed(silent)
        await other.publish(root, b"other")
        return [data for _, data, _, _ in await received(subscription, 1)]


async def queues(url: str, root: str) -> Any:
    async with await nats.connect(url) as client:
        counts: Counter[str] = Counter()
        done = asyncio.Event()

        def count(name: str) -> Callable[[Any], Awaitable[None]]:
            async def seen(_: Any) -> None:
                counts[name] += 1
                if counts.total() == 300:
                    done.set()

            return seen

        for queue in ("q", "q", "p", ""):
            await client.subscribe(root, queue, cb=count(queue))
        await flushed(client)
        for _ in range(100):
            await client.publish(root, b"x")
        await asyncio.wait_for(done.wait(), PATIENCE)
        return counts


async def draining(url: str, root: str) -> Any:
    client, other = await nats.connect(url), await nats.connect(url)
    seen: list[bytes] = []

    go_on = asyncio.Event()

    async def slow(message: Any) -> None:
        await go_on.wait()
        seen.append(message.data)

    subscription = await client.subscribe(root, cb=slow)
    await flushed(client)
    for number in range(500):
        await other.publish(root, b"%d" % number)
    await flushed(other)
    while subscription.pending_msgs < 499:  # noqa: ASYNC110 - one is held by the callback
        await asyncio.sleep(0)
    draining = asyncio.ensure_future(client.drain())
    go_on.set()
    await draining
    await other.close()
    return seen


SCRIPTS: tuple[Script, ...] = (wildcards, headers, requests, unsubscribing, echo, queues, draining)


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.__name__)
async def test_both_servers_are_observed_alike(script: Script) -> None:
    root = f"t{uuid.uuid4().hex}"
    async with asyncio.timeout(PATIENCE), served() as (_, server):
        real = await script(single().nodes[0].url, root)
        ours = await script(f"nats://127.0.0.1:{port_of(server)}", root)
    assert ours == real


CONNECT = b'CONNECT {"verbose":%b,"pedantic":%b,"echo":%b,"headers":true,"no_responders":true}\r\n'
QUIET = CONNECT % (b"false", b"false", b"true")
STRICT = CONNECT % (b"true", b"true", b"true")
PUBLISH = b"PUB t 1\r\nx\r\n"
BYTES = {
    "verbose": STRICT + b"SUB t 1\r\n" + PUBLISH + b"UNSUB 1\r\nUNSUB 9\r\n",
    "before CONNECT": b"SUB t 1\r\n" + PUBLISH + QUIET + PUBLISH,
    "CONNECT twice": STRICT + QUIET + PUBLISH,
    "pedantic, a reply subject": STRICT + b"SUB t 1\r\nPUB t t..r 1\r\nx\r\n",
    "pedantic, no literal": STRICT + b"PUB t.* 1\r\nx\r\n",
    "empty tokens": QUIET + b"SUB t..a 1\r\nSUB t.>.a 2\r\nSUB .t 3\r\nSUB t.> 4\r\nPUB t..a 1\r\nx\r\n",
    "an id twice": QUIET + b"SUB t 1\r\nSUB t.b 1\r\n" + PUBLISH + b"PUB t.b 1\r\ny\r\n",
    "UNSUB with a number": QUIET + b"SUB t 1\r\nUNSUB 1 2\r\n" + 4 * PUBLISH,
    "UNSUB with a number, later": QUIET + b"SUB t 1\r\n" + 2 * PUBLISH + b"UNSUB 1 3\r\n" + 4 * PUBLISH,
    "UNSUB with a number that was reached": QUIET + b"SUB t 1\r\n" + 3 * PUBLISH + b"UNSUB 1 2\r\n" + PUBLISH,
    "UNSUB 0": QUIET + b"SUB t 1\r\nUNSUB 1 0\r\n" + PUBLISH,
    "headers": QUIET + b"SUB t 1\r\nHPUB t 18 20\r\nNATS/1.0\r\nA: 1\r\n\r\nyo\r\n",
    "a requester that reads": QUIET + b"SUB _INBOX.q 1\r\nSUB t 2\r\nPUB t _INBOX.q 1\r\nx\r\n",
    "no echo": CONNECT % (b"false", b"false", b"false") + b"SUB t 1\r\nSUB _INBOX.t 2\r\n" + PUBLISH,
    "white space": QUIET + b"SUB\tt\t\t1\r\npub  t   1\r\nx\r\n",
    "UTF-8": QUIET + "SUB t.é 1\r\nPUB t.é 1\r\nx\r\n".encode(),
    "nothing in it": QUIET + b"SUB t 1\r\nPUB t 0\r\n\r\n",
    "what a server says": QUIET + b"+OK\r\nINFO {}\r\nPONG\r\n",
    "no operation": QUIET + b"HELO\r\n",
    "no line": QUIET + b"\r\n",
    "a payload over the limit": QUIET + b"PUB t 1048577\r\n",
    "a line over the limit": QUIET + b"PUB " + 5_000 * b"a" + b" 1\r\nx\r\n",
}


async def answered(port: int, data: bytes) -> bytes:
    """What a server says to these bytes and a PING, behind its INFO."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    await reader.readline()
    writer.write(data + b"PING\r\n")
    found = b""
    with suppress(ConnectionResetError):
        while not found.endswith(b"PONG\r\n") and (piece := await reader.read(65_536)):
            found += piece
    writer.close()
    return found


async def test_both_servers_answer_the_same_bytes_alike() -> None:
    root = f"t{uuid.uuid4().hex}".encode()
    async with asyncio.timeout(PATIENCE), served() as (_, server):
        for name, data in BYTES.items():
            sent = data.replace(b" t", b" " + root).replace(b"\tt", b"\t" + root)
            ours, real = await answered(port_of(server), sent), await answered(single().nodes[0].port, sent)
            assert ours == real, name
