"""Each error has one stable code, named after it, and a line in docs/reference/errors.md."""

import importlib
import re
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

from runnel.core.errors import RunnelError
from tests.project.project import PACKAGE, ROOT, modules

PAGE = ROOT / "docs" / "reference" / "errors.md"


def snake_case(name: str) -> str:
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()


def family(root: type[RunnelError]) -> Iterator[type[RunnelError]]:
    """The class and everything below it that runnel defines."""
    yield root
    for child in root.__subclasses__():
        if child.__module__.startswith("runnel."):
            yield from family(child)


@cache
def all_errors() -> list[type[RunnelError]]:
    """Every error class, once each module that defines one has been imported."""
    for module in defining(RunnelError.__name__, {path: (PACKAGE / path).read_text() for path in modules(PACKAGE)}):
        importlib.import_module(".".join(("runnel", *module.with_suffix("").parts)).removesuffix(".__init__"))
    return list(dict.fromkeys(family(RunnelError)))


def defining(root: str, sources: dict[Path, str]) -> list[Path]:
    """The modules that define a class below `root`, by the names of the bases. No other is needed: some want Spark."""
    classes = [
        (path, name, set(re.findall(r"\w+", bases)))
        for path, source in sources.items()
        for name, bases in re.findall(r"^ *class (\w+)\(([^)]*)\):", source, re.MULTILINE)
    ]
    below, before = {root}, 0
    while len(below) > before:
        before = len(below)
        below |= {name for _, name, bases in classes if bases & below}
    return sorted({path for path, _, bases in classes if bases & below})


def faults(errors: Iterable[type[RunnelError]]) -> list[str]:
    """What is wrong with the codes of these classes, a sentence each."""
    found = []
    owner: dict[str, str] = {}
    for error in errors:
        code = vars(error).get("code")
        if code is None:
            found.append(f"{error.__qualname__} has no code of its own")
        elif code != snake_case(error.__name__):
            found.append(f"{error.__qualname__}.code is {code!r}, not {snake_case(error.__name__)!r}")
        elif owner.setdefault(code, error.__qualname__) != error.__qualname__:
            found.append(f"{error.__qualname__} and {owner[code]} share the code {code!r}")
    return found


def documented(page: str) -> list[str]:
    """The codes that have a row in the page's tables, in order."""
    return re.findall(r"^\| *`(\w+)` *\|", page, re.MULTILINE)


def test_every_error_has_a_code_of_its_own_named_after_it() -> None:
    assert faults(all_errors()) == []


def test_every_code_is_documented_and_no_other() -> None:
    rows, codes = documented(PAGE.read_text()), {error.code for error in all_errors()}
    assert sorted(codes - set(rows)) == [], "add a row for each to docs/reference/errors.md"
    assert sorted(set(rows) - codes) == [], "docs/reference/errors.md has rows for errors that do not exist"
    assert len(rows) == len(set(rows)), "docs/reference/errors.md lists a code twice"


def test_a_missing_a_wrong_and_a_shared_code_are_found() -> None:
    class Nameless(RunnelError):
        pass

    class Misnamed(RunnelError):
        code = "other"

    class First(RunnelError):
        code = "twin"

    class Second(RunnelError):
        code = "twin"

    First.__name__ = Second.__name__ = "Twin"
    missing, wrong, shared = faults([Nameless, Misnamed, First, Second])
    assert "Nameless has no code of its own" in missing
    assert "Misnamed.code is 'other', not 'misnamed'" in wrong
    assert "share the code 'twin'" in shared


def test_rows_of_the_page_are_read_and_prose_is_not() -> None:
    page = "text with `a_word`\n\n| code | meaning |\n|---|---|\n| `full` | no room |\n| `ended`| over |\n"
    assert documented(page) == ["full", "ended"]


def test_modules_that_define_errors_are_found_however_deep_the_classes_are() -> None:
    sources = {
        Path("a.py"): "class Wrong(RunnelError): ...",
        Path("b.py"): "import a\n\ndef make():\n    class Worse(a.Wrong, ValueError): ...",
        Path("c.py"): "class Worst(Worse): ...",
        Path("d.py"): "import pyspark\n\nclass Reader(pyspark.Reader): ...",
    }
    assert defining("RunnelError", sources) == [Path("a.py"), Path("b.py"), Path("c.py")]
