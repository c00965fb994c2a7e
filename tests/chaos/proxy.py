"""A bad network in between: a TCP proxy that delays, throttles, freezes, tears and cuts what goes through it.

Told what to do by calls, or by a seeded plan (`Weather`). It knows nothing of what the bytes mean, so a cut falls in
the middle of a frame as often as not.
Above: storm.
"""

from __future__ import annotations

import asyncio
import random
import socket
import struct
from collections import Counter
from collections.abc import Awaitable, Callable

CHUNK = 64 << 10
FORGOTTEN = 20.0  # seconds after which even a half-open connection is torn down here


class Line:
    """One connection through the proxy: a client, a server, and two pipes."""

    def __init__(self, proxy: Proxy, near: tuple[asyncio.StreamReader, asyncio.StreamWriter]) -> None:
        self.proxy = proxy
        self.gates = (asyncio.Event(), asyncio.Event())  # to the server, to the client; closed: nothing passes
        self.tear: int | None = None  # forward so many bytes more at most, then reset
        self._near = near
        self._writers = [near[1]]
        for gate in self.gates:
            gate.set()

    async def run(self) -> None:
        """Carry bytes until one side is gone."""
        proxy = self.proxy
        if proxy.black_hole:
            await asyncio.sleep(FORGOTTEN)
            return
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", proxy.target)
        except OSError:  # nobody is there: the client is told the hard way
            self.reset()
            return
        self._writers.append(writer)
        pipes = [
            asyncio.create_task(self._carry(self._near[0], writer, 0)),
            asyncio.create_task(self._carry(reader, self._near[1], 1)),
        ]
        try:
            await asyncio.wait(pipes, return_when=asyncio.FIRST_COMPLETED)
            if not all(gate.is_set() for gate in self.gates):
                await asyncio.wait(pipes, timeout=FORGOTTEN)  # half-open: the other side learns nothing of it
            else:
                await asyncio.wait(pipes, timeout=1.0)  # what is under way the other way still arrives
        finally:
            for pipe in pipes:
                pipe.cancel()
            await asyncio.gather(*pipes, return_exceptions=True)

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, way: int) -> None:
        try:
            while data := await reader.read(CHUNK):
                await self._pass(data, writer, way)
            await self.gates[way].wait()
            writer.write_eof()
        except OSError:
            pass

    async def _pass(self, data: bytes, writer: asyncio.StreamWriter, way: int) -> None:
        proxy = self.proxy
        if proxy.delay:
            await asyncio.sleep(proxy.delay * proxy.rng.random())
        await self.gates[way].wait()
        if self.tear is not None:
            writer.write(data[: self.tear])
            await asyncio.sleep(0.01)  # for the system to send it
            self.reset()
            return
        step = max(1, proxy.rate // 100) if proxy.rate else len(data)
        for at in range(0, len(data), step):
            writer.write(data[at : at + step])
            await writer.drain()
            if proxy.rate:
                await asyncio.sleep(0.01)
        proxy.carried += len(data)

    def reset(self) -> None:
        """RST to both: what was under way is lost."""
        for writer in self._writers:
            sock = writer.get_extra_info("socket")
            if sock is not None and sock.fileno() >= 0:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            writer.transport.abort()

    def close(self) -> None:
        """FIN to both, after what was written."""
        for writer in self._writers:
            writer.close()


class Proxy:
    """Listens on a port of its own and carries everything to `target`, as badly as it is told to."""

    def __init__(self, target: int, rng: random.Random) -> None:
        self.target, self.rng = target, rng
        self.port = 0
        self.delay = 0.0  # seconds at most, for each piece
        self.rate = 0  # bytes a second for each way; 0: as fast as it goes
        self.black_hole = False  # who connects is accepted and hears nothing
        self.carried = 0  # bytes
        self.seen: Counter[str] = Counter()  # what was done, and how often
        self.lines: dict[Line, asyncio.Task[None]] = {}
        self._server: asyncio.Server | None = None

    async def __aenter__(self) -> Proxy:
        await self.listen()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.refuse()
        for line, task in list(self.lines.items()):
            line.reset()
            task.cancel()
        await asyncio.gather(*self.lines.values(), return_exceptions=True)

    async def listen(self) -> None:
        """Let clients in."""
        if self._server is None:
            self._server = await asyncio.start_server(self._accept, "127.0.0.1", self.port)
            self.port = self._server.sockets[0].getsockname()[1]

    async def refuse(self) -> None:
        """Nobody else gets in; those who are in stay."""
        if self._server is not None:
            self._server.close()
            self._server = None

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        line = Line(self, (reader, writer))
        task = asyncio.current_task()
        assert task is not None
        self.lines[line] = task
        try:
            await line.run()
        except asyncio.CancelledError:
            pass
        finally:
            line.close()
            del self.lines[line]

    # -- what it does to them -----------------------------------------------------------------------------------

    def cut(self, share: float, *, reset: bool) -> None:
        """End some connections, with an RST or a FIN."""
        for line in self._some(share):
            line.reset() if reset else line.close()

    def tear(self, share: float) -> None:
        """Let some connections carry a few bytes more, and reset them there."""
        for line in self._some(share):
            line.tear = self.rng.randrange(1, 400)

    def freeze(self, share: float, ways: tuple[int, ...]) -> list[Line]:
        """Let nothing more through on some connections, one way or both; which they are."""
        chosen = self._some(share)
        for line in chosen:
            for way in ways:
                line.gates[way].clear()
        return chosen

    @staticmethod
    def thaw(lines: list[Line]) -> None:
        """What was held up goes on."""
        for line in lines:
            for gate in line.gates:
                gate.set()

    def _some(self, share: float) -> list[Line]:
        chosen = [line for line in self.lines if self.rng.random() < share]
        return chosen or list(self.lines)[:1]


class Weather:
    """One trouble after another, as a seed chooses."""

    def __init__(self, proxy: Proxy, rng: random.Random, calm: float = 0.5) -> None:
        self._proxy, self._rng, self._calm = proxy, rng, calm
        self.troubles: dict[str, Callable[[], Awaitable[None]]] = {
            "cut": self._cut,
            "reset": self._reset,
            "torn": self._torn,
            "frozen": self._frozen,
            "half-open": self._half_open,
            "delayed": self._delayed,
            "throttled": self._throttled,
            "refused": self._refused,
            "swallowed": self._swallowed,
        }

    async def run(self) -> None:
        """Until cancelled; each trouble once before any comes again."""
        rng, coming = self._rng, list(self.troubles)
        rng.shuffle(coming)
        while True:
            await asyncio.sleep(self._calm * (0.5 + rng.random()))
            if not coming:
                coming = list(self.troubles)
                rng.shuffle(coming)
            trouble = coming.pop()
            self._proxy.seen[trouble] += 1
            await self.troubles[trouble]()

    def clear(self) -> None:
        """No more trouble for whoever connects from now on; all that is connected is cut."""
        proxy = self._proxy
        proxy.delay, proxy.rate, proxy.black_hole = 0.0, 0, False
        proxy.cut(1.1, reset=True)

    async def _cut(self) -> None:
        self._proxy.cut(self._rng.random(), reset=False)

    async def _reset(self) -> None:
        self._proxy.cut(self._rng.random(), reset=True)

    async def _torn(self) -> None:
        self._proxy.tear(self._rng.random())

    async def _frozen(self) -> None:
        lines = self._proxy.freeze(0.7, self._rng.choice(((0,), (1,), (0, 1))))
        await asyncio.sleep(0.3 + self._rng.random())
        self._proxy.thaw(lines)

    async def _half_open(self) -> None:
        self._proxy.freeze(0.5, self._rng.choice(((0,), (1,), (0, 1))))  # for good: pings have to find out

    async def _delayed(self) -> None:
        self._proxy.delay = 0.02 + 0.2 * self._rng.random()
        await asyncio.sleep(1.0)
        self._proxy.delay = 0.0

    async def _throttled(self) -> None:
        self._proxy.rate = self._rng.choice((4_000, 30_000, 200_000))
        await asyncio.sleep(1.0)
        self._proxy.rate = 0

    async def _refused(self) -> None:
        await self._proxy.refuse()
        self._proxy.cut(0.5, reset=True)
        await asyncio.sleep(0.5 * self._rng.random())
        await self._proxy.listen()

    async def _swallowed(self) -> None:
        self._proxy.black_hole = True
        self._proxy.cut(0.5, reset=False)
        await asyncio.sleep(0.5)
        self._proxy.black_hole = False
