"""A gateway: the doors of a server that lives elsewhere. It keeps nothing, so there can be as many as are needed.

A native client's bytes go to the engine as they are, over a connection of its own: what holds between a client and a
server holds through any number of gateways. The JSON door is a client of the engine itself.
Below: entrance, relay, lines_door, client. Above: cli.
"""

from __future__ import annotations

import asyncio
import logging
from types import TracebackType
from typing import TYPE_CHECKING, cast

from runnel.client.address import Address, parse
from runnel.client.broker import RemoteBroker
from runnel.client.options import ClientOptions
from runnel.client.plain import reason
from runnel.core.errors import NotSupported, RunnelError
from runnel.core.network_errors import Unreachable
from runnel.server.connections import Connections
from runnel.server.entrance import DEADLINE, RETRY, Entrance
from runnel.server.lines_door import LinesDoor
from runnel.server.options import ServerOptions
from runnel.server.relay import Relay
from runnel.server.serving import Door

if TYPE_CHECKING:
    from runnel.broker.broker import Broker

CONNECT = 3.0  # seconds for the engine to accept, if its url does not say: less than clients wait for a greeting
FOR_EVER = 1e9  # seconds: the JSON door goes on trying, whenever the engine comes

log = logging.getLogger("runnel")


class Gateway:
    """Doors before another server, the engine. It relays while its block lasts.

    >>> async with Gateway("runnel://engine:7788", ServerOptions(port=7788)) as gateway:
    ...     print(gateway.doors)

    `engine` is what `runnel.open` takes for a server; several hosts are tried in turn, and must be doors of one and
    the same broker. While none can be reached, clients are told so (`Unreachable`), and try again.
    """

    def __init__(self, engine: str, options: ServerOptions | None = None) -> None:
        self.engine, self.options = engine, options or ServerOptions()
        self._addresses, written = parse(engine)
        self._client = ClientOptions.of({}, {"connect_timeout": f"{CONNECT}", **written})
        self._connections = Connections(self.options.max_connections)
        self._entrance: Entrance | None = None
        self._broker: RemoteBroker | None = None
        self._joining: asyncio.Task[RemoteBroker] | None = None
        self._trouble: Unreachable | None = None  # why the engine could not be reached the last time

    def __repr__(self) -> str:
        doors = ", ".join(door.url for door in self.doors) or "no doors"
        return f"<Gateway {doors} before {self.engine}, {self.connections} connections>"

    @property
    def doors(self) -> list[Door]:
        """Where it can be reached: the real port where port 0 was asked for."""
        return [] if self._entrance is None else self._entrance.doors

    @property
    def connections(self) -> int:
        """How many clients are connected, at all doors."""
        return len(self._connections)

    async def __aenter__(self) -> Gateway:
        if self._entrance is not None:
            raise NotSupported("starting a gateway twice", "make another one")
        if any(address.tls for address in self._addresses):
            self._client.ssl_context()  # what is wrong with its files is told now, and not to the first client
        self._broker = RemoteBroker(self.engine, wait=FOR_EVER, name="gateway")
        self._entrance = Entrance(self.options, self._connections, self._relayed, self._lined)
        await self._entrance.open()
        if self.options.json_port is not None:
            self._joining = asyncio.create_task(self._broker.__aenter__())
            self._joining.add_done_callback(_told)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close(DEADLINE if error is None else 0.0)

    async def close(self, deadline: float = DEADLINE, retry: float = RETRY) -> None:
        """Accept nobody any more, let the engine answer what is under way, close. A second call closes at once.

        To native clients it is a lost connection, so that they go to another gateway at once: `retry` counts for
        nobody. What is not done after `deadline` seconds is cut off.
        """
        if self._entrance is not None:
            await self._entrance.close(deadline, "the gateway stops", retry)
        if self._joining is not None and not self._joining.done():
            self._joining.cancel()
            await asyncio.wait([self._joining])
        if self._broker is not None and self._joining is not None:
            await self._broker.__aexit__(None, None, None)

    def abort(self) -> None:
        """Close everything now, without a word: clients take it for a lost connection, and go elsewhere."""
        if self._entrance is not None:
            self._entrance.abort()

    # -- the native door ----------------------------------------------------------------------------------------

    def _relayed(self) -> asyncio.BaseProtocol:
        return Relay(self.options, self._connections, self._dial).near

    async def _dial(self, protocol: asyncio.Protocol) -> None:
        """Connect `protocol` to the engine, or `Unreachable`. The address that answered last is tried first."""
        trouble: Unreachable | None = None
        for address in self._addresses:
            try:
                await self._connect(address, protocol)
            except Unreachable as error:
                trouble = error
            else:
                self._addresses = (address, *(one for one in self._addresses if one != address))
                if self._trouble is not None:
                    log.info("the engine is there again, at %s", address)
                self._trouble = None
                return
        assert trouble is not None
        if self._trouble is None:  # once, and not for every client that tries
            log.warning("clients are sent away: %s", trouble)
        self._trouble = trouble
        raise trouble

    async def _connect(self, address: Address, protocol: asyncio.Protocol) -> None:
        loop, options = asyncio.get_running_loop(), self._client
        try:
            async with asyncio.timeout(options.connect_timeout):
                if address.path:
                    await loop.create_unix_connection(lambda: protocol, address.path)
                elif address.tls:
                    hostname = options.server_hostname or address.host
                    await loop.create_connection(
                        lambda: protocol,
                        address.host,
                        address.port,
                        ssl=options.ssl_context(),
                        server_hostname=hostname,
                        ssl_handshake_timeout=options.connect_timeout,
                    )
                else:
                    await loop.create_connection(lambda: protocol, address.host, address.port)
        except TimeoutError:
            raise Unreachable(f"{address} (the engine)", f"no answer within {options.connect_timeout:g} s") from None
        except OSError as error:
            raise Unreachable(f"{address} (the engine)", reason(error)) from None

    # -- the JSON door ------------------------------------------------------------------------------------------

    def _lined(self) -> asyncio.BaseProtocol:
        broker = self._broker
        assert broker is not None, "made before anybody is accepted"
        refusal = None
        if not broker.connection.connections:
            why = getattr(broker.connection.error, "why", None) or "it was not reached yet"
            refusal = Unreachable(f"{self.engine} (the engine)", why)
        return LinesDoor(cast("Broker", broker), self.options, self._connections, refusal)


def _told(joining: asyncio.Task[RemoteBroker]) -> None:
    """What keeps the JSON door from the engine for ever, if anything does."""
    if not joining.cancelled() and (error := joining.exception()) is not None:
        level = log.error if isinstance(error, RunnelError) else log.critical
        level("the JSON door cannot reach the engine: %s", error)
