"""Which pages are tried before they are parsed, and how much a trial may take."""

import pytest

from crawlog.streams.html.cost import (
    DOMAINS,
    FAILURES,
    FEW_TAGS,
    MANY_TAGS,
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
    ],
)
def test_usual_pages_are_simple(page: bytes) -> None:
    """Links, lists and tables, a hundred icons, bold words without attributes."""
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
        LINK * (MANY_TAGS // 4 + 1),
        formatting(600, 600),
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
