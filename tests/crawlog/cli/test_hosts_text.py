"""`crawlog status --hosts` as text."""

import json

from crawlog.cli.hosts_text import host_answer, host_lines
from crawlog.streams.hosts import HostPage, ListedHost

NOW = 1_700_000_100.0
BANNED = ListedHost(
    "https://a.com:443",
    12,
    results={"200": 3, "403": 9},
    delay_s=2.0,
    delay_of="robots",
    next_at=NOW + 30,
    rests="retry_after",
    exit="de-1",
    kinds=("slow", "banned"),
    reported_at=NOW - 7,
)


def test_a_host_is_shown_with_its_results_its_delay_and_the_age_of_its_figures() -> None:
    """The commonest result first; a delay names its source unless it is the setting."""
    lines = host_lines(HostPage([BANNED], 5, {"all": 9, "slow": 4, "failing": 0, "banned": 5}), NOW)
    assert lines[0] == "9 hosts: 4 slow, 0 failing, 5 banned; 1 of 5 shown, `--json` prints all"
    assert lines[2].split()[:3] == ["https://a.com:443", "slow,banned", "12"]
    for text in ("403:9 200:3", "2 s (robots)", "in 30 s", "the host asked for it (Retry-After)", "de-1", "7 s"):
        assert text in lines[2]


def test_an_empty_list_names_what_is_reported() -> None:
    """No worker may have run yet."""
    lines = host_lines(HostPage([], 0, {"all": 0, "slow": 0, "failing": 0, "banned": 0}), NOW)
    assert lines[0] == "0 hosts: 0 slow, 0 failing, 0 banned"
    assert lines[1].startswith("none to show")


def test_json_is_one_object_a_host() -> None:
    """With all its fields."""
    page = HostPage([BANNED], 1, {"all": 1})
    (line,) = host_answer(page, as_json=True)
    assert json.loads(line)["host"] == "https://a.com:443"
    assert json.loads(line)["per_host"] == 1
