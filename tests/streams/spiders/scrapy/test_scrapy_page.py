"""docs/scrapy.md has the tables of the code, word by word."""

from pathlib import Path

from crawlog.streams.spiders.scrapy import META, SETTINGS
from crawlog.streams.spiders.scrapy.failures import RAISED

PAGE = Path(__file__).parents[4] / "docs" / "scrapy.md"


def test_the_page_has_every_setting_every_key_and_every_error() -> None:
    """A row that is changed in code is changed there."""
    rows = [f"| `{name}` | {row.effect} | {row.what} |" for name, row in sorted(SETTINGS.items())]
    rows += [f"| `{key}` | {row.fate} | {row.what} |" for key, row in sorted(META.items())]
    rows += [f"| `{error}` | `{kind.__name__}` | {told} |" for error, (kind, told) in RAISED.items()]
    lines = PAGE.read_text().partition("## What a project meets\n")[2].partition("\n## ")[0].splitlines()
    assert [row for row in rows if row not in lines] == []
    assert len([line for line in lines if line.startswith("| `")]) == len(rows)
