"""From the options of `broker.subscribe` to a subscription, alone or as a member of a group.

Options that mean nothing together are refused here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from runnel.broker.group.reader import GroupReader
from runnel.broker.group.subscription import GroupSubscription
from runnel.broker.read.subscription import SubscribeOptions, Subscription
from runnel.broker.topic.log import KEEP_BYTES, KEEP_COUNT
from runnel.core.errors import InvalidOption, NotSupported
from runnel.core.options import Policy
from runnel.core.pattern import check_pattern
from runnel.core.position import Start
from runnel.core.record import Gap, Record
from runnel.core.schema import Codec

if TYPE_CHECKING:
    from runnel.broker.backend import LocalBackend

V = TypeVar("V")


def open_subscription(
    backend: LocalBackend,
    pattern: str | Sequence[str],
    *,
    start: Start = None,
    name: str | None = None,
    group: str | None = None,
    policy: Policy | str | None = None,
    buffer: int | None = None,
    buffer_bytes: int | None = None,
    prefetch: int | None = None,
    prefetch_bytes: int | None = None,
    type: type[V] | None = None,
    strict: bool = False,
    on_gap: Callable[[Gap], object] | None = None,
    on_drop: Callable[[Record[bytes]], object] | None = None,
    dead_letter: str | None = None,
    ack_wait: float | None = None,
    max_ack_pending: int | None = None,
    max_deliver: int | None = None,
    backoff: Sequence[float] | None = None,
    jitter: float | None = None,
    hold: bool | None = None,
    codec: Codec[V] | None = None,
) -> Any:
    """The subscription that `Broker.subscribe` describes. What means nothing together is refused."""
    if type is not None:
        codec = Codec(type)
    said: dict[str, Any] = {
        "ack_wait": ack_wait,
        "max_ack_pending": max_ack_pending,
        "max_deliver": max_deliver,
        "backoff": None if backoff is None else tuple(backoff),
        "jitter": jitter,
    }
    said = {option: value for option, value in said.items() if value is not None}
    if group is not None:
        alone = {"policy": policy, "on_gap": on_gap, "on_drop": on_drop, "strict": strict or None, "hold": hold}
        _refuse("with group=", alone)
        if dead_letter is not None:
            said["dead_letter"] = dead_letter
        label = name or f"{group}#{backend.next_number()}"
        joined = check_pattern(pattern)

        def member_of() -> GroupReader:
            return backend.groups.join(group, joined, said, start, buffer, buffer_bytes)

        return GroupSubscription(member_of, label, codec, prefetch, prefetch_bytes)
    _refuse("without group=", {**said, "prefetch": prefetch, "prefetch_bytes": prefetch_bytes})
    chosen = SubscribeOptions(
        start,
        name,
        Policy.of(policy),
        KEEP_COUNT if buffer is None else buffer,
        KEEP_BYTES if buffer_bytes is None else buffer_bytes,
        strict,
        on_gap,
        on_drop,
        dead_letter,
        hold,
        lags=all(option is None for option in (policy, buffer, buffer_bytes, on_drop, dead_letter)),
    )
    reader = backend.reader(pattern, chosen)
    if hold and not backend.is_durable:
        raise NotSupported("hold=True", "this broker lives in memory only")
    return Subscription(reader, codec)


def _refuse(when: str, options: dict[str, Any]) -> None:
    """Raise for the first option that was given, since it means nothing here."""
    for option, value in options.items():
        if value is not None:
            raise InvalidOption(option, value, f"it means nothing {when}")
