"""The tables of docs/reference/config.md, made of the keys. `python -m tests.config.reference_page` writes them."""

from runnel.config.keys import STRUCTS, ConfigKey, keys
from tests.project.project import ROOT

PAGE = ROOT / "docs" / "reference" / "config.md"
HEADS = "| key | environment | option of `runnel serve` | default | meaning |\n|---|---|---|---|---|\n"


def row(key: ConfigKey) -> str:
    """One key on the page."""
    flag = f"`{key.flag}`" if key.name != "server" else "`--server` of the other commands"
    default = "" if key.default is None else f"`{key.shown(key.default)}`"
    return f"| `{key.dotted}` | `{key.environment}` | {flag} | {default} | {_meaning(key)} |\n"


def _meaning(key: ConfigKey) -> str:
    choices = f" ({', '.join(f'`{one}`' for one in key.choices)})" if key.choices and '"' not in key.doc else ""
    return key.doc[0].upper() + key.doc[1:].replace("|", "\\|") + choices


def tables() -> dict[str, str]:
    """The table of each section."""
    found = {}
    for section in STRUCTS:
        rows = "".join(row(key) for key in keys().values() if key.section == section)
        found[section] = HEADS + rows
    return found


def written(page: str) -> str:
    """The page, with its tables as they ought to be."""
    for section, table in tables().items():
        begin, end = f"<!-- keys: {section or 'top'} -->\n", "<!-- end -->"
        head, _, rest = page.partition(begin)
        page = head + begin + table + end + rest.partition(end)[2]
    return page


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text()))
