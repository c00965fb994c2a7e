"""What goes wrong is one line with a code, on the error stream, and an exit code."""

import pytest

from runnel.cli.errors import CommandError, print_error, unknown_topic
from runnel.core.errors import (
    FolderInUse,
    InvalidOption,
    JournalDamaged,
    NotAuthenticated,
    RunnelError,
    UnknownGroup,
    UnknownTopic,
)


@pytest.mark.parametrize(
    ("error", "status", "line"),
    [
        (InvalidOption("count", -1, "expected 0 or more"), 2, "runnel: count=-1: expected 0 or more (invalid_option)"),
        (CommandError("usage_error", "two\nlines", 2), 2, "runnel: two lines (usage_error)"),
        (
            unknown_topic("t", "'data'"),
            1,
            "runnel: there is no topic 't' in 'data'; see `runnel topic list` (unknown_topic)",
        ),
        (
            FolderInUse("data", 7),
            1,
            "runnel: 'data' is in use by process 7, and only its owner may change it: stop that one first "
            "(folder_in_use)",
        ),
        (UnknownGroup("g", "t"), 1, "runnel: there is no group 'g' on 't'; see `runnel group list` (unknown_group)"),
        (
            NotAuthenticated("there is no token"),
            1,
            "runnel: there is no token; name a file with a token that this server knows (--token-file), or set "
            "RUNNEL_TOKEN (not_authenticated)",
        ),
        (
            FolderInUse("data", 7, shares=True, command="worker.py"),
            1,
            "runnel: 'data' is in use by process 7 (worker.py), and only its owner may change it: stop that one first; "
            "`runnel sub`, `runnel pub` and runnel.open() connect to it meanwhile (folder_in_use)",
        ),
        (PermissionError(13, "Permission denied", "data"), 1, "runnel: data: Permission denied (os_error)"),
        (OSError("odd"), 1, "runnel: odd (os_error)"),
    ],
)
def test_an_error_is_one_line(
    error: RunnelError | CommandError | OSError, status: int, line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert print_error(error) == status
    assert capsys.readouterr() == ("", f"{line}\n")


def test_damage_is_a_problem_found(capsys: pytest.CaptureFixture[str]) -> None:
    assert print_error(JournalDamaged("f.seg", 3, "torn")) == 1
    assert capsys.readouterr().err.endswith("(journal_damaged)\n")


def test_a_fact_that_a_server_did_not_send_leaves_the_sentence_as_it_came(capsys: pytest.CaptureFixture[str]) -> None:
    error = UnknownTopic("t")
    del error.topic
    assert print_error(error) == 1
    assert capsys.readouterr().err == f"runnel: {error} (unknown_topic)\n"
