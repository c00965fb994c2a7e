"""The same broker without asyncio: for scripts, threads and synchronous frameworks.

`open` runs a broker on an event loop in a thread of its own; `attach` reaches a broker
that already runs on some loop from any other thread. Every method may be called from
any thread and blocks until it is done.
"""

from runnel.blocking.broker import Broker, attach, open
from runnel.blocking.publishing import MixedStage, Producer, Stage, Topic, Transaction
from runnel.blocking.subscription import Delivery, DeliveryBatch, GroupSubscription, Subscription
from runnel.blocking.table import Table
from runnel.blocking.watch import Presence, Watch

__all__ = [
    "Broker",
    "Delivery",
    "DeliveryBatch",
    "GroupSubscription",
    "MixedStage",
    "Presence",
    "Producer",
    "Stage",
    "Subscription",
    "Table",
    "Topic",
    "Transaction",
    "Watch",
    "attach",
    "open",
]
