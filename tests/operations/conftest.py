"""Object storage for the tests of a worker."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec

import pytest

from tests.operations.object_storage import served

HAS_STORE = find_spec("moto") is not None and find_spec("obstore") is not None
collect_ignore = [] if HAS_STORE else ["test_backup_store.py"]  # both come with requirements/spark.lock


@pytest.fixture(scope="session")
def s3_server() -> Iterator[dict[str, str]]:
    """A server with a bucket `backups`, as the environment names it."""
    with served() as environment:
        yield environment


@pytest.fixture
def s3(s3_server: dict[str, str], monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> str:
    """An address in the bucket that no other test has; the environment has what is needed to use it."""
    for name, value in s3_server.items():
        monkeypatch.setenv(name, value)
    return f"s3://backups/{request.node.name}"
