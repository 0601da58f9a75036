"""Checks arguments that are not settings: URLs, files, job names, `--workers`."""

import os
import re
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from crawlog.streams.errors import Misconfigured
from crawlog.streams.files import is_utf_8
from crawlog.streams.requests import without_login
from crawlog.streams.url import InvalidUrl, serialise

if TYPE_CHECKING:
    from crawlog.commands.named_spider import NamedSpider, Pairs
    from crawlog.jobs.request import JobRequest, LocalParts
    from crawlog.streams.groups import TargetKind
    from crawlog.streams.settings import Settings

OF_SEED = ("kafka.", "engine.", "log.")  # Sections of settings that `seed` itself uses

SITEMAP = "sitemap:"  # Prefix of an argument that stands for all URLs of a sitemap

STAGES = {"fetch": "run.fetch_workers", "parse": "run.parse_workers"}


def requested(
    settings: "Settings",
    urls: Sequence[str],
    *,
    seeds_file: Path | None = None,
    outputs: Sequence[str] = (),
    spider: "NamedSpider | None" = None,
    job: str | None = None,
    fresh: bool = False,
    on_finish: tuple[str, ...] = (),
) -> "tuple[Settings, JobRequest, LocalParts]":
    """Checks the arguments of a run; returns its settings, with the logins in the URLs, and what it asks for.

    Raises: Misconfigured: there is nothing to crawl, or an argument is invalid.
    """
    from crawlog.jobs.request import JobRequest, LocalParts, check_target
    from crawlog.streams.sink_groups import ARCHIVE

    facts = spider.facts if spider else None
    starts = facts is not None and facts.starts and not urls and not seeds_file
    if facts is not None and not urls and not seeds_file and not starts:
        urls = facts.start_urls
    if job is not None:
        job_name(job)
    if not urls and not seeds_file and not job and not starts:
        its = ", or give the spider start_urls" if spider else ""
        notes = "".join(f"\n{note}" for note in facts.notes) if facts else ""
        raise Misconfigured(f"nothing to crawl: give a URL, or --seeds FILE{its}\nSee `crawlog run --help`.{notes}")
    urls, sitemaps = sitemaps_apart(urls)
    checked, logins = logins_apart(checked_urls(urls))
    for output in outputs:
        result_output(output)
    for target in on_finish:
        check_target(target)
    if seeds_file:
        existing_file(seeds_file, "--seeds")
    request = JobRequest(
        urls=tuple(checked),
        args=dict(spider.ref.args) if spider else {},
        settings=dict(spider.ref.scrapy) if spider else {},
        outputs=tuple(dict.fromkeys(outputs)),
        job=job or "",
        fresh=fresh,
        on_finish=on_finish,
    )
    if any(output.startswith(ARCHIVE) for output in outputs):
        pages = settings.pages.model_copy(update={"headers": "full"})
        settings = settings.model_copy(update={"pages": pages})
    files = (str(seeds_file),) if seeds_file else ()
    parts = LocalParts((*checked, *sitemaps, *files), facts)
    return settings.with_logins(logins) if logins else settings, request, parts


def sitemaps_apart(urls: Iterable[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """URLs without those of the form `sitemap:URL`, and these."""
    given = tuple(urls)
    sitemaps = tuple(url for url in given if url.startswith(SITEMAP))
    return tuple(url for url in given if url not in sitemaps), sitemaps


def checked_urls(urls: Iterable[str]) -> list[str]:
    """The URLs as given, if all of them are valid.

    Raises: Misconfigured: names all invalid URLs, with suggestions.
    """
    given = list(urls)
    problems = [problem for url in given if (problem := _url_problem(url))]
    if problems:
        raise Misconfigured("\n".join(problems))
    return given


def seeds(sources: Sequence[str], from_log: str | None) -> None:
    """Raises: Misconfigured: there are neither sources nor --from-log, or both."""
    if bool(sources) == bool(from_log):
        raise Misconfigured("give files, - or URLs, or else --from-log PREFIX: one of them, and not both")


def seed_settings(pairs: Iterable[str], sources: Iterable[str]) -> None:
    """Checks that a job or this command has the settings of `-s`; the workers have theirs already.

    Raises: Misconfigured: names those that have no effect.
    """
    from crawlog.streams.job_spec import job_keys
    from crawlog.streams.settings import SHORT

    if any(source.startswith(SITEMAP) for source in sources):
        return  # this command asks for the sitemap itself
    names = (pair.partition("=")[0].strip() for pair in pairs)
    known = job_keys()
    others = sorted({SHORT.get(name, name) for name in names} - known)
    others = [name for name in others if name != "run.data" and not name.startswith(OF_SEED)]
    if others:
        raise Misconfigured(
            f"-s {', '.join(others)}: of workers, not of a job, so it has no effect here; give it to `crawlog up` or"
            " `crawlog worker`"
        )


def logins_apart(urls: Iterable[str]) -> tuple[list[str], tuple[str, ...]]:
    """URLs without users and passwords, and these in the form of `fetch.logins`: they must not get into the log."""
    parted = [without_login(serialise(url)) if "@" in url else (url, "") for url in urls]
    return [url for url, _ in parted], tuple(login for _, login in parted if login)


def _url_problem(url: str) -> str:
    if not is_utf_8(url):
        return f"{url!r} is not UTF-8; write such bytes as %FF"
    try:
        meant = serialise(url)
    except InvalidUrl:
        pass
    else:  # seeds without :// are files
        return "" if "://" in url else f"{url!r} is not a URL; did you mean {meant} ?"
    if url == "-" or os.path.isfile(url):  # noqa: PTH113  # pathlib raises where a name is too long
        return f"{url!r} is a file, not a URL; name it with --seeds {url}"
    scheme = re.match(r"([A-Za-z][A-Za-z0-9+.-]*)://", url)
    if scheme and scheme[1].lower() not in ("http", "https"):
        return f"{url!r} cannot be crawled: crawlog fetches http and https"
    likely = _with_https(url) if not scheme else ""
    return f"{url!r} is not a URL" + (f"; did you mean {likely} ?" if likely else "")


def _with_https(url: str) -> str:
    """The https URL that a text such as `example.com/x` likely means, or empty."""
    try:
        meant = serialise(f"https://{url.lstrip(':/')}")
    except InvalidUrl:
        return ""
    host = meant.split("/")[2]
    return meant if "." in host or ":" in host or host == "localhost" else ""


def worker_counts(text: str) -> dict[str, object]:
    """`fetch=2,parse=2` or `auto` as settings, by dotted key.

    Raises: Misconfigured: the text has another form.
    """
    if text == "auto":
        return dict.fromkeys(STAGES.values(), "auto")
    counts: dict[str, object] = {}
    problems = []
    for part in filter(None, (part.strip() for part in text.split(","))):
        stage, equals, number = (piece.strip() for piece in part.partition("="))
        if stage not in STAGES:
            problems.append(f"{part!r}: there are workers for {' and '.join(STAGES)}")
        elif not equals or not number.isascii() or not number.isdigit() or int(number) < 1:
            problems.append(f"{part!r}: {stage}= wants a whole number >= 1")
        elif STAGES[stage] in counts:
            problems.append(f"{part!r}: {stage} is named twice")
        else:
            counts[STAGES[stage]] = int(number)
    if problems or not counts:
        raise Misconfigured(
            f"--workers {text}: {'; '.join(problems) or 'empty'}; write it as --workers fetch=2,parse=2, or auto"
        )
    return counts


def job_name(name: str) -> str:
    """The name, if it is valid.

    Raises: Misconfigured: it is not.
    """
    from crawlog.jobs.request import named_job

    return named_job(name)


def existing_file(path: Path, option: str) -> Path:
    """The path, if it is a readable file, a pipe, or `-` for standard input.

    A pipe is not opened here: closing it again would cut off its writer.

    Raises: Misconfigured: it is not.
    """
    try:
        if str(path) == "-" or path.is_fifo():
            return path
        with path.open("rb"):
            return path
    except OSError as error:
        raise Misconfigured(f"{option} {path}: {error.strerror or error}") from None


def spider(
    named: str | None, args: Iterable[str], scrapy: "Pairs", settings: "Callable[[], Settings]"
) -> "NamedSpider | None":
    """The spider of `--spider`, loaded before anything is started; None without one.

    Args:
        settings: Returns the command's settings, without those of the spider.

    Raises: Misconfigured: there is no such spider, it is broken, or its arguments were given without it.
    """
    from crawlog.commands import named_spider

    given = named_spider.arguments_in(args)
    if named is not None:
        return named_spider.named(named, given, scrapy, settings())
    if given or scrapy:
        what = f"-a {given[0][0]}: an argument of a spider" if given else f"-s {scrapy[0][0]}: a setting of Scrapy's"
        raise Misconfigured(f"{what}; give --spider, too")
    return None


def result_output(named: str) -> str:
    """The output of `-o`, if a sink is installed for it and its file can be made.

    Raises: Misconfigured: the format or store is unknown, or the file cannot be made.
    """
    from crawlog.streams.sink import is_file

    if not is_file(named):
        return named
    path = Path(named)
    if path.is_dir():
        raise Misconfigured(f"-o {path}: is a folder")
    if not path.absolute().parent.is_dir():
        raise Misconfigured(f"-o {path}: there is no folder {path.parent}")
    if not is_utf_8(str(path.absolute())):
        raise Misconfigured(f"-o: the path {str(path.absolute())!r} is not UTF-8; use another name or folder")
    if path.exists() and not path.is_file():
        raise Misconfigured(f"-o {path}: is no file, and would be replaced by one; -o - writes to standard output")
    try:
        with tempfile.NamedTemporaryFile(dir=path.absolute().parent, prefix=".crawlog-"):
            pass  # permissions are not enough: the file system may be read-only, or take no files
    except OSError as error:
        raise Misconfigured(f"-o {path}: no file can be made in {path.absolute().parent}: {error.strerror}") from None
    return named


def is_execution(*, dry_run: bool, execute: bool) -> bool:
    """Whether a command that only shows its plan by default shall act.

    Raises: Misconfigured: both options were given.
    """
    if dry_run and execute:
        raise Misconfigured("--dry-run and --execute are opposites: give one of them")
    return execute


def reset_target(given: Mapping[str, Any]) -> "tuple[TargetKind, str | int]":
    """The one option of `crawlog replay` that names a target, and its value.

    Args:
        given: Values by parameter name; None or False where the option was not given.

    Raises: Misconfigured: no option names a target, or several do.
    """
    from crawlog.streams.groups import TargetKind

    named = [(kind, given[kind.replace("-", "_")]) for kind in get_args(TargetKind)]
    chosen = [(kind, value) for kind, value in named if value is not None and value is not False]
    if len(chosen) != 1:
        several = f"; got {' and '.join(f'--{kind}' for kind, _ in chosen)}" if chosen else ""
        raise Misconfigured(f"where to? Give one of {', '.join(f'--{kind}' for kind, _ in named)}{several}")
    kind, value = chosen[0]
    if value is True:
        return kind, ""
    return kind, value if isinstance(value, int) else str(value)
