"""Intended changes: the reviewed list of what may differ from the golden files of commit 3e0e419.

Both tables are read by `test_golden.py`. An entry that changes nothing fails a test, so the list stays as short as the
differences are. How to add one: README.md.
"""

from __future__ import annotations

CHANGED: dict[str, str] = {
    "exchanges/http-look.json": "OpenAPI lists the options of publish and of event streams as core/options has them",
    "exchanges/native-errors.json": "the error for an unknown call lists the calls, and there are new ones",
    "help/info.txt": "a door is a listener now, and the tour is an example",
    "help/pub.txt": "all options of publish, from PublishOptions",
    "help/runnel.txt": "a door is a listener now, and the tour is an example",
    "help/serve.txt": "a door is a listener now, the tour is an example, and --backend replaces --engine",
    "help/sub.txt": "all options of subscribe, from SubscribeOptions",
    "help/tour.txt": "the tour is examples/tour.py now",
}
"""Golden file, such as "help/serve.txt" or "exchanges/native-hello.json": why it is another one now.

The test reads `changed/<name>` instead. Where there is no such file, what the golden file describes is gone: a command
that was removed, say. A file in `changed/` that is not golden describes something new.
"""

REWORDED: dict[str, str] = {
    "this door speaks JSON lines": "this listener speaks JSON lines",
    "also group, name, prefetch, credit, id": "also credit, id and all options of subscribe",
}
"""A wording in the golden files, and what it says now: messages of errors, help, tables, log lines.

It is replaced in every text of every golden file before that is compared, so one entry is enough for a message that
many exchanges have. Codes, fields and numbers are facts: do not list them here.
"""
