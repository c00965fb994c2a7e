"""An error of a server is the same error in its client: class, words, code and facts."""

from __future__ import annotations

import inspect
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from runnel.core.errors import (
    BadBatch,
    InvalidOption,
    InvalidValue,
    NotNow,
    ProtocolError,
    PublishTimeout,
    RecordsMissed,
    RunnelError,
    Stalled,
    TopicHeld,
    UsageError,
)
from runnel.core.record import Gap
from runnel.wire.errors import error_frame, error_from_wire, read_error, wire_error
from runnel.wire.frames import FRAME_HEADER_SIZE, FrameDecoder, FrameKind
from runnel.wire.msgpack_messages import WireError, decode_message, encode_message
from tests.nightly import examples
from tests.project.test_errors import all_errors

GAPS = st.builds(Gap, st.text(), st.integers(0, 99), st.integers(0, 99), st.none() | st.integers(0, 9), st.text())
WORDS = st.text(max_size=20)
BY_NAME: dict[str, st.SearchStrategy[Any]] = {
    "gap": GAPS,
    "subscribers": st.lists(WORDS, max_size=3).map(tuple),
    "holders": st.dictionaries(WORDS, st.integers(0, 2**63), max_size=3),
    "got": st.integers(0, 2**63),
}
BY_TYPE: dict[str, st.SearchStrategy[Any]] = {
    "str": WORDS,
    "bool": st.booleans(),
    "str | None": st.none() | WORDS,
    "int": st.integers(0, 2**63),
    "int | None": st.none() | st.integers(0, 2**31),
    "float": st.floats(0, 1e9) | st.integers(0, 2**31),
    "object": st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | WORDS | st.binary(max_size=5),
    "Sequence[ConfigProblem]": st.just(()),  # of a configuration; they do not travel
    "Sequence[Problem]": st.just(()),  # of the set-up of PostgreSQL; they do not travel
    "Sequence[str]": st.lists(WORDS, max_size=3),
    "Mapping[str, int]": st.dictionaries(WORDS, st.integers(0, 9)),
}


def made(kind: type[RunnelError], data: st.DataObject) -> RunnelError:
    """One of these errors, of arguments that fit its signature."""
    if kind.__init__ is RunnelError.__init__ and not kind._says:  # a branch, which takes a message
        return kind(data.draw(WORDS))
    arguments: dict[str, Any] = {}
    for name, parameter in inspect.signature(kind).parameters.items():
        strategy = BY_NAME.get(name)
        if strategy is None:
            strategy = BY_TYPE[str(parameter.annotation)]
        if parameter.default is parameter.empty or data.draw(st.booleans()):
            arguments[name] = data.draw(strategy)
    return kind(**arguments)


def travelled(error: BaseException) -> RunnelError:
    decoder = FrameDecoder()
    decoder.feed(error_frame(7, error))
    ((kind, _, _, id, payload),) = decoder.frames()
    assert (kind, id) == (FrameKind.ERROR, 7)
    return read_error(payload)


@pytest.mark.parametrize("kind", all_errors(), ids=lambda kind: kind.code)
@examples(15, 100)
@given(st.data())
def test_every_error_comes_back_as_it_went(kind: type[RunnelError], data: st.DataObject) -> None:
    error = made(kind, data)
    back = travelled(error)
    assert type(back) is type(error)
    assert str(back) == str(error)
    assert back.args == (str(error),)
    assert back.code == error.code
    assert msgspec.to_builtins(vars(back)) == msgspec.to_builtins({**vars(error), **lists(error)})


def lists(error: RunnelError) -> dict[str, Any]:
    """The facts that come back as lists, whatever they were: nobody can tell a list from a tuple in msgpack."""
    return {name: list(fact) for name, fact in vars(error).items() if name == "problems"}


def test_an_error_that_is_also_a_timeout_stays_one() -> None:
    with pytest.raises(TimeoutError, match="made no room"):
        raise travelled(PublishTimeout("t", "s", 1.5))


def test_facts_that_msgpack_cannot_say_are_made_again() -> None:
    gap = Gap("t", 1, 5, None, "gone")
    missed = travelled(RecordsMissed("me", gap))
    assert isinstance(missed, RecordsMissed)
    assert missed.gap == gap
    stalled = travelled(Stalled("t", 5, ["a", "b"], 1.0))
    assert isinstance(stalled, Stalled)
    assert stalled.subscribers == ("a", "b")
    held = travelled(TopicHeld("t", 9, {"archive": 4}))
    assert isinstance(held, TopicHeld)
    assert held.holders == {"archive": 4}


def test_facts_of_any_other_kind_come_as_text() -> None:
    class Odd:
        def __repr__(self) -> str:
            return "<odd>"

    back = travelled(InvalidOption("start", Odd(), "no"))
    assert isinstance(back, InvalidOption)
    assert back.value == "<odd>"
    for value in (2**70, {1: Odd()}, [Odd()] * 2, {Odd}, "x" * 100_000, msgspec.Raw(b"")):
        assert isinstance(travelled(InvalidOption("start", value, "no")), InvalidOption)


def test_facts_that_hold_themselves_end_somewhere() -> None:
    circle: list[Any] = []
    circle.append(circle)
    assert isinstance(travelled(InvalidOption("start", circle, "no")), InvalidOption)


def test_a_code_that_is_not_known_comes_as_its_branch_with_its_code() -> None:
    back = error_from_wire(WireError(code="from_the_future", message="words", facts={"what": 5}, branch="not_now"))
    assert type(back) is NotNow
    assert (back.code, str(back), vars(back)["what"]) == ("from_the_future", "words", 5)
    assert NotNow.code == "not_now"


@pytest.mark.parametrize("branch", ["", "also_from_the_future"])
def test_a_branch_that_is_not_known_either_is_just_an_error(branch: str) -> None:
    back = error_from_wire(WireError(code="from_the_future", message="words", branch=branch))
    assert (type(back), back.code) == (RunnelError, "from_the_future")


def test_the_branch_of_an_error_travels() -> None:
    assert wire_error(PublishTimeout("t", "s", 1)).branch == "not_now"
    assert wire_error(InvalidOption("a", 1, "no")).branch == "usage_error"
    assert wire_error(BadBatch("no")).branch == "damaged"
    assert wire_error(ProtocolError("no")).branch == ""


def test_an_error_that_is_not_runnels_own_tells_no_secrets() -> None:
    back = travelled(KeyError("/etc/secret"))
    assert type(back) is RunnelError
    assert "KeyError" in str(back)
    assert "secret" not in str(back)


def test_an_error_of_a_program_that_is_derived_from_runnels_comes_as_its_branch() -> None:
    class Mine(UsageError):
        code = "mine"

    back = travelled(Mine("words"))
    assert (type(back), back.code, str(back)) == (UsageError, "mine", "words")


def test_facts_cannot_take_the_place_of_what_an_error_is() -> None:
    facts = {
        "args": ["x"],
        "code": "y",
        "__class__": "z",
        "with_traceback": 1,
        "_hidden": 1,
        "not a name": 1,
        "why": "w",
    }
    back = error_from_wire(WireError(code="bad_batch", message="words", facts=facts))
    assert isinstance(back, BadBatch)
    assert (back.args, back.code, vars(back)) == (("words",), "bad_batch", {"why": "w"})


def test_a_fact_of_another_shape_is_left_as_it_is() -> None:
    back = error_from_wire(WireError(code="invalid_value", message="m", facts={"gap": 5, "subscribers": "x"}))
    assert isinstance(back, InvalidValue)
    assert vars(back) == {"gap": 5, "subscribers": "x"}


def test_an_error_looks_like_this_for_ever() -> None:
    data = error_frame(1, BadBatch("x"))[FRAME_HEADER_SIZE:]
    assert msgspec.msgpack.decode(data) == {
        "code": "bad_batch",
        "message": str(BadBatch("x")),
        "facts": {"why": "x"},
        "branch": "damaged",
    }


@given(
    st.dictionaries(
        st.sampled_from(["code", "message", "facts", "branch"]),
        WORDS | st.dictionaries(WORDS, st.none() | st.integers(0, 9) | st.lists(WORDS) | st.dictionaries(WORDS, WORDS)),
    )
)
def test_garbage_is_an_error_or_a_protocol_error(fields: dict[str, Any]) -> None:
    try:
        back = error_from_wire(decode_message(WireError, encode_message(fields)))
    except ProtocolError:
        return
    assert isinstance(back, RunnelError)
    assert str(back) == fields["message"]
