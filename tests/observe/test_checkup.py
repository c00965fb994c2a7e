"""The findings of `runnel doctor`: what is well is said, and what is not well comes with what to do."""

import os
import ssl
import time
from pathlib import Path

import pytest

from runnel.core.statistics import (
    ArchiveStatistics,
    HistogramSnapshot,
    HolderStatistics,
    JournalStatistics,
    RelayStatistics,
)
from runnel.journal.backup.archive import archive
from runnel.journal.format import lineage
from runnel.journal.format.lineage import Lineage
from runnel.journal.storage import OsStorage
from runnel.observe.checkup import (
    MISSING,
    OK,
    WRONG,
    certificates,
    clock,
    folder_findings,
    journal_findings,
    mounted,
    newest,
    not_after,
    permissions,
    relay_findings,
    skew,
    stored,
)
from tests.journal.folders import Owner, publish_numbered
from tests.server.certificates import Authority

DAY = 86_400.0


def test_the_files_of_a_folder_say_how_it_syncs_who_has_it_and_what_holds_it(tmp_path: Path) -> None:
    assert [one.seen for one in stored(tmp_path, 0.0)] == ["none yet"]
    with Owner(tmp_path / "data") as owner:
        publish_numbered(owner, 0, 1)
        archive(tmp_path / "data", tmp_path / "archive", hold=True)
        journal, fsync = stored(tmp_path / "data", time.time())
        assert (journal.state, f"process {os.getpid()}" in journal.seen) == (OK, True)
        assert fsync.seen.startswith("commit")
        late = [one for one in stored(tmp_path / "data", time.time() + 3 * DAY) if one.state == WRONG]
        assert [one.what for one in late] == [f"backup {tmp_path / 'archive'}"]
    storage = OsStorage(tmp_path / "data")
    lineage.write(storage, Lineage(id="x", is_standby=True, primary="runnel://a?token=secret", key="k"))
    standby = [one.seen for one in stored(tmp_path / "data", time.time())][-1]
    assert standby == "of runnel://a, async, generation 0"
    lineage.write(storage, Lineage(id="x", superseded=3))
    assert "refuses clients" in [one.seen for one in stored(tmp_path / "data", time.time())][-1]
    (tmp_path / "data" / "MANIFEST").write_bytes(b"runnel/m" + bytes([9, 0, 0, 0]) + bytes(4))
    [broken] = stored(tmp_path / "data", time.time())
    assert (broken.state, "format 9" in broken.seen) == (WRONG, True)


def test_a_clock_that_nothing_corrects_and_one_that_is_far_off_are_named() -> None:
    assert clock(lambda: True).state == clock(lambda: None).state == OK
    assert clock(lambda: False).state == MISSING
    assert clock().state in (OK, MISSING)  # whatever this machine has
    assert skew(0.4, 0.0).state == skew(-1.2, 0.3).state == OK
    assert skew(-90.0, 0.1).state == WRONG
    assert "90.0 s behind" in skew(-90.0, 0.1).seen


@pytest.mark.parametrize(("kind", "state"), [("ext4", OK), ("", OK), ("nfs4", WRONG), ("tmpfs", WRONG)])
def test_a_file_system_that_keeps_nothing_or_no_locks_is_wrong(tmp_path: Path, kind: str, state: str) -> None:
    assert mounted(tmp_path / "later", lambda folder: kind).state == state


def test_a_folder_that_others_may_read_and_files_of_the_future_are_wrong(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    file = tmp_path / "000000000001.seg"
    file.touch()
    assert {one.state for one in (permissions(tmp_path), newest(tmp_path))} == {OK}
    os.utime(file, (time.time() + 3600,) * 2)
    assert newest(tmp_path).state == WRONG
    tmp_path.chmod(0o750)
    assert "chmod 700" in permissions(tmp_path).advice
    assert len([*folder_findings(tmp_path)]) == 4
    assert len([*folder_findings(tmp_path / "later")]) == 2
    assert not (tmp_path / "later").exists()


def test_a_certificate_near_its_end_is_wrong(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "ca")
    cert, key = authority.issue("server")
    end = not_after(ssl.PEM_cert_to_DER_cert(cert.read_text()))
    assert end == pytest.approx(time.time() + 2 * DAY, abs=60)
    files = [("certificate", cert)]
    assert [one.state for one in certificates(files, end - 20 * DAY)] == [OK]
    (soon,) = certificates(files, end - 10 * DAY)
    assert (soon.state, "runnel reload" in soon.advice) == (WRONG, True)
    (over,) = certificates(files, end + 1)
    assert "it ended at" in over.seen
    both = tmp_path / "chain.pem"
    both.write_text(cert.read_text() + authority.cert.read_text())
    assert [one.seen for one in certificates([("c", both)], 0.0)] == [one.seen for one in certificates(files, 0.0)]
    assert [one.state for one in certificates([("no", key), ("gone", tmp_path / "gone")], 0.0)] == [WRONG] * 2
    der = ssl.PEM_cert_to_DER_cert(cert.read_text())
    for cut in range(0, 200, 7):
        with pytest.raises(ValueError, match=r"it is|its validity|time data|too many|not enough"):
            not_after(der[:cut])
    (other,) = certificates(files, end - 20 * DAY, served=end - 5 * DAY)
    assert (other.state, other.advice) == (WRONG, "runnel reload")
    assert [one.state for one in certificates(files, end - 20 * DAY, served=end)] == [OK]


def test_what_a_journal_waits_for_or_has_lost_is_named_with_what_to_do() -> None:
    def states(fsync: str = "commit", **change: object) -> dict[str, str]:
        fine = dict.fromkeys(
            ("segments", "disk_bytes", "pending_bytes", "syncs", "scrubbed_bytes", "scrubbed_segments"), 1
        )
        given = {
            "free_bytes": 9,
            "min_free": 1,
            "low": False,
            "full": False,
            "failed": None,
            "holders": (),
            "damage": (),
        }
        durations = HistogramSnapshot((0.001, 0.01, 0.1), (0, 1, 0, 0), 0.01)
        made = JournalStatistics(**(fine | given | {"sync_durations": durations} | change))  # type: ignore[arg-type]
        return {one.what: one.state for one in journal_findings(made, fsync, 10 * DAY)}

    assert set(states().values()) == {OK}
    assert states(failed="I/O error")["journal"] == WRONG
    assert states(damage=("000000000001.seg",))["journal"] == WRONG
    assert states(low=True)["free space"] == WRONG
    slow = HistogramSnapshot((0.001, 0.01, 0.1), (0, 0, 1, 0), 0.1)
    assert states(sync_durations=slow)["syncs of the journal"] == WRONG
    assert states("interval", sync_durations=slow)["syncs of the journal"] == OK
    assert states(holders=(HolderStatistics("audit", "a.>", 20 << 30),))["subscription audit"] == WRONG
    archive = ArchiveStatistics("/backup", 1, 0.0, 8 * DAY)
    assert states(archives=(archive,))["backup /backup"] == WRONG


def test_what_a_slot_makes_postgresql_keep_is_named() -> None:
    relays = [
        RelayStatistics(slot="a", state="streaming", wal_status="reserved", retained_bytes=10),
        RelayStatistics(slot="b", state="streaming", wal_status="lost"),
        RelayStatistics(slot="c", state="paused", wal_status="extended", retained_bytes=6_000_000_000),
        RelayStatistics(slot="d", state="silent"),
    ]
    assert [one.state for one in relay_findings(relays)] == [OK, WRONG, WRONG, WRONG]


def test_an_archive_that_does_not_work_or_missed_records_is_named() -> None:
    archives = [
        RelayStatistics(kind="archive", slot="public.t", state=state, missed=missed, last_error="away")
        for state, missed in (("copying", 0), ("standby", 0), ("copying", 5), ("waiting", 0), ("silent", 0))
    ]
    assert [one.state for one in relay_findings(archives)] == [OK, OK, WRONG, WRONG, WRONG]
    assert {one.what for one in relay_findings(archives)} == {"archive public.t"}
