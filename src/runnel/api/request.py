"""Values of requests and replies: the result or error of a responder, as the requester gets it.

A reply is bytes, text, or any value that msgspec encodes, as JSON. A failure is a reply whose header `runnel-error` is
the code of the error; the requester gets it as `RequestFailed`.
"""

from __future__ import annotations

from typing import Any

import msgspec

from runnel.core.errors import InvalidValue, RequestFailed, ValidationFailed
from runnel.core.pydantic_types import as_json_value
from runnel.core.record import FAILURE, Record
from runnel.core.replies import Replies
from runnel.core.schema import codec_of

MAX_REASON = 10_000  # characters of an error that are sent


def reply_value(topic: str, value: object) -> bytes | str:
    """The encoded reply for the value that a responder returned."""
    if isinstance(value, bytes | str):
        return value
    if isinstance(value, bytearray | memoryview):
        return bytes(value)
    try:
        return msgspec.json.encode(value, enc_hook=as_json_value)
    except (TypeError, ValueError, OverflowError, RecursionError, NotImplementedError) as error:
        why = f"reply with bytes, text, or what msgspec or Pydantic encodes: {error}"
        raise InvalidValue(topic, "reply", value, why) from None


def failure_reply(error: BaseException) -> tuple[str, dict[str, str]]:
    """The value and headers of a reply that says that the responder failed."""
    reason = str(error).encode(errors="replace").decode()
    return reason[:MAX_REASON], {FAILURE: failure_code(error)}


def failure_code(error: BaseException) -> str:
    """The code of an error or, of a plain exception, its class."""
    code = getattr(error, "code", None)
    return code if isinstance(code, str) and code else type(error).__name__


def opened_replies(topic: str, replies: list[Record[bytes]], type_: Any) -> Replies[Any]:
    """All replies with their values decoded, apart from those that say an error or do not decode."""
    opened: Replies[Any] = Replies()
    for reply in replies:
        try:
            opened.append(opened_reply(topic, reply, type_))
        except (RequestFailed, ValidationFailed) as error:
            opened.failures.append(error)
    return opened


def opened_reply(topic: str, reply: Record[bytes], type_: Any) -> Record[Any]:
    """The reply with its value decoded, or the error that it says."""
    code = reply.headers.get(FAILURE)
    if code is not None:
        raise RequestFailed(topic, code, reply.value.decode(errors="replace"))
    if type_ is None or type_ is bytes:
        return reply
    value = reply.value.decode() if type_ is str else codec_of(type_).decode(f"the reply of {topic}", reply.value)
    return msgspec.structs.replace(reply, value=value)
