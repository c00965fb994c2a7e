"""Every key comes from a struct: its name, type, default and meaning are said once."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import msgspec
import pytest

from runnel.config.keys import SERVE_DEFAULTS, STRUCTS, ConfigKey, GeneralSettings, ServeSettings, keys
from runnel.journal.options import JournalOptions
from runnel.server.options import ServerOptions, TlsOptions
from tests.config.reference_page import PAGE, written


def test_every_field_of_every_struct_is_a_key() -> None:
    found = {(key.struct, key.name.removeprefix("tls_") if key.within else key.name) for key in keys().values()}
    for struct in (GeneralSettings, ServeSettings, ServerOptions, JournalOptions, TlsOptions):
        for field in struct.__struct_fields__:
            assert (struct, field) in found or (struct, field) == (ServerOptions, "ssl")


def test_a_key_has_a_name_for_each_place() -> None:
    port, fsync, pending = (keys()[one] for one in ("serve.port", "journal.fsync", "journal.max_pending_bytes"))
    assert (port.environment, port.flag) == ("RUNNEL_SERVE_PORT", "--port")
    assert (fsync.environment, fsync.flag) == ("RUNNEL_JOURNAL_FSYNC", "--fsync")
    assert pending.flag == "--journal-max-pending-bytes"
    assert keys()["data"].environment == "RUNNEL_DATA"


def test_no_two_keys_share_a_variable_or_an_option() -> None:
    for names in ([key.environment for key in keys().values()], [key.flag for key in keys().values()]):
        assert len(names) == len(set(names))


def test_every_key_says_what_it_means_and_has_the_default_of_its_struct() -> None:
    for key in keys().values():
        assert key.doc, f"{key.dotted}: the docstring of {key.struct} says nothing about it"
        assert "None" not in key.doc
        if not key.within:
            assert key.struct is not None
            assert key.default == SERVE_DEFAULTS.get(key.name, getattr(key.struct(), key.name))


@pytest.mark.parametrize("key", keys().values(), ids=lambda key: key.dotted)
def test_a_default_is_shown_as_it_can_be_said(key: ConfigKey) -> None:
    if key.default is not None:
        assert key.parsed(key.shown(key.default)) == key.default


KINDS = {
    "serve.port": "number",
    "serve.ping": "seconds",
    "serve.max_frame": "bytes",
    "serve.accept_rate": "rate",
    "serve.memory": "yes or no",
    "serve.host": "text",
    "serve.unix": "path",
    "serve.tls_key": "path",
    "journal.segment_bytes": "bytes",
    "journal.clean_bytes_per_second": "bytes",
    "journal.history_share": "rate",
    "journal.scrub_interval": "seconds",
}


@pytest.mark.parametrize(("dotted", "kind"), KINDS.items())
def test_a_key_knows_what_it_counts(dotted: str, kind: str) -> None:
    assert keys()[dotted].kind == kind


@pytest.mark.parametrize(
    ("dotted", "text", "value"),
    [
        ("serve.port", "9000", 9000),
        ("serve.json_port", "off", None),
        ("serve.idle_timeout", "none", None),
        ("serve.ping", "1.5s", 1.5),
        ("serve.max_line", "64KiB", 65536),
        ("serve.memory", "YES", True),
        ("serve.memory", "0", False),
        ("serve.accept_rate", "0.5", 0.5),
        ("journal.fsync", "os", "os"),
        ("serve.host", "::1", "::1"),
        ("serve.unix", "off", "off"),
    ],
)
def test_what_is_said_as_text_is_read(dotted: str, text: str, value: object) -> None:
    assert keys()[dotted].parsed(text) == value


@pytest.mark.parametrize(
    ("dotted", "text", "expected"),
    [
        ("serve.max_calls", "many", "a whole number"),
        ("serve.max_calls", "off", "a whole number"),
        ("serve.json_port", "x", "a whole number or off"),
        ("serve.memory", "maybe", "true or false"),
        ("serve.ping", "soon", "a duration"),
        ("serve.max_line", "5s", "B, KiB"),
        ("serve.log_format", "xml", "text or json"),
        ("journal.fsync", "never", "commit, interval, os"),
    ],
)
def test_an_invalid_argument_gets_an_error_that_names_what_is_expected(dotted: str, text: str, expected: str) -> None:
    with pytest.raises(ValueError, match=re.escape(expected)):
        keys()[dotted].parsed(text)


@pytest.mark.parametrize(
    ("dotted", "said", "value"),
    [
        ("serve.port", 9000, 9000),
        ("serve.ping", 3, 3),
        ("serve.ping", 3.5, 3.5),
        ("serve.ping", "3s", 3.0),
        ("serve.max_line", 5, 5),
        ("serve.max_line", "1MiB", 1 << 20),
        ("serve.memory", True, True),
        ("serve.json_port", "off", None),
    ],
)
def test_what_a_file_says_has_types(dotted: str, said: Any, value: object) -> None:
    assert keys()[dotted].typed(said) == value


@pytest.mark.parametrize(
    ("dotted", "said"),
    [
        ("serve.port", "9000"),
        ("serve.port", True),
        ("serve.port", 1.5),
        ("serve.memory", 1),
        ("serve.memory", "true"),
        ("serve.host", 5),
        ("serve.max_line", 1.5),
        ("serve.ping", True),
        ("serve.ping", [1]),
    ],
)
def test_a_wrong_type_in_a_file_is_refused(dotted: str, said: Any) -> None:
    with pytest.raises(ValueError, match="expected"):
        keys()[dotted].typed(said)


def test_what_is_off_or_not_said_is_shown_so() -> None:
    assert keys()["serve.json_port"].shown(None) == "off"
    assert keys()["serve.unix"].shown(None) == "-"
    assert keys()["serve.unix"].shown(Path("run/x.sock")) == "run/x.sock"


def test_the_reference_has_every_key_as_it_is() -> None:
    assert PAGE.read_text() == written(PAGE.read_text()), "python -m tests.config.reference_page writes it"


def test_the_structs_of_a_section_share_no_name() -> None:
    for structs in STRUCTS.values():
        names = [field.name for struct in structs for field in msgspec.structs.fields(struct)]
        assert len(names) == len(set(names))
