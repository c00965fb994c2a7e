"""The findings of `runnel doctor`: problems of a machine, a folder or a server, and their remedies.

Each function checks one thing and changes nothing. It returns the facts, and advice if there is a problem.
"""

from __future__ import annotations

import base64
import ctypes
import os
import re
import stat
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from runnel.core.errors import FormatUnknown, JournalDamaged
from runnel.core.statistics import ARCHIVE
from runnel.journal.folder_lock import file_system, is_network
from runnel.journal.format import lineage, manifest
from runnel.journal.read.inspection import owner_of
from runnel.journal.storage import OsStorage
from runnel.journal.write import archive_holds

if TYPE_CHECKING:
    from runnel.core.statistics import JournalStatistics, RelayStatistics, ReplicationStatistics

OK, MISSING, WRONG = "ok", "missing", "wrong"

FILES = 1024  # fewer than these, and a server is soon at its end
SLOW = 0.020  # seconds: a sync that takes longer is also reported when a folder is opened
SYNCS = 20
SKEW = 1.0  # seconds that two clocks may differ by
SOON = 14 * 86_400.0  # seconds before a certificate ends in which it should be renewed
LONG_AGO = 86_400.0  # seconds since a backup that holds came by
MUCH_HELD = 10 << 30  # bytes that one subscription keeps on the disk
MUCH_WAL = 5_000_000_000  # bytes that a slot makes PostgreSQL keep: as the alert RunnelRelayRetainsWal
_UNSYNCHRONISED = 5  # what adjtimex returns where nothing corrects the clock
_IN_MEMORY = ("tmpfs", "ramfs")
_PEM = re.compile(r"-----BEGIN CERTIFICATE-----\s+([^-]+)-----END CERTIFICATE-----")


class Finding(NamedTuple):
    """One check: its subject, its state, the facts, and the remedy of a problem."""

    what: str
    state: str
    seen: str
    advice: str = ""


_SUPERSEDED = Finding(
    "primary",
    WRONG,
    "a standby was promoted in its place: it refuses clients",
    "make a standby of it: runnel standby --from NEW-PRIMARY --rejoin",
)


# -- the machine ------------------------------------------------------------------------------------------------


def open_files() -> Finding:
    """How many files and connections this process may have open."""
    try:
        import resource
    except ImportError:
        return Finding("open files", OK, "this system has no such limit")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = "no" if hard == resource.RLIM_INFINITY else f"{hard:,}"
    seen = f"{'no limit' if soft == resource.RLIM_INFINITY else f'{soft:,} at a time'}, {most} at most"
    if soft == resource.RLIM_INFINITY or soft >= FILES:
        return Finding("open files", OK, seen)
    return Finding("open files", WRONG, seen, f"ulimit -n {FILES * 64}: each connection is one")


def clock(is_corrected: Callable[[], bool | None] | None = None) -> Finding:
    """Whether something keeps the clock right. Retention, expiry and the times of tokens go by it."""
    found = (is_corrected or _is_corrected)()
    now = f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%S} UTC"
    if found is None:
        return Finding("clock", OK, f"{now}; this system does not say whether something corrects it")
    if found:
        return Finding("clock", OK, f"{now}, corrected by NTP")
    advice = "run chrony or systemd-timesyncd, here or on the host: retention, expiry and tokens go by the clock"
    return Finding("clock", MISSING, f"{now}, and nothing corrects it", advice)


def _is_corrected() -> bool | None:
    """As the kernel says; None: it does not say."""
    if sys.platform != "linux":
        return None
    try:
        state = ctypes.CDLL(None).adjtimex(ctypes.create_string_buffer(512))  # all zero: it is only asked
    except (OSError, AttributeError):
        return None
    return None if state < 0 else state != _UNSYNCHRONISED


def skew(seconds: float, uncertainty: float) -> Finding:
    """The difference of a server's clock from ours. `uncertainty`: half of the round trip."""
    side = "ahead of" if seconds > 0 else "behind"
    seen = f"{abs(seconds):.1f} s {side} the clock here, give or take {uncertainty:.1f} s"
    if abs(seconds) <= SKEW + uncertainty:
        return Finding("clock of the server", OK, seen)
    advice = "correct the wrong one by NTP: tokens expire early or late, and retention goes by the server's clock"
    return Finding("clock of the server", WRONG, seen, advice)


# -- a folder ---------------------------------------------------------------------------------------------------


def folder_findings(folder: Path) -> Iterator[Finding]:
    """The disk of a folder, which need not be there yet, and its files."""
    yield disk(folder)
    yield mounted(folder)
    if folder.is_dir():
        yield permissions(folder)
        yield newest(folder)


def disk(folder: Path, sync: Callable[[Path], float] | None = None) -> Finding:
    """How long the disk of a folder takes to sync."""
    what, here = f"disk of {folder}", _existing(folder)
    try:
        seconds = (sync or median_sync)(here)
    except OSError as error:
        return Finding(what, WRONG, f"nothing can be written in {here}: {error.strerror}", "choose another folder")
    return _sync_finding(what, seconds, f"a sync takes {seconds * 1000:.2f} ms")


def _sync_finding(what: str, seconds: float, seen: str) -> Finding:
    if seconds <= SLOW:
        return Finding(what, OK, seen)
    advice = "a local disk is quicker; or open the folder with fsync='interval', which may lose the last moments"
    return Finding(what, WRONG, f"{seen}, and a publish waits for one", advice)


def median_sync(folder: Path) -> float:
    """The duration of a sync behind a small append there, in seconds. Leaves nothing behind."""
    taken: list[float] = []
    with tempfile.TemporaryFile(dir=folder, buffering=0) as file:
        for _ in range(SYNCS):
            file.write(bytes(512))
            before = time.perf_counter()
            os.fsync(file.fileno())
            taken.append(time.perf_counter() - before)
    return sorted(taken)[len(taken) // 2]


def mounted(folder: Path, kind: Callable[[Path], str] = file_system) -> Finding:
    """The file system type of a folder."""
    what, found = f"file system of {folder}", kind(_existing(folder))
    if is_network(found):
        advice = "use a disk of this machine; for other machines serve it: runnel serve"
        return Finding(what, WRONG, f"{found}, a network file system: locks and syncs may not hold there", advice)
    if found in _IN_MEMORY:
        return Finding(what, WRONG, f"{found}: it lies in memory, and is gone after a restart", "use a disk")
    return Finding(what, OK, found or "this system does not say")


def permissions(folder: Path) -> Finding:
    """Whether other users of the machine can read the records."""
    what, mode = f"mode of {folder}", stat.S_IMODE(folder.stat().st_mode)
    if mode & 0o077:
        advice = f"chmod 700 {folder}: records, and the key that sessions are signed with, are in it"
        return Finding(what, WRONG, f"{mode:o}: other users of this machine may look into it", advice)
    return Finding(what, OK, f"{mode:o}")


def newest(folder: Path, now: Callable[[], float] = time.time) -> Finding:
    """Whether the clock is behind the last written time."""
    what = f"newest file of {folder}"
    ahead = max((one.stat().st_mtime for one in folder.iterdir() if one.is_file()), default=0.0) - now()
    if ahead > SKEW:
        advice = "correct the clock: until then records keep the time of the newest one"
        return Finding(what, WRONG, f"{ahead:.0f} s in the future: the clock was set back", advice)
    return Finding(what, OK, "not in the future")


def stored(folder: Path, now: float) -> Iterator[Finding]:
    """The facts in the files of a folder, whether a process has it open or not: sync mode, role, and holds."""
    storage, what = OsStorage(folder), f"journal in {folder}"
    try:
        found, part, holders = manifest.load(storage), lineage.load(storage), archive_holds.load(storage)
    except FormatUnknown as error:
        yield Finding(what, WRONG, str(error), "install the version of runnel that wrote it, or a later one")
        return
    except (JournalDamaged, OSError) as error:
        yield Finding(what, WRONG, str(error), "restore a backup: runnel restore")
        return
    if found is None:
        yield Finding(what, OK, "none yet")
        return
    owner = owner_of(folder)
    seen = f"{len(found.segments)} segments, {'closed' if found.clean else 'not closed'}"
    yield Finding(what, OK, seen if owner is None else f"{seen}; process {owner.pid} has it")
    yield _fsync_finding(found.fsync)
    if part is not None and part.superseded:
        yield _SUPERSEDED
    elif part is not None and part.is_standby:
        yield Finding("standby", OK, f"of {part.shown_primary}, {part.mode}, generation {part.number}")
    for one in holders:
        yield from _archive_findings(one.place, one.seen / 1e6, now)


def _existing(folder: Path) -> Path:
    return next((one for one in (folder.absolute(), *folder.absolute().parents) if one.is_dir()), Path("/"))


# -- certificates -----------------------------------------------------------------------------------------------


def certificates(files: Iterable[tuple[str, Path]], now: float, served: float | None = None) -> Iterator[Finding]:
    """How long the certificates in these files are in force: of each file the one that ends first.

    `served`: when the one of the first file ends that a server shows its clients.
    """
    for what, file in files:
        shown, served = served, None
        try:
            end = certificate_end(file)
        except (OSError, ValueError) as error:
            yield Finding(what, WRONG, f"{file} cannot be read: {error}", "give a certificate in PEM")
            continue
        if end is None:
            yield Finding(what, WRONG, f"there is no certificate in {file}", "give a certificate in PEM")
            continue
        seen = f"in force until {datetime.fromtimestamp(end, UTC):%Y-%m-%dT%H:%M} UTC"
        if end <= now:
            seen = f"it ended at {datetime.fromtimestamp(end, UTC):%Y-%m-%dT%H:%M} UTC: clients refuse it"
        if end - now < SOON:
            yield Finding(what, WRONG, seen, f"renew {file}, then `runnel reload`")
        elif shown not in (None, end):
            yield Finding(what, WRONG, f"{seen}, and clients are still shown the one before", "runnel reload")
        else:
            yield Finding(what, OK, seen)


def certificate_end(file: Path) -> float | None:
    """When the first of the certificates in a PEM file ends, in seconds since 1970; None: there is none in it."""
    return min((not_after(base64.b64decode(one)) for one in _PEM.findall(file.read_text())), default=None)


def not_after(der: bytes) -> float:
    """The end of a certificate's time, in seconds since 1970; ValueError if it is none. X.509 is a tree of DER."""
    try:
        certificate = next(_elements(der))[1]
        fields = [one for one in _elements(next(_elements(certificate))[1]) if one[0] != 0xA0]  # without the version
        _, (tag, text) = _elements(fields[3][1])  # serial, algorithm, issuer, validity
    except (StopIteration, IndexError):
        raise ValueError("it is no certificate") from None
    form = {0x17: "%y%m%d%H%M%SZ", 0x18: "%Y%m%d%H%M%SZ"}.get(tag)
    if form is None:
        raise ValueError("its validity holds no time")
    return datetime.strptime(text.decode("ascii"), form).replace(tzinfo=UTC).timestamp()


def _elements(data: bytes) -> Iterator[tuple[int, bytes]]:
    at = 0
    while at < len(data):
        if at + 2 > len(data):
            raise ValueError("it is cut off")
        tag, size, start = data[at], data[at + 1], at + 2
        if size & 0x80:
            start += size & 0x7F
            size = int.from_bytes(data[at + 2 : start], "big")
        if start + size > len(data):
            raise ValueError("it is cut off")
        yield tag, data[start : start + size]
        at = start + size


# -- a server ---------------------------------------------------------------------------------------------------


def journal_findings(journal: JournalStatistics, fsync: str | None, now: float) -> Iterator[Finding]:
    """How the journal of a broker stands."""
    yield _fsync_finding(fsync)
    if journal.failed is not None:
        advice = "see dmesg and the disk's SMART data, then restart the server: it takes no publish until then"
        yield Finding("journal", WRONG, f"a write or sync failed: {journal.failed}", advice)
    elif journal.damage:
        advice = "runnel log verify DIR lists all of it; restore a backup, or runnel log repair DIR"
        yield Finding("journal", WRONG, f"damage: {'; '.join(journal.damage[:3])}", advice)
    else:
        yield Finding("journal", OK, f"{journal.segments} segments, {journal.disk_bytes:,} bytes")
    if journal.free_bytes is not None:
        seen = f"{journal.free_bytes:,} bytes are free, {journal.min_free:,} are kept"
        advice = "enlarge the disk, or lower retention: runnel topic list shows which topics take it"
        is_short = journal.low or journal.full
        yield Finding("free space", WRONG if is_short else OK, seen, advice if is_short else "")
    if journal.syncs:
        median = journal.sync_durations.quantile(0.5)
        seen = f"half of {journal.syncs:,} syncs took {median * 1000:g} ms or less"
        yield _sync_finding("syncs of the journal", median if fsync == "commit" else 0.0, seen)
    for holder in journal.holders:
        if holder.bytes > MUCH_HELD:
            advice = f"have it read on, or let go: runnel cursor forget {holder.name}"
            yield Finding(f"subscription {holder.name}", WRONG, f"it holds {holder.bytes:,} bytes on the disk", advice)
    for archive in journal.archives:
        yield from _archive_findings(archive.place, archive.seen, now)


def _fsync_finding(fsync: str | None) -> Finding:
    lost = {"interval": "a power loss may take the last moments", "os": "a power loss may take up to a segment"}
    return Finding("fsync", OK, f"{fsync}: {lost.get(fsync or '', 'what was acknowledged is on disk')}")


def _archive_findings(place: str, came: float, now: float) -> Iterator[Finding]:
    if now - came > LONG_AGO:
        seen = f"it holds segments, and last came by {(now - came) / 86_400:.1f} days ago"
        advice = f"run `runnel backup` again, or let go: runnel backup DIR {place} --release"
        yield Finding(f"backup {place}", WRONG, seen, advice)


def replication_findings(part: ReplicationStatistics | None) -> Iterator[Finding]:
    """How a primary and its standbys stand."""
    if part is None:
        return
    if part.role == "standby":
        seen = f"{part.state}, {part.mode}, {part.lag_bytes:,} bytes behind {part.primary}"
        if part.state == "disk full":
            yield Finding("standby", WRONG, seen, "make room: writing then continues by itself")
        elif part.state == "connecting":
            advice = "look at the primary and the network between; if the primary is gone for good: runnel promote"
            yield Finding("standby", WRONG, f"{seen}: {part.last_error or 'the primary does not answer'}", advice)
        else:
            yield Finding("standby", OK, seen)
        return
    if part.role == "superseded":
        yield _SUPERSEDED
        return
    if part.holding:
        advice = "start the standby again, or promote it; if its folder is gone: runnel standby release"
        yield Finding("primary", WRONG, "nothing is acknowledged: the synchronous standby is away, or full", advice)
    for one in part.followers:
        seen = f"{one.state}, {one.mode}, {one.lag_bytes:,} bytes behind"
        bad = one.state not in ("following", "copying")
        advice = "runnel doctor --server at the standby says why; a failover now would lose what it lacks"
        yield Finding(f"standby {one.name}", WRONG if bad else OK, seen, advice if bad else "")


def relay_findings(relays: Iterable[RelayStatistics]) -> Iterator[Finding]:
    """The log that PostgreSQL keeps for the slots of relays, and whether archives work."""
    for relay in relays:
        if relay.kind == ARCHIVE:
            yield _archive_finding(relay)
            continue
        what = f"slot {relay.slot}"
        if relay.wal_status == "lost":
            advice = "the rows in between are gone: runnel relay snapshot, then a new slot; see runnel relay status"
            yield Finding(what, WRONG, "PostgreSQL discarded WAL that the relay had not received", advice)
        elif (relay.retained_bytes or 0) > MUCH_WAL or relay.wal_status == "unreserved":
            advice = f"start the relay (it is {relay.state}), or drop the slot before PostgreSQL's disk is full"
            yield Finding(what, WRONG, f"PostgreSQL keeps {relay.retained_bytes or 0:,} bytes of WAL for it", advice)
        elif relay.state in ("failed", "silent"):
            advice = "see runnel relay status and the log of the relay; PostgreSQL keeps WAL for it meanwhile"
            yield Finding(what, WRONG, f"the relay is {relay.state}: {relay.last_error or 'no report came'}", advice)
        else:
            yield Finding(what, OK, f"{relay.state}; PostgreSQL keeps {relay.retained_bytes or 0:,} bytes of WAL")


def _archive_finding(archive: RelayStatistics) -> Finding:
    what, missed = f"archive {archive.slot}", f"{archive.missed:,} records were gone before it read them"
    if archive.state in ("failed", "silent", "waiting"):
        advice = "see runnel archive status and the log of the archive"
        return Finding(what, WRONG, f"{archive.state}: {archive.last_error or 'no report came'}", advice)
    if archive.missed:
        advice = "hold = true in [archive] keeps records until they are in the table; runnel archive status names gaps"
        return Finding(what, WRONG, f"{archive.state}; {missed}", advice)
    return Finding(what, OK, f"{archive.state}, {archive.rows:,} rows written")
