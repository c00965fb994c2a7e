"""Errors on the wire: an error of the server is raised as the same error in the client.

The class is found by its code; message and facts are sent unchanged. An error with an unknown code is raised
as its base class (`NotNow`, say) with that code, so a newer server can add errors.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from runnel.core.errors import Damaged, Ended, NotNow, RunnelError, UsageError
from runnel.core.record import Gap
from runnel.wire.frames import FrameKind, frame
from runnel.wire.msgpack_messages import WireError, decode_message, encode_message

_BRANCHES = (UsageError, NotNow, Ended, Damaged)
_LARGEST, _SMALLEST = 2**64 - 1, -(2**63)
_DEPTH = 4
_MAX_TEXT = 10_000  # of one fact: an error is to be read, and has to fit into a frame

# Facts that are more than msgpack can say, and how they are made again.
_MADE_AGAIN: dict[str, Any] = {
    "gap": lambda fact: msgspec.convert(fact, Gap),
    "subscribers": lambda fact: msgspec.convert(fact, tuple[str, ...]),
}

_OWN_BY_ALL = frozenset(dir(RunnelError()))


def wire_error(error: BaseException) -> WireError:
    """An error, as it travels. One that is not runnel's own says no more than its type: the rest is for a log."""
    if not isinstance(error, RunnelError):
        return WireError(
            code=RunnelError.code, message=f"the server failed at this ({type(error).__name__}); its log says more"
        )
    facts = {name: _simple(fact) for name, fact in vars(error).items() if not _hidden(name)}
    branch = next((one.code for one in _BRANCHES if isinstance(error, one)), "")
    return WireError(code=error.code, message=str(error), facts=facts, branch=branch)


def error_from_wire(trouble: WireError) -> RunnelError:
    """The error that travelled. Its `__init__` is not called: what it would say is in the message already."""
    known = _by_code(trouble.code)
    kind = known or _by_code(trouble.branch) or RunnelError
    error = kind.__new__(kind)
    error.args = (trouble.message,)
    for name, fact in trouble.facts.items():
        if name.isidentifier() and not _hidden(name):
            error.__dict__[name] = _made_again(name, fact)
    if known is None:
        error.__dict__["code"] = trouble.code
    return error


def error_frame(id: int, error: BaseException) -> bytes:
    """An ERROR for a request or a subscription; for id 0 it ends the connection."""
    return frame(FrameKind.ERROR, id, encode_message(wire_error(error)))


def read_error(payload: bytes) -> RunnelError:
    """The error in an ERROR."""
    return error_from_wire(decode_message(WireError, payload))


def _hidden(name: str) -> bool:
    return name.startswith("_") or name in _OWN_BY_ALL


def _by_code(code: str) -> type[RunnelError] | None:
    return next((kind for kind in _family(RunnelError) if kind.code == code), None)


def _family(root: type[RunnelError]) -> Iterator[type[RunnelError]]:
    """The class and all below it that are runnel's own: a program may have made others."""
    yield root
    for child in root.__subclasses__():
        if child.__module__.startswith("runnel."):
            yield from _family(child)


def _made_again(name: str, fact: Any) -> Any:
    make = _MADE_AGAIN.get(name)
    if make is None or fact is None:
        return fact
    try:
        return make(fact)
    except msgspec.ValidationError:  # another error may have a fact of that name
        return fact


def _simple(fact: Any, depth: int = 0) -> Any:
    """A fact that msgpack can say; the text of one that it cannot."""
    match fact:
        case None | bool() | float():
            return fact
        case int() if _SMALLEST <= fact <= _LARGEST:
            return int(fact)
        case str() | bytes() if len(fact) <= _MAX_TEXT:
            return fact
        case list() | tuple() | set() | frozenset() if depth < _DEPTH:
            return [_simple(one, depth + 1) for one in fact]
        case dict() if depth < _DEPTH:
            return {str(name): _simple(one, depth + 1) for name, one in fact.items()}
        case msgspec.Struct() if depth < _DEPTH:
            return _simple(msgspec.structs.asdict(fact), depth + 1)
    return repr(fact)[:_MAX_TEXT]
