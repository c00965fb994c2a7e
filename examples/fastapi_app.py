"""A chat room over HTTP: POST says something, GET waits for what comes next.

The broker lives as long as the application (lifespan), and each endpoint gets it as a dependency.
GET is a long poll: it answers with the records after a position, at once or when there are some. A
client that comes back with the last position it saw misses nothing that is still kept, and is told
when something is not.

Serve it with `uvicorn fastapi_app:app`. Run as a program it talks to itself:

Prints::

    POST /rooms/tea 201
    POST /rooms/tea 201
    GET what there is: ['hello', 'anyone here?']
    GET what comes next, while grace types: ['yes, hello ada']
    GET when nobody speaks: []
    GET from nonsense: 422 expected 'epoch:offset', two whole numbers
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated, Any

import httpx
from fastapi import Depends, FastAPI, HTTPException, Query, Request

import runnel


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    async with runnel.open() as broker:
        app.state.broker = broker
        yield


app = FastAPI(lifespan=lifespan)


def get_broker(request: Request) -> runnel.Broker:
    broker: runnel.Broker = request.app.state.broker
    return broker


Bus = Annotated[runnel.Broker, Depends(get_broker)]


@app.post("/rooms/{room}", status_code=201)
async def say(room: str, text: str, bus: Bus) -> dict[str, str]:
    """Publish one line."""
    try:
        position = await bus.publish(f"rooms.{room}", text)
    except runnel.InvalidName as error:
        raise HTTPException(422, error.why) from None
    return {"position": str(position)}


@app.get("/rooms/{room}")
async def hear(room: str, bus: Bus, after: str | None = None, wait: Annotated[float, Query(le=30)] = 20) -> Any:
    """The lines after a position, or from the beginning; waits for the first one."""
    start: str | runnel.Position = "earliest"
    lines, missed = [], 0
    try:
        if after is not None:
            seen = runnel.Position.parse(after)
            start = runnel.Position(seen.epoch, seen.offset + 1)
        async with bus.subscribe(f"rooms.{room}", start=start) as subscription, asyncio.timeout(wait):
            async for batch in subscription.batches(max_records=100):
                missed = (batch.gap.count or 0) if batch.gap else 0
                lines = [record.value.decode() for record in batch]
                after = str(batch[-1].position) if lines else after
                break
    except TimeoutError:
        pass  # nobody spoke: an empty answer, and the client asks again
    except runnel.UsageError as error:
        raise HTTPException(422, getattr(error, "why", str(error))) from None
    return {"lines": lines, "after": after, "missed": missed}


async def main() -> None:
    async with lifespan(app), httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://chat") as client:
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
        print("GET when nobody speaks:", silence.json()["lines"])

        nonsense = await client.get("/rooms/tea", params={"after": "yesterday"})
        print("GET from nonsense:", nonsense.status_code, nonsense.json()["detail"])


if __name__ == "__main__":
    asyncio.run(main())
