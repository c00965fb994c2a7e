"""What differs from run to run is masked, here and nowhere else: the same for recording and for comparing.

Masked by what it looks like, wherever it stands:

- an epoch (a whole number from 3e15 to 1e16, or 16 such digits in a text): the number of the epoch in this exchange, 1
  for the first, so that two lives of a topic stay apart
- a time: microseconds (1.5e15 to 3e15), seconds (a float from 1.5e9 to 3e9), or a text such as 2026-01-02T03:04:05Z
- the port in an address of this machine
- a trace context, and the random part of the inbox of a request
- in a stream of server-sent events: `id:` and `retry:`
- the version of the package, where a key `version` or a text `runnel 0.1.0` tells it

Masked by the name of the field (`BY_NAME`): ids of journals and connections, addresses, ports, ages, durations.

A masked number is 0, a masked text is its name in angle brackets. Everything else is compared as it is.
"""

from __future__ import annotations

import re
from typing import Any

import runnel

BY_NAME = frozenset(
    {"journal", "connection", "peer", "port", "url", "pid", "uptime", "since", "age", "oldest_unacked_age"}
)

_EPOCHS, _MICROS, _SECONDS = range(3 * 10**15, 10**16), range(15 * 10**14, 3 * 10**15), (1.5e9, 3e9)
_EPOCH = re.compile(r"(?<![\d.])[3-9]\d{15}(?!\d)")
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?(?:Z|[+-]\d\d:\d\d)")
_TRACE = re.compile(r"00-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")
_INBOX = re.compile(r"(\$runnel\.inbox\.)[0-9a-f]+")
_ADDRESS = re.compile(r"(://127\.0\.0\.1:)\d+")
_EVENT = re.compile(r"^(id|retry): .*$", re.MULTILINE)
_VERSION = re.compile(rf'(runnel[/ ]|"version":"){re.escape(str(runnel.__version__))}')


class Masker:
    """Masks the answers of one exchange. It remembers the epochs that it has seen."""

    def __init__(self) -> None:
        self._epochs: dict[int, int] = {}

    def number(self, value: int) -> int:
        """A whole number."""
        if value in _EPOCHS:
            return self._epochs.setdefault(value, len(self._epochs) + 1)
        return 0 if value in _MICROS else value

    def text(self, value: str) -> str:
        """A text, or the body of an answer."""
        value = _TIME.sub("<time>", value)
        value = _EPOCH.sub(lambda found: f"<epoch {self.number(int(found[0]))}>", value)
        value = _TRACE.sub("<traceparent>", value)
        value = _ADDRESS.sub(r"\1<port>", value)
        value = _INBOX.sub(r"\1<life>", value)
        return _VERSION.sub(r"\1<version>", value)

    def events(self, value: str) -> str:
        """A piece of a stream of server-sent events."""
        return _EVENT.sub(r"\1: <\1>", self.text(value))

    def value(self, value: Any, name: str = "") -> Any:
        """A decoded value. `name`: that of the field it stands in."""
        if isinstance(value, dict):
            return {str(key): self.value(one, str(key)) for key, one in value.items()}
        if isinstance(value, list | tuple):
            return [self.value(one, name) for one in value]
        if value is None or isinstance(value, bool | bytes):
            return value
        if name in BY_NAME or (name == "version" and value == runnel.__version__):
            return f"<{name}>" if isinstance(value, str) else type(value)()
        if isinstance(value, int):
            return self.number(value)
        if isinstance(value, float):
            return 0.0 if _SECONDS[0] < value < _SECONDS[1] else value
        return self.text(value) if isinstance(value, str) else value
