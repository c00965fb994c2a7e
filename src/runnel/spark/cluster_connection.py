"""The sink's side of a cluster, which has no stages: rows of a batch wait as packed batches, and travel to the driver.

Tasks store nothing. They hand their packed rows to the driver with Spark's own messages, and the driver publishes all
of them, with the marker of the batch, in one transaction. So a batch is visible as a whole, once, and a task that fails
leaves nothing behind; the driver holds a batch in memory, packed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any

from runnel.arrow.cluster_reader import blocking_calls
from runnel.cluster.backend import ClusterBackend
from runnel.core.errors import NotSupported, TooLarge, UnknownStage
from runnel.core.markers import Marker
from runnel.core.position import Position
from runnel.core.publishing import Publication
from runnel.core.stages import StageKey, stage_name
from runnel.core.transaction import PlannedPublish, TransactionRequest
from runnel.spark.connection import CarriedStages, PendingCall

ADVICE = (
    "a batch of Spark is one transaction on a cluster: have a stream read less at a time with the source's option "
    "maxBytesPerTrigger (or maxRecordsPerTrigger), or write a large table in parts"
)


class ClusterConnection:
    """Answers what `BlockingConnection` asks a server. Use it as a context manager."""

    losses = 0
    fsync = None  # there are no stages that a restart could lose

    def __init__(self, url: str, options: Mapping[str, Any]) -> None:
        self._calls = blocking_calls(url, options)
        self.carried: CarriedStages = {}

    def __repr__(self) -> str:
        return f"<ClusterConnection, {len(self.carried)} stages>"

    def __enter__(self) -> ClusterConnection:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Say goodbye. Harmless twice."""
        self._calls.close()

    def check_durable(self) -> None:
        """A cluster keeps published records."""

    def tell(self, method: str, **args: Any) -> PendingCall:
        """The same as `ask`; an error is raised at once."""
        call = PendingCall(method, b"")
        call.result, call.is_over = self.ask(method, **args), True
        return call

    def settle(self) -> None:
        """All is answered."""

    def ask(self, method: str, **args: Any) -> Any:
        """The answer to a call, or the error."""
        answer = getattr(self, f"_ask_{method}", None)
        if answer is None:
            raise NotSupported(f"{method}() on a cluster", "it belongs to servers and folders")
        return answer(**args)

    # -- stages: in the hands of the task, and then of the driver --------------------------------------------------

    def _ask_stage_write(self, topic: str, key: StageKey, batch: bytes, ordinal: int) -> None:
        self.carried.setdefault(key, (topic, []))[1].append(batch)

    def _ask_stage_drop(self, topic: str, key: StageKey) -> None:
        self.carried.pop(key, None)

    def _ask_stages(self) -> list[Any]:
        return []

    # -- requests to the cluster ------------------------------------------------------------------------------------

    def _ask_describe(self, topic: str) -> dict[str, Any] | None:
        options = self._calls.call(lambda backend: backend.describe(topic))
        return None if options is None else {"options": options}

    def _ask_mark(self, name: str) -> Any:
        return self._calls.call(lambda backend: backend.mark(name))

    def _ask_place(self, places: Sequence[tuple[str, str, int, int]], hold: bool | None = None) -> None:
        found = {name: (topic, Position(epoch, offset)) for name, topic, epoch, offset in places}
        self._calls.call(lambda backend: backend.place(found, hold))

    def _ask_transact(self, commits: Sequence[StageKey], marks: Sequence[Sequence[Any]]) -> dict[str, Any]:
        return self._calls.call(lambda backend: self._transact(backend, commits, marks))

    async def _transact(
        self, backend: ClusterBackend, commits: Sequence[StageKey], marks: Sequence[Sequence[Any]]
    ) -> dict[str, Any]:
        request, publisher = TransactionRequest(), backend.packed_publisher()
        for key in commits:
            if key not in self.carried:
                raise UnknownStage(stage_name(key))
            topic, batches = self.carried[key]
            for batch in batches:  # more than `request.publish` takes: the limit is that of an atomic batch
                writer, append = publisher.plan(topic, batch, None)
                publication = Publication(topic, len(append.values))
                request.publishes.append(PlannedPublish(writer, append, publication))
        for one in marks:
            request.mark(Marker(*one))
        if request:
            try:
                await backend.commit(request)
            except TooLarge as error:
                raise TooLarge(error.what, error.size, error.limit_name, error.limit, ADVICE) from error
        return {"applied": request.applied}
