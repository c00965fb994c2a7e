"""The same scripts of nats-py against a real nats-server and this listener observe the same."""

from __future__ import annotations

import asyncio
import uuid
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

import nats
import pytest
from nats.errors import NoRespondersError

from tests.cluster.single import single
from tests.patience import PATIENCE
from tests.server.nats.raw import port_of, served

Script = Callable[[str, str], Awaitable[Any]]


async def received(subscription: Any, count: int) -> list[tuple[str, bytes, str, Any]]:
    found = [await subscription.next_msg(PATIENCE) for _ in range(count)]
    return [(one.subject, one.data, one.reply, one.headers) for one in found]


async def wildcards(url: str, root: str) -> Any:
    async with await nats.connect(url) as client:
        patterns = (">", "*", "a.*", "*.b", "a.>", "a.b.*", "a.b.c")
        subscriptions = [await client.subscribe(f"{root}.{one}") for one in patterns]
        for subject in ("a", "a.b", "a.b.c", "x.b", "a.b.c.d"):
            await client.publish(f"{root}.{subject}", subject.encode())
        await client.flush()
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
        await service.flush()
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
        await silent.flush()
        await silent.publish(root, b"own")
        await silent.flush()
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
        await client.flush()
        for _ in range(100):
            await client.publish(root, b"x")
        await asyncio.wait_for(done.wait(), PATIENCE)
        return counts


async def draining(url: str, root: str) -> Any:
    client, other = await nats.connect(url), await nats.connect(url)
    seen: list[bytes] = []

    async def slow(message: Any) -> None:
        await asyncio.sleep(0)
        seen.append(message.data)

    await client.subscribe(root, cb=slow)
    await client.flush()
    for number in range(500):
        await other.publish(root, b"%d" % number)
    await other.flush()
    await client.drain()
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
