"""Planned times beside changes of the clock: against an oracle that asks the database of time zones day by day."""

from collections.abc import Iterator
from datetime import UTC, date, datetime, time, timedelta
from itertools import islice
from zoneinfo import ZoneInfo

import pytest

from crawlog.schemas.schedules import JobSchedule
from crawlog.streams.errors import Misconfigured
from crawlog.streams.schedules import newest, rule_of, stamp, times

ZONES = ("Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Asia/Kolkata")
BEGIN = datetime(2026, 1, 1, tzinfo=UTC)


def at(text: str) -> int:
    """UTC epoch seconds of a time in ISO 8601."""
    return int(datetime.fromisoformat(text).timestamp())


def planned(cron: str, zone: str, begin: str, count: int) -> list[str]:
    """The first times after `begin`, in UTC."""
    rule = rule_of(JobSchedule("s", 0, cron=cron, zone=zone))
    found = islice(times(rule, at(begin), at("2999-01-01T00:00Z")), count)
    return [f"{datetime.fromtimestamp(one, UTC):%d %H:%M}" for one in found]


def instant(day: date, wall: time, zone: ZoneInfo) -> int:
    """When a local time of a day comes: the first time if twice; if never, at the end of the gap."""
    local = datetime.combine(day, wall, zone)
    moment = local.astimezone(UTC)
    if moment.astimezone(zone).time() == wall:
        return int(moment.timestamp())
    before = local.replace(fold=1).astimezone(UTC)  # the earlier reading of a time in a gap lies before the change
    while (before + timedelta(minutes=1)).astimezone(zone).utcoffset() == before.astimezone(zone).utcoffset():
        before += timedelta(minutes=1)
    return int((before + timedelta(minutes=1)).timestamp())


def oracle(walls: list[time], zone: ZoneInfo, days: int) -> Iterator[int]:
    """The times of daily schedules."""
    for number in range(days):
        day = BEGIN.date() + timedelta(days=number)
        yield from sorted({instant(day, wall, zone) for wall in walls})


@pytest.mark.parametrize("zone", ZONES)
@pytest.mark.parametrize("cron", ["30 2 * * *", "0,45 1-3 * * *"])
def test_each_local_time_is_planned_once_a_day_over_two_years(cron: str, zone: str) -> None:
    """At the end of the gap if the clock skips it, at its first coming if it comes twice."""
    minutes, hours = ([30], [2]) if cron.startswith("30") else ([0, 45], [1, 2, 3])
    expected = sorted(set(oracle([time(h, m) for h in hours for m in minutes], ZoneInfo(zone), 2 * 365)))
    rule = rule_of(JobSchedule("s", 0, cron=cron, zone=zone))
    begin = int(datetime.combine(BEGIN.date(), time(), ZoneInfo(zone)).timestamp()) - 1
    assert list(times(rule, begin, expected[-1])) == expected


@pytest.mark.parametrize(
    ("cron", "zone", "begin", "expected"),
    [
        # kelektiv/node-cron#563: not at all on the day of the change, and twice in autumn
        ("30 2 * * *", "Europe/Berlin", "2026-03-28T12:00Z", ["29 01:00", "30 00:30"]),
        ("30 2 * * *", "Europe/Berlin", "2026-10-24T12:00Z", ["25 00:30", "26 01:30"]),
        # celery/celery#1604: at 11:00 and again at 12:00 on the day after the change
        ("0 12 * * 1", "Europe/Berlin", "2026-10-25T02:00Z", ["26 11:00", "02 11:00"]),
        # celery/celery#9653, celery/django-celery-beat#134: an hour too late on the day of the change
        ("4 16 * * *", "America/New_York", "2026-03-07T22:00Z", ["08 20:04", "09 20:04"]),
        # celery/celery#6438, celery/celery#10107: no run for an hour when the clock goes back
        ("0 * * * *", "America/New_York", "2026-11-01T04:30Z", ["01 05:00", "01 06:00", "01 07:00"]),
        ("*/20 * * * *", "Europe/Berlin", "2026-10-25T00:30Z", ["25 00:40", "25 01:00", "25 01:20", "25 01:40"]),
        # croniter 5.0.1 by itself: 02:15 on the day after, half an hour late
        ("45 1 * * *", "Australia/Lord_Howe", "2026-04-04T15:00Z", ["05 15:15", "06 15:15"]),
        ("15 2 * * *", "Australia/Lord_Howe", "2026-10-03T12:00Z", ["03 15:30", "04 15:15"]),
    ],
)
def test_what_users_of_other_schedulers_report_does_not_happen(
    cron: str, zone: str, begin: str, expected: list[str]
) -> None:
    """Reports of real users, by the name of the issue where there is one."""
    assert planned(cron, zone, begin, len(expected)) == expected


def test_every_counts_from_its_beginning_whatever_was_missed() -> None:
    """So the times of a day do not drift."""
    rule = rule_of(JobSchedule("s", 1_000, every_s=60))
    assert list(times(rule, 0, 1_180)) == [1_060, 1_120, 1_180]
    assert rule.after(1_061) == 1_120
    assert newest(rule, 0, 1_000_000_000, 2) == [999_999_940, 1_000_000_000]


def test_the_newest_times_of_years_are_found_at_once() -> None:
    """Half a million minutes of a year are not listed; a rare time is found although it is years ago."""
    rule = rule_of(JobSchedule("s", 0, cron="* * * * *"))
    assert newest(rule, 0, at("2030-01-01T00:00Z"), 3) == [at("2030-01-01T00:00Z") - 60 * n for n in (2, 1, 0)]
    rare = rule_of(JobSchedule("s", 0, cron="0 0 29 2 *"))
    assert newest(rare, at("2020-01-01T00:00Z"), at("2027-01-01T00:00Z"), 1) == [at("2024-02-29T00:00Z")]


@pytest.mark.parametrize(
    "cron",
    [
        "",
        "a",
        "60 * * * *",
        "* * * * * *",
        "R * * * *",
        "H 3 * * *",
        "r(1-5) * * * *",
        "*/0 * * * *",
        "@reboot",
        "@every 5m",
    ],
)
def test_what_is_no_rule_is_refused_with_an_example(cron: str) -> None:
    """Random ones, too: they would give other times to each worker."""
    with pytest.raises(Misconfigured, match="cron expression"):
        rule_of(JobSchedule("s", 0, cron=cron))


def test_an_unknown_zone_is_refused() -> None:
    """Also a name that is a path."""
    for zone in ("Berlin", "../../etc/passwd", ""):
        with pytest.raises(Misconfigured, match="time zone"):
            rule_of(JobSchedule("s", 0, cron="@daily", zone=zone))


def test_a_day_that_never_comes_has_no_time() -> None:
    """30 February."""
    assert rule_of(JobSchedule("s", 0, cron="0 0 30 2 *")).after(0) is None


def test_a_run_is_named_after_its_time_in_utc() -> None:
    """To the second where its times may have seconds: then the names of all runs have, and sort by time."""
    by_clock, by_interval = JobSchedule("s", 0, cron="@daily"), JobSchedule("s", 0, every_s=60)
    assert stamp(by_clock, at("2026-11-29T06:00Z")) == "20261129T0600Z"
    assert stamp(by_clock, at("2026-11-29T06:00:07Z")) == "20261129T060007Z"
    assert stamp(by_interval, at("2026-11-29T06:00Z")) == "20261129T060000Z"
