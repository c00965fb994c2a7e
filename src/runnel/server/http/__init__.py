"""HTTP: publish, history and live events for browsers, curl and any language.

    app = runnel.server.http.app(broker)          # an ASGI application, to mount into your own
    outer.mount("/bus", app)

`Server(broker, ServerOptions(http_port=7780))` serves the same routes, beside its other listeners.
Needs `runnel-mq[server]`.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from inspect import iscoroutinefunction
from typing import TYPE_CHECKING, Any

from runnel.core.errors import InvalidOption, NotSupported

if TYPE_CHECKING:
    from runnel.api.broker import Broker
    from runnel.server.options import ServerOptions

__all__ = ["app", "missing"]

NEEDED = ("starlette", "uvicorn", "httptools", "websockets")


def app(
    broker: Broker,
    options: ServerOptions | None = None,
    *,
    authorize: Callable[[Any, str, str], bool] | None = None,
    console: bool = True,
    publish: bool = True,
) -> Any:
    """The routes of the HTTP listener, as an ASGI application to be mounted into one of yours or served by itself.

    The broker is yours, and open. Of the options those count that limit a request or a stream, and `http_cors`. Event
    streams and WebSockets end when SIGTERM or SIGINT tells the server of the application to stop; if it is stopped in
    another way, close the broker first.

    `authorize(connection, action, topic)` decides what the user of a request may do: `connection` is Starlette's
    `HTTPConnection` with the cookies, session and user of your own login, `action` is publish, subscribe, group, create
    or admin, and `topic` a name or a pattern. It answers at once, with True or False. It is called when a subscription
    begins, and for the first publish to a topic over a WebSocket. Without it everything is allowed. The figures of the
    console and `/metrics` ask for admin on ">", and so does the use of names: named subscriptions, markers and stages
    are the application's own. `console=False` leaves the console out. `publish=False` leaves out publishing, over a
    WebSocket too.
    """
    check("the HTTP listener", ("starlette",))
    if iscoroutinefunction(authorize):
        raise InvalidOption(
            "authorize", authorize.__name__, "it is a coroutine function; give one that answers at once"
        )
    from runnel.server.http.application import build
    from runnel.server.options import ServerOptions
    from runnel.server.served_broker import ServedBroker

    serving = ServedBroker(broker, options or ServerOptions())
    return build(serving, mounted=True, authorize=authorize, with_console=console, with_publish=publish)


def missing(needed: tuple[str, ...] = NEEDED) -> list[str]:
    """The packages that the listener needs and that are not installed."""
    return [name for name in needed if find_spec(name) is None]


def check(what: str, needed: tuple[str, ...] = NEEDED) -> None:
    """Raise if something is not installed, with the command that installs it."""
    if lacking := missing(needed):
        are = "is" if len(lacking) == 1 else "are"
        raise NotSupported(what, f"{', '.join(lacking)} {are} not installed: pip install 'runnel-mq[server]'")
