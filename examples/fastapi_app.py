"""A chat room over HTTP: POST says something, GET waits for what comes next.

The router opens the broker for as long as the application lives, and each endpoint gets it as a dependency.
GET is a long poll: it answers with the records after a position, at once or when there are some. A
client that comes back with the last position it saw misses nothing that is still kept, and gets a gap for
when something is not.

Serve it with `uvicorn fastapi_app:app`. Run as a program it talks to itself:

Prints::

    POST /rooms/tea 201
    POST /rooms/tea 201
    GET what there is: ['hello', 'anyone here?']
    GET what comes next, while grace types: ['yes, hello ada']
    GET when no one speaks: []
    GET from nonsense: 422 expected 'epoch:offset', two whole numbers
"""

import asyncio
from typing import Annotated, Any

import httpx
from fastapi import FastAPI, HTTPException, Query

import runnel
from runnel.fastapi import Bus, Router

bus = Router()


@bus.post("/rooms/{room}", status_code=201)
async def say(room: str, text: str, broker: Bus) -> dict[str, str]:
    """Publish one line."""
    try:
        position = await broker.publish(f"rooms.{room}", text)
    except runnel.InvalidName as error:
        raise HTTPException(422, error.why) from None
    return {"position": str(position)}


@bus.get("/rooms/{room}")
async def hear(room: str, broker: Bus, after: str | None = None, wait: Annotated[float, Query(le=30)] = 20) -> Any:
    """The lines after a position, or from the beginning; waits for the first one."""
    start: str | runnel.Position = "earliest"
    lines, missed = [], 0
    try:
        if after is not None:
            seen = runnel.Position.parse(after)
            start = runnel.Position(seen.epoch, seen.offset + 1)
        async with broker.subscribe(f"rooms.{room}", start=start) as subscription, asyncio.timeout(wait):
            async for batch in subscription.batches(max_records=100):
                missed = (batch.gap.count or 0) if batch.gap else 0
                lines = [record.value.decode() for record in batch]
                after = str(batch[-1].position) if lines else after
                break
    except TimeoutError:
        pass  # no line came: an empty answer, and the client asks again
    except runnel.UsageError as error:
        raise HTTPException(422, getattr(error, "why", str(error))) from None
    return {"lines": lines, "after": after, "missed": missed}


bus.sse("/rooms/{room}/events", "rooms.{room}", start="earliest")  # and live, for EventSource
app = FastAPI()
app.include_router(bus)


async def main() -> None:
    client = httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://chat")
    async with app.router.lifespan_context(app), client:
        for text in ("hello", "anyone here?"):
            said = await client.post("/rooms/tea", params={"text": text})
            print("POST /rooms/tea", said.status_code)

        heard = (await client.get("/rooms/tea")).json()
        print("GET what there is:", heard["lines"])

        waiting = asyncio.create_task(client.get("/rooms/tea", params={"after": heard["after"]}))
        await asyncio.sleep(0.05)
        await client.post("/rooms/tea", params={"text": "yes, hello ada"})
        heard = (await waiting).json()
        print("GET what comes next, while grace types:", heard["lines"])

        silence = await client.get("/rooms/tea", params={"after": heard["after"], "wait": 0.05})
        print("GET when no one speaks:", silence.json()["lines"])

        nonsense = await client.get("/rooms/tea", params={"after": "yesterday"})
        print("GET from nonsense:", nonsense.status_code, nonsense.json()["detail"])


if __name__ == "__main__":
    asyncio.run(main())
