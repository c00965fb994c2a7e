"""Intended changes: the reviewed list of what may differ from the golden files of commit 3e0e419.

Both tables are read by `test_golden.py`. An entry that changes nothing fails a test, so the list stays as short as the
differences are. How to add one: README.md.
"""

# ruff: noqa: E501

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
    "folders/compressed/expected.json": "a recovery that cut nothing is no warning",
    "folders/groups/expected.json": "a recovery that cut nothing is no warning",
    "folders/plain/expected.json": "a pattern reports no gap for what was gone before it began",
    "folders/torn/expected.json": "records are counted, not offsets that a crash skipped; a recovery says less in its log",
    "folders/version-1-cleaned/expected.json": "a recovery that cut nothing is no warning",
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
        "another program moved it: read it again, and stop if that program continues the work"
    ),
    "and this does not make it (or auto_create is off);": "and this call does not create topics, or auto_create is off;",
    "the protocol was broken: ": "protocol error: ",
    "see that both sides speak the same protocol and version, on this port": (
        "check that both sides use the same protocol and version on this port"
    ),
    "'*' stands for one whole token, '>' for the rest and comes last": "'*' matches one whole token, '>' matches the rest and must be last",
    "is over max_frame=83,886,080; ask for less at once, or raise max_frame of the server": (
        "exceeds max_frame=83,886,080; ask for less at once, or raise max_frame in the server's configuration"
    ),
    "nothing of it is served: read": "none of its records are used: read",
    "attempt 0 at the record at 3 has ended, and": "the lease of the record at 3 (attempt 0) has ended, and",
    "mark 'tx.step' is 1": "marker 'tx.step' is 1",
    "no subscription is known by the name 'reader'; `runnel cursor list` shows those there are": "there is no subscription with the name 'reader'; `runnel cursor list` shows all",
    "and 2 is next; publish what lies between first": "but 2 is next; publish the numbers in between first",
    "is over: it was committed; its records are in their topic: go on with": "has ended: it was committed; its records are in their topic: continue with",
    "subscribe with group='crew' to make it": "subscribe with group='crew' to create it",
    "dropped in an earlier life of the broker; a mark in the same transaction tells which": "dropped before the broker restarted; a marker in the same transaction shows which",
    "so nothing was taken: let": "so nothing was removed: let",
    "or take the records before 2 all the same": "or remove the records before 2 anyway",
    "name the origin in its http_cors if they may": "to allow them, name the origin with --http-cors (http_cors)",
    (
        "this server does not answer to the name 'other.example'; ask for localhost or its address,"
        " or name it in its http_hosts if it is the server's"
    ): (
        "this server does not accept the host name 'other.example'; use localhost or its address, "
        "or add the name to http_hosts"
    ),
}
"""A wording in the golden files, and what it says now: messages of errors, help, tables, log lines.

It is replaced in every text of every golden file before that is compared, so one entry is enough for a message that
many exchanges have. Codes, fields and numbers are facts: do not list them here.
"""
