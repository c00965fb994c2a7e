"""Remote members of groups: leases sent, taken back, ended."""

import pytest

from runnel.core.batch_format import unpack
from runnel.server.native.connection import NativeConnection
from runnel.server.server import Server
from runnel.testing.clock import JumpingClock
from runnel.wire.binary_messages import read_grant, unsubscribe_frame
from runnel.wire.frames import MORE, FrameKind
from runnel.wire.msgpack_messages import RECALLS, Settlement, SettleVerb, WirePolicy, read_lapsed
from tests.brokers import local_broker
from tests.server.native_client import Raw, connected, serving, until


async def test_no_more_is_granted_than_the_prefetch(raw: Raw) -> None:
    member = raw.subscribe("t", group="g", prefetch=3)
    await raw.subscribed(member)
    await raw.published(raw.publish("t", *(b"%d" % number for number in range(10))))
    held = 0
    while held < 3:
        held += len(unpack((await raw.grant(member)).batch))
    await raw.ask("topics")
    assert held == 3
    assert not [one for one in raw.inbox if one[0] == FrameKind.GRANT]


async def test_a_lease_over_several_stretches_comes_in_several_frames(raw: Raw) -> None:
    for number in range(3):
        await raw.published(raw.publish("t", b"%d" % number))
    member = raw.subscribe("t", group="g")
    places: list[int] = []
    leases: set[int] = set()
    more: list[bool] = []
    while len(places) < 3:
        _, flags, extra, _, payload = await raw.next(FrameKind.GRANT, id=member)
        grant = read_grant(extra, payload)
        more.append(bool(flags & MORE))
        leases.add(grant.lease)
        places += range(grant.place, grant.place + len(unpack(grant.batch)))
    assert places == [0, 1, 2]
    assert more[-1] is False
    assert len(leases) == len(more) - sum(more)


async def test_two_members_share_the_work(server: Server, raw: Raw) -> None:
    async with connected(server) as other:
        ids = [raw.subscribe("t", group="g", prefetch=2), other.subscribe("t", group="g", prefetch=2)]
        await raw.subscribed(ids[0])
        await other.subscribed(ids[1])
        await raw.published(raw.publish("t", *(b"%d" % number for number in range(4))))
        seen: list[bytes] = []
        for client, id in ((raw, ids[0]), (other, ids[1])):
            got: list[bytes] = []
            while len(got) < 2:
                got += unpack((await client.grant(id)).batch).values
            seen += got
        assert sorted(seen) == [b"0", b"1", b"2", b"3"]


async def test_leaving_gives_back_what_was_not_settled(raw: Raw) -> None:
    first = raw.subscribe("t", group="g")
    await raw.published(raw.publish("t", b"work"))
    await raw.grant(first)
    raw.send(unsubscribe_frame(first))
    await raw.next(FrameKind.END, id=first)
    second = raw.subscribe("t", group="g")
    assert unpack((await raw.grant(second)).batch).values == (b"work",)


async def test_a_reset_group_tells_what_is_void(raw: Raw) -> None:
    member = raw.subscribe("t", group="g")
    await raw.published(raw.publish("t", b"work"))
    grant = await raw.grant(member)
    await raw.ask("group_reset", name="g", pattern="t", start="earliest")
    await raw.next(FrameKind.LAPSED, id=member)
    again = await raw.grant(member)
    assert (again.offset, again.lease) != (grant.offset, grant.lease)
    late = raw.settle(Settlement(member, grant.lease, SettleVerb.ACK, grant.place, grant.place + 1))
    assert (await raw.error(late)).code == "lease_ended"


async def test_a_deleted_topic_ends_its_members(raw: Raw) -> None:
    member = raw.subscribe("t", group="g")
    await raw.subscribed(member)
    await raw.ask("delete", topic="t")
    assert (await raw.error(member)).code == "topic_deleted"


async def test_extending_a_lease_keeps_it() -> None:
    clock = JumpingClock()
    async with serving(local_broker(clock=clock)) as server, connected(server) as raw:
        member = raw.subscribe("t", group="g", ack_wait=30.0)
        await raw.published(raw.publish("t", b"long work"))
        grant = await raw.grant(member)
        here = (grant.place, grant.place + 1)
        raw.settle(Settlement(member, grant.lease, SettleVerb.BEGIN, *here), answered=False)
        await raw.reply(raw.settle(Settlement(member, grant.lease, SettleVerb.EXTEND, *here, 3600.0)))
        await clock.advance(3000)
        await raw.reply(raw.settle(Settlement(member, grant.lease, SettleVerb.ACK, *here)))


@pytest.mark.parametrize(
    ("said", "code"),
    [
        ((9, SettleVerb.ACK, 0, 1), "lease_ended"),
        ((1, SettleVerb.ACK, 5, 6), "invalid_option"),
        ((1, SettleVerb.ACK, 0, 2), "invalid_option"),
        ((1, SettleVerb.ACK, 1, 1), "invalid_option"),
    ],
    ids=["no such lease", "not its place", "beyond its end", "nothing"],
)
async def test_what_makes_no_sense_is_refused_and_changes_nothing(
    raw: Raw, said: tuple[int, SettleVerb, int, int], code: str
) -> None:
    member = raw.subscribe("t", group="g")
    await raw.published(raw.publish("t", b"work"))
    grant = await raw.grant(member)
    assert (grant.lease, grant.place) == (1, 0)
    assert (await raw.error(raw.settle(Settlement(member, *said)))).code == code
    await raw.reply(raw.settle(Settlement(member, grant.lease, SettleVerb.ACK, 0, 1)))


async def test_what_was_begun_counts_as_an_attempt_and_the_rest_does_not(raw: Raw) -> None:
    await raw.published(raw.publish("t", b"a", b"b"))
    gone = raw.subscribe("t", group="g")
    grant = await raw.grant(gone)
    raw.settle(Settlement(gone, grant.lease, SettleVerb.BEGIN, grant.place, grant.place + 1), answered=False)
    raw.send(unsubscribe_frame(gone))
    other = raw.subscribe("t", group="g")
    found: dict[tuple[bytes, ...], int] = {}
    while len(found) < 2:
        again = await raw.grant(other)
        found[unpack(again.batch).values] = again.attempt
    assert found == {(b"a",): 2, (b"b",): 1}


async def test_a_lease_that_runs_out_is_reported_with_its_places() -> None:
    clock = JumpingClock()
    async with serving(local_broker(clock=clock)) as server, connected(server) as raw:
        member = raw.subscribe("t", group="g", ack_wait=10.0)
        await raw.published(raw.publish("t", b"work"))
        grant = await raw.grant(member)
        begun = Settlement(member, grant.lease, SettleVerb.BEGIN, grant.place, grant.place + 1)
        await raw.reply(raw.settle(begun))
        await clock.advance(11)
        (lapse,) = read_lapsed((await raw.next(FrameKind.LAPSED, id=member))[4])
        assert lapse == (grant.lease, grant.place, grant.place + 1)
        late = raw.settle(Settlement(member, grant.lease, SettleVerb.ACK, grant.place, grant.place + 1))
        assert (await raw.error(late)).code == "lease_ended"


@pytest.mark.parametrize("verb", [SettleVerb.ACK, SettleVerb.REJECT, SettleVerb.NACK])
async def test_what_was_settled_cannot_be_settled_again(raw: Raw, verb: SettleVerb) -> None:
    member = raw.subscribe("t", group="g", backoff=(3600.0,))
    await raw.published(raw.publish("t", b"work"))
    grant = await raw.grant(member)
    here = (grant.place, grant.place + 1)
    await raw.reply(raw.settle(Settlement(member, grant.lease, verb, *here, reason="no")))
    again = raw.settle(Settlement(member, grant.lease, SettleVerb.ACK, *here))
    assert (await raw.error(again)).code == "already_settled"


# -- taking back ------------------------------------------------------------------------------------------------


async def test_a_client_is_asked_for_what_it_has_not_begun_and_returns_it(server: Server) -> None:
    async with connected(server, features=[RECALLS]) as busy, connected(server) as idle:
        await busy.published(busy.publish("t", *[b"work"] * 10))
        member = busy.subscribe("t", group="g")
        grant = await busy.grant(member)
        await busy.reply(busy.settle(Settlement(member, grant.lease, SettleVerb.BEGIN, 0, 2)))
        other = idle.subscribe("t", group="g")
        (recall,) = read_lapsed((await busy.next(FrameKind.RECALL, id=member))[4])
        assert recall == (grant.lease, 5, 10)
        # It began two more in the meantime.
        busy.settle(Settlement(member, grant.lease, SettleVerb.BEGIN, 2, 7), answered=False)
        for first, end, code in ((6, 10, "already_settled"), (7, 9, "invalid_option"), (7, 11, "invalid_option")):
            wrong = busy.settle(Settlement(member, grant.lease, SettleVerb.RETURN, first, end))
            assert (await busy.error(wrong)).code == code
        await busy.reply(busy.settle(Settlement(member, grant.lease, SettleVerb.RETURN, 7, 10)))
        again = await idle.grant(other)
        assert (again.place, len(unpack(again.batch)), again.attempt) == (7, 3, 1)
        late = busy.settle(Settlement(member, grant.lease, SettleVerb.ACK, 7, 8))
        assert (await busy.error(late)).code == "invalid_option"
        await busy.reply(busy.settle(Settlement(member, grant.lease, SettleVerb.ACK, 0, 7)))
        await idle.reply(idle.settle(Settlement(other, again.lease, SettleVerb.ACK, 7, 10)))
        assert server.broker.statistics().groups[0].acked == 10


async def test_a_lease_that_was_returned_whole_is_over_and_not_reported(server: Server) -> None:
    async with connected(server, features=[RECALLS]) as busy, connected(server) as idle:
        await busy.published(busy.publish("t", b"a"))
        await busy.published(busy.publish("t", b"b"))
        member = busy.subscribe("t", group="g", prefetch_bytes=100)  # so that each is a lease of its own
        first, second = await busy.grant(member), await busy.grant(member)
        await busy.reply(busy.settle(Settlement(member, first.lease, SettleVerb.BEGIN, 0, 1)))
        other = idle.subscribe("t", group="g")
        (recall,) = read_lapsed((await busy.next(FrameKind.RECALL, id=member))[4])
        assert recall == (second.lease, 1, 2)
        await busy.reply(busy.settle(Settlement(member, second.lease, SettleVerb.RETURN, 1, 2)))
        again = await idle.grant(other)
        assert (again.place, again.attempt) == (1, 1)
        late = busy.settle(Settlement(member, second.lease, SettleVerb.ACK, 1, 2))
        assert (await busy.error(late)).code == "already_settled"
        await busy.ask("info")
        assert all(kind != FrameKind.LAPSED for kind, *_ in busy.inbox)


async def test_a_client_that_does_not_know_recalls_keeps_what_it_was_granted(server: Server) -> None:
    async with connected(server) as old, connected(server) as idle:
        await old.published(old.publish("t", *[b"work"] * 10))
        member = old.subscribe("t", group="g")
        grant = await old.grant(member)
        await idle.subscribed(idle.subscribe("t", group="g"))
        await old.ask("info")
        assert all(kind != FrameKind.RECALL for kind, *_ in old.inbox)
        await old.reply(old.settle(Settlement(member, grant.lease, SettleVerb.ACK, 0, 10)))


@pytest.mark.parametrize(
    "options",
    [
        {"policy": WirePolicy(kind="block")},
        {"strict": True},
        {"hold": True},
        {"drops": True},
        {"start": {"sequence": 3}},
    ],
)
async def test_what_means_nothing_in_a_group_is_refused(raw: Raw, options: dict[str, object]) -> None:
    assert (await raw.error(raw.subscribe("t", group="g", **options))).code == "invalid_option"


async def test_a_member_that_does_not_read_holds_no_more_than_the_high_water() -> None:
    async with serving(high_water=100_000) as server, connected(server) as frozen, connected(server) as raw:
        member = frozen.subscribe("t", group="g", prefetch=100_000, max_ack_pending=100_000, ack_wait=3600.0)
        await frozen.subscribed(member)
        for _ in range(200):
            await raw.published(raw.publish("t", *[bytes(1000)] * 50))
        about = next(each for each in await raw.ask("connections") if each["connection"] == 1)
        assert about["unsent_bytes"] <= 100_000 + 60_000
        got = 0
        while got < 10_000:
            got += len(unpack((await frozen.grant(member)).batch))


async def test_a_large_lease_is_sent_as_there_is_room_and_one_that_lapses_meanwhile_ends() -> None:
    """A member that does not read costs no more than a reader that does not."""
    high, one, many = 64 << 10, 100_000, 200
    async with serving(high_water=high) as server, connected(server) as other, connected(server) as raw:
        for _ in range(many):
            await other.published(other.publish("t", bytes(one)))
        member = raw.subscribe("t", group="g", start="earliest", prefetch=many)
        assert server.serving is not None
        peer = [*server.serving.connections][-1]
        assert isinstance(peer, NativeConnection)
        await until(lambda: peer.room <= 0)
        await other.ask("info")
        assert peer.describe()["unsent_bytes"] <= high + 2 * one
        await other.ask("group_reset", name="g", pattern="t", start="latest")
        (lapse,) = read_lapsed((await raw.next(FrameKind.LAPSED, id=member))[4])
        came = [read_grant(extra, payload) for kind, _, extra, _, payload in raw.inbox if kind == FrameKind.GRANT]
        assert {grant.lease for grant in came} == {lapse.lease}
        assert 0 < len(came) < many  # the rest of it does not come
        await other.published(other.publish("t", b"new"))
        while (grant := await raw.grant(member)).lease == lapse.lease:
            pass
        assert unpack(grant.batch).values == (b"new",)
