"""What the page of a job shows, and which actions it has."""

import msgspec
import pytest

from crawlog.commands.failures import failure_of
from crawlog.commands.items import ItemRow
from crawlog.schemas.progress import JobCounts, JobRemarks
from crawlog.schemas.urls import Result
from crawlog.service.dashboard.job_page import CELL_CHARS, COLUMNS, allowed, figures, own_settings, rows_table
from crawlog.service.dashboard.jobs_page import chip_of
from crawlog.service.watch import Alert
from crawlog.streams.fleet import JobView, OutputView
from crawlog.streams.job_spec import job_values, resolve_spec
from crawlog.streams.settings import Settings

PAGES = JobCounts(fetched=5, statuses={"200": 5})
REFUSED = JobCounts(fetched=5, statuses={"403": 5})


@pytest.mark.parametrize(
    ("job", "alerts", "kind"),
    [
        (JobView("j", "running", counts=PAGES), (), "good"),
        (JobView("j", "finished", counts=PAGES), (), "good"),
        (JobView("j", "watching", counts=PAGES), (), "good"),
        (JobView("j", "running", counts=PAGES), ("warning",), "look"),
        (JobView("j", "running", counts=PAGES), ("warning", "critical"), "bad"),
        (JobView("j", "running", counts=PAGES, dead=1), (), "look"),
        (JobView("j", "finished", counts=REFUSED), (), "look"),
        (JobView("j", "finished", counts=PAGES, remarks=JobRemarks(rowless=5)), (), "look"),
        (JobView("j", "finished", counts=PAGES, outputs=(OutputView("a", "failed", error="full"),)), (), "look"),
        (JobView("j", "paused"), (), "look"),
        (JobView("j", "waiting"), (), "look"),
        (JobView("j", "failed"), (), "bad"),
        (JobView("j", "pending"), (), "idle"),
        (JobView("j", "cancelled"), (), "idle"),
    ],
)
def test_only_a_job_that_needs_no_look_is_green(job: JobView, alerts: tuple[str, ...], kind: str) -> None:
    """Its word is the state, so that the colour is not needed."""
    about = {"id": "i", "rule": "r", "kind": "job", "subject": "j", "text": "t"}
    raised = [msgspec.convert(about | {"severity": one}, Alert) for one in alerts]
    assert chip_of(job, raised) == (job.state, kind)


@pytest.mark.parametrize(
    ("state", "reason", "orders"),
    [
        ("pending", "", ["pause", "stop", "cancel"]),
        ("running", "", ["pause", "stop", "cancel"]),
        ("paused", "", ["resume", "stop", "cancel"]),
        ("waiting", "", ["resume", "stop", "cancel"]),
        ("watching", "", ["pause", "stop", "cancel"]),
        ("stopped", "operator", ["resume", "cancel"]),
        ("stopped", "max_pages", ["resume"]),
        ("finished", "", []),
        ("cancelled", "", []),
    ],
)
def test_a_job_has_the_buttons_of_orders_that_it_takes(state: str, reason: str, orders: list[str]) -> None:
    """A button that is refused is none."""
    assert allowed(JobView("j", state, reason=reason)) == orders


def test_settings_that_are_the_defaults_are_not_shown() -> None:
    """Also those that the record has in another form than the settings have, such as a flag for a word."""
    usual = msgspec.to_builtins(job_values(resolve_spec(Settings())), enc_hook=str)
    assert own_settings(JobView("j", "running", settings=usual)) == []
    changed = usual | {"politeness.delay_s": 4.0, "scope.include": ["a", "b"]}
    shown = own_settings(JobView("j", "running", settings=changed))
    assert shown == [("politeness.delay_s", "4.0", "1.0"), ("scope.include", '["a","b"]', "[]")]


def test_rows_become_a_table_of_their_fields() -> None:
    """Their URL has its own column; rows may differ; long values are cut, and there are not more fields than fit."""
    wide = {f"f{number}": number for number in range(50)}
    items = ({"url": "u", "a": "x" * 999, "b": [1]}, {"b": None, "c": "z"}, wide)
    rows = [ItemRow("u", (0, 0), (0, 0), msgspec.Raw(msgspec.json.encode(item))) for item in items]
    fields, told = rows_table(rows)
    assert fields == ["a", "b", "c", *(f"f{number}" for number in range(COLUMNS - 3))]
    assert [cells[:3] for _, cells in told[:2]] == [["x" * CELL_CHARS, "[1]", None], [None, "null", "z"]]


@pytest.mark.parametrize(
    ("result", "why"),
    [
        (Result("u", 1, "fetched", http=200), None),
        (Result("u", 1, "redirected", http=302), None),
        (Result("u", 1, "not_modified", http=304), None),
        (Result("u", 1, "fetched", http=404), ""),
        (Result("u", 1, "failed", reason="timeout: 30 s"), "timeout: 30 s"),
        (Result("u", 1, "refused", reason="robots", rule="Disallow: /x"), "Disallow: /x"),
    ],
)
def test_a_result_without_a_page_is_a_failure(result: Result, why: str | None) -> None:
    """An error status is one though its page is kept; its time is that of the record if it has none."""
    failure = failure_of(result, 7.0)
    assert (failure.why if failure is not None else None) == why
    assert failure is None or failure.at == 7.0


def test_figures_that_are_0_are_left_out() -> None:
    """A page of zeros hides what matters."""
    assert figures(JobView("j", "running")) == []
    assert ("Statuses", "5 × 4xx") in figures(JobView("j", "running", counts=REFUSED))
