"""A report: one page of HTML with plots, out of the series of `observe.analytics`.

The plots are SVG in the page. It loads nothing and runs no script, so it can be mailed and opened anywhere, and it is
light or dark as the reader's system is. Names in it come from programs: every one is escaped.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from html import escape
from typing import Any

TITLES = {"minutes": "The last 15 minutes", "hours": "The last 24 hours", "days": "The last 7 days"}
WIDTH, HEIGHT, LEFT, BOTTOM, TOP, RIGHT = 640, 190, 62, 20, 8, 8
LEAST_LATENCY = 1e-4  # seconds: where plots of latency begin

Format = Callable[[float], str]
Values = Sequence[float | None]
Axis = tuple[float, float]  # the times where a plot begins and ends

STYLE = """
:root { color-scheme: light dark; --page: light-dark(#f6f7f7, #0f1315); --sheet: light-dark(#fff, #161b1e);
  --text: light-dark(#172023, #e4e9ea); --muted: light-dark(#556166, #9aa7ac); --line: light-dark(#dde2e3, #2a3337);
  --accent: light-dark(#0b6b74, #5cc4cd); --second: light-dark(#a2540f, #f0a35e); --bad: light-dark(#b3261e, #ff9489);
  --warn: light-dark(#8a5a00, #e6b450); }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 2rem clamp(1rem, 4vw, 3rem) 4rem; max-width: 84rem; background: var(--page);
  color: var(--text); font: 14px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, sans-serif;
  font-variant-numeric: tabular-nums; }
h1 { font-size: 1.6rem; margin: 0; } h2 { font-size: 1.25rem; margin: 2.5rem 0 1rem; }
h3 { font-size: 1rem; margin: 0 0 .4rem; }
p, .legend { color: var(--muted); margin: 0 0 .5rem; }
.figures { display: grid; grid-template-columns: repeat(auto-fit, minmax(9rem, 1fr)); gap: 1px; background: var(--line);
  border: 1px solid var(--line); border-radius: 6px; overflow: hidden; margin: 0 0 1.5rem; }
.figures div { background: var(--sheet); padding: .7rem .9rem; } .figures dt { color: var(--muted); font-size: .86rem; }
.figures dd { margin: 0; font-size: 1.3rem; font-weight: 600; } .figures .warn { color: var(--warn); }
.plots { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 28rem), 1fr)); gap: 1.5rem;
  margin: 0 0 1.5rem; }
.legend { display: flex; flex-wrap: wrap; gap: .2rem 1.3rem; padding: 0; list-style: none; font-size: .86rem; }
.legend li::before { content: ""; display: inline-block; width: 1.5rem; margin-right: .4rem; vertical-align: middle;
  border-top: 2px solid var(--accent); }
.legend .s1::before { border-top: 2px dashed var(--second); } .legend .s2::before { border-top: 2px dotted var(--bad); }
svg { display: block; width: 100%; background: var(--sheet); border: 1px solid var(--line); border-radius: 6px;
  padding: .5rem; }
svg text { fill: var(--muted); font: 10.5px system-ui, sans-serif; } svg .grid { stroke: var(--line); }
svg .s { fill: none; stroke: var(--accent); stroke-width: 1.5; stroke-linejoin: round; stroke-linecap: round; }
svg .s1 { stroke: var(--second); stroke-dasharray: 4 3; } svg .s2 { stroke: var(--bad); stroke-dasharray: 1.5 3; }
.table { overflow-x: auto; margin: 0 0 1.5rem; border: 1px solid var(--line); border-radius: 6px;
  background: var(--sheet); }
table { border-collapse: collapse; width: 100%; }
th, td { padding: .35rem .8rem; text-align: left; border-top: 1px solid var(--line); }
thead th { border: 0; color: var(--muted); font-weight: 500; font-size: .86rem; } tbody th { font-weight: 500; }
.n { text-align: right; white-space: nowrap; } tr.slow th, tr.slow .state { color: var(--warn); }
@media print { body { max-width: none; } section { break-inside: avoid; } }
"""


def report(spans: Mapping[str, Mapping[str, Any]], *, source: str, made: float) -> str:
    """The page. `spans` holds documents of `AnalyticsSeries`, by the name of their span; `source` says of what."""
    when = datetime.fromtimestamp(made, UTC).strftime("%Y-%m-%d %H:%M UTC")
    body = "".join(_span(TITLES.get(name, name), found) for name, found in spans.items())
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>runnel report, {when}</title><style>{STYLE}</style></head>\n"
        f"<body><h1>runnel report</h1><p>{escape(source)} · {when}</p>\n{body}</body></html>\n"
    )


def _span(title: str, found: Mapping[str, Any]) -> str:
    if not found["rows"]:
        return f"<section><h2>{escape(title)}</h2><p>There is no telemetry in this time.</p></section>\n"
    series, axis = found["series"], (found["start"], found["end"])
    plots = "".join(
        (
            _plot("Throughput", _per_second, axis, _pick(series, "published", "delivered", "dropped")),
            _plot("Lag of all subscribers", short, axis, {"records not consumed": series["lag"]}),
            _plot("From publish to delivery", duration, axis, _quantiles(series["deliver"]), log=True),
            _plot("From delivery to ack", duration, axis, _quantiles(series["ack"]), log=True),
            _plot("Dropped", _per_second, axis, {"records a second": series["dropped"]}),
            _plot(
                "Redeliveries and dead letters",
                short,
                axis,
                {"redelivered": series["redelivered"], "dead letters": series["dead_letters"]},
            ),
        )
    )
    return (
        f"<section><h2>{escape(title)}</h2>{_figures(found)}"
        f'<div class="plots">{plots}</div>{_subscribers(found)}{_topics(found)}{_letters(found)}</section>\n'
    )


def _pick(series: Mapping[str, Values], *names: str) -> dict[str, Values]:
    return {name: series[name] for name in names}


def _quantiles(found: Mapping[str, Values]) -> dict[str, Values]:
    return {"half": found["p50"], "95 of 100": found["p95"], "99 of 100": found["p99"]}


# -- Figures and tables ----------------------------------------------------------------------------------


def _figures(found: Mapping[str, Any]) -> str:
    totals, slow = found["totals"], sum(one["slow"] for one in found["subscribers"])
    shown = (
        ("Published", short(totals["published"]), False),
        ("Delivered", short(totals["delivered"]), False),
        ("Lag", short(totals["lag"]), False),
        ("Dropped", percent(totals["drop_rate"]), totals["drop_warning"]),
        ("Slow subscribers", str(slow), slow > 0),
        ("Redelivered", short(totals["redelivered"]), False),
        ("Dead letters", short(totals["dead_letters"]), totals["dead_letters"] > 0),
    )
    cells = "".join(
        f"<div><dt>{name}</dt><dd{' class=warn' if warns else ''}>{value}</dd></div>" for name, value, warns in shown
    )
    return f'<dl class="figures">{cells}</dl>'


def _subscribers(found: Mapping[str, Any]) -> str:
    def row(one: Mapping[str, Any]) -> tuple[str, ...]:
        state = "keeps up" if not one["slow"] else "drops more than 1 %" if one["drop_warning"] else "lag grows"
        return (
            one["subscriber"],
            one["topic"],
            state,
            short(one["delivered"]),
            *(duration(one["deliver"][label]) for label in ("p50", "p95", "p99")),
            duration(one["ack"]["p99"]),
            percent(one["drop_rate"]),
            short(one["lag"]),
            f"{one['lag_trend']:+.1f}/s" if abs(one["lag_trend"]) >= 0.05 else "0",
            short(one["redelivered"]),
        )

    heads = ("Subscriber", "Topic", "State", "Delivered", "p50", "p95", "p99", "Ack p99", "Drop rate", "Lag")
    rows = [(row(one), bool(one["slow"])) for one in found["subscribers"]]
    return _table("Subscribers, slow ones first", (*heads, "Lag trend", "Redelivered"), rows, words=3)


def _topics(found: Mapping[str, Any]) -> str:
    seconds = found["end"] - found["start"]
    rows = [
        (
            (
                one["topic"],
                short(one["published"]),
                _per_second(one["published"] / seconds),
                size(one["published_bytes"]),
            ),
            False,
        )
        for one in found["topics"]
    ]
    return _table("Topics with the most records", ("Topic", "Published", "On average", "Bytes"), rows, words=1)


def _letters(found: Mapping[str, Any]) -> str:
    rows = [
        ((one["reason"], one["subscriber"], one["topic"], short(one["count"])), False) for one in found["dead_letters"]
    ]
    return _table("Dead letters by reason", ("Reason", "Subscriber", "Topic", "Letters"), rows, words=3)


def _table(title: str, heads: Sequence[str], rows: Iterable[tuple[tuple[str, ...], bool]], words: int) -> str:
    """A table whose first `words` columns are words, and the others numbers; nothing if it has no rows."""
    kinds = ["" if index < words else ' class="n"' for index in range(len(heads))]
    lines = []
    for cells, is_marked in rows:
        first, *others = (escape(cell) for cell in cells)
        inner = "".join(
            f"<td{' class=state' if heads[index] == 'State' else kinds[index]}>{cell}</td>"
            for index, cell in enumerate(others, 1)
        )
        lines.append(f'<tr{" class=slow" if is_marked else ""}><th scope="row">{first}</th>{inner}</tr>')
    if not lines:
        return ""
    head = "".join(f'<th scope="col"{kind}>{name}</th>' for name, kind in zip(heads, kinds, strict=True))
    return (
        f'<h3>{title}</h3><div class="table"><table><thead><tr>{head}</tr></thead>'
        f"<tbody>{''.join(lines)}</tbody></table></div>"
    )


# -- Plots -----------------------------------------------------------------------------------------------


def _plot(
    title: str, shown: Format, axis: tuple[float, float], lines: Mapping[str, Values], *, log: bool = False
) -> str:
    legend = "".join(f'<li class="s{number}">{escape(name)}</li>' for number, name in enumerate(lines))
    return (
        f'<section><h3>{escape(title)}</h3><ul class="legend">{legend}</ul>'
        f"{plot(title, shown, axis, list(lines.values()), log=log)}</section>"
    )


def plot(title: str, shown: Format, axis: Axis, lines: Sequence[Values], *, log: bool = False) -> str:
    """Lines over time as an SVG element. None is a hole, not a zero. `log`: by orders of magnitude."""
    highest = max((value for line in lines for value in line if value is not None), default=0.0)
    marks = powers(LEAST_LATENCY, highest) if log else steps(highest)
    inner = HEIGHT - BOTTOM - TOP

    def y(value: float) -> float:
        if not log:
            return HEIGHT - BOTTOM - value / marks[-1] * inner
        low, high = math.log10(marks[0]), math.log10(marks[-1])
        return HEIGHT - BOTTOM - (math.log10(max(value, marks[0])) - low) / (high - low) * inner

    parts = []
    for mark in marks:
        at = y(mark)
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{at:.1f}" y2="{at:.1f}"/>')
        parts.append(f'<text x="{LEFT - 7}" y="{at + 4:.1f}" text-anchor="end">{escape(shown(mark))}</text>')
    start, end = axis
    for part, anchor in ((0.0, "start"), (0.25, "middle"), (0.5, "middle"), (0.75, "middle"), (1.0, "end")):
        x = LEFT + part * (WIDTH - LEFT - RIGHT)
        time = _moment(start + part * (end - start), end - start)
        parts.append(f'<text x="{x:.1f}" y="{HEIGHT - 4}" text-anchor="{anchor}">{time}</text>')
    for number, line in enumerate(lines):
        parts.append(f'<path class="s s{number}" d="{"".join(_path(line, y))}"/>')
    label = escape(f"{title}, over time", quote=True)
    return f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{label}">{"".join(parts)}</svg>'


def _path(line: Values, y: Callable[[float], float]) -> Iterator[str]:
    is_down = False
    for index, value in enumerate(line):
        if value is None:
            is_down = False
            continue
        x = LEFT + (index + 0.5) / len(line) * (WIDTH - LEFT - RIGHT)
        yield f"{'L' if is_down else 'M'}{x:.1f} {y(value):.1f}{'' if is_down else 'h0'}"
        is_down = True


def steps(highest: float) -> list[float]:
    """0 and some round numbers, of which the last is not below `highest`."""
    if highest <= 0:
        return [0.0, 1.0]
    rough = highest / 4
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(one * power for one in (1, 2, 2.5, 5, 10) if one * power >= rough * (1 - 1e-9))
    return [step * number for number in range(math.ceil(highest / step - 1e-9) + 1)]


def powers(least: float, highest: float) -> list[float]:
    """Powers of ten from `least` on, at least three, of which the last is not below `highest`."""
    first = round(math.log10(least))
    last = max(first + 2, math.ceil(math.log10(max(highest, least)) - 1e-9))
    return [10.0**power for power in range(first, last + 1)]


# -- Numbers as people read them -------------------------------------------------------------------------


def short(value: float) -> str:
    """950, 12.3 k, 4.56 M."""
    for bound, unit in ((1e12, "T"), (1e9, "G"), (1e6, "M")):
        if value >= bound:
            return f"{value / bound:.3g} {unit}"
    if value >= 1e4:
        return f"{value / 1e3:.3g} k"
    return f"{value:,.0f}" if value >= 10 or value == round(value) else f"{value:.2g}"


def size(value: float) -> str:
    """Bytes: 12.3 kB."""
    for bound, unit in ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if value >= bound:
            return f"{value / bound:.3g} {unit}"
    return f"{value:.0f} B"


def duration(seconds: float | None) -> str:
    """250 µs, 4 ms, 3.2 s, 5 min, 2 h; a dash: it is not known."""
    if seconds is None:
        return "–"
    for bound, unit in ((3600.0, "h"), (60.0, "min"), (1.0, "s"), (1e-3, "ms")):
        if seconds >= bound * (1 - 1e-9):
            return f"{seconds / bound:.3g} {unit}"
    return f"{seconds * 1e6:.3g} µs"


def percent(share: float) -> str:
    """A share: 0.45 %, 12 %."""
    return f"{share * 100:.0f} %" if share >= 0.1 or not share else f"{share * 100:.2g} %"


def _per_second(value: float) -> str:
    return f"{short(value)}/s"


def _moment(time: float, span: float) -> str:
    """A time on an axis that spans so many seconds, in UTC."""
    form = "%H:%M:%S" if span <= 3600 else "%H:%M" if span <= 86400 * 1.5 else "%m-%d %H:%M"
    return datetime.fromtimestamp(time, UTC).strftime(form)
