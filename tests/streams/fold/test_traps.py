"""Sites without end stay bounded, and honest ones are crawled whole: twenty of each kind through the fold."""

import random
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

import pytest

from crawlog.schemas import urls as u
from crawlog.streams.fold import rows as r
from crawlog.streams.fold.fold import Fold
from crawlog.streams.fold.overlay import InMemory, Rows, digest
from crawlog.streams.fold.traps import Traps, session_twin, shape
from crawlog.streams.url.place import Places

Site = Callable[[str], Iterable[str]]
"""The links of a page, by its path and query; a URL of another host begins with http."""

MOST_STRAYS = 200
PAGES = 3000
"""A crawl of one site ends here: a trap that got so far is not bounded."""


class Heard:
    """Hears of each URL that may be fetched."""

    def __init__(self, queue: deque[str]) -> None:
        self._queue = queue

    def queued(self, *told: Any) -> None:
        """Its row comes last."""
        self._queue.append(r.read_queued(told[-1]).url)

    def _ignored(self, *_told: Any) -> None:
        """Nothing is ever done, and no job changes."""

    lowered = removed = waiting = outdated = job_changed = forgotten = _ignored


def crawl(host: str, site: Site, **traps: object) -> tuple[set[str], dict[str, int]]:
    """Every URL of a site that the fold queues, breadth first, and what it refused by rule."""
    taken, dropped, _ = crawled(host, site, 50, **traps)
    return taken, dropped


def crawled(host: str, site: Site, flush_every: int, **traps: object) -> tuple[set[str], dict[str, int], str]:
    """As `crawl`; the state's digest too."""
    base = InMemory()
    rows = Rows(base)
    fold = Fold(0, Places(1), rows, cached_pages=2)
    spec = u.JobSpec(scope=u.ScopeSpec(kind="any"), traps=u.TrapRules(**traps))  # type: ignore[arg-type]  # the record's own fields
    fold.take(u.encode(u.UrlsRecord(job="j", spec=spec)), 0, 0.0)
    queue: deque[str] = deque()

    fold.listener = Heard(queue)
    home = f"http://{host}/"
    fold.take(u.encode(u.UrlsRecord(job="j", urls=[u.FoundUrl(home)])), 1, 0.0)
    taken: set[str] = set()
    offset = 2
    while queue and len(taken) < PAGES:
        url = queue.popleft()
        taken.add(url)
        page_host, _, path = url.removeprefix("http://").partition("/")
        links = [link if link.startswith("http") else f"http://{page_host}{link}" for link in site(f"/{path}")]
        founds = [u.FoundUrl(link, 1, 0, "link", url) for link in links]
        fold.take(u.encode(u.UrlsRecord(job="j", urls=founds)), offset, 0.0)
        offset += 1
        if offset % flush_every == 0:
            fold.flush()
            base.write(rows.taken())
    fold.flush()
    base.write(rows.taken())
    return taken, fold.jobs["j"].counts.dropped, digest(base.scan(b""))


def with_pages(site: Site, pages: int = 30) -> Site:
    """A trap on a site that also has honest pages."""

    def both(path: str) -> Iterable[str]:
        if path == "/":
            yield from (f"/real/{n}.html" for n in range(pages))
        elif path.startswith("/real/"):
            yield "/"
            return
        yield from site(path)

    return both


def days(path: str) -> Iterable[str]:
    """The day before and the day after, as far as one likes."""
    number = int("".join(c for c in path.rpartition("?")[2] if c.isdigit()) or 0) or 20_260_115
    year, rest = divmod(number, 10_000)
    month, day = divmod(rest, 100)
    ahead = year * 372 + (month - 1) * 31 + day
    for other in (ahead - 2, ahead):
        y, left = divmod(other, 372)
        yield f"/events?date={y:04d}-{left // 31 + 1:02d}-{left % 31 + 1:02d}"


def months(path: str) -> Iterable[str]:
    """A month, its days, its neighbours."""
    parts = [part for part in path.split("/") if part.isdigit()]
    year, month = (int(parts[0]), int(parts[1])) if len(parts) > 1 else (2026, 1)
    for ahead in (-1, 1):
        y, m = divmod(year * 12 + month - 1 + ahead, 12)
        yield f"/{y:04d}/{m + 1:02d}/"
    if len(parts) == 2:
        yield from (f"/{year:04d}/{month:02d}/{day:02d}" for day in range(1, 29))


def month_names(path: str) -> Iterable[str]:
    """By the parameters year and month."""
    year, month = 2026, 1
    if "year=" in path:
        year, month = (int(part.rpartition("=")[2]) for part in path.rpartition("?")[2].split("&"))
    for ahead in (-1, 1):
        y, m = divmod(year * 12 + month - 1 + ahead, 12)
        yield f"/cal?year={y}&month={m + 1}"


def _session(form: str) -> Site:
    def site(_path: str) -> Iterable[str]:
        chosen = random.Random(_path)
        return (form.format(page=page, id=f"{chosen.getrandbits(64):016x}") for page in range(40))

    return site


def relative(path: str) -> Iterable[str]:
    """Relative links from wherever one is."""
    folder = path.partition("?")[0].rpartition("/")[0]
    return (f"{folder}/{name}/" for name in ("news", "about", "shop"))


def growing_query(path: str) -> Iterable[str]:
    """One parameter more on each page, of two names."""
    mark = "&" if "?" in path else "?"
    return (f"{'/list' if path == '/' else path}{mark}{name}=1" for name in ("a", "b"))


def facets(path: str) -> Iterable[str]:
    """Each of eight filters can be added to what is chosen."""
    chosen = dict(p.split("=") for p in path.partition("?")[2].split("&") if p)
    for name in "abcdefgh":
        for value in range(4):
            combined = dict(sorted({**chosen, name: str(value)}.items()))
            yield "/shop?" + "&".join(f"{k}={v}" for k, v in combined.items())


def subdomains(path: str) -> Iterable[str]:
    """Three more hosts on each page."""
    chosen = random.Random(path + str(next(_ticks)))
    return (f"http://w{chosen.getrandbits(40)}.trap.test/x" for _ in range(3))


def like_the_domain(path: str) -> Iterable[str]:
    """The same, by names that begin as the domain does."""
    chosen = random.Random(path + str(next(_ticks)))
    return (f"http://trap.test{chosen.getrandbits(40)}.trap.test/x" for _ in range(3))


def ports(path: str) -> Iterable[str]:
    """The same, by ports."""
    chosen = random.Random(path + str(next(_ticks)))
    return (f"http://trap.test:{chosen.randrange(1024, 65_536)}/x" for _ in range(3))


_ticks = iter(range(1 << 60))

TRAPS: dict[str, Site] = {
    "days": days,
    "months": months,
    "year and month": month_names,
    "session in the query": _session("/page{page}?PHPSESSID={id}"),
    "session in the path": _session("/page{page};jsessionid={id}"),
    "session as a folder": _session("/(S({id}))/page{page}"),
    "relative links": relative,
    "growing query": growing_query,
    "facets": facets,
    "subdomains": subdomains,
    "subdomains like the domain": like_the_domain,
    "ports": ports,
}


@pytest.mark.parametrize("kind", TRAPS)
def test_a_trap_gets_few_strays_and_loses_no_page(kind: str) -> None:
    """Two hosts of each kind: all thirty real pages, at most 200 others, and each refusal has its rule."""
    for host in ("trap.test", "other.trap2.test"):
        taken, dropped = crawl(host, with_pages(TRAPS[kind]))
        real = {f"http://{host}/", *(f"http://{host}/real/{n}.html" for n in range(30))}
        assert real <= taken
        assert len(taken - real) <= MOST_STRAYS
        assert all(rule.startswith("trap_") for rule in dropped)
        assert sum(dropped.values()) > 0


def forum(path: str) -> Iterable[str]:
    """500 pages of threads, each linked from the one before, and their posts."""
    page = int(path.rpartition("page=")[2]) if "page=" in path else 1
    yield f"/forum?page={min(page + 1, 500)}"
    yield from (f"/viewtopic.php?f={page % 7}&t={page * 10 + n}" for n in range(3))
    if "viewtopic" in path and "start" not in path:
        yield from (f"{path}&start={n * 15}" for n in range(1, 3))


def shop(path: str) -> Iterable[str]:
    """Three filters of eight values, in every combination, and what they find."""
    chosen = dict(p.split("=") for p in path.partition("?")[2].split("&") if p)
    for name in ("brand", "colour", "size"):
        for value in range(8):
            combined = dict(sorted({**chosen, name: str(value)}.items()))
            yield "/shop?" + "&".join(f"{k}={v}" for k, v in combined.items())
    yield f"/item/{len(path)}"


def archive(path: str) -> Iterable[str]:
    """Twenty years of months and what was written in them; each month links to its neighbours."""
    parts = [part for part in path.split("/") if part]
    if not parts:
        yield from (f"/{year}/" for year in range(2005, 2025))
    elif len(parts) == 1:
        yield from (f"/{parts[0]}/{month:02d}/" for month in range(1, 13))
    elif len(parts) == 2:
        yield from (f"/{parts[0]}/{parts[1]}/title-{n}" for n in range(4))
        yield f"/{parts[0]}/{int(parts[1]) % 12 + 1:02d}/"


def docs(path: str) -> Iterable[str]:
    """A tree five deep, three wide, whose names repeat in every branch, with a menu on every page."""
    depth = path.count("/")
    if depth < 6:
        yield from (f"{path.rstrip('/')}/{name}{depth}/" for name in ("api", "guide", "ref"))
    yield from ("/api1/", "/guide1/", "/ref1/")


def source(path: str) -> Iterable[str]:
    """A source tree in which the project's name comes twice, with 300 files in the folder below."""
    if path == "/":
        yield "/acme/acme/"
    if path.startswith("/acme/acme/") and path.count("/") == 3:
        yield from (f"/acme/acme/tree/main/src/acme/file{n}.py" for n in range(300))


def entry_point(path: str) -> Iterable[str]:
    """A program with one path and many parameters, 400 articles and their printed forms."""
    if path == "/":
        for n in range(400):
            yield f"/index.php?option=content&view=article&catid={n % 9}&id={n}&Itemid={n % 5}"
            yield f"/index.php?option=content&view=article&catid={n % 9}&id={n}&Itemid={n % 5}&print=1"


HONEST: dict[str, tuple[Site, int]] = {
    "forum": (forum, 1 + 500 + 1500 + 1000),
    "shop": (shop, 9**3 - 1),
    "archive": (archive, 1 + 20 + 240 + 960),
    "docs": (docs, 1 + 3 + 9 + 27 + 81 + 243),
    "source": (source, 302),
    "entry point": (entry_point, 801),
}


@pytest.mark.parametrize("kind", HONEST)
def test_an_honest_site_is_crawled_whole(kind: str) -> None:
    """Nothing refused that somebody wants."""
    site, pages = HONEST[kind]
    taken, dropped = crawl("honest.test", site)
    assert dropped == {}
    assert len(taken) >= min(pages, PAGES)


@pytest.mark.parametrize("site", [months, facets, relative, forum, entry_point])
def test_checkpoints_do_not_change_what_is_a_stray(site: Site) -> None:
    """Whatever was in memory: the same rows."""
    assert crawled("h.test", site, 3)[1:] == crawled("h.test", site, 1000)[1:]


def test_a_rule_can_be_switched_off() -> None:
    """Per job; a new revision of the job's record holds from then on."""
    assert len(crawl("trap.test", days, calendar=False)[0]) == PAGES
    assert len(crawl("trap.test", days, strays=5)[0]) < 20


@pytest.mark.parametrize(
    ("url", "parent", "rule"),
    [
        ("http://h/a/b/a/", "http://h/a/b/", "trap_repeats"),
        ("http://h/a/x", "http://h/a/y", None),
        ("http://h/a/", "http://h/", None),
        ("http://h/b/a/b", "http://h/a/b", None),
        ("http://h/" + "/".join(map(str, range(18))), "http://h/" + "/".join(map(str, range(17))), "trap_depth"),
        ("http://h/?a=1&a=2", "http://h/?a=1", "trap_query"),
        ("http://h/?a=1&b=2", "http://h/?a=1", None),
        ("http://h/?a[]=1&a[]=2", "http://h/?a[]=1", None),
        ("http://h/?" + "&".join(f"a{n}=1" for n in range(9)), "http://h/?a=1", "trap_query"),
        ("http://h/?a=1", "", None),
    ],
)
def test_growth_is_seen_beside_the_parent(url: str, parent: str, rule: str | None) -> None:
    """A path that repeats itself from page to page, too deep a path, a query that grows."""
    found = u.FoundUrl(url, 1, 0, "link", parent)
    rules = u.TrapRules(calendar=False, facets=False)
    assert Traps(Rows(InMemory())).suspicion(1, rules, found, url, Places(1).of(url)) == rule


def test_dates_of_one_calendar_have_one_shape() -> None:
    """Numbers and month names do not count."""
    assert shape("http://h/2026/nov/3") == shape("http://h/2027/january/12")
    assert shape("http://h/?month=may") == shape("http://h/?month=11")


def test_a_session_url_names_its_page() -> None:
    """And all its sessions together; most URLs name none."""
    assert session_twin("http://h/x?a=1&b=2") is None
    assert session_twin("http://h/x?sid=0a1b2c3d") == ("http://h/x", "http://h/x\tsession")


def test_a_name_with_a_final_dot_is_no_second_site() -> None:
    """It is the same page: no trap, and nothing new."""
    taken, dropped = crawl("h.test", lambda path: [f"http://h.test.{path}"])
    assert taken == {"http://h.test/"}
    assert dropped == {}


def test_short_numbers_are_no_sessions() -> None:
    """Stories and pages by a number called `sid`, in the path or behind a semicolon of the query."""

    def site(path: str) -> Iterable[str]:
        if path == "/":
            yield from (f"/story;sid={number}/view" for number in range(5))
            yield from (f"/list?a=1;sid=5&page={number}" for number in range(5))

    taken, dropped = crawl("a.test", site)
    assert (len(taken), dropped) == (11, {})
