"""What commit 3e0e419 wrote, answered and printed is still read, answered and printed: see README.md."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.golden import changes, command, comparing
from tests.golden.exchanges import play, serving
from tests.golden.masking import Masker
from tests.golden.reading import Asked, read_folder

FOLDERS = sorted(name.split("/")[1] for name in comparing.names("folders") if name.endswith("/expected.json"))
EXCHANGES = comparing.names("exchanges")

Played = Callable[[str], dict[str, Any]]


# -- folders ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", FOLDERS)
def test_a_golden_folder_is_read_as_it_was(name: str, tmp_path: Path) -> None:
    folder = shutil.copytree(comparing.HERE / "folders" / name / "data", tmp_path / "data")
    expected = comparing.read(f"folders/{name}/expected.json")
    facts = read_folder(folder, msgspec.convert(expected["asked"], Asked))
    for part in ("commands", "broker"):
        for one, value in expected.get(part, {}).items():
            assert facts[part].get(one) == value, f"{part}: {one}"
    assert facts == expected


def test_the_golden_folders_hold_every_feature() -> None:
    facts = {name: comparing.read(f"folders/{name}/expected.json") for name in FOLDERS}
    assert facts["plain"]["broker"]["producers"]["import"] == 3
    assert {one["hold"] for one in facts["plain"]["broker"]["statistics"]["cursors"]} == {True, False}
    assert any(one["attempt"] > 1 for one in facts["groups"]["broker"]["groups"]["workers"]["taken"])
    assert facts["groups"]["broker"]["topics"]["dead-letters.workers"]["records"]
    assert facts["stages"]["broker"]["stages"]
    assert facts["stages"]["broker"]["marks"].keys() == {"bytes", "job", "text"}
    assert facts["compressed"]["broker"]["topics"]["typed.json"]["schema"]
    assert any("-" in one["file"] for one in facts["compacted"]["commands"]["log info --json"]["out"]["segments"])
    assert facts["torn"]["commands"]["log verify --json"]["out"]["torn"]
    assert facts["damaged"]["commands"]["log verify --json"]["code"] == 1


# -- exchanges ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Played:
    """What a server of this code answers, by the name of the exchange. Each server is started once.

    The exchanges of a server are played in the order in which they were recorded, for it counts sequences.
    """
    recorded = {name: json.loads(comparing.golden(name).read_text()) for name in EXCHANGES}
    answers: dict[str, dict[str, Any]] = {}

    def of(name: str) -> dict[str, Any]:
        if name not in answers:
            server = recorded[name]["server"]
            together = {one: golden for one, golden in recorded.items() if golden["server"] == server}
            options = recorded[name]["options"].split()
            with serving(tmp_path_factory.mktemp(server), *options) as ports:
                for one in sorted(together, key=lambda key: together[key]["place"]):
                    golden = together[one]
                    answers[one] = golden | {"steps": play(golden["protocol"], golden["steps"], ports)}
        return answers[name]

    return of


@pytest.mark.parametrize("name", EXCHANGES)
def test_a_server_answers_as_it_did(name: str, played: Played) -> None:
    expected, found = comparing.read(name), played(name)
    for at, (now, then) in enumerate(zip(found["steps"], expected["steps"], strict=False)):
        assert now == then, f"step {at}"
    assert len(found["steps"]) == len(expected["steps"]), found["steps"][len(expected["steps"]) :]


# -- commands -----------------------------------------------------------------------------------------------------


def test_a_command_in_this_process_does_what_it_does_in_its_own(tmp_path: Path) -> None:
    for words in (("log", "cat", "--help"), ("info", "--data", "nothing")):
        assert command.run(*words, cwd=tmp_path) == command.run_apart(*words, cwd=tmp_path)


# -- the list of changes, and masking -----------------------------------------------------------------------------


def test_every_intended_change_has_a_reason_and_changes_something() -> None:
    root = comparing.HERE / "changed"
    there = {path.relative_to(root).as_posix() for path in root.rglob("*") if path.is_file()}
    assert there <= changes.CHANGED.keys(), "files in changed/ that changes.py does not list"
    for name, reason in changes.CHANGED.items():
        before = comparing.HERE / name
        assert len(reason.split()) > 2, f"{name}: say why"
        assert before.exists() or name in there, f"{name}: there is no such golden file"
        if before.exists() and name in there:
            assert before.read_text() != (root / name).read_text(), f"{name}: nothing is changed"
    files = [comparing.HERE / name for kind in ("folders", "exchanges") for name in comparing.names(kind)]
    texts = [path.read_text() for path in files if path.exists()]
    for old in changes.REWORDED:
        assert any(old in text or json.dumps(old)[1:-1] in text for text in texts), f"no golden file says {old!r}"


def test_a_rewording_acts_on_texts_and_on_the_bytes_of_frames(monkeypatch: pytest.MonkeyPatch) -> None:
    recorded = comparing.read("exchanges/native-errors.json")
    answer = next(one for step in recorded["steps"] for one in step["answers"] if one["frame"].startswith("ERROR"))
    monkeypatch.setitem(changes.REWORDED, answer["says"]["message"], "said better")
    now = comparing.reworded(answer)
    assert now["says"] == answer["says"] | {"message": "said better"}
    assert bytes.fromhex(now["bytes"]).endswith(bytes.fromhex(answer["bytes"])[-20:])
    assert b"said better" in bytes.fromhex(now["bytes"])


def test_masks_keep_two_epochs_apart_and_leave_other_numbers_alone() -> None:
    masker = Masker()
    said = {"epoch": 3_675_684_846_503_936, "time": 1_794_826_000.5, "offset": 17, "next": 3_675_684_846_503_937}
    assert masker.value(said) == {"epoch": 1, "time": 0.0, "offset": 17, "next": 2}
    assert masker.text('"epoch":3675684846503937,"time":"2026-03-01T12:00:00.457348Z"') == (
        '"epoch":<epoch 2>,"time":"<time>"'
    )
