import asyncio, pytest, contextlib
from pathlib import Path
from runnel.core.journal_errors import *
from tests.broker.durable import *

async def test_refused_then_full_for_ever(tmp_path):
    disk = Disk()
    async with open_on(disk, tmp_path, segment_bytes=4096) as b:
        t = b.topic("t"); 
        await t.publish(b"0")
        disk.hold("write")
        one = asyncio.ensure_future(t.publish(b"x"*3000))
        await disk.reached()          # written
        two = asyncio.ensure_future(t.publish(b"y"*3000))
        await turns()
        disk.inner.capacity = 0
        disk.go_on()
        r = await asyncio.gather(one, two, return_exceptions=True)
        print(r)
        disk.inner.capacity = None
        await t.publish(b"again")

async def test_refused_rounds(tmp_path):
    disk = Disk()
    async with open_on(disk, tmp_path, segment_bytes=8192) as b:
        t = b.topic("t"); 
        await t.publish(b"0"*3000)
        # next needs a roll. hold at create of the roll
        disk.hold("create", "")
        one = asyncio.ensure_future(t.publish(b"x"*5000))
        await disk.reached()
        two = asyncio.ensure_future(t.publish(b"y"*10))
        await turns()
        assert len(commits_of(b)._under_way) == 2
        disk.fail_next("allocate", "", 28)
        disk.go_on()
        r = await asyncio.gather(one, two, return_exceptions=True)
        print(r, commits_of(b)._round, commits_of(b)._committer._round)
        for i in range(5):
            await t.publish(b"again")

async def test_message_id_after_failure(tmp_path):
    disk = Disk()
    async with open_on(disk, tmp_path, segment_bytes=8192) as b:
        t = b.topic("t"); 
        await t.publish(b"0"*3000)
        disk.fail_next("allocate", "", 28)
        with pytest.raises(DiskFull):
            await t.publish(b"x"*5000, message_id="m")
        p1 = await t.publish(b"other")
        p2 = await t.publish(b"x"*5000, message_id="m")
        print(p1, p2)
        assert p1 != p2

@pytest.mark.parametrize("policy", ["drop_oldest", "block", "drop_newest"])
async def test_two_topics_one_commit_pattern(tmp_path, policy):
    disk = Disk()
    async with open_on(disk, tmp_path) as b:
        await b.publish("a", b"0"); await b.publish("b", b"0")
        async with b.subscribe(">", policy=policy, buffer=100) as s:
            b.topic("a").publish_nowait(b"1"); b.topic("b").publish_nowait(b"2")
            async with asyncio.timeout(2):
                got = [await anext(s), await anext(s)]
            assert [r.value for r in got] == [b"1", b"2"]

async def test_straddle(tmp_path):
    disk = Disk()
    async with open_on(disk, tmp_path, tail_bytes=1000) as b:
        t = b.topic("t")
        for n in range(20):
            await t.publish(b"%03d" % n + b"x"*50)
        async with b.subscribe(">", start="earliest") as s:
            got = []
            async with asyncio.timeout(2):
              with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(1):
                    async for r in s:
                        got.append(r.offset)
        assert got == list(range(20))

async def test_recursion(tmp_path):
    disk = Disk()
    async with open_on(disk, tmp_path, tail_bytes=1000, segment_bytes=1<<22) as b:
        a, c = b.topic("a", retention_count=1), b.topic("b", retention_count=1)
        await a.declare(); await c.declare()
        for n in range(1500):
            await a.publish(b"x"); await c.publish(b"y")
        async with b.subscribe(">", start="earliest") as s:
            async with asyncio.timeout(3):
                got = [await anext(s), await anext(s)]
        assert [r.offset for r in got] == [1499, 1499]

async def test_dead_letter_durable(tmp_path):
    disk = Disk()
    async with open_on(disk, tmp_path) as b:
        await b.publish("t", b"1")
        async with b.subscribe("t", group="g") as s:
            d = await anext(s); await d.reject("no")
            await turns()
        await b._bus.flushed()
        print(kinds(entries(journal_of(b))))
        assert log_of(b, "dead-letters.g").stored is not None
    async with open_on(disk, tmp_path) as b:
        assert b.statistics().topics["dead-letters.g"].end == 1

async def test_dead_letter_disk_full(tmp_path):
    disk = Disk()
    async with open_on(disk, tmp_path, segment_bytes=8192) as b:
        await b.topic("dead-letters.g").declare()
        await b.publish("t", b"1"*6000)
        async with b.subscribe("t", group="g") as s:
            d = await anext(s)
            disk.inner.capacity = 1
            try:
                await d.reject("no")
            except Exception as e: print(repr(e))
            await b._bus.flushed()
            await turns()
            disk.inner.capacity = None
    async with open_on(disk, tmp_path) as b:
        st = b.statistics()
        print(st.topics["dead-letters.g"].end, st.groups)
        assert st.topics["dead-letters.g"].end == 1 or st.groups[0].lag == 1

async def test_group_on_remade_topic(tmp_path):
    disk = Disk()
    async with open_on(disk, tmp_path) as b:
        await b.publish("t", b"1")
        deleting = asyncio.ensure_future(b.delete("t"))
        await asyncio.sleep(0)
        b.topic("t").publish_nowait(b"2")
        async with b.subscribe("t", group="g") as s:
            d = await anext(s)
            await d.ack(durable=True)
        await deleting
    async with open_on(disk, tmp_path) as b:
        assert len(b.statistics().groups) == 1

async def test_eio_reading_active_by_pattern(tmp_path):
    disk = Disk()
    async with open_on(disk, tmp_path, tail_bytes=100) as b:
        for n in range(5): await b.publish("t", b"x" * 100)
        gaps = []
        disk.fail_next("read")
        async with b.subscribe(">", start="earliest", on_gap=gaps.append) as s:
            await until(lambda: disk.failed)
            await b.publish("t", b"end")
            r = await anext(s)
            print(r, gaps)
            assert gaps or r.offset == 0

async def test_publish_and_wait_cut(tmp_path):
    disk = Disk()
    async with open_on(disk, tmp_path, tail_bytes=1) as b:
        await b.publish("t", b"0")
        async with b.subscribe(">") as s:
            task = asyncio.ensure_future(b.topic("t").publish_and_wait(b"1", timeout=2))
            assert (await anext(s)).value == b"1"
            asyncio.ensure_future(anext(s))
            await task

async def test_flush_waiter_at_close_when_full(tmp_path):
    disk = Disk()
    b = open_on(disk, tmp_path, segment_bytes=8192)
    async with b:
        await b.publish("t", b"1"*3000)
        disk.hold("create", "")
        p = asyncio.ensure_future(b.publish("t", b"1"*6000))
        await disk.reached()
        d = asyncio.ensure_future(b.topic("u").declare())
        q = asyncio.ensure_future(b.publish("t", b"1"*6000))
        await turns()
        disk.fail_next("allocate", "", 28)
        disk.go_on()
    async with asyncio.timeout(2):
        print(await asyncio.gather(p, d, q, return_exceptions=True))
