"""The public surface as text: every public name with its signature.

`python -m tests.project.surface` prints it; `--update` (`make surface`) writes it into
surface.txt, which the test compares. Nothing else ever writes that file.
"""

import enum
import importlib
import inspect
import re
import sys
import typing
from collections.abc import Iterator
from pathlib import Path

SNAPSHOT = Path(__file__).with_name("surface.txt")
MODULES = ("runnel", "runnel.blocking", "runnel.fastapi", "runnel.observe", "runnel.postgres", "runnel.testing")


def render(modules: tuple[str, ...] = MODULES) -> str:
    """The surface of the modules, one name a line, methods indented under their class."""
    lines: list[str] = []
    for module in modules:
        namespace = importlib.import_module(module)
        lines.append(f"# {module}")
        for name in sorted(namespace.__all__):
            lines.extend(_describe(name, getattr(namespace, name)))
        lines.append("")
    return "\n".join(lines)


def _describe(name: str, thing: object) -> Iterator[str]:
    if inspect.isclass(thing):
        yield f"class {name}{_constructor(thing)}{_bases(thing)}"
        for member in sorted(_members(thing)):
            yield f"    {_member(thing, member)}"
    elif inspect.isroutine(thing):
        yield _function(name, thing)
    elif inspect.ismodule(thing):
        yield f"module {name}"
    elif isinstance(thing, str | int | float | bytes | tuple):
        yield f"{name}: {type(thing).__name__}"  # a value may change, its type is the promise
    elif typing.get_origin(thing) is not None or isinstance(thing, typing.TypeVar):
        yield f"{name} = {_tidy(repr(thing))}"
    else:
        yield f"{name}: {type(thing).__name__}"


def _constructor(cls: type) -> str:
    """How callers make one; nothing for enums and protocols, which are not made by calling them."""
    return "" if issubclass(cls, enum.Enum) or typing.Protocol in cls.__bases__ else _signature(cls)


def _bases(cls: type) -> str:
    unsaid = (object, typing.Generic)
    shown = [base.__name__ for base in cls.__bases__ if base not in unsaid and not base.__name__.startswith("_")]
    return f" extends {', '.join(shown)}" if shown else ""


def _members(cls: type) -> set[str]:
    """The public members that runnel gives the class, inherited ones included."""
    ours = (base for base in cls.__mro__ if base.__module__.partition(".")[0] == "runnel")
    return {name for base in ours for name in vars(base) if not name.startswith("_")}


def _member(cls: type, name: str) -> str:
    found = inspect.getattr_static(cls, name)
    if isinstance(found, classmethod | staticmethod):
        return f"{type(found).__name__} {_function(name, found.__func__)}"
    if inspect.isfunction(found):
        return _function(name, found)
    if isinstance(found, property):
        result = inspect.signature(found.fget).return_annotation if found.fget else inspect.Signature.empty
        return f"{name}: {_annotation(result)} (property)"
    if isinstance(found, enum.Enum):
        return f"{name} = {found.value!r}"
    if isinstance(found, str | int | float) and not inspect.isdatadescriptor(found):
        return f"{name} = {found!r}"
    return name


def _function(name: str, function: object) -> str:
    is_async = inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function)
    return f"{'async ' if is_async else ''}def {name}{_signature(function)}"


def _signature(thing: object) -> str:
    try:
        return _tidy(str(inspect.signature(thing)))  # type: ignore[arg-type]
    except (TypeError, ValueError):  # made in C, without a signature
        return "(...)"


def _annotation(annotation: object) -> str:
    if annotation is inspect.Signature.empty:
        return "?"
    return _tidy(annotation if isinstance(annotation, str) else inspect.formatannotation(annotation))


def _tidy(text: str) -> str:
    """Without what differs between runs and Python versions: addresses, quotes around annotations, module paths."""
    text = re.sub(r" at 0x[0-9a-f]+", "", text)
    text = re.sub(r"ForwardRef\('([^']*)'\)", r"\1", text)
    text = re.sub(r"(: |-> )'([^']*)'", r"\1\2", text)
    return re.sub(r"\b(?:runnel|collections|typing|msgspec)\.(?:\w+\.)*(?=[A-Z])", "", text)


def main(arguments: list[str]) -> int:
    """Print the surface, or write it with --update."""
    if arguments == ["--update"]:
        SNAPSHOT.write_text(render())
        sys.stdout.write(f"wrote {SNAPSHOT.name}\n")
        return 0
    sys.stdout.write(render())
    return 2 if arguments else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
