"""Rows of a page: searched, filtered, sorted and paged by the server; the address of a page holds all of it.

?q=shop&state=running&sort=-pages&page=2 ─► ListQuery ─► listed(rows, …) ─► Listed, for the macros of lists.html
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Generic, NamedTuple, TypeVar
from urllib.parse import urlencode

T = TypeVar("T")

PER_PAGE = 50  # Rows of a page

MAX_TEXT = 200  # Characters of a search


class Column(NamedTuple, Generic[T]):
    """A column.

    Attributes:
        key: What it is sorted by; None for a column that cannot be sorted.
        kind: Class of its cells: `number`, `minor` (hidden on narrow screens), or none.
    """

    name: str
    label: str
    key: Callable[[T], Any] | None = None
    kind: str = ""


class Filter(NamedTuple):
    """A choice above a list; its first option, without a value, shows all.

    Attributes:
        options: Value and label.
    """

    name: str
    label: str
    options: Sequence[tuple[str, str]]


class ListQuery(NamedTuple):
    """What a list shows.

    Attributes:
        text: The search.
        chosen: Values of filters by name, those that show all left out.
        sort: Name of a column; empty for the order of the source.
        is_down: Whether the greatest comes first.
        page: From 1 on.
        kept: Further parameters of the page, which links keep.
    """

    text: str = ""
    chosen: Mapping[str, str] = {}
    sort: str = ""
    is_down: bool = False
    page: int = 1
    kept: Mapping[str, str] = {}

    def link(self, **changed: Any) -> str:
        """The query of a link to the same list with something changed; the first page where `page` is not named."""
        wanted = self._replace(**({"page": 1} | changed))
        sort = f"-{wanted.sort}" if wanted.is_down else wanted.sort
        own = {"q": wanted.text, "sort": sort, "page": str(wanted.page) if wanted.page > 1 else ""}
        given = {**wanted.kept, **wanted.chosen, **own}
        return "?" + urlencode({name: value for name, value in given.items() if value})


class Listed(NamedTuple, Generic[T]):
    """A page of rows.

    Attributes:
        total: Rows that fit, on all pages.
        first: Number of the first one shown, from 1 on.
    """

    rows: Sequence[T]
    total: int
    first: int
    pages: int
    query: ListQuery
    columns: Sequence[Column[T]]
    filters: Sequence[Filter]


def query_of(
    given: Mapping[str, str], columns: Sequence[Column[T]], filters: Sequence[Filter] = (), *, keep: Iterable[str] = ()
) -> ListQuery:
    """The query of an address. What cannot be is left out: a link that is old shows the list all the same.

    Args:
        keep: Names of further parameters of the page.
    """
    sort, is_down = given.get("sort", "").removeprefix("-"), given.get("sort", "").startswith("-")
    if not any(column.name == sort and column.key is not None for column in columns):
        sort, is_down = "", False
    chosen = {
        one.name: given[one.name]
        for one in filters
        if given.get(one.name) and any(value == given[one.name] for value, _ in one.options)
    }
    page = given.get("page", "")
    number = int(page) if page.isascii() and page.isdigit() and len(page) < 8 else 1
    kept = {name: given[name] for name in keep if given.get(name)}
    return ListQuery(given.get("q", "").strip()[:MAX_TEXT], chosen, sort, is_down, max(number, 1), kept)


def listed(
    rows: Iterable[T],
    query: ListQuery,
    columns: Sequence[Column[T]],
    filters: Sequence[Filter] = (),
    *,
    text: Callable[[T], str],
    fits: Callable[[T, str, str], bool] = lambda _row, _name, _value: True,
) -> Listed[T]:
    """The page that the query names.

    Args:
        text: What of a row is searched, without regard to case.
        fits: Whether a row fits a filter's value.
    """
    wanted = query.text.casefold()
    found = [
        row
        for row in rows
        if (not wanted or wanted in text(row).casefold())
        and all(fits(row, name, value) for name, value in query.chosen.items())
    ]
    key = next((column.key for column in columns if column.name == query.sort), None)
    if key is not None:
        found.sort(key=key, reverse=query.is_down)
    return paged(found, len(found), query, columns, filters)


def paged(
    found: Sequence[T],
    total: int,
    query: ListQuery,
    columns: Sequence[Column[T]],
    filters: Sequence[Filter] = (),
    *,
    is_cut: bool = False,
) -> Listed[T]:
    """A page of rows that are searched and sorted already.

    Args:
        is_cut: Whether `found` is that page alone, of a source that pages by itself.
    """
    pages = max(1, -(-total // PER_PAGE))
    number = min(query.page, pages)
    begin = (number - 1) * PER_PAGE
    rows = found if is_cut else found[begin : begin + PER_PAGE]
    return Listed(rows, total, begin + 1 if total else 0, pages, query._replace(page=number), columns, filters)
