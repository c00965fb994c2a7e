"""The command line: `python -m benchmarks [question …]`."""

from __future__ import annotations

import argparse
import json
import sys
from importlib import import_module
from pathlib import Path

from benchmarks.conditions import conditions
from benchmarks.harness import Answer, Question, ask
from benchmarks.report import preamble, report

QUESTIONS = ("fanout", "subscribers", "topics", "latency", "groups")

EPILOG = """questions
  fanout       1 publisher, 10 subscribers, one process: what does a delivery cost, against the peers?
  subscribers  does publishing get dearer with more subscribers? 10,000 on one topic
  topics       100,000 topics: memory, publishing round-robin, a pattern over all of them
  latency      publish to receive at 1,000/s and 100,000/s: p50, p99, max
  groups       1 group, 4 members: an acked delivery, with much waiting, with keys; the group's own memory

examples
  python -m benchmarks                      all questions, 5 rounds (some minutes)
  python -m benchmarks fanout --quick       a first impression in seconds; do not quote it
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
        question: Question = import_module(f"benchmarks.{name}").question(quick=given.quick)
        answer = ask(question, given.repeat or (2 if given.quick else 5), _progress)
        _progress("")
        print(report(answer), flush=True)
        answers.append(answer)
    if given.json:
        document = {"conditions": stated, "questions": [answer.as_json() for answer in answers]}
        given.json.write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        print(f"\nwritten to {given.json}")
    return 1 if any(result.error for answer in answers for result in answer.results) else 0


def _progress(line: str) -> None:
    """Show what runs now, on one line of the terminal; to a file, line by line."""
    if sys.stderr.isatty():
        print(f"\r\x1b[K{line}", end="", file=sys.stderr, flush=True)
    elif line:
        print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
