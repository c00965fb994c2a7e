"""From the options of `broker.subscribe` to a subscription, alone or as a member of a group."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from runnel.broker.group.reader import GroupReader
from runnel.broker.group.subscription import GroupSubscription
from runnel.broker.read.subscription import Subscription
from runnel.core.errors import NotSupported
from runnel.core.options import SubscribeOptions
from runnel.core.pattern import check_pattern
from runnel.core.schema import Codec

if TYPE_CHECKING:
    from runnel.broker.backend import LocalBackend

V = TypeVar("V")


def open_subscription(
    backend: LocalBackend, pattern: str | Sequence[str], *, codec: Codec[V] | None = None, **keywords: Any
) -> Any:
    """The subscription that `Broker.subscribe` describes; `keywords` are the fields of `SubscribeOptions`."""
    options = SubscribeOptions.of(keywords)
    if options.type is not None:
        codec = Codec(options.type)
    group = options.group
    if group is None:
        reader = backend.reader(pattern, options)
        if options.hold and not backend.is_durable:
            raise NotSupported("hold=True", "this broker lives in memory only")
        return Subscription(reader, codec)
    label = options.name or f"{group}#{backend.next_number()}"
    joined = check_pattern(pattern)

    def member_of() -> GroupReader:
        return backend.groups.join(group, joined, options)

    return GroupSubscription(member_of, label, codec, options.prefetch, options.prefetch_bytes)
