"""The command line: `python -m benchmarks [question …]`."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path

from benchmarks.conditions import conditions
from benchmarks.disk import Unsuitable, scratch
from benchmarks.harness import Answer, Question, ask
from benchmarks.matrix.running import QUICK, Effort, Matrix, measured
from benchmarks.matrix.tables import tables
from benchmarks.published import PAGE, written
from benchmarks.report import preamble, report
from benchmarks.results import saved

IN_MEMORY = ("fanout", "subscribers", "policies", "topics", "patterns", "latency", "groups", "ways")
ON_DISK = (
    *("durable", "idempotent", "transactions", "staging", "catch_up", "idle", "many", "cleaning", "history"),
    "telemetry",
)
OVER_TCP = ("network", "network_latency", "network_acks", "security", "web")  # they need a disk too
BESIDE_NATS = ("nats_listener", "cluster")
ON_SPARK = ("spark_read", "spark_write", "spark_lake", "spark_growth")
FROM_POSTGRES = ("relay", "archive")
QUESTIONS = (*IN_MEMORY, *ON_DISK, *OVER_TCP, *BESIDE_NATS, *ON_SPARK, *FROM_POSTGRES, "matrix")

EPILOG = """questions
  fanout       1 publisher, 10 subscribers, one process: what does a delivery cost, against the peers?
  subscribers  does publishing get dearer with more subscribers? 10,000 on one topic
  policies     a delivery under every overflow policy, by batch and by record; 10,000 subscribers that are full
  topics       100,000 topics: memory, publishing round-robin, a pattern over all of them
  patterns     a pattern over 100,000 topics, 1,000 patterns side by side: coming, going, publishing
  latency      publish to receive at 1,000/s and 100,000/s: p50, p99, max
  groups       1 group, 4 members: an acked delivery, with much waiting, with keys; the group's own memory
  ways         options of a publish, publishing by name, requests, reading without asyncio; each against the plain way
  durable      a durable publish: alone, from 64 tasks, in lists, with readers, to 10,000 topics; against bare fdatasync
  idempotent   a publish that may be repeated: with a producer, with message ids; against a plain one
  transactions a transaction of 10 topics against one publish; take, publish and ack
  staging      a gigabyte staged against the same published; a publish to another topic beside it
  catch_up     reading a topic from its beginning, by batch and by record; a live reader beside one that catches up
  idle         a commit beside 5,000 idle groups, deleting a topic beside others, collections with 150,000 topics
  many         100 members of a group, 1,000 topics of a pattern, 10,000 subscribers: each against few of them
  cleaning     half of 10,000 topics deleted: bytes written to give space back, publishing and reading beside it
  history      opening 10 GB, closed or killed; memory with 100,000,000 records and with 100,000 topics
  telemetry    a record with the broker's telemetry and without it: readers, topics, a group, a folder
  network      a server, its clients and TCP: 1 publisher to 0, 1 and 10 subscribers; against nats-server and Redis
  network_latency  publish to receive from process to process: 1,000/s one by one, and lists at half of the full rate
  network_acks one awaited publish after the other, from 1 task and from 64
  security     what rules cost at a server: lists, single publishes and a subscriber, without and with authentication
  web          1,000 event streams and publishing over HTTP; against sse-starlette over asyncio.Queue, and nchan
  nats_listener  NATS clients at the NATS listener, and at a real nats-server
  cluster      a NATS cluster of three servers: published, read and acked through runnel, and through nats-py
  spark_read   Spark reading a topic from a folder and a server, against Parquet; streams, their latency and their cost
  archive      records of topics to rows of PostgreSQL, against a plain COPY of the same rows
  relay        rows of PostgreSQL to topics, against pg_recvlogical; INSERT to subscriber, against polling and NOTIFY
  spark_write  Spark writing rows to topics, against Parquet; keys and headers, many topics, a stream, ten rows
  spark_lake   Spark archiving topics in a lake, against its own Parquet sink; publish to lake; reading on into a lake
  spark_growth Spark reading and archiving 1, 10 and 100 million rows: does a row cost the same? (6 GB of disk)
  matrix       every operation with every option on every backend, and beside 10, 1,000 and 100,000 other things, as
               ratios to the plain case (about 15 minutes; --quick: about 2)

examples
  python -m benchmarks                      all questions, 5 rounds (many minutes; history writes 12 GB)
  python -m benchmarks fanout --quick       a first impression in seconds; do not quote it
  python -m benchmarks durable --folder /mnt/ssd  on that disk; everything written there is removed again
  python -m benchmarks --json figures.json  the same figures, with every round, for machines
  python -m benchmarks network --save       the same in benchmarks/results/network.json, with commit, date and command
  python -m benchmarks --publish            measure nothing; write docs/benchmarks.md from benchmarks/results
  python -m benchmarks matrix --quick --only group   of the matrix, what has "group" in its name

Figures compare only within one run. ✓ and ✗ show aims; a missed aim does not fail the run,
a broken measurement (a subscriber that lost something, say) does.
"""


def main(arguments: list[str] | None = None) -> int:
    """Ask the questions, print the answers; 1 if a measurement broke."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description="How fast runnel is, next to what else one might use, measured here and now.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("questions", nargs="*", metavar="question", help="which to ask (default: all)")
    parser.add_argument("--repeat", type=int, metavar="N", help="rounds (default: 5, quick: 2)")
    parser.add_argument("--quick", action="store_true", help="smaller loads and fewer rounds")
    parser.add_argument(
        "--folder",
        type=Path,
        metavar="DIR",
        help="the disk that all but the questions in memory are measured on; a folder in memory is refused "
        "(default: temporary files, if they lie on the working directory's file system, else that directory)",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write everything to FILE")
    parser.add_argument("--save", action="store_true", help="also write each answer to benchmarks/results")
    parser.add_argument("--publish", action="store_true", help="only write docs/benchmarks.md from benchmarks/results")
    parser.add_argument(
        "--only", default="", metavar="TEXT", help="of the matrix, operations and things with this name"
    )
    given = parser.parse_args(arguments)
    if given.publish:
        PAGE.write_text(written(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
        print(f"written to {PAGE}")
        return 0
    unknown = [name for name in given.questions if name not in QUESTIONS]
    if unknown:
        parser.error(f"no question named {', '.join(unknown)}; there are {', '.join(QUESTIONS)}")
    if given.repeat is not None and given.repeat < 1:
        parser.error("--repeat needs at least 1 round")
    stated = conditions()
    print(preamble(stated))
    answers: list[Answer | Matrix] = []
    for name in given.questions or QUESTIONS:
        try:
            answer = _measured(name, given)
        except Unsuitable as error:
            parser.error(str(error))
        _progress("")
        print(report(answer) if isinstance(answer, Answer) else tables(answer), flush=True)
        answers.append(answer)
        if given.save:
            print(f"\nwritten to {saved(answer.as_json(), stated, _command(name, given))}")
    if given.json:
        document = {"conditions": stated, "questions": [answer.as_json() for answer in answers]}
        given.json.write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        print(f"\nwritten to {given.json}")
    return 1 if any(answer.errors for answer in answers) else 0


def _measured(name: str, given: argparse.Namespace) -> Answer | Matrix:
    if name == "matrix":
        with scratch(given.folder) as made:
            return asyncio.run(measured(QUICK if given.quick else Effort(), made, _progress, given.only))
    with _question(name, given.folder, quick=given.quick) as question:
        return ask(question, given.repeat or (2 if given.quick else 5), _progress)


def _command(name: str, given: argparse.Namespace) -> str:
    """What measures this question again."""
    more = [f"--repeat {given.repeat}"] if given.repeat else []
    more += ["--quick"] if given.quick else []
    more += [f"--only {given.only!r}"] if given.only else []
    return " ".join(["python -m benchmarks", name, *more])


@contextmanager
def _question(name: str, folder: Path | None, *, quick: bool) -> Iterator[Question]:
    """The question, with a folder of its own if it needs a disk: one's dirty pages and files are not the next one's."""
    module = import_module(f"benchmarks.{name}")
    if name in IN_MEMORY:
        yield module.question(quick=quick)
        return
    with scratch(folder) as made:
        yield module.question(quick=quick, folder=made)


def _progress(line: str) -> None:
    """Show what runs now, on one line of the terminal; to a file, line by line."""
    if sys.stderr.isatty():
        print(f"\r\x1b[K{line}", end="", file=sys.stderr, flush=True)
    elif line:
        print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
