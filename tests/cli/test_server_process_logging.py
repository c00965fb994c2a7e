"""What a server tells: one line for people, or one JSON object, each with its time and level."""

from __future__ import annotations

import io
import json
import logging
import re
from collections.abc import Iterator

import pytest

from runnel.cli.server_process import set_up_logging


@pytest.fixture(autouse=True)
def root() -> Iterator[None]:
    logger = logging.getLogger()
    level, handlers = logger.level, list(logger.handlers)
    yield
    logger.setLevel(level)
    logger.handlers[:] = handlers


def test_text_for_people() -> None:
    stream = io.StringIO()
    set_up_logging("info", "text", stream)
    logging.getLogger("runnel.serve").info("ready in %d s", 3)
    logging.getLogger("runnel").debug("not told")
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z INFO runnel.serve: ready in 3 s\n", stream.getvalue())


def test_json_for_programs_one_line_each_with_the_error() -> None:
    stream = io.StringIO()
    set_up_logging("warning", "json", stream)
    logging.getLogger("runnel").info("not told")
    try:
        raise ValueError("two\nlines")
    except ValueError:
        logging.getLogger("runnel").exception("it broke")
    (line,) = stream.getvalue().splitlines()
    found = json.loads(line)
    assert (found["level"], found["logger"], found["message"]) == ("error", "runnel", "it broke")
    assert found["error"].endswith("ValueError: two\nlines")
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", found["time"])
