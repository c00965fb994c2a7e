"""Write the table of metrics in docs/reference/statistics.md from `runnel.observe.prometheus`.

`python -m tools.metric_table` writes the page. A test compares it with what this would write.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from runnel.observe import prometheus

PAGE = Path(__file__).parent.parent / "docs" / "reference" / "statistics.md"
SOURCE = Path(prometheus.__file__)
KINDS = ("counter", "gauge", "histogram")

# The heading of each group of metrics, the names in it, and their labels.
GROUPS = (
    ("Server", r"(start_time|connections|certificate)\w*", ""),
    ("NATS listener", r"nats_\w+", ""),
    ("Topics", r"(events_published\w*|subscribers)", "`topic`"),
    ("Subscriptions", r"(events_\w+|subscriber_\w+)", "`topic`, `subscriber`"),
    ("Broker", r"(topics|kept_bytes|publishers_waiting)", ""),
    ("Groups", r"group_\w+", "`group`, `topic`; of a member also `member`"),
    ("Handlers", r"handler_\w+", "`handler`, `topic`, `group`"),
    (
        "Journal",
        r"(journal|cleaner)_\w+",
        "none; of `journal_held_bytes` `subscriber`, `topic`; of `journal_archive_timestamp_seconds` `archive`",
    ),
    ("Sources of history", r"history_\w+", ""),
    ("Topics kept until archived", r"topic_\w+", "`topic`"),
    (
        "Standbys",
        r"standby_\w+",
        "of `standby_follower_…` `standby`; of `standby_role` `role`, `mode`, `state`",
    ),
    (
        "Relays",
        r"relay_\w+",
        "`slot`; of `relay_state` also `state`, `wal_status`; of `relay_last_error_info` `error`",
    ),
    (
        "Archives in PostgreSQL",
        r"archive_\w+",
        "`table`; of `archive_state` also `state`; of `archive_last_error_info` `error`",
    ),
    (
        "Pipelines",
        r"pipeline_\w+",
        "`pipeline`; of `pipeline_state` also `state`; of `pipeline_last_error_info` `error`",
    ),
)
_TABLE = re.compile(r"(<!-- table: metrics -->\n).*?(<!-- end -->\n)", re.DOTALL)


class Metric(NamedTuple):
    """A family of samples."""

    name: str
    kind: str
    text: str


def metrics() -> Iterator[Metric]:
    """Every family that the source can emit: (name, kind, text) in calls and tables, and the comments of histograms."""
    source = SOURCE.read_text(encoding="utf-8")
    for node in ast.walk(ast.parse(source)):
        parts = node.args if isinstance(node, ast.Call) else node.elts if isinstance(node, ast.Tuple) else []
        said = [part.value for part in parts[:3] if isinstance(part, ast.Constant) and isinstance(part.value, str)]
        if len(said) == 3 and said[1] in KINDS:
            yield Metric(*said)
    for name, text in re.findall(r"# HELP \{PREFIX\}(\w+) ([^\"]+)\"", source):
        yield Metric(name, "histogram", text)


def written(page: str) -> str:
    """The page with the table as the source has it."""
    return _TABLE.sub(lambda found: f"{found[1]}\n{_tables()}\n{found[2]}", page)


def _tables() -> str:
    left, found = list(metrics()), []
    for heading, names, labels in GROUPS:
        rows = [one for one in left if re.fullmatch(names, one.name)]
        left = [one for one in left if one not in rows]
        found.append(f"**{heading}.**" + (f" Labels: {labels}." if labels else ""))
        found.append("")
        found.append("| metric | type | meaning |\n|---|---|---|")
        found += [f"| `{prometheus.PREFIX}{one.name}` | {one.kind} | {one.text.removesuffix('.')} |" for one in rows]
        found.append("")
    if left:
        raise ValueError(f"name a group for {left}")
    return "\n".join(found)


if __name__ == "__main__":
    changed = written(PAGE.read_text(encoding="utf-8"))
    PAGE.write_text(changed, encoding="utf-8")
    sys.stdout.write(f"wrote {PAGE.name}\n")
