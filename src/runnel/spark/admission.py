"""How much one trigger takes of each topic: all of it, or a fair share of a limit.

Topics that lag little are read to their end, and what they leave of the limit goes to the others in equal parts: a
busy topic keeps no quiet one waiting, and the limit is used up as long as there is anything to read.
Below: nothing. Above: course.
"""

from __future__ import annotations

from collections.abc import Mapping


def admitted(lags: Mapping[str, int], limit: int | None) -> dict[str, int]:
    """How much of its lag each topic may have, where all together may have `limit`. One gets something at least."""
    if limit is None or sum(lags.values()) <= limit:
        return dict(lags)
    found: dict[str, int] = {}
    left, waiting = max(1, limit), len(lags)
    for topic in sorted(lags, key=lambda topic: (lags[topic], topic)):
        share = min(lags[topic], -(-left // waiting))  # rounded up: the last ones may get less, and none gets too much
        found[topic] = min(share, left)
        left -= found[topic]
        waiting -= 1
    return found


def admitted_bytes(lags: Mapping[str, int], sizes: Mapping[str, float], limit: int | None) -> dict[str, int]:
    """The same for a limit in bytes, where a record of each topic weighs so much, about."""
    if limit is None:
        return dict(lags)
    weights = {topic: round(lag * sizes[topic]) for topic, lag in lags.items()}
    if sum(weights.values()) <= limit:
        return dict(lags)
    shares = admitted(weights, limit)
    found = {topic: min(lag, int(shares[topic] / sizes[topic])) for topic, lag in lags.items()}
    if not any(found.values()):  # a record larger than the limit is read all the same, or nothing ever would be
        found[next(topic for topic in sorted(lags) if lags[topic])] = 1
    return found
