"""Every option of publish and subscribe is a flag of `runnel pub` and `runnel sub`, and arrives at the broker."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from runnel.broker.writer import LocalFastPath
from runnel.cli.options import cli_options, flag_of
from runnel.core.options import PYTHON_ONLY, OptionKind, PublishOptions, SubscribeOptions, options_of
from runnel.core.position import Position
from tests.cli.conftest import Command
from tests.option_samples import SAMPLES, Asked, beside

UNSHARED = {"headers": "header"}  # what errors call them


def flags(options: dict[str, str]) -> list[str]:
    return [part for name, text in options.items() for part in (flag_of(name), text)]


def test_every_option_that_text_can_say_has_a_flag() -> None:
    for options in (PublishOptions, SubscribeOptions):
        known = options_of(options)
        assert set(cli_options(options)) == {name for name in known if known[name].kind not in PYTHON_ONLY}


def test_sub_has_every_option(runnel: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spy = Asked(monkeypatch)
    for name, option in cli_options(SubscribeOptions).items():
        sample = SAMPLES[option.kind]
        said = [flag_of(name)] if option.kind is OptionKind.SWITCH else [flag_of(name), sample.text]
        done = runnel("sub", f"t.{name}", *flags(beside(name, option)), *said, "--idle", "0s", "--data", tmp_path)
        assert (done.status, done.err) == (0, ""), name
        assert getattr(spy.found[-1], name) == sample.value, name


def test_sub_refuses_wrong_values_by_name(runnel: Command, tmp_path: Path) -> None:
    for name, option in cli_options(SubscribeOptions).items():
        if option.kind is OptionKind.SWITCH:
            continue  # a flag alone
        given = flags(beside(name, option) | {name: SAMPLES[option.kind].wrong_text})
        done = runnel("sub", "t", *given, "--idle", "0s", "--data", tmp_path)
        assert (done.status, done.out) == (2, "")
        assert UNSHARED.get(name, name) in done.err
        assert done.err.endswith(("(invalid_option)\n", "(invalid_name)\n"))


def test_sub_refuses_what_means_nothing_together(runnel: Command, tmp_path: Path) -> None:
    done = runnel("sub", "t", "--ack-wait", "5s", "--data", tmp_path)
    assert (done.status, "means nothing without group=" in done.err) == (2, True)
    done = runnel("sub", "t", "--group", "g", "--policy", "block", "--data", tmp_path)
    assert (done.status, "means nothing with group=" in done.err) == (2, True)


def test_times_and_sizes_are_written_as_people_write_them(
    runnel: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spy = Asked(monkeypatch)
    said = ("--ack-wait", "5min", "--backoff", "1s,1.5min", "--prefetch-bytes", "64KiB")
    assert runnel("sub", "t", "--group", "g", *said, "--idle", "0s", "--data", tmp_path).status == 0
    found = spy.found[-1]
    assert (found.ack_wait, found.backoff, found.prefetch_bytes) == (300.0, (1.0, 90.0), 64 << 10)


def test_pub_has_every_option(runnel: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[dict[str, Any]] = []

    async def publish(self: LocalFastPath, value: bytes, **options: Any) -> Position:
        found.append(PublishOptions.of(options).given())
        return Position(1, 0)

    monkeypatch.setattr(LocalFastPath, "publish", publish)
    for name, option in cli_options(PublishOptions).items():
        sample = SAMPLES[option.kind]
        done = runnel("pub", "t", "value", flag_of(name), sample.text, "--data", tmp_path)
        assert (done.status, done.err) == (0, ""), name
        value = sample.text if option.kind is OptionKind.KEY else sample.value
        assert found[-1] == {name: value}


def test_pub_refuses_wrong_values_by_name(runnel: Command, tmp_path: Path) -> None:
    for name, option in cli_options(PublishOptions).items():
        if option.kind is OptionKind.KEY:
            continue  # any text is a key
        done = runnel("pub", "t", "value", flag_of(name), SAMPLES[option.kind].wrong_text, "--data", tmp_path)
        assert (done.status, done.out) == (2, "")
        assert UNSHARED.get(name, name) in done.err
        assert done.err.endswith("(invalid_option)\n")


@pytest.mark.parametrize("many", [("value", "--count", "2"), ("--file", "lines"), ("-",)])
def test_a_message_id_is_for_one_record(runnel: Command, tmp_path: Path, many: tuple[str, ...]) -> None:
    done = runnel("pub", "t", *many, "--message-id", "m", "--data", tmp_path)
    assert (done.status, "--message-id is for one record" in done.err) == (2, True)


def test_all_records_of_a_pub_follow_the_offset_that_is_expected(runnel: Command, tmp_path: Path) -> None:
    said = ("pub", "t", "value", "--count", "2500", "--expected-offset", "0", "--json", "--data", tmp_path)
    assert runnel(*said).json()["last"] == 2499
    done = runnel(*said)
    assert (done.status, "(offset_conflict)" in done.err) == (1, True)
