"""Blocks of pages that need a cluster run against a nats-server."""

from collections.abc import Iterator
from pathlib import Path

import pytest

import runnel
from tests.cluster.nodes import Node
from tests.docs.blocks import Block as PythonBlock
from tests.docs.pages import marked_for
from tests.docs.shell import reader

PAGES = marked_for(__file__)


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    made = Node("one", tmp_path_factory.mktemp("nats"))
    made.start()
    try:
        made.ready()
        yield made
    finally:
        made.kill()


@pytest.mark.parametrize("page", PAGES)
def test_a_page_about_clusters_can_be_followed(page: str, node: Node, tmp_path: Path) -> None:
    with reader(tmp_path) as shell:
        shell.prelude = "import runnel\n"
        shell.names = dict.fromkeys(("nats://a:4222,b:4222,c:4222", "nats://a,b,c"), node.url)
        (tmp_path / "auth.toml").touch()
        for block in PAGES[page]:
            if isinstance(block, PythonBlock):
                shell.run_python(block)
            else:
                shell.run_block(block)
    with runnel.blocking.open(node.url) as broker, broker.subscribe("orders", start="earliest") as orders:
        values = iter(orders)
        assert [next(values).value for _ in range(3)] == [b"tea", b"coffee", b"cocoa"]
