"""`runnel.js` in a real browser: it follows, publishes, comes back, and is told the truth."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from playwright.async_api import Page, Route

from tests.browser.complaints import Complaints
from tests.browser.served import Served
from tests.patience import PATIENCE
from tests.server.http.browser import Browser

# A document of the server's own origin that does nothing by itself, under the policy of its pages.
BLANK = "/runnel.js"
IMPORT = 'const { subscribe, publish, connect, RunnelError } = await import("/runnel.js");'
FOLLOW = """
window.seen = []; window.gaps = []; window.states = [];
window.follow = (topics, options = {}) => {
  window.subscription = subscribe(topics, {
    onRecord: (record) => { seen.push(record); },
    onGap: (gap) => { gaps.push(gap); },
    onState: (state, detail) => { states.push([state, detail.error?.code ?? null, detail.retryIn ?? null]); },
    ...options,
  });
};
"""
HOSTILE = [
    "a\r\nid: 1\r\ndata: x\r\n\r\nevent: end",
    "\x00\x01\x1f\x7f",
    "\u2028\u2029\ufeff\u200b\U0001f30a é",
    "</script><img src=x onerror=alert(1)>",
    '{"__proto__": {"polluted": true}}',
    '{"almost": json',
    " ",
    "x" * 300_000,
]


@pytest.fixture(autouse=True)
def no_icon(complaints: Complaints) -> None:
    """A script that is shown as a document names no icon, and the browser looks for one."""
    complaints.expect("favicon.ico")


@pytest_asyncio.fixture(loop_scope="session")
async def blank(page: Page, one_server: Served) -> Page:
    """A page that does nothing, of a server that is not to be killed."""
    await page.goto(one_server.url + BLANK)
    return page


async def run(page: Page, script: str, argument: Any = None) -> Any:
    """Run this in the page, with what the module exports at hand."""
    async with asyncio.timeout(PATIENCE):
        return await page.evaluate(f"async (given) => {{ {IMPORT} {script} }}", argument)


async def until(page: Page, condition: str) -> None:
    """Return when this holds in the page. Playwright's own way is an eval, which the policy forbids."""
    await eventually(lambda: page.evaluate(f"() => Boolean({condition})"), condition)


async def eventually(holds: Callable[[], Awaitable[object]], what: str) -> None:
    """Return when this holds."""
    for _ in range(int(PATIENCE / 0.02)):
        if await holds():
            return
        await asyncio.sleep(0.02)
    raise AssertionError(f"never: {what}")


async def follow(page: Page, topics: object, options: str = "{}") -> None:
    """Subscribe in the page; records gather in `seen`."""
    await run(page, f"{FOLLOW} follow(given, {options});", topics)


async def test_past_records_come_first_and_live_ones_follow(blank: Page, one_server: Served) -> None:
    await one_server.publish("order", "one", "two")
    await follow(blank, "order", "{start: 'earliest'}")
    await until(blank, "seen.length == 2 && subscription.state == 'open'")
    await one_server.publish("order", "three")
    await until(blank, "seen.length == 3")
    assert await blank.evaluate("seen.map((r) => [r.offset, r.value])") == [[0, "one"], [1, "two"], [2, "three"]]
    assert await blank.evaluate("states.map(([state]) => state)") == ["connecting", "open"]


async def test_a_loop_over_several_topics_gets_what_they_hold(blank: Page, one_server: Served) -> None:
    await one_server.publish("loop.a", "1")
    await one_server.publish("loop.b", "2")
    script = """
    const found = [];
    for await (const record of subscribe(["loop.a", "loop.*"], { start: "earliest" })) {
      found.push([record.topic, record.value]);
      if (found.length == 2) break;
    }
    return found;
    """
    assert await run(blank, script) == [["loop.a", 1], ["loop.b", 2]]


async def test_only_records_with_the_key_come(blank: Page, one_server: Served) -> None:
    for key in ("a", "b", "é%", "a"):
        await run(blank, "await publish('keys', given, { key: given });", key)
    await follow(blank, "keys", "{start: 'earliest', key: ['a', 'é%']}")
    await until(blank, "seen.length == 3")
    assert await blank.evaluate("seen.map((r) => r.key)") == ["a", "é%", "a"]


async def test_what_is_published_arrives_as_it_was(blank: Page, one_server: Served) -> None:
    script = """
    const values = [{ a: [1, null] }, "text", 42, true, new Uint8Array([0, 255, 13, 10])];
    const positions = [];
    const options = { key: new Uint8Array([255]), headers: { a: "ü%0A ☃" } };
    for (const value of values) positions.push(await publish("kinds", value, options));
    const found = [];
    for await (const record of subscribe("kinds", { start: "earliest" })) {
      const { value, text, key, headers, time, offset, epoch, topic, sequence, id } = record;
      found.push([value instanceof Uint8Array ? [...value] : value, text, [...key], headers, time instanceof Date,
                  offset, epoch == positions[0].epoch, topic, Number.isInteger(sequence), typeof id]);
      if (found.length == values.length) return [positions.map((p) => p.offset), found];
    }
    """
    offsets, found = await run(blank, script)
    assert offsets == [0, 1, 2, 3, 4]
    values = [{"a": [1, None]}, "text", 42, True, [0, 255, 13, 10]]
    texts = ['{"a":[1,null]}', "text", "42", "true", None]
    for at, one in enumerate(found):
        assert one == [values[at], texts[at], [255], {"a": "ü%0A ☃"}, True, at, True, "kinds", True, "string"]


async def test_hostile_values_arrive_unharmed_and_do_no_harm(blank: Page, one_server: Served) -> None:
    script = """
    for (const value of given) {
      await publish("hostile", value, { key: value.slice(0, 100) });
    }
    const found = [];
    for await (const record of subscribe("hostile", { start: "earliest" })) {
      found.push([record.text, record.key, typeof record.value]);
      if (found.length == given.length) return [found, ({}).polluted ?? null];
    }
    """
    found, polluted = await run(blank, script, HOSTILE)
    kinds = ["object" if value == HOSTILE[4] else "string" for value in HOSTILE]
    assert found == [[value, value[:100], kind] for value, kind in zip(HOSTILE, kinds, strict=True)]
    assert polluted is None


async def test_half_a_surrogate_and_a_function_are_refused_before_they_are_sent(blank: Page) -> None:
    script = """
    const codes = [];
    for (const [value, options] of [["x", { key: "\\ud800" }], [() => 1, {}], [undefined, {}]])
      await publish("refused", value, options).catch((error) => codes.push([error.code, error instanceof RunnelError]));
    return codes;
    """
    assert await run(blank, script) == [["invalid_value", True]] * 3


@pytest.mark.parametrize("kills", [1, pytest.param(4, marks=pytest.mark.nightly)])
async def test_nothing_is_lost_or_repeated_over_kills_of_the_server(
    page: Page, server: Served, complaints: Complaints, kills: int
) -> None:
    complaints.expect_a_server_that_is_down()
    await page.goto(server.url + BLANK)
    await server.publish("killed", *map(str, range(100)))
    await follow(page, "killed", "{start: 'earliest'}")
    await until(page, "seen.length == 100")
    for life in range(1, kills + 1):
        await server.publish("killed", *(str(100 * life + n) for n in range(50)))
        await server.restart()  # the page may have seen all of these, some, or none
        await server.publish("killed", *(str(100 * life + 50 + n) for n in range(50)))
        await until(page, f"seen.length >= {100 * life + 100}")
    assert await page.evaluate("seen.map((r) => r.value)") == list(range(100 * kills + 100))
    assert await page.evaluate("seen.map((r) => r.offset)") == list(range(100 * kills + 100))
    assert await page.evaluate("gaps") == []
    states = [state for state, *_ in await page.evaluate("states")]
    assert states.count("open") == kills + 1
    assert "waiting" in states


async def test_a_page_that_is_loaded_again_goes_on_where_it_was(blank: Page, one_server: Served) -> None:
    await one_server.publish("reloaded", "0", "1")
    await follow(blank, "reloaded", "{start: 'earliest', store: sessionStorage}")
    await until(blank, "seen.length == 2")
    await one_server.publish("reloaded", "2")
    await until(blank, "seen.length == 3 && subscription.lastEventId == seen[2].id")
    await blank.reload()
    await one_server.publish("reloaded", "3", "4")
    await follow(blank, "reloaded", "{start: 'earliest', store: sessionStorage}")
    await until(blank, "seen.length == 2")
    assert await blank.evaluate("seen.map((r) => r.value)") == [3, 4]


async def test_a_record_that_was_not_worked_off_comes_again_after_a_reload(blank: Page, one_server: Served) -> None:
    await one_server.publish("again", "0", "1")
    stuck = (
        "{start: 'earliest', store: sessionStorage, onRecord: (r) => (seen.push(r), r.offset && new Promise(() => {}))}"
    )
    await follow(blank, "again", stuck)
    await until(blank, "seen.length == 2")
    await blank.reload()
    await follow(blank, "again", "{start: 'earliest', store: sessionStorage}")
    await until(blank, "seen.length == 1")
    assert await blank.evaluate("seen[0].offset") == 1


async def test_missed_records_are_reported_between_the_records(blank: Page, one_server: Served, server: Served) -> None:
    await server.publish("missed", "elsewhere")
    await one_server.publish("missed", "here")
    await follow(blank, "missed", f"{{lastEventId: '{await id_of(server, 'missed')}'}}")
    await until(blank, "seen.length == 1")
    [gap] = await blank.evaluate("gaps")
    assert gap["topic"] == "missed"
    assert gap["count"] is None
    assert "another broker" in gap["reason"]


async def test_a_gap_without_a_callback_is_on_the_console(
    blank: Page, one_server: Served, server: Served, complaints: Complaints
) -> None:
    complaints.expect("runnel: records of quiet are missing: the id is of another broker")
    await server.publish("quiet", "elsewhere")
    await one_server.publish("quiet", "here")
    foreign = await id_of(server, "quiet")
    async with blank.expect_console_message() as warning:
        await follow(blank, "quiet", f"{{lastEventId: '{foreign}', onGap: undefined}}")
        await until(blank, "seen.length == 1")
    assert (await warning.value).type == "warning"


async def id_of(served: Served, topic: str) -> str:
    """The id of the first record of a topic."""
    browser = Browser(served.url, f"topic={topic}&start=earliest")
    await browser.read(lambda reader: reader.records)
    return browser.last_id


@pytest.mark.parametrize("way", ["close", "abort", "before", "break"])
async def test_it_ends_when_the_page_has_enough(blank: Page, one_server: Served, way: str) -> None:
    await one_server.publish("ended", "1")
    script = """
    const enough = new AbortController(), found = [];
    if (given == "before") enough.abort();
    const subscription = subscribe("ended", { start: "earliest", signal: enough.signal });
    for await (const record of subscription) {
      found.push(record.value);
      if (given == "close") subscription.close();
      if (given == "abort") enough.abort();
      if (given == "break") break;
    }
    await subscription.finished;
    return [found.length, subscription.state, (await subscription.next()).done];
    """
    assert await run(blank, script, way) == [0 if way == "before" else 1, "closed", True]


async def test_a_page_that_waits_for_records_can_stop_waiting(blank: Page) -> None:
    script = """
    const subscription = subscribe("nobody-writes");
    const waiting = [subscription.next(), subscription.next()];
    setTimeout(() => subscription.close(), 50);
    return (await Promise.all(waiting)).map((one) => one.done);
    """
    assert await run(blank, script) == [True, True]


async def test_the_server_is_read_only_as_fast_as_the_page_takes_records(
    page: Page, tmp_path: Path, complaints: Complaints
) -> None:
    complaints.expect("net::ERR_")  # the server drops it while it does not read
    served = Served(tmp_path, "--send-timeout", "1s")
    await served.start()
    try:
        await page.goto(served.url + BLANK)
        for part in range(8):  # more than buffers between here and there hold
            await served.publish("slow", *(f"{100 * part + n} {'x' * 60_000}" for n in range(100)))
        script = """
        window.slow = subscribe("slow", { start: "earliest", onState: (state) => (window.states ??= []).push(state) });
        return (await slow.next()).value.offset;
        """
        assert await run(page, script) == 0

        async def dropped() -> bool:
            return "is dropped: it has read nothing" in served.told()

        await eventually(dropped, "it is dropped")
        rest = "const found = []; for await (const r of slow) if (found.push(r.offset) == 799) return found;"
        assert await run(page, rest) == list(range(1, 800))
        assert (await page.evaluate("states")).count("open") == 2
    finally:
        await served.stop()


async def test_a_publish_goes_through_when_the_server_is_back(
    page: Page, server: Served, complaints: Complaints
) -> None:
    complaints.expect_a_server_that_is_down()
    await page.goto(server.url + BLANK)
    await run(page, "window.later = () => publish('later', 'once');")
    await server.kill()
    async with page.expect_event("requestfailed"):
        await page.evaluate("() => { window.publishing = later(); }")
    await server.start()
    assert (await page.evaluate("publishing"))["offset"] == 0


async def test_a_publish_whose_answer_is_lost_is_sent_again_and_stored_once(
    blank: Page, one_server: Served, complaints: Complaints
) -> None:
    complaints.expect("net::ERR_FAILED")
    keys: list[str] = []

    async def lose_the_first_answer(route: Route) -> None:
        keys.append(await route.request.header_value("idempotency-key") or "")
        answer = await route.fetch()
        await (route.abort() if len(keys) == 1 else route.fulfill(response=answer))

    await blank.route("**/topics/once", lose_the_first_answer)
    first = await run(blank, "return await publish('once', 'a');")
    second = await run(blank, "return await publish('once', 'b');")
    assert [first["offset"], second["offset"]] == [0, 1]
    assert len(keys) == 3
    assert keys[0] == keys[1] != keys[2]
    assert len(keys[0]) == 32


async def test_a_publish_without_a_key_is_sent_once(blank: Page, complaints: Complaints) -> None:
    complaints.expect("net::ERR_FAILED")
    tries: list[object] = []

    async def lose(route: Route) -> None:
        tries.append(await route.request.header_value("idempotency-key"))
        await route.abort()

    await blank.route("**/topics/unkeyed", lose)
    for options in ("{ idempotencyKey: null }", "{ contentType: 'application/x-ndjson' }"):
        script = f"return await publish('unkeyed', 'a', {options}).catch((error) => error.code);"
        assert await run(blank, script) == "outcome_unknown"
    assert tries == [None, None]


async def test_a_publish_gives_up_in_time(blank: Page, complaints: Complaints) -> None:
    complaints.expect("503")
    tries: list[int] = []

    async def refuse(route: Route) -> None:
        tries.append(1)
        await route.fulfill(status=503, json={"code": "full", "detail": "no room"})

    await blank.route("**/topics/busy", refuse)
    script = "return await publish('busy', 'a', { timeout: 3000 }).catch((e) => [e.code, e.message, e.status]);"
    assert await run(blank, script) == ["full", "no room", 503]
    assert len(tries) > 1


async def test_refusals_have_the_code_of_the_server(blank: Page, complaints: Complaints) -> None:
    complaints.expect("400")
    script = """
    const codes = [];
    await publish("bad..name", "x").catch((error) => codes.push([error.code, error.status]));
    const subscription = subscribe("bad..name");
    try { for await (const _ of subscription); } catch (error) { codes.push([error.code, error.status]); }
    await subscription.finished.catch((error) => codes.push([error.code, subscription.state]));
    return codes;
    """
    assert await run(blank, script) == [["invalid_name", 400], ["invalid_pattern", 400], ["invalid_pattern", "closed"]]


async def test_a_response_that_is_no_event_stream_is_reported_and_not_retried_for_ever(blank: Page) -> None:
    script = """
    return await connect(given).subscribe("a").finished.catch((error) => [error.code, error.message.length > 0]);
    """

    async def a_page(route: Route) -> None:
        await route.fulfill(status=200, content_type="text/html", body="<p>welcome")

    await blank.route("**/elsewhere/events*", a_page)
    assert await run(blank, script, "/elsewhere") == ["protocol_error", True]


async def test_a_handler_that_throws_ends_it_and_the_record_is_not_done_with(blank: Page, one_server: Served) -> None:
    await one_server.publish("throws", "0", "1", "2")
    await follow(
        blank, "throws", "{start: 'earliest', onRecord: (r) => { seen.push(r); if (r.offset) throw Error('no'); }}"
    )
    told = await blank.evaluate("subscription.finished.catch((error) => error.message)")
    assert told == "no"
    assert await blank.evaluate("[seen.length, subscription.state]") == [2, "closed"]
    assert await blank.evaluate("subscription.lastEventId == seen[0].id")


async def test_records_go_to_the_handler_or_to_a_loop_not_to_both(blank: Page) -> None:
    script = """
    const subscription = subscribe("both", { onRecord() {} });
    try { for await (const _ of subscription); } catch (error) { return error.code; }
    """
    assert await run(blank, script) == "subscription_misused"


# -- lines that no server of ours would write, and servers that say nothing ----------------------------------------

STREAM = (
    "\ufeffretry: 5\r\n\r\n: a comment\nevent: ready\nid: r\ndata: {}\n\n"
    'id: 1\rdata: {"topic":"t",\rdata: "value":"é\U0001f30a","time":"2026-01-01T00:00:00Z"}\r\r'
    'unknown\ndata:{"topic":"t","value":"two","time":"2026-01-01T00:00:00Z"}\r\nid:2\r\n\r\nid: 3\n\n'
    'id: bad\0\ndata: {"topic":"t","value":"three","time":"2026-01-01T00:00:00Z"}\n\nid: 4\ndata: {"half'
)
# fetch is ours here: no server can be told to cut its bytes at a given place.
CUT = """
const bytes = new TextEncoder().encode(given), results = new Set();
for (let cut = 0; cut <= bytes.length; cut++) {
  const asked = [];
  globalThis.fetch = async (url, { headers }) => {
    asked.push(headers.get("last-event-id"));
    const body = new ReadableStream({ start(stream) {
      if (asked.length > 1) return;
      stream.enqueue(bytes.slice(0, cut)); stream.enqueue(bytes.slice(cut)); stream.close();
    } });
    return new Response(body, { headers: { "content-type": "text/event-stream" } });
  };
  const found = [];
  await new Promise((resolve) => {
    const subscription = subscribe("t", {
      onRecord: (record) => { found.push([record.id, record.text]); },
      onState: (state) => { if (state == "connecting" && asked.length == 1) setTimeout(resolve); },
    });
  });
  results.add(JSON.stringify([found, asked[1]]));
}
return [...results].map(JSON.parse);
"""


async def test_events_are_read_as_the_standard_says_wherever_the_bytes_are_cut(blank: Page) -> None:
    [[found, resumed_from]] = await run(blank, CUT, STREAM)
    assert found == [["1", "é\U0001f30a"], ["2", "two"], ["3", "three"]]
    assert resumed_from == "3"


SILENT = """
window.asked = 0;
globalThis.fetch = async (url, { signal }) => {
  asked++;
  const body = new ReadableStream({ start(stream) {
    signal.addEventListener("abort", () => stream.error(signal.reason));
    stream.enqueue(new TextEncoder().encode("event: ready\\nid: a\\ndata: {}\\n\\n"));
  } });
  return new Response(body, { headers: { "content-type": "text/event-stream" } });
};
"""


async def test_a_line_that_says_nothing_is_given_up(blank: Page) -> None:
    await blank.clock.install()
    await run(blank, f"{SILENT} {FOLLOW} follow('a');")
    await until(blank, "subscription.state == 'open'")
    await blank.clock.fast_forward(44_000)
    assert await blank.evaluate("[asked, subscription.state]") == [1, "open"]
    await blank.clock.fast_forward(2_000)
    await until(blank, "subscription.state == 'waiting'")
    await blank.clock.fast_forward(3_000)
    await until(blank, "asked == 2 && subscription.state == 'open'")


async def test_a_page_that_takes_its_time_is_no_line_that_says_nothing(blank: Page) -> None:
    await blank.clock.install()
    await run(blank, f"{SILENT} window.patient = subscribe('a', {{ onState: (s) => (window.state = s) }});")
    await until(blank, "asked == 1")
    await blank.clock.fast_forward(600_000)
    await run(blank, "window.waiting = patient.next();  await 0;")
    assert await blank.evaluate("[asked, state]") == [1, "open"]


REFUSING = """
window.asked = 0;
globalThis.fetch = async () => (asked++, new Response("{}", { status: 503, headers: { "retry-after": given } }));
"""


@pytest.mark.parametrize("after", ["7", "0", "", "nonsense"])
async def test_it_waits_as_long_as_the_server_says_and_longer_each_time(blank: Page, after: str) -> None:
    await blank.clock.install()
    await run(blank, f"{REFUSING} {FOLLOW} follow('a');", after)
    for tries in range(1, 8):
        await until(blank, f"asked == {tries} && subscription.state == 'waiting'")
        await blank.clock.fast_forward(40_000)
    waits = [wait for state, _, wait in await blank.evaluate("states") if state == "waiting"]
    least = 7_000 if after == "7" else 0
    for tries, wait in enumerate(waits[:7]):
        most = min(30_000, 2_000 * 2**tries)
        assert most / 2 <= wait - least <= most
    assert len(set(waits)) == len(waits)


async def test_a_browser_that_is_online_again_does_not_wait(blank: Page) -> None:
    await blank.clock.install()
    await run(blank, f"{REFUSING} {FOLLOW} follow('a');", "3600")
    await until(blank, "asked == 1 && subscription.state == 'waiting'")
    await blank.evaluate("dispatchEvent(new Event('online'))")
    await until(blank, "asked == 2")
