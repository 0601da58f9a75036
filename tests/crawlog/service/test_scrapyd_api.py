"""Scrapyd's API, endpoint by endpoint: each row is what Scrapyd 1.6.0 answered to the same request, unless it says why
not. Its answers were recorded from a running one.
"""

import io
import json
import re
import zipfile
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest

from crawlog.jobs.request import JobRequest
from crawlog.service.scrapyd import ENDPOINTS
from crawlog.service.scrapyd_fleet import ScrapydJob
from crawlog.streams.errors import EngineError, Misconfigured
from tests.support.scrapyd_service import ToldFleet, ask, served

GETS = ("daemonstatus", "status", "listprojects", "listversions", "listspiders", "listjobs")
POSTS = ("addversion", "schedule", "cancel", "delversion", "delproject")


def _egg() -> bytes:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        archive.writestr("a.py", "")
    return content.getvalue()


EGG = _egg()
AT = 1_000_000_000.000125


def _jobs() -> list[ScrapydJob]:
    return [
        ScrapydJob(
            "p", "quotes", "one", "pending", AT, args={"a": "1", "_job": "p", "_version": "0.1"}, settings={"B": "x=y"}
        ),
        ScrapydJob("r", "quotes", "one", "running", AT, AT + 1),
        ScrapydJob("e", "quotes", "two", "finished", AT, AT + 1, AT + 2),
        ScrapydJob("other", "old", "x", "finished", AT, AT + 1, AT + 3),
    ]


@pytest.fixture(scope="module")
def service() -> Iterator[tuple[ToldFleet, str]]:
    """One for all tests, which are many."""
    fleet = ToldFleet()
    with served(fleet) as url:
        yield fleet, url


@pytest.fixture
def address(service: tuple[ToldFleet, str]) -> str:
    """Of the service, whose fleet has two versions of a project, and jobs in each state."""
    fleet, url = service
    fleet.all_jobs = {job.id: job for job in _jobs()}
    fleet.all_projects = {"quotes": {"r1": ("one",), "r2": ("one", "two")}}
    fleet.told, fleet.error = [], None
    return url


@pytest.fixture
def fleet(service: tuple[ToldFleet, str]) -> ToldFleet:
    """The fleet of the service."""
    return service[0]


class Row(NamedTuple):
    """A request and what is answered to it, without `node_name`."""

    method: str
    path: str
    answer: dict[str, Any] | str
    data: dict[str, Any] | None = None
    files: dict[str, Any] | None = None


def _wrong(method: str) -> str:
    return f"UnsupportedMethod: Expected one of [b'HEAD', b'OPTIONS', b'{method}']"


def _required(name: str) -> str:
    return f"'{name}' parameter is required"


NO_UTF8 = "project is invalid: 'utf-8' codec can't decode byte 0xc3 in position 0: invalid continuation byte"
NO_ZIP = "egg is not a ZIP file (if using curl, use egg=@path not egg=path)"
FORM: dict[str, Any] = {"egg": ("project.egg", EGG)}
ROWS = [
    *(Row("POST", f"/{name}.json", _wrong("GET")) for name in GETS),
    *(Row("GET", f"/{name}.json", _wrong("POST")) for name in POSTS),
    *(Row(method, "/schedule.json", _wrong("POST")) for method in ("PUT", "DELETE", "PATCH")),
    *(Row("POST", f"/{name}.json", _required("project")) for name in POSTS),
    *(Row("GET", f"/{name}.json", _required("project")) for name in ("listversions", "listspiders")),
    Row("GET", "/status.json", _required("job")),
    Row("POST", "/schedule.json", _required("project"), {"spider": "one"}),
    Row("POST", "/schedule.json", _required("spider"), {"project": "quotes"}),
    Row("POST", "/cancel.json", _required("job"), {"project": "quotes"}),
    Row("POST", "/addversion.json", _required("version"), {"project": "quotes"}),
    Row("POST", "/addversion.json", _required("egg"), {"project": "quotes", "version": "r1"}),
    Row("POST", "/delversion.json", _required("version"), {"project": "quotes"}),
    Row("GET", "/listversions.json?project=%c3%28", NO_UTF8),
    Row("GET", "/listspiders.json?project=ara%C3%B1a+x", "project 'araña x' not found"),
    Row("GET", "/listspiders.json?project", _required("project")),
    Row("GET", "/listspiders.json?project=", "project '' not found"),
    Row("GET", "/listspiders.json?Project=quotes", _required("project")),
    Row("GET", "/listspiders.json?project=quotes&project=none", {"spiders": ["one", "two"]}),
    Row("GET", "/listspiders.json?project=none&project=quotes", "project 'none' not found"),
    Row("GET", "/listspiders.json?project=quotes;_version=r1", {"spiders": ["one"]}),
    Row("GET", "/daemonstatus.json", {"pending": 1, "running": 1, "finished": 2}),
    Row("GET", "/listprojects.json", {"projects": ["quotes"]}),
    Row("GET", "/listversions.json?project=quotes", {"versions": ["r1", "r2"]}),
    Row("GET", "/listversions.json?project=none", {"versions": []}),
    Row("GET", "/listversions.json?project=../p", "DirectoryTraversalError: ../p"),
    Row("GET", "/listspiders.json?project=quotes", {"spiders": ["one", "two"]}),
    Row("GET", "/listspiders.json?project=quotes&_version=r1", {"spiders": ["one"]}),
    Row("GET", "/listspiders.json?project=quotes&_version=", {"spiders": ["one", "two"]}),
    Row("GET", "/listspiders.json?project=quotes&_version=none", "version 'none' not found"),
    Row("GET", "/listspiders.json?project=none", "project 'none' not found"),
    Row("GET", "/listspiders.json?project=../p", "project '../p' not found"),
    Row("GET", "/status.json?job=p", {"currstate": "pending"}),
    Row("GET", "/status.json?job=r&project=quotes", {"currstate": "running"}),
    Row("GET", "/status.json?job=e", {"currstate": "finished"}),
    Row("GET", "/status.json?job=none", {"currstate": None}),
    Row("GET", "/status.json?job=other&project=quotes", {"currstate": None}),
    Row("GET", "/status.json?job=e&project=none", "project 'none' not found"),
    Row("GET", "/status.json?job=e&project=../p", "project '../p' not found"),
    Row("GET", "/listjobs.json?project=none", "project 'none' not found"),
    Row("GET", "/listjobs.json?project=../p", "project '../p' not found"),
    Row("POST", "/schedule.json", "project 'none' not found", {"project": "none", "spider": "one"}),
    Row("POST", "/schedule.json?project=quotes&spider=none", "spider 'none' not found"),
    Row("POST", "/schedule.json?spider=none", "spider 'x' not found", {"project": "quotes", "spider": "x"}),
    Row(
        "POST",
        "/schedule.json",
        "version 'none' not found",
        {"project": "quotes", "spider": "one", "_version": "none"},
    ),
    Row(
        "POST",
        "/schedule.json",
        "priority is invalid: could not convert string to float: b'x'",
        {"project": "quotes", "spider": "one", "priority": "x"},
    ),
    # Scrapyd shows an error of Python here.
    Row(
        "POST",
        "/schedule.json",
        "setting is invalid: 'NONE' has no '='",
        {"project": "quotes", "spider": "one", "setting": "NONE"},
    ),
    # Scrapyd takes this job, and cannot start it.
    Row(
        "POST",
        "/schedule.json",
        "DirectoryTraversalError: quotes/one/../x",
        {"project": "quotes", "spider": "one", "jobid": "../x"},
    ),
    Row("POST", "/cancel.json", {"prevstate": "pending"}, {"project": "quotes", "job": "p"}),
    Row("POST", "/cancel.json", {"prevstate": "running"}, {"project": "quotes", "job": "r", "signal": "TERM"}),
    Row("POST", "/cancel.json", {"prevstate": None}, {"project": "quotes", "job": "e"}),
    Row("POST", "/cancel.json", {"prevstate": None}, {"project": "quotes", "job": "none"}),
    Row("POST", "/cancel.json", "project 'none' not found", {"project": "none", "job": "r"}),
    Row("POST", "/cancel.json", "project '../p' not found", {"project": "../p", "job": "r"}),
    Row(
        "POST",
        "/addversion.json",
        {"project": "quotes", "version": "0.1", "spiders": 2},
        {"project": "quotes", "version": "0.1"},
        FORM,
    ),
    Row("POST", "/addversion.json", NO_ZIP, {"project": "q", "version": "v", "egg": "text"}),
    Row("POST", "/addversion.json", "DirectoryTraversalError: ../p", {"project": "../p", "version": "v"}, FORM),
    Row("POST", "/addversion.json", "DirectoryTraversalError: p/q", {"project": "p/q", "version": "v"}, FORM),
    # Scrapyd takes an empty project, or `.`, and loses it.
    *(
        Row(
            "POST",
            "/addversion.json",
            f"project is invalid: '{name}': it takes 1 to 128 letters, digits and _.+!-, "
            "and begins with a letter, a digit or an underscore",
            {"project": name, "version": "v"},
            FORM,
        )
        for name in (".", ".hid", "-x", "p" * 129, "a b")
    ),
    Row("POST", "/delversion.json", {}, {"project": "quotes", "version": "r1"}),
    Row("POST", "/delversion.json", "version 'none' not found", {"project": "quotes", "version": "none"}),
    Row("POST", "/delversion.json", "version 'r1' not found", {"project": "none", "version": "r1"}),
    Row("POST", "/delversion.json", "DirectoryTraversalError: ../p", {"project": "../p", "version": "v"}),
    Row("POST", "/delproject.json", {}, {"project": "quotes"}),
    Row("POST", "/delproject.json", "project 'none' not found", {"project": "none"}),
    Row("POST", "/delproject.json", "DirectoryTraversalError: ../p", {"project": "../p"}),
]


@pytest.mark.parametrize("row", ROWS, ids=[f"{number}-{row.method}{row.path}" for number, row in enumerate(ROWS)])
def test_each_request_is_answered_as_by_scrapyd(row: Row, address: str) -> None:
    """Status 200 in every case; the answer, then the status, then the node's name; a line."""
    got = ask(row.method, address + row.path, data=row.data, files=row.files)
    assert got.status_code == 200
    assert got.headers["Content-Type"] == "application/json"
    answer = row.answer
    failed = {"status": "error", "message": answer}
    wanted: dict[str, Any] = failed if isinstance(answer, str) else answer | {"status": "ok"}
    assert got.content == json.dumps(wanted | {"node_name": "node"}).encode() + b"\n"


@pytest.mark.parametrize("name", ENDPOINTS)
def test_options_names_the_methods_and_head_is_empty(name: str, address: str) -> None:
    """No header allows other origins, which Scrapyd's answers do."""
    allow = f"OPTIONS, HEAD, {'GET' if name in GETS else 'POST'}"
    options = ask("OPTIONS", f"{address}/{name}.json")
    assert (options.status_code, options.headers["Allow"], options.content) == (204, allow, b"")
    assert not [header for header in options.headers if header.startswith("Access-Control")]
    head = ask("HEAD", f"{address}/{name}.json")
    assert (head.status_code, head.content) == (200, b"")


def test_jobs_are_listed_by_state_with_the_fields_of_scrapyd(address: str) -> None:
    """Without a process id: a job has no process of its own."""
    got = ask("GET", f"{address}/listjobs.json?project=quotes").json()
    keys = {state: [list(job) for job in got[state]] for state in ("pending", "running", "finished")}
    assert keys == {
        "pending": [["id", "project", "spider", "version", "settings", "args"]],
        "running": [["id", "project", "spider", "pid", "start_time", "log_url", "items_url"]],
        "finished": [["id", "project", "spider", "start_time", "end_time", "log_url", "items_url"]],
    }
    assert got["pending"][0] == {
        "id": "p",
        "project": "quotes",
        "spider": "one",
        "version": "0.1",
        "settings": {"B": "x=y"},
        "args": {"a": "1"},
    }
    assert got["running"][0]["pid"] is None
    assert got["finished"][0]["log_url"] == "/logs/quotes/two/e.log"
    assert got["finished"][0]["items_url"] == "/items/quotes/two/e.jl"
    assert re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.000125", got["finished"][0]["end_time"])


def test_all_jobs_are_listed_the_last_ended_first(address: str) -> None:
    """Jobs whose project was deleted are listed, too."""
    got = ask("GET", f"{address}/listjobs.json").json()
    assert [job["id"] for job in got["finished"]] == ["other", "e"]


@pytest.mark.parametrize(("priority", "own"), [("0", 5), ("2.5", 7), ("-1", 4), ("100", 9), ("-inf", 0), ("nan", 0)])
def test_schedule_submits_the_spider_with_its_arguments_and_settings(
    address: str, fleet: ToldFleet, priority: str, own: int
) -> None:
    """Every other parameter is an argument, by its first value; the spider gets `_job` and `_version`, too.

    Scrapyd's priority, usually 0, counts from the middle of ours.
    """
    data = {
        "project": "quotes",
        "spider": "two",
        "_version": "r2",
        "jobid": "aaa",
        "priority": priority,
        "setting": ["DOWNLOAD_DELAY=2", "TRACK=Cause = Time"],
        "arg1": ["val1", "val2"],
    }
    got = ask("POST", f"{address}/schedule.json", data=data).json()
    assert got == {"jobid": "aaa", "status": "ok", "node_name": "node"}
    assert fleet.told == [
        (
            JobRequest(
                job="aaa",
                project="quotes",
                spider="two",
                version="r2",
                priority=own,
                settings={"DOWNLOAD_DELAY": "2", "TRACK": "Cause = Time"},
                args={"arg1": "val1", "_job": "aaa", "_version": "r2"},
                is_new=True,
            ),
            "local",
        )
    ]


def test_a_job_without_an_id_gets_a_uuid(address: str, fleet: ToldFleet) -> None:
    """Another one each time."""
    data = {"project": "quotes", "spider": "one"}
    ids = {ask("POST", f"{address}/schedule.json", data=data).json()["jobid"] for _ in range(2)}
    assert len(ids) == 2
    assert all(re.fullmatch(r"[a-z0-9]{32}", one) for one in ids)


@pytest.mark.parametrize(
    ("deployed", "listed"),
    [
        (["r2", "r1"], ["r1", "r2"]),
        (["10", "1", "9"], ["1", "9", "10"]),
        (["r10", "r1", "r9"], ["r1", "r10", "r9"]),
        (["123456789", "b3b8fd2"], ["123456789", "b3b8fd2"]),
        (["0.1"], ["0_1"]),
        (["0.1", "0_1"], ["0_1"]),
        (["r2.1+x!y", "r2-x"], ["r2-x", "r2_1_x_y"]),
        (["1.9", "1.10"], ["1_9", "1_10"]),  # Scrapyd orders the names with underscores: 1_10 comes first
    ],
)
def test_versions_have_the_names_and_the_order_of_scrapyd(
    deployed: list[str], listed: list[str], address: str, fleet: ToldFleet
) -> None:
    """The last one is used where none is named, whichever was deployed last; each answers to both of its names."""
    fleet.all_projects = {"p": {name: (f"of {name}",) for name in deployed}}
    assert ask("GET", f"{address}/listversions.json?project=p").json()["versions"] == listed

    def spiders(version: str) -> list[str]:
        got = ask("GET", f"{address}/listspiders.json", params={"project": "p", "_version": version}).json()
        return list(got["spiders"])

    assert spiders("") == spiders(listed[-1])
    assert all(spiders(name) == spiders(name.replace(".", "_")) for name in deployed)
    (last,) = spiders(listed[-1])
    ask("POST", f"{address}/schedule.json", data={"project": "p", "spider": last})
    assert [told[0].version for told in fleet.told if isinstance(told, tuple) and isinstance(told[0], JobRequest)] == [
        last.removeprefix("of ")
    ]


def test_delversion_deletes_all_that_has_the_listed_name(address: str, fleet: ToldFleet) -> None:
    """`crawlog deploy` may have put `0.1` beside `0_1`, which are one version to Scrapyd's clients."""
    fleet.all_projects = {"p": dict.fromkeys(("0.1", "0_1", "1"), ("one",))}
    assert ask("POST", f"{address}/delversion.json", data={"project": "p", "version": "0.1"}).json()["status"] == "ok"
    assert ask("GET", f"{address}/listversions.json?project=p").json()["versions"] == ["1"]


def test_a_version_named_after_a_branch_is_kept_with_underscores(address: str, fleet: ToldFleet) -> None:
    """`scrapyd-deploy --version GIT` makes such names; the answer has the name as given."""
    data = {"project": "new", "version": "../r5-feature/x"}
    added = ask("POST", f"{address}/addversion.json", data=data, files=FORM).json()
    assert added["version"] == "../r5-feature/x"
    assert fleet.all_projects["new"] == {"_._r5-feature_x": ("one", "two")}
    deleted = ask("POST", f"{address}/delversion.json", data=data).json()
    assert (deleted["status"], "new" in fleet.all_projects) == ("ok", False)


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (EngineError("no broker"), "no broker"),
        (Misconfigured("ITEM_PIPELINES is refused"), "ITEM_PIPELINES is refused"),
        (KeyError("x"), "KeyError: see the service's log"),
    ],
)
def test_an_error_of_the_fleet_is_a_message(error: Exception, message: str, address: str, fleet: ToldFleet) -> None:
    """Ours as they are; of others only their kind, since they may tell of the machine."""
    fleet.error = error
    got = ask("POST", f"{address}/schedule.json", data={"project": "quotes", "spider": "one"})
    assert (got.status_code, got.json()) == (200, {"status": "error", "message": message, "node_name": "node"})


@pytest.mark.parametrize(
    ("kind", "body", "message"),
    [
        ("multipart/form-data; boundary=x", b"--x\r\n\r\n1\r\n--x--\r\n", "the form has a part without a name"),
        ("multipart/form-data", b"", "the form cannot be read: "),
        ("multipart/form-data; boundary=x", b"nonsense", "the form cannot be read: "),
        (
            "multipart/form-data; boundary=x",
            b'--x\r\nContent-Disposition: form-data; name="a"\r\nContent-Transfer-Encoding: foo\r\n\r\n1\r\n--x--\r\n',
            "the form cannot be read: unknown content transfer encoding: foo",
        ),
        ("application/x-www-form-urlencoded", b"a=1&" * 1001, "more than 1000 parameters"),
        ("application/x-www-form-urlencoded", b"a=1;" * 1001, "more than 1000 parameters"),
        ("application/x-www-form-urlencoded", b"a" * (1 << 21), "the form is longer than 1 MiB"),
        ("application/json", b'{"project": "quotes"}', "'project' parameter is required"),
    ],
)
def test_a_body_that_is_no_form_is_a_message(kind: str, body: bytes, message: str, address: str) -> None:
    """No error of the service, whatever is sent."""
    got = ask("POST", f"{address}/schedule.json", data=iter([body]), headers={"Content-Type": kind})
    assert got.status_code == 200
    assert got.json()["message"].startswith(message)


@pytest.mark.parametrize("kind", ["multipart/form-data; boundary=x", "application/x-www-form-urlencoded"])
def test_a_packed_form_is_refused(kind: str, address: str) -> None:
    """Its bytes are no form, and nothing is unpacked."""
    headers = {"Content-Type": kind, "Content-Encoding": "gzip"}
    assert ask("POST", f"{address}/schedule.json", data=b"a=1", headers=headers).status_code == 415


def test_an_address_that_ends_with_a_slash_works_in_scrapyd_client(address: str) -> None:
    """Scrapy's template of scrapy.cfg has such a one; Scrapyd itself does not find `//listprojects.json`."""
    assert ask("GET", f"{address}//listprojects.json").json()["projects"] == ["quotes"]


@pytest.mark.parametrize("path", ["/none.json", "/daemonstatus.json/", "/daemonstatus.json/x", "/daemonstatus"])
def test_other_paths_are_not_found(path: str, address: str) -> None:
    """As in Scrapyd."""
    assert ask("GET", address + path).status_code == 404
