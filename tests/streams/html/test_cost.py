"""Which pages are tried before they are parsed, and how much a trial may take."""

import gzip
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from selectolax.lexbor import LexborHTMLParser, LexborNode

from crawlog.streams.html import cost, tree
from crawlog.streams.html.cost import (
    DOMAINS,
    FAILURES,
    FEW_TAGS,
    MANY_TAGS,
    MOST_TAGS,
    SEVERE,
    SEVERE_BASE_S,
    Allowances,
    fair_s,
    is_costly,
    is_simple,
)
from crawlog.streams.html.tree import flattened

LINK = b"<li><a class=x href=/a>some words</a></li>\n"
ATTACK = b"<div>x</p>" * 20_000


def formatting(opened: int, blocks: int, block: bytes = b"<p>x") -> bytes:
    """Formatting elements left open, which each block makes anew."""
    return b"<div>" + b"".join(b"<font a=%d>" % n for n in range(opened)) + b"</div>" + block * blocks


@pytest.mark.parametrize(
    "page",
    [
        b"",
        b"x" * 7_000_000,
        LINK * 250,
        LINK * (MANY_TAGS // 4),
        LINK * 300 + b"<i class=icon></i><span>word</span>" * 100,
        (b"<b>word</b> " * 5 + b"<td>x</td>") * 200,
        LINK * (MOST_TAGS // 4 - 100),
        LINK * 900 + b"<i class='a > b'></i>" + b"<i class=\"icon\"></i><strong style = 'x'>word</STRONG >" * 100,
        b"<div class=x>" + LINK * 20 + b"</div>" + (b"<div>" + LINK * 20 + b"</div>") * 100,
    ],
)
def test_usual_pages_are_simple(page: bytes) -> None:
    """Links, lists and tables, hundreds of icons, bold words without attributes; large ones too."""
    assert is_simple(page)


def test_a_page_is_costly_that_took_several_times_what_is_fair() -> None:
    """By its size: a large one has its links, its sum and its spider."""
    assert not is_costly(b"x" * 100_000, 0.1)
    assert is_costly(b"x" * 100_000, 0.2)
    assert not is_costly(b"x" * 7_000_000, 0.5)
    assert is_costly(b"x" * 7_000_000, 1.5)


@pytest.mark.parametrize(
    "page",
    [
        ATTACK,
        b"<div></b>" * 20_000,
        b"<div><table></div></table>" * 20_000,
        b"<div><!--</div>--><a title='</div>'>" * 2_000,
        LINK * (MOST_TAGS // 4 + 1),
        b"<ul><li>x</p>" * 2_500,
        b"<rt>x</p>" * 4_000,
        b"<svg>" + b"<a>x</p>" * 4_000,
        b"<MATH>" + b"<td>x</p>" * 4_000,
        formatting(600, 600),
        formatting(600, 600) + b"<font a=x></font>" * 600,
        formatting(600, 600).replace(b">", b"></b>"),
        formatting(600, 600).replace(b">", b"><!--</font>-->"),
        b"<p>x" * 600 + b"<font a=\"x>\" b='y'>x</font>" * 600,
        b"<p>x" * 600 + b'<font a" b="c>x</font>' * 600,
        b"<b><i><u><s><tt><em><big><code>" * 3 + b"<p>x</p>" * 7_000,
        formatting(600, 600).replace(b"font", b"FoNt"),
        formatting(600, 600).replace(b"font ", b"b/"),
        formatting(600, 600).replace(b"font ", b"nobr\n"),
        formatting(100, 3_000),
        formatting(600, 600).decode().encode("utf-16"),
        formatting(600, 600).replace(b"<f", b"<\x1b(Bf"),
    ],
)
def test_pages_that_may_cost_much_are_not_simple(page: bytes) -> None:
    """Whatever their end tags pretend, and however the names of tags are written."""
    assert not is_simple(page)


WORST: list[Callable[[int], bytes]] = [
    lambda n: b"<div>" * n + b"</p>" * n,
    lambda n: b"<div>x</p>" * n,
    lambda n: b"<ul><li>" * n + b"</p>" * n,
    lambda n: b"<span>" * n + b"</b>" * n,
    lambda n: b"<div>" * n + b"<li>x</p>" * n,
    lambda n: b"<dl><dt><p>" * n + b"</b>" * n,
    lambda n: b"<table><td>" * n + b"</p>" * n,
    lambda n: b"<div><table></div></table>" * n,
    lambda n: b"<button><p>" * n + b"</b></a>" * n,
    lambda n: b"<optgroup>" * n + b"<rt>x</p>" * n,
    lambda n: b"<svg>" + b"<a>" * n + b"</x>" * n,
    lambda n: formatting(n, n),
    lambda n: formatting(n // 8, n),
    lambda n: formatting(24, n) + b"<font a></font>" * n,
    lambda n: b"<b><b><b><i><i><i><u><u><u>" + b"<p>x" * n,
    lambda n: b"<a x><b><i>" * 3 + b"<div><p>x</p></a>x</b>" * n,
    lambda n: b"<table><b a>" + b"<tr>x" * n,
]


@pytest.mark.parametrize("page_of", WORST)
def test_the_worst_page_of_each_kind_that_is_simple_costs_little(page_of: Callable[[int], bytes]) -> None:
    """The largest one that passes for simple: as measured 0.1 s, here on a slow and busy machine."""
    few, many = 1, MOST_TAGS
    while many - few > 1:
        middle = (few + many) // 2
        few, many = (middle, many) if is_simple(page_of(middle)) else (few, middle)
    began = time.process_time()
    LexborHTMLParser(tree.flattened(tree.thinned(page_of(few))))
    assert time.process_time() - began < 0.5


def test_real_pages_that_are_simple_cost_little_and_nearly_all_are(testdata: Path) -> None:
    """None takes as much as any page may."""
    bodies = [gzip.decompress(file.read_bytes()) for file in (testdata / "pages").rglob("*.html.gz")]
    simple = [body for body in bodies if is_simple(body)]
    assert len(simple) > 0.97 * len(bodies)
    for body in simple:
        began = time.process_time()
        LexborHTMLParser(body)
        assert time.process_time() - began < max(0.1, fair_s(body))


# fmt: off
SOUP = st.lists(st.sampled_from([
    b"<b a>", b"<i b='x'>", b"<b>", b"<font a=1>", b"</b>", b"</i>", b"</font>", b"<b a>x</b>", b"<i></i>",
    b"<B x>y</b >", b'<i a="b">x</i>', b"<p>", b"</p>", b"<div>", b"</div>", b"<table>", b"<td>", b"<tr>", b"</table>",
    b"<!--", b"-->", b"<a href='", b"'>", b'<a x="', b'">', b"x", b"<title>", b"</title>", b"<svg>", b"<desc>",
    b"</svg>", b"<select>", b"=", b"<object>", b"</object>", b"<li>", b"<ul>", b"</ul>", b"<script>", b"</script>",
    b"<button>", b'"', b"'", b">", b"<",
]), max_size=30).map(b"".join)
# fmt: on


def parents(node: LexborNode | None) -> list[str]:
    """The names of an element's ancestors."""
    names = []
    while node is not None and node.parent is not None:
        node = node.parent
        names.append(node.tag or "")
    return names


@given(SOUP)
def test_no_more_formatting_elements_are_open_than_were_not_closed(soup: bytes) -> None:
    """Whatever stands around those that the next tag closes: comments, quotes, tables, drawings."""
    page = LexborHTMLParser(soup + b"<p><q id=end>x")
    names = [name for name in parents(page.css_first("#end")) if name in cost._NAMES.decode().split("|")]
    assert len(names) <= cost._left_open(soup, cost._ANY_FORMATTING)


@given(SOUP)
def test_no_more_elements_are_open_than_nest(soup: bytes) -> None:
    """With those that the parser adds, those that close themselves in each, and formatting elements made anew."""
    page = LexborHTMLParser(soup + b"<q id=end>x")
    tags = soup.count(b"<")
    formatting = len(cost._ANY_FORMATTING.findall(soup))
    bounds = list(cost._nesting_bounds(soup, tags))
    assert bounds == sorted(bounds, reverse=True)
    assert len(parents(page.css_first("#end"))) <= 6 * bounds[-1] + formatting + 8


def test_a_page_that_is_flattened_is_not_simple() -> None:
    """A tag that is cut out may join what stood beside it to another one."""
    page = b"<div>" * 3_300 + b"<" + b"<div>" + b"font a=1>" + b"x" * 32_768
    assert flattened(page) != page
    assert not is_simple(page)


def test_few_tags_cannot_make_many_elements() -> None:
    """Half of them formatting elements, the other half blocks: what is measured for `FEW_TAGS`."""
    worst = formatting(FEW_TAGS // 2, FEW_TAGS // 2 - 2)
    assert is_simple(worst)
    assert worst.count(b"<") == FEW_TAGS


def test_a_domains_first_odd_page_may_take_long_and_the_next_ones_what_is_fair() -> None:
    """A hundred of them cost less than a hundred fair ones."""
    allowances = Allowances(10.0, 2048)
    total_s = 0.0
    for number in range(100):
        limit_s = allowances.limits("a.test", ATTACK).cpu_s
        assert limit_s == 0.3 if not number else limit_s < 0.3
        allowances.spent("a.test", ATTACK, limit_s, passed=False)
        total_s += limit_s
    assert total_s < 0.3 + 99 * fair_s(ATTACK) / 2


def test_a_domain_most_of_whose_pages_failed_has_little_beyond_what_others_take() -> None:
    """As many that pass, and it is a domain like others: a platform may have guests that mean it ill."""
    allowances = Allowances(10.0, 2048)
    severe_s = fair_s(ATTACK, SEVERE, SEVERE_BASE_S)
    for _ in range(FAILURES):
        assert allowances.limits("a.test", ATTACK).cpu_s > severe_s
        allowances.spent("a.test", ATTACK, 1.0, passed=False)
    assert allowances.limits("a.test", ATTACK).cpu_s == severe_s
    for _ in range(FAILURES):
        allowances.spent("a.test", ATTACK, severe_s, passed=True)
    assert allowances.limits("a.test", ATTACK).cpu_s == fair_s(ATTACK)


def test_a_thousand_domains_with_one_odd_page_each_do_not_have_a_second_each() -> None:
    """What was in vain so far makes the allowance of all smaller, and that of an honest domain too."""
    allowances = Allowances(10.0, 2048)
    page = formatting(600, 600)
    limits_s = []
    for number in range(1000):
        limits_s.append(allowances.limits(f"{number}.test", page).cpu_s)
        allowances.spent(f"{number}.test", page, limits_s[-1], passed=False)
    assert limits_s[0] == 0.3
    assert limits_s[-1] < 0.1
    assert sum(limits_s) < 80.0


def test_fair_pages_cost_no_allowance() -> None:
    """A site of large pages is never short of time; one that passed its trial was no waste."""
    allowances = Allowances(10.0, 2048)
    page = LINK * 5_000
    for _ in range(100):
        allowances.spent("a.test", page, fair_s(page) / 2, passed=True)
    assert allowances.limits("a.test", page).cpu_s == max(0.3, fair_s(page))


def test_no_trial_takes_longer_than_its_share() -> None:
    """Of `parse.timeout_s`, however large the page; and an eighth of the worker's memory."""
    limits = Allowances(4.0, 1024).limits("a.test", b"<p>" * 3_000_000)
    assert limits == (1.0, 128 << 20)


def test_allowances_of_so_many_domains_are_remembered() -> None:
    """The one that was longest quiet is forgotten first."""
    allowances = Allowances(10.0, 2048)
    for number in range(DOMAINS + 1):
        allowances.spent(f"{number}.test", b"", 9.0, passed=True)
    assert allowances.limits("0.test", b"").cpu_s == 0.3
    assert allowances.limits("1.test", b"").cpu_s == fair_s(b"")
