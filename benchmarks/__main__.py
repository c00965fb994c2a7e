"""The command line: `python -m benchmarks [question …]`."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path

from benchmarks.conditions import conditions
from benchmarks.disk import Unsuitable, scratch
from benchmarks.harness import Answer, Question, ask
from benchmarks.report import preamble, report

IN_MEMORY = ("fanout", "subscribers", "topics", "latency", "groups")
ON_DISK = ("durable", "idempotent", "transactions", "staging", "catch_up", "cleaning", "history")
OVER_TCP = ("network", "network_latency", "network_acks", "web")  # they need a disk too
ON_SPARK = ("spark_read", "spark_write")
QUESTIONS = IN_MEMORY + ON_DISK + OVER_TCP + ON_SPARK

EPILOG = """questions
  fanout       1 publisher, 10 subscribers, one process: what does a delivery cost, against the peers?
  subscribers  does publishing get dearer with more subscribers? 10,000 on one topic
  topics       100,000 topics: memory, publishing round-robin, a pattern over all of them
  latency      publish to receive at 1,000/s and 100,000/s: p50, p99, max
  groups       1 group, 4 members: an acked delivery, with much waiting, with keys; the group's own memory
  durable      a durable publish: alone, from 64 tasks, in lists, with readers, to 10,000 topics; against bare fdatasync
  idempotent   a publish that may be repeated: with a producer, with message ids; against a plain one
  transactions a transaction of 10 topics against one publish; take, publish and ack
  staging      a gigabyte staged against the same published; a publish to another topic beside it
  catch_up     reading a topic from its beginning, by batch and by record; a live reader beside one that catches up
  cleaning     half of 10,000 topics deleted: bytes written to give space back, publishing and reading beside it
  history      opening 10 GB, closed or killed; memory with 100,000,000 records and with 100,000 topics
  network      a server, its clients and TCP: 1 publisher to 0, 1 and 10 subscribers; against nats-server and Redis
  network_latency  publish to receive from process to process: 1,000/s one by one, and lists at half of the full rate
  network_acks one awaited publish after the other, from 1 task and from 64
  web          1,000 event streams and publishing over HTTP; against sse-starlette over asyncio.Queue, and nchan
  spark_read   Spark reading a topic from a folder and a server, against Parquet; streams, their latency and their cost
  spark_write  Spark writing rows to topics, against Parquet; keys and headers, many topics, a stream, ten rows

examples
  python -m benchmarks                      all questions, 5 rounds (many minutes; history writes 12 GB)
  python -m benchmarks fanout --quick       a first impression in seconds; do not quote it
  python -m benchmarks durable --folder /mnt/ssd  on that disk; everything written there is removed again
  python -m benchmarks --json figures.json  the same figures, with every round, for machines

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
    given = parser.parse_args(arguments)
    unknown = [name for name in given.questions if name not in QUESTIONS]
    if unknown:
        parser.error(f"no question named {', '.join(unknown)}; there are {', '.join(QUESTIONS)}")
    if given.repeat is not None and given.repeat < 1:
        parser.error("--repeat needs at least 1 round")
    stated = conditions()
    print(preamble(stated))
    answers: list[Answer] = []
    for name in given.questions or QUESTIONS:
        try:
            with _question(name, given.folder, quick=given.quick) as question:
                answer = ask(question, given.repeat or (2 if given.quick else 5), _progress)
        except Unsuitable as error:
            parser.error(str(error))
        _progress("")
        print(report(answer), flush=True)
        answers.append(answer)
    if given.json:
        document = {"conditions": stated, "questions": [answer.as_json() for answer in answers]}
        given.json.write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        print(f"\nwritten to {given.json}")
    return 1 if any(result.error for answer in answers for result in answer.results) else 0


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
