"""For each kind of option a value that is allowed and one that is not, in Python, in JSON and as text.

Tests of the listeners go through the fields of `PublishOptions` and `SubscribeOptions` with these, so an option that is
added there is tested at every listener.
"""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest

from runnel.broker.backend import LocalBackend
from runnel.core.options import Option, OptionKind, Policy, SubscribeOptions, options_of


class Sample(NamedTuple):
    """A value in Python, and how it is written in JSON and as text; and a wrong one in JSON and as text."""

    value: Any
    json: Any
    text: str
    wrong_json: Any
    wrong_text: str


SAMPLES = {
    OptionKind.START: Sample("earliest", "earliest", "earliest", "soon", "soon"),
    OptionKind.NAME: Sample("n", "n", "n", "", ""),
    OptionKind.PRESENCE: Sample("Ada", "Ada", "Ada", "", ""),
    OptionKind.GROUP: Sample("g", "g", "g", "not a name", "not a name"),
    OptionKind.TOPIC: Sample("dead", "dead", "dead", "not a name", "not a name"),
    OptionKind.POLICY: Sample(Policy.disconnect(7), "disconnect:7", "disconnect:7", "nonsense", "nonsense"),
    OptionKind.COUNT: Sample(5, 5, "5", 0, "0"),
    OptionKind.SIZE: Sample(4096, 4096, "4096", 0, "0"),
    OptionKind.SWITCH: Sample(True, True, "true", "yes please", "yes please"),
    OptionKind.DURATION: Sample(2.5, 2.5, "2.5", 0, "0"),
    OptionKind.PAUSES: Sample((1.0, 2.5), [1, 2.5], "1,2.5", [], ""),
    OptionKind.SHARE: Sample(0.5, 0.5, "0.5", 1.5, "1.5"),
    OptionKind.KEY: Sample(b"k", "k", "k", 5, "\N{SNOWMAN}\n"),
    OptionKind.HEADERS: Sample({"a": "b"}, {"a": "b"}, "a=b", {"a": 1}, "a"),
    OptionKind.SECONDS: Sample(1.5, 1.5, "1.5", -1, "-1"),
    OptionKind.PRIORITY: Sample(9, 9, "9", 10, "10"),
    OptionKind.MESSAGE_ID: Sample("m", "m", "m", "", ""),
    OptionKind.OFFSET: Sample(3, 3, "3", -1, "-1"),
    OptionKind.TYPE: Sample(int, None, "", None, ""),
    OptionKind.FUNCTION: Sample(print, None, "", None, ""),
}

PYTHON_WRONG: dict[OptionKind, Any] = {kind: sample.wrong_json for kind, sample in SAMPLES.items()} | {
    OptionKind.FUNCTION: "print",
    OptionKind.HEADERS: [("a", "b")],
}


def sampled(options: type) -> Iterator[tuple[str, Option, Sample]]:
    """Every option of a struct, and values for it."""
    for name, option in options_of(options).items():
        yield name, option, SAMPLES[option.kind]


def beside(name: str, option: Option) -> dict[str, Any]:
    """What an option of `subscribe` needs beside it."""
    if name == "hold":
        return {"name": "held"}
    return {"group": "g"} if option.only == "group" else {}


class Asked:
    """Notes what a broker was asked for, the newest last."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.found: list[SubscribeOptions] = []
        for kind in ("reader", "member"):
            monkeypatch.setattr(LocalBackend, kind, self._noting(getattr(LocalBackend, kind)))

    def _noting(self, make: Callable[..., Any]) -> Callable[..., Any]:
        def noted(backend: LocalBackend, pattern: Any, options: SubscribeOptions, *rest: Any, **more: Any) -> Any:
            self.found.append(options)
            return make(backend, pattern, options, *rest, **more)

        return noted
