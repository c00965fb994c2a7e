"""From what a subscriber asks for to a subscription on a server: alone, or as a member of a group.

What can be known to be wrong is said at once, as in process; the rest when the server is asked.
Below: subscription, group_subscription. Above: broker, topic.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import count
from typing import TYPE_CHECKING, Any, TypeVar

from runnel.client.group_subscription import RemoteGroupSubscription
from runnel.client.subscription import RemoteSubscription
from runnel.core.codec import Codec
from runnel.core.errors import InvalidOption, NotSupported
from runnel.core.options import positive
from runnel.core.pattern import check_name, check_pattern, is_pattern, matches
from runnel.core.policy import Policy
from runnel.core.record import Gap, Record
from runnel.core.start import Start, check_start
from runnel.wire.messages import Subscribe, policy_note, start_note

if TYPE_CHECKING:
    from runnel.client.link import Link

V = TypeVar("V")

BUFFER = 1024  # records that a subscriber may lag by where nothing was said, as the server has it

_numbers = count(1)


def open_subscription(
    link: Link,
    pattern: str,
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
        "backoff": None if backoff is None else list(backoff),
        "jitter": jitter,
    }
    chosen = None if policy is None else Policy.of(policy)
    check_pattern(pattern)
    asked = Subscribe(
        pattern=pattern,
        name=name,
        group=group,
        policy=policy_note(chosen),
        buffer=buffer,
        buffer_bytes=buffer_bytes,
        prefetch=prefetch,
        prefetch_bytes=prefetch_bytes,
        strict=strict,
        dead_letter=dead_letter,
        drops=on_drop is not None,
        hold=hold,
        credit=link.options.credit,
        **said,
    )
    if group is not None:
        alone = {"policy": policy, "on_gap": on_gap, "on_drop": on_drop, "strict": strict or None, "hold": hold}
        _refuse("with group=", alone)
        asked.start = start_note(_told(start))
        label = name or f"{group}#{next(_numbers)}"
        return RemoteGroupSubscription(link, asked, codec, label, prefetch, prefetch_bytes)
    _refuse("without group=", {**said, "prefetch": prefetch, "prefetch_bytes": prefetch_bytes})
    check_start(start, pattern, is_pattern=is_pattern(pattern))
    asked.start = start_note(start)
    _check_alone(link, asked)
    return RemoteSubscription(
        link,
        asked,
        codec,
        name or f"{pattern}#{next(_numbers)}",
        policy=chosen or Policy(),
        buffer=BUFFER if buffer is None else buffer,
        on_gap=on_gap,
        on_drop=on_drop,
    )


def _told(start: Start) -> Start:
    """A start that can be sent; whether a group can begin there is looked at when it is joined, as in process."""
    check_start(start, "", is_pattern=False)
    return start


def _check_alone(link: Link, asked: Subscribe) -> None:
    """Raise for what the server would refuse, before it is asked."""
    if asked.name is not None and not (isinstance(asked.name, str) and asked.name):
        raise InvalidOption("name", asked.name, "a subscription's name is text of 1 character or more")
    if asked.hold and asked.name is None:
        raise InvalidOption("hold", True, "what is held is kept under a name; give the subscription one")
    if asked.hold and not link.welcome.durable:
        raise NotSupported("hold=True", "this broker lives in memory only")
    for option in ("buffer", "buffer_bytes"):
        if (bound := getattr(asked, option)) is not None:
            positive(option, bound)
    if asked.dead_letter is not None:
        check_name(asked.dead_letter)
        if matches(asked.pattern, asked.dead_letter):
            raise InvalidOption(
                "dead_letter", asked.dead_letter, f"this subscription ({asked.pattern!r}) would read it itself"
            )


def _refuse(when: str, options: dict[str, Any]) -> None:
    """Raise for the first option that was given, since it means nothing here."""
    for option, value in options.items():
        if value is not None:
            raise InvalidOption(option, value, f"it means nothing {when}")
