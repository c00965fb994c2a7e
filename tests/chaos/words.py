"""Who does what in a storm: topics, names, groups, and the processes that work with them.

Above: client (does it), storm (starts it), storm_judge (knows what to expect).
"""

from __future__ import annotations

from typing import Any

JOBS, ORDERS, USERS = "jobs", "t.orders", "t.users"
PAY, PAID, BOOK = "payments", "paid", "book"
DEAD = "graveyard"
PUBLISHED = (JOBS, ORDERS, USERS, PAY)  # by publishers
MADE = (PAID, BOOK)  # by those who transform
TOPICS = (*PUBLISHED, *MADE)
OPTIONS: dict[str, dict[str, Any]] = {USERS: {"compression": "zstd"}}

PATTERN, COVERED = "t.*", (ORDERS, USERS)
NAMES = {  # durable subscriptions, and what they read
    "keeper": (ORDERS, (ORDERS,)),
    "mirror": (PATTERN, COVERED),
    "porter": (JOBS, (JOBS,)),
    "ledger": (PAID, (PAID,)),
}
BILLING, AUDIT, PAYERS = "billing", "audit", "payers"
GROUPS = {BILLING: (JOBS, (JOBS,)), AUDIT: (PATTERN, COVERED), PAYERS: (PAY, (PAY,))}

# The processes: whether they go through the proxy, and what they do.
CREW: dict[str, tuple[bool, tuple[str, ...]]] = {
    "p": (True, ("publisher:1", "publisher:2", "publisher:3")),
    "q": (False, ("publisher:1", "publisher:2")),
    "r": (True, ("name:keeper", "name:mirror", f"plain:{JOBS}", f"late:{USERS}")),
    "s": (False, ("name:porter", "name:ledger", f"plain:{PATTERN}")),
    "m": (True, (f"member:{BILLING}:1", f"batches:{BILLING}:2", f"member:{AUDIT}:1", "payer:1")),
    "n": (False, (f"member:{BILLING}:3", f"batches:{AUDIT}:2", "payer:2")),
}


def last_of(topic: str) -> str:
    """The id of the last record of a topic: whoever has read it has read everything."""
    return f"end.{topic}"


def derived(id: str, topic: str) -> str:
    """What becomes of a record of `payments` in one of the other topics."""
    return f"{id.replace('/', '.')}>{topic}"
