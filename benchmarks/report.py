"""An answer as people read it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from benchmarks.harness import Answer, Result, number


def preamble(conditions: Mapping[str, str]) -> str:
    """The conditions, once per run."""
    width = max(map(len, conditions))
    return "\n".join(f"{name:<{width}}  {text}" for name, text in conditions.items())


def report(answer: Answer) -> str:
    """A question's figures, calls, notes and aims."""
    return "\n".join(_lines(answer))


def _lines(answer: Answer) -> Iterator[str]:
    question = answer.question
    yield f"\n{question.name}: {question.text}\n"
    for league in dict.fromkeys(result.contender.league for result in answer.results):
        results = [result for result in answer.results if result.contender.league == league]
        yield from _table(league, answer, results)
    yield "  how each was called"
    called = calls((result.contender.name, result.contender.call) for result in answer.results)
    width = max(map(len, called))
    yield from (f"    {name:<{width}}  {call}" for name, call in called.items())
    yield from (f"  note: {note}" for note in question.notes)
    aims = answer.aims()
    if aims:
        yield "  aims"
        yield from (f"    {reached}" for reached in aims)


def calls(contenders: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Each way of calling once, from names and calls: what stands before the comma names those that share one."""
    pairs = [(name, name.split(", ")[0], call) for name, call in contenders]
    ways = {short: {call for _, other, call in pairs if other == short} for _, short, _ in pairs}
    return {short if len(ways[short]) == 1 else name: call for name, short, call in pairs}


def _table(league: str, answer: Answer, results: list[Result]) -> Iterator[str]:
    columns = list(dict.fromkeys(name for result in results for name in result.figures))
    compared = answer.best_peer(league) is not None
    rows = [[league or "contender", *columns, *(["× best peer"] if compared else [])]]
    broken = []
    for result in results:
        if result.error or result.skipped:
            broken.append(
                f"    {result.contender.name}: {'FAILED, ' + result.error if result.error else result.skipped}"
            )
            continue
        figures = result.figures
        row = [result.contender.name, *(str(figures[name]) if name in figures else "" for name in columns)]
        ratio = answer.ratio(result)
        if compared:
            row.append("" if ratio is None else f"{number(ratio)} ×")
        rows.append(row)
    widths = [max(len(row[n]) for row in rows) for n in range(len(rows[0]))]
    for row in rows:
        cells = [
            f"{row[0]:<{widths[0]}}",
            *(f"{cell:>{width}}" for cell, width in zip(row[1:], widths[1:], strict=True)),
        ]
        yield "  " + "   ".join(cells).rstrip()
    yield from broken
    yield ""
