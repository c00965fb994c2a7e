"""An application of a user's with the routes of runnel below /bus, for ASGI servers in processes of their own."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from starlette.applications import Starlette
from starlette.routing import Mount

import runnel
from runnel.server import http

broker = runnel.open()


@asynccontextmanager
async def lifespan(app: Starlette) -> AsyncIterator[None]:
    """The broker is open while the application runs."""
    async with broker:
        yield


app = Starlette(lifespan=lifespan, routes=[Mount("/bus", http.app(broker))])
