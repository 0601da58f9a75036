"""JobRequests: what is refused before the log is asked."""

from contextlib import ExitStack

import msgspec
import pytest

from crawlog.agents.seed import Seed
from crawlog.jobs import submit as submitting
from crawlog.jobs.record import outputs_of
from crawlog.jobs.request import NO_PARTS, JobRequest, checked
from crawlog.jobs.submit import job_settings, submit, wanted_of
from crawlog.schemas.job_orders import CodeRef
from crawlog.streams.errors import Misconfigured
from crawlog.streams.settings.sources import load
from crawlog.streams.spiders import SpiderFacts


@pytest.mark.parametrize(
    ("wanted", "said"),
    [
        (JobRequest(urls=("/etc/passwd",)), "is not a URL"),
        (JobRequest(urls=("-",)), "is not a URL"),
        (JobRequest(urls=("sitemap:http://a.test/",)), "is not a URL"),
        (JobRequest(urls=("http://u:secret@a.test/",)), "fetch.logins"),
        (JobRequest(requests=(Seed("ftp://a.test/"),)), "is not a URL"),
        (JobRequest(requests=(Seed("http://u:secret@a.test/"),)), "fetch.logins"),
        (
            JobRequest(requests=(Seed("http://a.test/", eta="soon"),)),
            "of 'http://a.test/': 'soon' is no time",
        ),
        (JobRequest(requests=(Seed("http://a.test/", headers={"Host": "x"}),)), "the header 'Host' cannot be set"),
        (JobRequest(urls=("http://a.test/",), job="../x"), "letters, digits"),
        (JobRequest(urls=("http://a.test/",), job="default"), "for URLs that other programs write"),
        (JobRequest(urls=("http://a.test/",), settings={"fetch.concurrency": 3}), "of workers, not of a job"),
        (JobRequest(urls=("http://a.test/",), settings={"sink.folder": "/etc"}), "of workers, not of a job"),
        (JobRequest(urls=("http://a.test/",), settings={"politness.delay_s": 3}), "did you mean politeness.delay_s"),
        (JobRequest(spider="s", project="p", settings={"ITEM_PIPELINES": "{}"}), "it names code to import"),
        (JobRequest(spider="s", project="p", settings={"LOG_FILE": "/etc/x"}), "it names a file or folder"),
        (JobRequest(settings={"DOWNLOAD_DELAY": 1}), "give --spider"),
        (JobRequest(project="p"), "name one of its spiders"),
        (JobRequest(urls=("http://a.test/",), args={"": "x"}), "NAME=VALUE"),
        (JobRequest(urls=("http://a.test/",), args={"a=b": "c"}), "NAME=VALUE"),
        (JobRequest(urls=("http://a.test/",), after=("a b",)), "--after 'a b': a job's name is"),
        (JobRequest(urls=("http://a.test/",), group="group:x"), "--group 'group:x': a job's name is"),
        (JobRequest(feed=("lists",)), "--feed 'lists': JOB:FIELD"),
        (JobRequest(feed=(":url",)), "--feed '': a job's name is"),
        (JobRequest(urls=("http://a.test/",), on_finish=("mail -s x",)), "A command is declared where the workers run"),
        (JobRequest(urls=("http://a.test/",), on_finish=("http://u:secret@a.test/",)), "fetch.logins"),
        (JobRequest(urls=("http://a.test/",), on_finish=("ftp://a.test/",)), "ftp:"),
        (JobRequest(urls=("http://a.test/",), after_any=True), "name the jobs, too"),
        (JobRequest(urls=("http://a.test/",), after=("a",), paused=True), "give one of them"),
    ],
)
def test_what_no_job_may_have_is_refused_with_what_to_do(wanted: JobRequest, said: str) -> None:
    """A URL is never read as a file of the machine that takes the submission."""
    with pytest.raises(Misconfigured, match=said) as caught:
        checked(wanted)
    assert "secret" not in str(caught.value)


def test_requests_of_a_submission_are_lines_of_seeds() -> None:
    """With all that they have; they are in the name of the job, so the same submission is the same job."""
    given = Seed("http://a.test/x", countdown="1h", priority=5, attempts=2, method="POST", body="a=1")
    wanted = JobRequest(urls=("http://a.test/",), requests=(given,))
    with ExitStack() as opened:
        first, again, other = (
            wanted_of(load({}), one, NO_PARTS, print, opened)
            for one in (wanted, wanted, JobRequest(urls=("http://a.test/",)))
        )
        assert first.source is not None
        ((_, lines),) = first.source.parts()
        assert [msgspec.json.decode(line, type=Seed) for line in lines] == [Seed("http://a.test/"), given]
    assert first.name == again.name != other.name


def test_a_spiders_argument_has_any_name_that_a_line_can_show() -> None:
    """Spiders of projects read them from `**kwargs`."""
    wanted = JobRequest(urls=("http://a.test/",), args={"qs:year": "2020", "1st one": ""})
    assert checked(wanted) is wanted


@pytest.mark.parametrize("name", ["/tmp/x.jsonl", "../x.jsonl", "a/b.csv", "-", "s3://b/x.jsonl", ".x.jsonl", "none:"])
def test_an_output_of_a_fleet_is_no_path_and_no_address(name: str) -> None:
    """Else whoever can submit could write files and reach servers as the workers."""
    with pytest.raises(Misconfigured, match="plain names or declared in"):
        outputs_of(load({}), [name])


def test_names_without_a_format_are_those_of_declared_outputs() -> None:
    """Also of those that only the workers' own settings declare."""
    settings = load({"sink.outputs": '{"rows.jsonl": "/data/r.jsonl"}', "sink.optional": "shop"})
    found = outputs_of(settings, ["rows.jsonl", "a.csv", "shop", "a.csv"])
    assert [(one.name, one.declared, one.required) for one in found] == [
        ("rows.jsonl", True, True),
        ("a.csv", False, True),
        ("shop", True, False),
    ]


def test_a_file_of_an_unknown_format_is_refused_before_the_job_waits_for_it() -> None:
    """With the formats that there are."""
    with pytest.raises(Misconfigured, match=r"rows\.pdf: the name must end in \.jsonl, \.json, \.csv"):
        outputs_of(load({}), ["rows.pdf"])


def test_settings_of_a_submission_win_over_those_of_the_submitter() -> None:
    """Values come as JSON or as texts, as `-s` takes them."""
    wanted = JobRequest(
        settings={"politeness.delay_s": "2", "scope.include": ["a,b"], "robots.obey": False}, depth=3, max_pages=7
    )
    settings = job_settings(load({"politeness.delay_s": 9, "run.depth": 1}), wanted, None)
    assert (settings.politeness.delay_s, settings.robots.obey) == (2.0, False)
    assert (settings.run.depth, settings.run.max_pages, settings.scope.include) == (3, 7, ("a,b",))


OF_ANOTHER_CLUSTER = SpiderFacts(
    "news",
    "news@1",
    start_urls=("http://a.test/",),
    settings={"kafka.bootstrap": "evil.test:9092", "run.data": "/etc", "fetch.concurrency": 4, "politeness.delay_s": 3},
)


@pytest.mark.parametrize(("outputs", "headers"), [(("archive",), "full"), (("rows.jsonl",), "needed"), ((), "needed")])
def test_pages_for_an_archive_keep_all_headers(outputs: tuple[str, ...], headers: str) -> None:
    """Where the submitting machine declares the output, too; else its worker says what is missing."""
    base = load({})
    sink = base.sink.model_copy(update={"outputs": {"archive": "warc:/archive/{job}"}})
    base = base.model_copy(update={"sink": sink})
    assert job_settings(base, JobRequest(outputs=outputs), None).pages.headers == headers


def test_deployed_code_with_settings_of_workers_is_refused_before_they_are_used(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whoever may deploy could have the cluster's password sent to a host of theirs."""
    monkeypatch.setattr("crawlog.jobs.submit.ensure_topics", lambda *_: None)
    monkeypatch.setattr(submitting, "code_of", lambda *_: CodeRef("shop", "1", "00" * 32))
    monkeypatch.setattr("crawlog.commands.named_spider.facts_of", lambda *_: OF_ANOTHER_CLUSTER)
    said = "the spider news sets fetch.concurrency, kafka.bootstrap, run.data: of workers"
    with pytest.raises(Misconfigured, match=said):
        submit(load({}), JobRequest(project="shop", spider="news"))


def test_a_spider_sets_what_a_job_has_and_nothing_else() -> None:
    """A file that is written for `run` may have settings of workers; on a fleet they are those of the submitter."""
    base = load({"kafka.bootstrap": "ours.test:9092"})
    settings = job_settings(base, JobRequest(), OF_ANOTHER_CLUSTER)
    assert (settings.kafka, settings.run, settings.fetch) == (base.kafka, base.run, base.fetch)
    assert settings.politeness.delay_s == 3
