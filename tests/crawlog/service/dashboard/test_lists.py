"""Lists of the dashboard: what an address shows."""

from typing import NamedTuple

from hypothesis import given
from hypothesis import strategies as st

from crawlog.service.dashboard.lists import PER_PAGE, Column, Filter, Listed, listed, query_of


class _Row(NamedTuple):
    name: str
    size: int


COLUMNS: tuple[Column[_Row], ...] = (
    Column("name", "Name", lambda row: row.name),
    Column("size", "Size", lambda row: row.size, "number"),
    Column("note", "Note"),
)
FILTERS = (Filter("kind", "Kind", [("", "all"), ("even", "even"), ("odd", "odd")]),)
ROWS = [_Row(f"Row {number}", number % 70) for number in range(130)]


def _listed(**given: str) -> Listed[_Row]:
    query = query_of(given, COLUMNS, FILTERS, keep=["at"])
    return listed(
        ROWS,
        query,
        COLUMNS,
        FILTERS,
        text=lambda row: row.name,
        fits=lambda row, _, value: (row.size % 2 == 0) == (value == "even"),
    )


def test_an_address_searches_filters_sorts_and_pages() -> None:
    """And the links of the page keep all of it."""
    assert [row.name for row in _listed(q="row 12", sort="-size").rows][:2] == ["Row 129", "Row 128"]
    found = _listed(kind="even", sort="size", page="2", at="5")
    assert (len(found.rows), found.total, found.first, found.pages) == (15, 65, 51, 2)
    assert found.query.link(page=1) == "?at=5&kind=even&sort=size"
    assert found.query.link(sort="name", is_down=True) == "?at=5&kind=even&sort=-name"


def test_what_cannot_be_is_left_out() -> None:
    """A link that is old, or a page that is no longer there, shows the list all the same."""
    for wrong in ({"sort": "note"}, {"sort": "-x"}, {"kind": "neither"}, {"page": "-1"}, {"page": "x"}):
        assert _listed(**wrong).rows == ROWS[:PER_PAGE]
    assert _listed(page="999").first == 101


@given(st.dictionaries(st.sampled_from(["q", "sort", "page", "kind", "at", "x"]), st.text(max_size=30)))
def test_every_address_shows_some_page(given: dict[str, str]) -> None:
    """Its rows are a part of what fits."""
    found = _listed(**given)
    assert len(found.rows) <= PER_PAGE
    assert 1 <= found.query.page <= found.pages
    assert found.query.link().startswith("?")
