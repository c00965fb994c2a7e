"""Orders over HTTP, by as many worker processes as you like: all of them open the same folder.

    uvicorn app:app --workers 4

The first worker owns the folder, the others go through it by themselves. When the owner dies, another takes over,
and every subscription goes on where it was.
"""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated

from fastapi import Depends, FastAPI, Request

import runnel

FOLDER = os.environ.get("ORDERS_FOLDER", "data")


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    app.state.seen = 0
    async with runnel.open(FOLDER) as broker:
        app.state.broker = broker
        watching = asyncio.create_task(watch(app, broker))
        yield
        watching.cancel()


async def watch(app: FastAPI, broker: runnel.Broker) -> None:
    """Every worker sees every order, whichever worker took it."""
    async with broker.subscribe("orders", start="earliest") as orders:
        async for _ in orders:
            app.state.seen += 1


app = FastAPI(lifespan=lifespan)


def get_broker(request: Request) -> runnel.Broker:
    broker: runnel.Broker = request.app.state.broker
    return broker


@app.post("/orders/{order}", status_code=201)
async def take(order: str, broker: Annotated[runnel.Broker, Depends(get_broker)]) -> dict[str, str]:
    """Answered when the order is on disk. Sent again, it is stored once: its name is the message's id."""
    position = await broker.publish("orders", order, message_id=order)
    return {"position": str(position)}


@app.get("/seen")
async def seen(request: Request) -> dict[str, int]:
    """How many orders this worker has seen."""
    return {"worker": os.getpid(), "seen": request.app.state.seen}
