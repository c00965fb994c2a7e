"""Errors as HTTP responses: one table of status codes, and problem documents (RFC 9457) with runnel's error codes."""

from __future__ import annotations

import logging
import re
from typing import Any

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from runnel.core.errors import Damaged, Ended, NotNow, RunnelError, UsageError
from runnel.server.request_id import CURRENT

PROBLEM_JSON = "application/problem+json"

# Errors that are not listed have the status of their base class.
STATUS = {
    "unknown_topic": 404,
    "unknown_group": 404,
    "unknown_name": 404,
    "origin_refused": 403,
    "not_authenticated": 401,
    "token_expired": 401,
    "access_revoked": 401,
    "not_authorized": 403,
    "name_owned": 403,
    "host_refused": 421,
    "name_in_use": 409,
    "topic_conflict": 409,
    "schema_conflict": 409,
    "offset_conflict": 409,
    "mark_conflict": 409,
    "key_conflict": 409,
    "topic_deleted": 410,
    "too_large": 413,
    "offset_out_of_range": 416,
    "validation_failed": 422,
    "limit_exceeded": 503,
    "full": 503,
    "not_supported": 501,
    "no_answer": 504,
    "publish_timeout": 504,
    "request_timeout": 504,
    "request_failed": 502,
    "disk_full": 507,
    "archive_behind": 507,
}
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
BRANCHES: tuple[tuple[type[RunnelError], int], ...] = ((UsageError, 400), (NotNow, 503), (Ended, 503), (Damaged, 500))

CODES = {404: "no_such_route", 405: "method_not_allowed", 408: "request_incomplete", 426: "upgrade_required"}
MAX_DETAIL = 1_000  # characters of a detail, which may repeat what it was given
RETRY_AFTER = "1"  # seconds

log = logging.getLogger("runnel")


def status_of(error: RunnelError) -> int:
    """The HTTP status of an error."""
    if error.code in STATUS:
        return STATUS[error.code]
    return next((status for branch, status in BRANCHES if isinstance(error, branch)), 500)


def error_response(error: RunnelError, /, **facts: Any) -> Response:
    """The response for `error`, with more facts about it."""
    status = status_of(error)
    headers = {"retry-after": RETRY_AFTER} if status == 503 else {}
    if status == 401:
        headers["www-authenticate"] = "Bearer"
    return problem_response(status, error.code, str(error), headers=headers, **facts)


def problem_response(
    status: int, code: str, detail: str, *, headers: dict[str, str] | None = None, **facts: Any
) -> Response:
    """A problem document as a response."""
    return Response(problem_document(status, code, detail, **facts), status, headers, PROBLEM_JSON)


def problem_document(status: int, code: str, detail: str, **facts: Any) -> bytes:
    """The bytes of a problem document. A long detail keeps its beginning and end."""
    if len(detail) > MAX_DETAIL:
        detail = f"{detail[: MAX_DETAIL // 2]} … {detail[-MAX_DETAIL // 2 :]}"
    title = code.replace("_", " ")
    kind = f"urn:runnel:error:{code}"
    told = {"type": kind, "title": title, "status": status, "code": code, "detail": detail, **facts}
    return msgspec.json.encode(told)


async def on_runnel_error(request: Request, error: Exception) -> Response:
    """A request that runnel refused."""
    assert isinstance(error, RunnelError)
    return error_response(error, **getattr(error, "http_facts", {}))


async def on_http_error(request: Request, error: Exception) -> Response:
    """A request that no route takes."""
    assert isinstance(error, HTTPException)
    if error.status_code == 404 and (found := _CONTROL.search(request.scope["path"])):
        return problem_response(400, "bad_request", f"the path holds {found.group()!r}, which no topic and no file has")
    code = CODES.get(error.status_code, "bad_request")
    said = dict(error.headers or {})
    return problem_response(
        error.status_code, code, f"{request.method} {request.url.path}: {error.detail}", headers=said
    )


async def on_failure(request: Request, error: Exception) -> Response:
    """An internal error of the server. Its details stay in the log."""
    log.error("the server failed at %s %r", request.method, request.url.path, exc_info=error)
    return problem_response(500, "runnel_error", "the server failed; its log says why", request=CURRENT.get())
