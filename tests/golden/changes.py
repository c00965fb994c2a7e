"""Intended changes: the reviewed list of what may differ from the golden files of commit 3e0e419.

Both tables are read by `test_golden.py`. An entry that changes nothing fails a test, so the list stays as short as the
differences are. How to add one: README.md.
"""

from __future__ import annotations

CHANGED: dict[str, str] = {
    "exchanges/http-events.json": "the value of a record is called value, as in the API",
    "exchanges/http-history.json": "the value of a record is called value, as in the API",
    "exchanges/http-look.json": "OpenAPI lists options of publish and streams, requests, and more of the console",
    "exchanges/lines-http.json": "an HTTP request gets an HTTP answer that names the right listener",
    "exchanges/lines-look.json": "HELP lists AUTH, REQUEST and REPLY",
    "exchanges/native-errors.json": "the error for an unknown call lists the calls, and there are new ones",
    "exchanges/native-group.json": "an ack after a reject says that the delivery was settled",
    "exchanges/native-request.json": "an inbox has a random name and is no topic, so a reply has no sequence and epoch",
    "exchanges/native-statistics.json": "statistics have sums of other topics, relays, history, standbys, listeners",
    "folders/plain/expected.json": "a pattern reports no gap for what was gone before it began",
    "folders/torn/expected.json": "records are counted, not offsets that a crash skipped",
}
"""Golden file, such as "exchanges/native-hello.json": why it is another one now.

The test reads `changed/<name>` instead. Where there is no such file, what the golden file describes is gone: a command
that was removed, say. A file in `changed/` that is not golden describes something new.
"""

REWORDED: dict[str, str] = {
    "there is no such topic option": "a topic has no such option",
    "in a folder with `runnel topic config`, elsewhere delete the topic and declare it again": (
        "with `runnel topic set` or `topic.configure()`"
    ),
    "this door speaks JSON lines": "this listener speaks JSON lines",
    "also group, name, prefetch, credit, id": "also credit, id and all options of subscribe",
    "nobody is subscribed to 'ask', so no reply": "'ask' has no subscriber, so no reply",
    "somebody else moved it: read it again, and stop if you are not the one to go on": (
        "another program moved it: read it again, and stop if that program goes on instead"
    ),
}
"""A wording in the golden files, and what it says now: messages of errors, help, tables, log lines.

It is replaced in every text of every golden file before that is compared, so one entry is enough for a message that
many exchanges have. Codes, fields and numbers are facts: do not list them here.
"""
