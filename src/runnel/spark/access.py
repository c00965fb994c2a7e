"""From the options of a query to a line: to the server they name, or to whoever owns the folder they name.

A folder has one owner. If somebody has it open, their socket is the way in; if nobody has, this process opens it for as
long as it takes, and lets the other tasks in. So tasks on one machine share a folder without a server.
Below: line, options; place, for a folder. Above: staging, committing, cursor.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from runnel.client.address import Address, parse
from runnel.client.options import ClientOptions
from runnel.client.plain import dial
from runnel.core.network_errors import Unreachable
from runnel.spark.line import Line
from runnel.spark.options import Place

WAIT = 30.0  # seconds to go on trying, if nobody says otherwise: a server may be starting again


@contextmanager
def open_line(place: Place) -> Iterator[Line]:
    """A line to where `place` is."""
    if place.url is not None:
        url = parse(place.url)
        options = ClientOptions.of(place.client, {"wait": str(WAIT), "name": "spark"} | url.options)
        with Line(lambda: url.addresses, options) as line:
            yield line
        return
    assert place.path is not None, "options name a server or a folder"
    options = ClientOptions.of({"wait": WAIT, "name": "spark"})
    with ExitStack() as held:
        owner = Owner(Path(place.path).absolute(), options, held)
        with Line(owner.addresses, options) as line:
            yield line


class Owner:
    """Whoever owns a folder: somebody else, or this process, from when it is needed until `held` is left."""

    def __init__(self, folder: Path, options: ClientOptions, held: ExitStack) -> None:
        self._folder, self._options, self._held = folder, options, held
        self._is_open = False

    def __repr__(self) -> str:
        return f"<Owner of {str(self._folder)!r}, {'perhaps this process' if self._is_open else 'somebody else'}>"

    def addresses(self) -> Sequence[Address]:
        """The way to the owner. If nobody answers there, the folder is opened: this one owns it, or joins who does."""
        if not self._is_open and not self._answers():
            from runnel import blocking

            self._held.enter_context(blocking.open(self._folder))
            self._is_open = True  # from now on it takes over by itself, if it has to
        return [self._address()]

    def _answers(self) -> bool:
        try:
            dial(self._address(), self._options).close()
        except Unreachable:
            return False
        return True

    def _address(self) -> Address:
        from runnel.place.folder_door import socket_of  # only a folder needs it: it loads the event loop

        return Address("", 0, str(socket_of(self._folder)))
