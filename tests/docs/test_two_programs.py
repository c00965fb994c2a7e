"""The two programs of docs/tutorial/from-one-process-to-many.md share a folder, each in a process of its own."""

import re
import subprocess
import sys
from pathlib import Path

from tests.docs.blocks import Block, extract
from tests.docs.pages import marked_for
from tests.docs.shell import PYTHON
from tests.patience import PATIENCE
from tests.project.project import ROOT

PAGE = ROOT / "docs" / "tutorial" / "from-one-process-to-many.md"


def test_one_program_displays_what_the_other_one_measures(tmp_path: Path) -> None:
    (both,) = marked_for(__file__)[PAGE.stem]
    assert isinstance(both, Block)
    functions = extract(PAGE.read_text(encoding="utf-8"))[0].source
    programs = dict(re.findall(r"^# (\w+\.py)\n(.*?)(?=^# |\Z)", both.source, re.MULTILINE | re.DOTALL))
    assert [*programs] == ["station.py", "screen.py"]
    started = [
        subprocess.Popen(
            [sys.executable, "-c", PYTHON],
            cwd=tmp_path,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for _ in programs
    ]
    for process, source in zip(started, programs.values(), strict=True):
        assert process.stdin is not None
        process.stdin.write(f"{functions}\n{source}")
        process.stdin.close()
        process.stdin = None  # for communicate()
    said = [process.communicate(timeout=PATIENCE) for process in started]
    assert [process.returncode for process in started] == [0, 0], said
    assert said[1][0].splitlines() == ["0 11.5", "1 11.7", "2 12.0"]
