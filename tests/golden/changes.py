"""Intended changes: the reviewed list of what may differ from the golden files of commit 3e0e419.

Both tables are read by `test_golden.py`. An entry that changes nothing fails a test, so the list stays as short as the
differences are. How to add one: README.md.
"""

from __future__ import annotations

CHANGED: dict[str, str] = {
    "exchanges/http-look.json": "OpenAPI lists the options of publish and streams, and new views of the console",
    "exchanges/lines-look.json": "HELP lists AUTH",
    "exchanges/native-errors.json": "the error for an unknown call lists the calls, and there are new ones",
    "exchanges/native-group.json": "an ack after a reject says that the delivery was settled",
    "exchanges/native-request.json": "an inbox has a random name and is no topic, so a reply has no sequence and epoch",
    "exchanges/native-statistics.json": "statistics have sums of other topics, relays and history",
    "folders/plain/expected.json": "a pattern reports no gap for what was gone before it began",
    "folders/plain/texts.json": "a pattern reports no gap for what was gone before it began",
    "help/archive-init.txt": "the archive in PostgreSQL has commands",
    "help/archive-run.txt": "the archive in PostgreSQL has commands",
    "help/archive-status.txt": "the archive in PostgreSQL has commands",
    "help/archive.txt": "the archive in PostgreSQL has commands",
    "help/backup.txt": "log archive is a command of its own, also for object storage",
    "help/bench.txt": "a token to log in with",
    "help/cursor-forget.txt": "a token to log in with",
    "help/cursor-list.txt": "a token to log in with",
    "help/group-delete.txt": "a token to log in with",
    "help/group-list.txt": "a token to log in with",
    "help/group-pause.txt": "a token to log in with",
    "help/group-reset.txt": "a token to log in with",
    "help/group-resume.txt": "a token to log in with",
    "help/info.txt": "a door is a listener now, and the tour is an example",
    "help/pipeline.txt": "pipelines on Spark have commands",
    "help/pipeline-list.txt": "pipelines on Spark have commands",
    "help/pipeline-new.txt": "pipelines on Spark have commands",
    "help/pipeline-report.txt": "pipelines on Spark have commands",
    "help/pipeline-run.txt": "pipelines on Spark have commands",
    "help/pipeline-status.txt": "pipelines on Spark have commands",
    "help/pipeline-stop.txt": "pipelines on Spark have commands",
    "help/log.txt": "log archive and log restore are commands of their own",
    "help/log-archive.txt": "log archive is a command of its own",
    "help/log-restore.txt": "log restore is a command of its own",
    "help/log-marks.txt": "a token to log in with",
    "help/pub.txt": "all options of publish, from PublishOptions",
    "help/relay-init.txt": "the relay of PostgreSQL has commands",
    "help/relay-pause.txt": "the relay of PostgreSQL has commands",
    "help/relay-resume.txt": "the relay of PostgreSQL has commands",
    "help/relay-retain.txt": "the relay of PostgreSQL has commands",
    "help/relay-run.txt": "the relay of PostgreSQL has commands",
    "help/relay-skip.txt": "the relay of PostgreSQL has commands",
    "help/relay-snapshot.txt": "the relay of PostgreSQL has commands",
    "help/relay-status.txt": "the relay of PostgreSQL has commands",
    "help/relay-tail.txt": "the relay of PostgreSQL has commands",
    "help/relay.txt": "the relay of PostgreSQL has commands",
    "help/reload.txt": "authentication has commands",
    "help/restore.txt": "log restore is a command of its own, also from object storage",
    "help/runnel.txt": "a door is a listener now, the tour is an example, and there are new commands",
    "help/security-log.txt": "authentication has commands",
    "help/serve.txt": "a door is a listener now, --backend replaces --engine, and there are new options",
    "help/sub.txt": "all options of subscribe, from SubscribeOptions",
    "help/token-create.txt": "authentication has commands",
    "help/token-list.txt": "authentication has commands",
    "help/token-revoke.txt": "authentication has commands",
    "help/token.txt": "authentication has commands",
    "help/top.txt": "relays of PostgreSQL have a table",
    "help/topic-config.txt": "topics have the option retention_until",
    "help/topic-create.txt": "topics have the option retention_until",
    "help/topic-delete.txt": "a token to log in with",
    "help/topic-list.txt": "a token to log in with",
    "help/topic-show.txt": "a token to log in with",
    "help/topic-trim.txt": "a token to log in with",
    "help/tour.txt": "the tour is examples/tour.py now",
}
"""Golden file, such as "help/serve.txt" or "exchanges/native-hello.json": why it is another one now.

The test reads `changed/<name>` instead. Where there is no such file, what the golden file describes is gone: a command
that was removed, say. A file in `changed/` that is not golden describes something new.
"""

REWORDED: dict[str, str] = {
    "this door speaks JSON lines": "this listener speaks JSON lines",
    "also group, name, prefetch, credit, id": "also credit, id and all options of subscribe",
    "nobody is subscribed to 'ask', so no reply": "'ask' has no subscriber, so no reply",
    "somebody else moved it: read it again, and stop if you are not the one to go on": (
        "another program moved it: read it again, and stop if that program goes on instead"
    ),
    "and that nobody sees before a transaction": "and invisible before a transaction",
    "go through whoever has the folder open, if": "go through the owner of an open folder, if",
    "needs one that nobody has open": "needs one that no process has open",
    "something was lost that nobody said was dropped": "records were lost without a reported gap",
    "is not taken away, by retention or anybody": "is not removed, by retention or a trim",
    "whoever joins it again makes a new group": "the next member to join makes a new group",
    "Nobody may have the folder open": "No process may have the folder open",
    "A stage that nobody writes to expires": "A stage without writes expires",
    "To drop one here nobody may": "To drop one here no process may",
}
"""A wording in the golden files, and what it says now: messages of errors, help, tables, log lines.

It is replaced in every text of every golden file before that is compared, so one entry is enough for a message that
many exchanges have. Codes, fields and numbers are facts: do not list them here.
"""
