"""The files that browsers get: what lies in the folder and has a type, and nothing else."""

from importlib.resources import files

import pytest

from runnel.console import asset
from runnel.console.assets import TYPES

SERVED = sorted(
    file.name
    for file in files("runnel.console").iterdir()
    if file.name.endswith((".html", ".css", ".js", ".ts", ".svg"))
)


@pytest.mark.parametrize("name", SERVED)
def test_a_file_comes_as_it_lies_there_with_its_type(name: str) -> None:
    found = asset(name)
    assert found is not None
    assert found.body == files("runnel.console").joinpath(name).read_bytes()
    assert found.media_type == TYPES[name[name.rindex(".") :]]


def test_the_page_and_the_module_are_there() -> None:
    assert {"index.html", "runnel.js", "runnel.d.ts"} <= set(SERVED)


@pytest.mark.parametrize("name", ["__init__.py", "files.py", "__pycache__", "", ".", "..", "../files.py", "nothing.js"])
def test_nothing_else_is_served(name: str) -> None:
    assert asset(name) is None


def test_two_files_have_two_tags_and_one_keeps_its_own() -> None:
    tags = {name: found.etag for name in SERVED if (found := asset(name)) is not None}
    assert len(set(tags.values())) == len(SERVED)
    assert all(tag.startswith('"') and tag.endswith('"') for tag in tags.values())


@pytest.mark.parametrize("name", SERVED)
def test_no_file_asks_another_host_for_anything(name: str) -> None:
    text = (found.body.decode() if (found := asset(name)) is not None else "").replace("http://www.w3.org/", "")
    assert [
        line for line in text.splitlines() if 'src="http' in line or "url(http" in line or 'from "http' in line
    ] == []
