"""Log lines of a server: one line for people, or one JSON object, each with its time and level."""

from __future__ import annotations

import gc
import io
import json
import logging
import re
import sys

from runnel.cli.server_process import process_settings


def test_text_for_people() -> None:
    stream = io.StringIO()
    with process_settings("info", "text", stream):
        logging.getLogger("runnel.serve").info("ready in %d s", 3)
        logging.getLogger("runnel").debug("not told")
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z INFO runnel.serve: ready in 3 s\n", stream.getvalue())


def test_json_for_programs_one_line_each_with_the_error() -> None:
    stream = io.StringIO()
    with process_settings("warning", "json", stream):
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


def test_a_program_keeps_its_settings_after_a_command_that_it_called() -> None:
    def settings() -> tuple[object, ...]:
        root = logging.getLogger()
        return root.level, tuple(root.handlers), sys.getswitchinterval(), gc.get_threshold()

    before = settings()
    with process_settings("debug", "text", io.StringIO()):
        gc.set_threshold(10_000, 10, 50)
        assert settings() != before
    assert settings() == before
