"""Every Python block in the README and the documentation runs, and prints what the page says."""

import ast
import re
from pathlib import Path

import pytest

from tests.docs.blocks import BadMark, Block, Done, extract, last_of_chains, run
from tests.patience import PATIENCE
from tests.project.project import ROOT

PAGES = {
    page: extract(page.read_text()) for page in [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
}
CHAINS = [
    pytest.param(page, block, id=f"{page.relative_to(ROOT)}:{block.chain()[0].line}")
    for page, blocks in PAGES.items()
    for block in last_of_chains(blocks)
]


def check(page: Path, last: Block, folder: Path) -> None:
    """Run a block with those that it continues: each prints what the page says."""
    done = run(page, last.line, folder, PATIENCE)
    assert done.code == 0, done.errors
    for block, printed in zip(last.chain(), done.printed, strict=True):
        assert block.prints in (None, printed), f"{page}, line {block.line}"


@pytest.mark.parametrize(("page", "last"), CHAINS)
def test_blocks_run_and_print_what_the_page_says(page: Path, last: Block, tmp_path: Path) -> None:
    check(page, last, tmp_path)


def test_what_is_not_run_can_be_compiled() -> None:
    found = [(page, block) for page, blocks in PAGES.items() for block in blocks if not block.is_run_here]
    assert found
    for page, block in found:
        compile("\n" * block.line + block.source, str(page), "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)


def opens_a_folder(block: Block) -> bool:
    """Whether the block may leave something in a folder; a broker in memory leaves nothing."""
    return re.search(r"""open\((?!\))(?!f?["']runnel)""", block.source) is not None


ON_DISK = [page for page, found in PAGES.items() if any(opens_a_folder(one) and one.is_run_here for one in found)]


@pytest.mark.parametrize("page", ON_DISK, ids=[str(page.relative_to(ROOT)) for page in ON_DISK])
def test_a_page_about_folders_can_be_followed_in_one_folder_and_again(page: Path, tmp_path: Path) -> None:
    in_folders = [block for block in last_of_chains(PAGES[page]) if any(opens_a_folder(part) for part in block.chain())]
    for _ in range(2):
        for block in in_folders:
            check(page, block, tmp_path)


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


def run_block(text: str, line: int, folder: Path, timeout: float = PATIENCE) -> Done:
    """Run a block of a page that consists of this."""
    page = folder / "page.md"
    page.write_text(text)
    return run(page, line, folder, timeout)


def test_only_python_blocks_are_found_with_their_lines_and_marks() -> None:
    first, second, third, fourth = extract(PAGE)
    assert [block.line for block in (first, second, third, fourth)] == [3, 9, 20, 26]
    assert second.chain() == [first, second]
    assert second.prints == "hello ada\n"
    assert third.no_run == "there is no server"
    assert fourth.source == "if True:\n    import no_such_module\n"
    assert last_of_chains([first, second, third, fourth]) == [second, fourth]


def test_a_continued_block_sees_the_names_before_it_and_may_await(tmp_path: Path) -> None:
    done = run_block(PAGE, 9, tmp_path)
    assert (done.code, done.printed) == (0, ["", "hello ada\n"])


@pytest.mark.parametrize("waits", ["", "import asyncio\nawait asyncio.sleep(0)\n"])
def test_the_output_of_each_block_is_distinguished(tmp_path: Path, waits: str) -> None:
    text = f"```python\nprint(1)\n```\n<!-- continue -->\n```python\n{waits}print(2)\nprint(3)\n```\n"
    assert run_block(text, 5, tmp_path) == Done(0, ["1\n", "2\n3\n"], "")


def test_a_block_that_raises_fails_and_names_its_line_on_the_page(tmp_path: Path) -> None:
    done = run_block(PAGE, 26, tmp_path)
    assert done.code != 0
    assert 'page.md", line 28' in done.errors
    assert "no_such_module" in done.errors


def test_a_block_that_warns_fails(tmp_path: Path) -> None:
    done = run_block("```python\nimport warnings\nwarnings.warn('old')\n```\n", 1, tmp_path)
    assert done.code != 0
    assert "UserWarning: old" in done.errors


def test_a_block_that_hangs_is_stopped(tmp_path: Path) -> None:
    with pytest.raises(TimeoutError):
        run_block("```python\nwhile True: pass\n```\n", 1, tmp_path, timeout=0.2)


def test_a_block_knows_nothing_of_others(tmp_path: Path) -> None:
    text = (
        "```python\nimport os, sys, runnel.server\nos.environ['MINE'] = sys.own = '1'\nopen('mine', 'w').close()\n```\n"
        "```python\nimport os, sys, runnel\nprint(os.listdir(), os.environ.get('MINE'), hasattr(sys, 'own'))\n"
        "print(hasattr(runnel, 'server'))\n```\n"
    )
    (tmp_path / "other").mkdir()
    assert run_block(text, 1, tmp_path).code == 0
    assert (tmp_path / "mine").exists()
    done = run(tmp_path / "page.md", 6, tmp_path / "other", PATIENCE)
    assert done == Done(0, ["[] None False\nFalse\n"], "")


@pytest.mark.parametrize(
    "text",
    [
        "<!-- continue -->\n```python\n```\n",
        "<!-- prints -->\n```text\n```\n",
        "<!-- no-run -->\n```python\n```\n",
        "<!-- run-by -->\n```python\n```\n",
        "<!-- prints -->\n```python\n```\n",
    ],
)
def test_a_mark_that_means_nothing_is_refused(text: str) -> None:
    with pytest.raises(BadMark):
        extract(text)
