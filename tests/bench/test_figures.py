"""Figures that documents quote stand in bench/RESULTS.md, in the section that they link to."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LINK = re.compile(r"\]\((?:\.\./)?bench/RESULTS\.md#([\w-]+)\)")
FIGURE = re.compile(r"\d{4}-\d\d-\d\d|\d+(?:[.,]\d+)*")


def _sections() -> dict[str, set[str]]:
    """The figures of each section, by the anchor of its title."""
    parts = re.split(r"^##+ (.+)\n", (ROOT / "bench" / "RESULTS.md").read_text(), flags=re.MULTILINE)
    anchors = [re.sub(r"[^\w-]", "", title.lower().replace(" ", "-")) for title in parts[1::2]]
    bodies = [title + body for title, body in zip(parts[1::2], parts[2::2], strict=True)]
    return {anchor: set(FIGURE.findall(body)) for anchor, body in zip(anchors, bodies, strict=True)}


@pytest.mark.parametrize(("document", "least"), [("README.md", 2), ("docs/operations.md", 1)])
def test_quoted_figures_are_those_of_the_results(document: str, least: int) -> None:
    """Each figure of a paragraph with such a link; of several machines and days the section is told by the link."""
    sections = _sections()
    paragraphs = re.split(r"\n\n|\n(?=- )", (ROOT / document).read_text())
    quoting = [(text, LINK.findall(text)) for text in paragraphs if LINK.search(text)]
    assert len(quoting) >= least
    for text, anchors in quoting:
        known = set().union(*(sections[anchor] for anchor in anchors))
        assert set(FIGURE.findall(LINK.sub("", text))) - known == set(), text
