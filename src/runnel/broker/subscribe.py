"""From the options of `broker.subscribe` to a subscription, alone or as a member of a group."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from runnel.broker.group.reader import GroupReader
from runnel.broker.group.subscription import GroupSubscription
from runnel.broker.read.subscription import Subscription, SubscriptionReader
from runnel.core.options import SubscribeOptions
from runnel.core.pattern import check_pattern
from runnel.core.schema import Codec

if TYPE_CHECKING:
    from runnel.broker.bus import Bus

V = TypeVar("V")


def open_subscription(bus: Bus, pattern: str | Sequence[str], *, codec: Codec[V] | None = None, **keywords: Any) -> Any:
    """The subscription that `Broker.subscribe` describes; `keywords` are the fields of `SubscribeOptions`."""
    options = SubscribeOptions.of(keywords)
    if options.type is not None:
        codec = Codec(options.type)
    group = options.group
    if group is None:
        return Subscription(SubscriptionReader(bus, pattern, options), codec)
    label = options.name or f"{group}#{bus.next_number()}"
    joined = check_pattern(pattern)

    def member_of() -> GroupReader:
        return bus.groups.join(group, joined, options)

    return GroupSubscription(member_of, label, codec, options.prefetch, options.prefetch_bytes)
