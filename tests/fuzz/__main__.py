"""`make fuzz`: every decoder of bytes that strangers send, under fire for a while.

With atheris (coverage tells it which bytes are worth changing) where that is installed, else with
changes at random. What fails is written to a file, to be given back: `python -m tests.fuzz NAME FILE`.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
NAMES = sorted(path.stem.removeprefix("fuzz_") for path in HERE.glob("fuzz_*.py"))
MAX_SIZE = 4096
FOUND = "runnel-fuzz-"
INPUTS = "stat::number_of_executed_units:"  # as atheris says it


def target(name: str) -> tuple[Callable[[bytes], None], tuple[bytes, ...]]:
    """What takes one input, and inputs to begin with."""
    module = importlib.import_module(f"tests.fuzz.fuzz_{name}")
    return module.one_input, module.SEEDS


def changed(seeds: tuple[bytes, ...], rng: random.Random) -> Iterator[bytes]:
    """Seeds with some bytes changed, put in, taken out or doubled, without end."""
    while True:
        data = bytearray(rng.choice(seeds))
        for _ in range(rng.choice((1, 1, 2, 4, 16))):
            at = rng.randrange(len(data) + 1)
            match rng.randrange(5):
                case 0:
                    data[at : at + 1] = rng.randbytes(1)
                case 1:
                    data[at:at] = rng.randbytes(rng.randrange(1, 9))
                case 2:
                    del data[at : at + rng.randrange(1, 9)]
                case 3:
                    data[at : at + 4] = rng.choice((b"\xff" * 4, bytes(4), b"\x7f\xff\xff\xff", b"\x01\x00\x00\x00"))
                case _:
                    data[at:at] = data[rng.randrange(len(data) + 1) :][:64]
        yield bytes(data[:MAX_SIZE])


def at_random(name: str, seconds: float) -> None:
    """Without atheris: any exception is a finding."""
    one_input, seeds = target(name)
    end, count = time.monotonic() + seconds, 0
    for data in changed(seeds, random.Random()):
        try:
            one_input(data)
        except Exception:
            Path(tempfile.gettempdir(), f"{FOUND}{name}").write_bytes(data)
            raise
        count += 1
        if time.monotonic() > end:
            break
    say(f"{INPUTS} {count}")


def with_atheris(name: str, seconds: float) -> None:
    """Guided by coverage. It ends the process it runs in."""
    atheris: Any = importlib.import_module("atheris")
    with atheris.instrument_imports(include=["runnel"]):
        one_input, seeds = target(name)
    corpus = tempfile.mkdtemp()
    for number, seed in enumerate(seeds):
        Path(corpus, str(number)).write_bytes(seed)
    found = f"-artifact_prefix={tempfile.gettempdir()}/{FOUND}{name}-"
    options = ("-timeout=10", "-rss_limit_mb=2048", "-print_final_stats=1", "-verbosity=0", found)
    atheris.Setup([name, *options, f"-max_total_time={seconds:g}", f"-max_len={MAX_SIZE}", corpus], one_input)
    atheris.Fuzz()


def under_fire(name: str, seconds: float) -> bool:
    """Whether a target stood it, in a process and a folder of its own; says so, or shows what went wrong."""
    command = [sys.executable, "-m", "tests.fuzz", name, "--seconds", str(seconds)]
    with tempfile.TemporaryDirectory() as folder:
        ended = subprocess.run(
            command,
            env={**os.environ, "TMPDIR": folder},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            check=False,
        )
        if not ended.returncode:
            count = re.search(rf"{INPUTS} +(\d+)", ended.stdout)
            say(f"{name}: {int(count[1]) if count else 0:,} inputs in {seconds:g} s, nothing found")
            return True
        say(ended.stdout)
        for found in Path(folder).glob(f"{FOUND}*"):
            kept = Path(tempfile.gettempdir(), found.name)
            shutil.copy(found, kept)
            say(f"{name}: found something; look again: python -m tests.fuzz {name} {kept}")
    return False


def say(line: str) -> None:
    """One line to whoever waits."""
    print(line, flush=True)  # noqa: T201


def main() -> int:
    """All targets, one after another; or one; or one with one input."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("name", nargs="?", choices=NAMES, help="which target; without it, all of them")
    parser.add_argument("input", nargs="?", type=Path, help="a file with one input that was found")
    parser.add_argument("--seconds", type=float, default=60, help="for each target")
    asked = parser.parse_args()
    guided = importlib.util.find_spec("atheris") is not None
    if asked.input is not None:
        target(asked.name)[0](asked.input.read_bytes())
        say(f"{asked.name}: {asked.input} is taken well")
    elif asked.name is not None:
        (with_atheris if guided else at_random)(asked.name, asked.seconds)
    else:
        say("guided by coverage (atheris)" if guided else "atheris is not installed here: bytes change at random")
        return [under_fire(name, asked.seconds) for name in NAMES].count(False)
    return 0


if __name__ == "__main__":
    sys.exit(main())
