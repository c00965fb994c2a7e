"""A table without asyncio."""

import runnel


def test_a_table_is_put_got_updated_and_watched() -> None:
    with runnel.blocking.open() as broker:
        table = broker.table("counts", int)
        with table.watch() as changes:
            first = table.put("a", 1)
            assert table.get("a") == 1
            assert table.update("a", lambda n: (n or 0) + 1) == 2
            entry = table.entry("a")
            assert entry is not None
            assert entry.offset == first + 1
            table.delete("a", expected=entry.offset)
            assert table.items() == {}
            assert [next(changes).value for _ in range(3)] == [1, 2, None]
