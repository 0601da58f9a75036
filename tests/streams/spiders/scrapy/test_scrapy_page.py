"""docs/scrapy.md has the tables of the code, word by word."""

from pathlib import Path

from crawlog.streams.spiders.scrapy import META, SETTINGS
from crawlog.streams.spiders.scrapy.arrived import RAISED

PAGE = Path(__file__).parents[4] / "docs" / "scrapy.md"


def test_the_page_has_every_setting_every_key_and_every_error() -> None:
    """A row that is changed in code is changed there; settings and keys of which the same is true share a row."""
    rows: dict[str, list[str]] = {}
    for name, setting in sorted(SETTINGS.items()):
        rows.setdefault(f"{setting.effect} | {setting.what}", []).append(f"`{name}`")
    for name, key in sorted(META.items()):
        rows.setdefault(f"{key.fate} | {key.what}", []).append(f"`{name}`")
    for name, (kind, told) in RAISED.items():
        rows[f"`{kind.__name__}` | {told}"] = [f"`{name}`"]
    lines = PAGE.read_text().partition("## What a project meets\n")[2].partition("\n## ")[0].splitlines()
    wanted = [f"| {', '.join(names)} | {told} |" for told, names in rows.items()]
    assert [row for row in wanted if row not in lines] == []
    assert len([line for line in lines if line.startswith("| `")]) == len(wanted)
