"""Dead letters by reason, searched, with the offsets of all that fit."""

from tests.server.http.browser import web
from tests.server.http.test_dead_letters import DEAD, bury

FOUND = "/console/letters?topic=dead-letters.billing"


async def test_letters_are_counted_by_reason_and_found_by_it() -> None:
    async with web() as (broker, client):
        await bury(broker, b"a", b"b", reason="order 17 of customer 0xff was declined, 3.50 EUR")
        await bury(broker, b"c", reason="order 9 of customer 0x0a was declined, 12 EUR")
        await bury(broker, b"d", reason="no address")
        told = (await client.get(FOUND)).json()
        declined = "order … of customer … was declined, … EUR"
        assert told["reasons"] == [{"reason": declined, "count": 3}, {"reason": "no address", "count": 1}]
        assert (told["open"], told["looked_at"], told["next"]) == (4, 4, None)
        told = (
            await client.get(FOUND, params={"topic": "dead-letters.billing", "reason": declined, "limit": 1})
        ).json()
        assert ([one["offset"] for one in told["letters"]], told["offsets"]) == ([0], [0, 1, 2])
        answer = await client.post(f"{DEAD}/discard", json={"offsets": told["offsets"], "epoch": told["epoch"]})
        assert answer.json()["discarded"] == 3
        assert (await client.get(FOUND)).json()["offsets"] == [3]


async def test_values_keys_and_stories_are_searched() -> None:
    async with web() as (broker, client):
        await bury(broker, b"alpha", b"beta", reason="too long")
        for find, offsets in (("ALPHA", [0]), ("k-beta", [1]), ("too LONG", [0, 1]), ("nothing", [])):
            told = (await client.get(FOUND, params={"topic": "dead-letters.billing", "find": find})).json()
            assert told["offsets"] == offsets, find


async def test_a_body_that_is_no_utf_8_is_a_problem_and_no_failure() -> None:
    async with web() as (broker, client):
        await bury(broker, b"a")
        headers = {"content-type": "application/json"}
        for body in (b"\xff", b'{"all": "\xff"}', b'{"offsets": [1], "\xc3": 1}', b"\xff\xfe{", b"{"):
            for what in ("replay", "discard"):
                answer = await client.post(f"{DEAD}/{what}", content=body, headers=headers)
                assert (answer.status_code, answer.json()["code"]) == (400, "invalid_option"), body
            answer = await client.post("/console/actions", content=body, headers=headers)
            assert (answer.status_code, answer.json()["code"]) == (400, "invalid_option"), body
