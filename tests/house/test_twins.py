"""A broker and a server's client are twins: what one of them can be told, the other can be told, too.

`runnel.open` says that it gives a `Broker`, and gives a `RemoteBroker` for an address. So each class that users hold
has a twin in `runnel.client` with the same public names, the same signatures, and the same way of being entered and
read.
"""

import ast
import importlib
import inspect
import textwrap
from typing import Any, NamedTuple

import pytest


class Twins(NamedTuple):
    """A class of the broker and its twin of the client, as "module:name"; names that only insiders call."""

    here: str
    there: str
    inside: frozenset[str] = frozenset()


# Between the parts of the broker in this process, and no promise to users: what the gate, the flow or the group tells a
# subscription. Whatever else is public here must be there.
READER = frozenset({"wake", "task"})
SUBSCRIPTION = READER | {
    "flow", "join", "part", "settle", "watch", "dropped", "disconnect", "made_room", "members", "place",
}  # fmt: skip
MEMBER = READER | {"reader", "receive", "forget"}

PAIRS = [
    Twins("runnel.broker.broker:Broker", "runnel.client.broker:RemoteBroker"),
    Twins("runnel.broker.topic_handle:Topic", "runnel.client.topic:RemoteTopic"),
    Twins(
        "runnel.broker.read.subscription:Subscription", "runnel.client.subscription:RemoteSubscription", SUBSCRIPTION
    ),
    Twins(
        "runnel.broker.group.subscription:GroupSubscription",
        "runnel.client.group:RemoteGroupSubscription",
        MEMBER,
    ),
    Twins("runnel.broker.group.subscription:Delivery", "runnel.client.delivery:RemoteDelivery"),
    Twins("runnel.broker.group.subscription:DeliveryBatch", "runnel.client.delivery:RemoteDeliveryBatch"),
    Twins("runnel.broker.tx.transaction:Transaction", "runnel.client.transaction:RemoteTransaction"),
    Twins("runnel.broker.producer:Producer", "runnel.client.producer:RemoteProducer"),
    Twins("runnel.broker.tx.stage:Stage", "runnel.client.stage:RemoteStage"),
]

# `broker.group(...)` gives the group itself, most of which is nobody's business: this is what users are told of it.
GROUP = ("name", "pattern", "pause", "reset", "resume", "statistics")

# Ways of being used that have no name of their own.
SPECIAL = ("__aenter__", "__aexit__", "__aiter__", "__anext__", "__iter__", "__len__")


def found(where: str) -> type:
    module, name = where.split(":")
    cls: type = getattr(importlib.import_module(module), name)
    return cls


def bases(cls: type) -> list[type]:
    """The class and what it inherits, as far as it is written in this repository."""
    return [base for base in cls.__mro__ if base.__module__.partition(".")[0] in ("runnel", "tests")]


def members(cls: type, inside: frozenset[str] = frozenset()) -> dict[str, Any]:
    """What users may call or look at, inherited names included. What `__init__` sets is a value, slot or not."""
    names = {name for base in bases(cls) for name in vars(base) if not name.startswith("_")}
    names |= {name for name in SPECIAL if any(name in vars(base) for base in bases(cls))}
    known = {name: inspect.getattr_static(cls, name) for name in names}
    given = {name: None for base in bases(cls) for name in attributes(base)}
    return {name: member for name, member in {**given, **known}.items() if name not in inside}


def attributes(cls: type) -> set[str]:
    """The public names that the class's own `__init__` sets on `self`."""
    if "__init__" not in vars(cls):
        return set()
    tree = ast.parse(textwrap.dedent(inspect.getsource(vars(cls)["__init__"])))
    return {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and isinstance(node.ctx, ast.Store)
        and isinstance(node.value, ast.Name)
        and node.value.id == "self"
        and not node.attr.startswith("_")
    }


def shape(member: Any) -> str:
    """How a member is used: its kind, its parameters, their defaults. Types may differ: a Topic, or its twin."""
    if isinstance(member, property) or inspect.isdatadescriptor(member):
        return "a value"
    function = member.__func__ if isinstance(member, classmethod | staticmethod) else member
    if not inspect.isfunction(function):
        return "a value"
    signature = inspect.signature(function)
    bare = [each.replace(annotation=inspect.Parameter.empty) for each in signature.parameters.values()]
    kind = "async " if inspect.iscoroutinefunction(function) else ""
    return f"{kind}def {signature.replace(parameters=bare, return_annotation=inspect.Signature.empty)}"


def differences(here: type, there: type, inside: frozenset[str] = frozenset()) -> list[str]:
    """What one can be told and the other cannot. The twin may have more: a connection, say."""
    ours, theirs = members(here, inside), members(there)
    lines = [f"{there.__name__} has no {name}" for name in sorted(ours.keys() - theirs.keys())]
    for name in sorted(ours.keys() & theirs.keys()):
        one, other = shape(ours[name]), shape(theirs[name])
        if name in SPECIAL:  # Python calls them: whether they are awaited counts, not what their parameters are called
            one, other = one.partition("(")[0], other.partition("(")[0]
        if one != other:
            lines.append(f"{there.__name__}.{name} is {other}, not {one}")
    return lines


@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: pair.here.partition(":")[2])
def test_what_one_can_be_told_the_other_can_be_told(pair: Twins) -> None:
    assert differences(found(pair.here), found(pair.there), pair.inside) == []


@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: pair.here.partition(":")[2])
def test_what_is_left_out_on_purpose_is_still_there_to_leave_out(pair: Twins) -> None:
    here = found(pair.here)
    gone = pair.inside - members(here).keys()
    assert not gone, f"no names of {here.__name__} any more: {sorted(gone)}"


def test_a_group_can_be_steered_from_both_sides() -> None:
    here = members(found("runnel.broker.group.reader:GroupReader"))
    there = members(found("runnel.client.group:RemoteGroup"))
    assert set(GROUP) <= there.keys()
    assert {name: shape(there[name]) for name in GROUP} == {name: shape(here[name]) for name in GROUP}


class _Here:
    def __init__(self) -> None:
        self.label, self._hidden = "me", 1
        self.count = 0

    async def publish(self, value: bytes, *, key: bytes | None = None) -> None: ...
    def stop(self) -> None: ...
    @property
    def name(self) -> str:
        return ""

    async def __aenter__(self) -> None: ...


class _There:
    connection = 1

    def __init__(self, place: str) -> None:
        self.count = 1

    async def publish(self, value: int, *, key: bytes | None = b"") -> None: ...
    async def stop(self) -> None: ...


def test_a_missing_name_another_default_and_another_color_are_found() -> None:
    assert differences(_Here, _There) == [
        "_There has no __aenter__",
        "_There has no label",
        "_There has no name",
        "_There.publish is async def (self, value, *, key=b''), not async def (self, value, *, key=None)",
        "_There.stop is async def (self), not def (self)",
    ]
    assert differences(_Here, _Here) == []
