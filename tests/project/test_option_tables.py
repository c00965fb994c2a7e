"""The tables in docs/reference/options.md are those of the option structs."""

import re

from runnel.core.options import PublishOptions, SubscribeOptions, options_of
from tools.option_tables import PAGE, written


def test_the_page_is_up_to_date() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert page == written(page), "run `python tools/option_tables.py`"


def test_every_option_has_a_row() -> None:
    rows = re.findall(r"^\| `(\w+)` \|", written(PAGE.read_text(encoding="utf-8")), re.MULTILINE)
    assert sorted(rows) == sorted([*options_of(PublishOptions), *options_of(SubscribeOptions)])


def test_a_page_without_its_tables_is_found_stale() -> None:
    page = PAGE.read_text(encoding="utf-8")
    stale = page.replace("| `jitter` |", "| `jitters` |")
    assert written(stale) == page != stale
