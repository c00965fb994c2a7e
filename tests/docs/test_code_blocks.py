"""Every Python block in the README and the documentation runs, and prints what the page says."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs import blocks
from tests.docs.blocks import BadMark, Block, extract
from tests.patience import PATIENCE
from tests.project.project import ROOT

TIMEOUT = PATIENCE
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
BLOCKS = [
    pytest.param(page, block, id=f"{page.relative_to(ROOT)}:{block.line}")
    for page in PAGES
    for block in extract(page.read_text())
]


def run(page: Path, block: Block, folder: Path, timeout: float = TIMEOUT) -> subprocess.CompletedProcess[str]:
    """Run the block in an interpreter and a folder of its own, warnings as errors."""
    command = [sys.executable, "-W", "error", str(blocks.__file__), str(page), str(block.line)]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=timeout)


@pytest.mark.parametrize(("page", "block"), BLOCKS)
def test_a_block_runs_and_prints_what_the_page_says(page: Path, block: Block, tmp_path: Path) -> None:
    if block.no_run:
        compile(block.source, str(page), "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        return
    done = run(page, block, tmp_path)
    assert done.returncode == 0, done.stderr
    if block.prints is not None:
        assert done.stdout == block.prints


ON_DISK = [page for page in PAGES if 'runnel.open("' in page.read_text()]


@pytest.mark.parametrize("page", ON_DISK, ids=[str(page.relative_to(ROOT)) for page in ON_DISK])
def test_a_page_about_folders_can_be_followed_in_one_folder_and_again(page: Path, tmp_path: Path) -> None:
    for _ in range(2):
        for block in extract(page.read_text()):
            if not block.no_run:
                done = run(page, block, tmp_path)
                assert done.returncode == 0, done.stderr
                assert block.prints in (None, done.stdout), f"line {block.line}"


PAGE = """\
# A page

```python
import asyncio
name = "ada"
```

<!-- continue -->
```python
await asyncio.sleep(0)
print("hello", name)
```

<!-- prints -->
```text
hello ada
```

<!-- no-run: there is no server -->
```python
raise SystemExit(1)
```

1. In a list:

    ```python
    if True:
        import no_such_module
    ```

```sh
rm -rf everything
```
"""


@pytest.fixture
def page(tmp_path: Path) -> Path:
    path = tmp_path / "page.md"
    path.write_text(PAGE)
    return path


def test_only_python_blocks_are_found_with_their_lines_and_marks() -> None:
    first, second, third, fourth = extract(PAGE)
    assert [block.line for block in (first, second, third, fourth)] == [3, 9, 20, 26]
    assert second.chain() == [first, second]
    assert second.prints == "hello ada\n"
    assert third.no_run == "there is no server"
    assert fourth.source == "if True:\n    import no_such_module\n"


def test_a_continued_block_sees_the_names_before_it_and_may_await(page: Path) -> None:
    done = run(page, extract(PAGE)[1], page.parent)
    assert (done.returncode, done.stdout) == (0, "hello ada\n")


def test_a_block_that_raises_fails_and_names_its_line_on_the_page(page: Path) -> None:
    done = run(page, extract(PAGE)[3], page.parent)
    assert done.returncode != 0
    assert 'page.md", line 28' in done.stderr
    assert "no_such_module" in done.stderr


def test_a_block_that_hangs_is_stopped(tmp_path: Path) -> None:
    path = tmp_path / "page.md"
    path.write_text("```python\nwhile True: pass\n```\n")
    with pytest.raises(subprocess.TimeoutExpired):
        run(path, extract(path.read_text())[0], tmp_path, timeout=0.5)


@pytest.mark.parametrize(
    "text",
    [
        "<!-- continue -->\n```python\n```\n",
        "<!-- prints -->\n```text\n```\n",
        "<!-- no-run -->\n```python\n```\n",
        "<!-- prints -->\n```python\n```\n",
    ],
)
def test_a_mark_that_means_nothing_is_refused(text: str) -> None:
    with pytest.raises(BadMark):
        extract(text)
