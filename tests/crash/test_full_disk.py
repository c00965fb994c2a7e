"""A disk that is really full: a small tmpfs, mounted for one process only."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.patience import PATIENCE

SIZE = 16 * 1024 * 1024


def in_a_small_file_system(folder: Path, *command: str) -> subprocess.CompletedProcess[str]:
    """Run `command` where `folder` is a file system of 16 MiB. Others never see it, and it goes with the process."""
    mount = f'mount -t tmpfs -o size={SIZE} small "$0" && exec "$@"'
    mine = ["unshare", "--mount"] if os.geteuid() == 0 else ["unshare", "--user", "--map-root-user", "--mount"]
    return subprocess.run(
        [*mine, "sh", "-c", mount, str(folder), *command],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )


def may_mount(folder: Path) -> bool:
    return sys.platform == "linux" and in_a_small_file_system(folder, "true").returncode == 0


@pytest.mark.parametrize(("min_free", "how"), [(1024 * 1024, "the watermark"), (0, "the disk itself")])
def test_a_full_disk_refuses_publishes_and_nothing_else(tmp_path: Path, min_free: int, how: str) -> None:
    if not may_mount(tmp_path):
        pytest.skip("this system lets nobody mount a tmpfs; FaultyStorage covers the same errors")
    worker = [sys.executable, "-m", "tests.crash.full_disk_worker"]
    ended = in_a_small_file_system(tmp_path, *worker, str(tmp_path), str(min_free))
    assert ended.returncode == 0, ended.stderr
    told = json.loads(ended.stdout)
    assert told["error"] == told["error_again"] == told["error_after_room"] == "disk_full", how
    assert told["acknowledged"] > 50
    assert told["read_while_full"], "reading goes on, also of what is on disk only"
    assert told["more_after_room"] > 20, "without a restart"
    assert told["all_there"]
    assert told["topics"] == ["big", "jobs"], "a topic can be deleted on a full disk"
    assert told["jobs_left"] == 2, "acks go on, durably"
    assert told["error_reopened"] == told["error_trimmed"] == "disk_full", "also when it was opened so"
    assert told["shown"] == [min_free > 0, True]
    assert told["more_after_trim"] > 50, "without a restart"
    assert told["all_there_again"]
    assert told["jobs_left_again"] == 1
