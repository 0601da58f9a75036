"""A class of crawlog's own spiders to a runner: made with its arguments, checked, its logging set up."""

import inspect
import logging  # noqa: TID251  # sets up the user's own messages; crawlog writes none here
import re
import sys
from collections.abc import Collection, Iterator, Mapping
from difflib import get_close_matches
from pathlib import Path
from types import ModuleType
from typing import Any

from crawlog.streams.errors import Misconfigured
from crawlog.streams.spans import span_s
from crawlog.streams.url import domains_pattern

from . import scrapy_names
from .exchange import SpiderFacts, SpiderRef
from .item_classes import classes_of
from .loading import FoundClass, is_installed, where
from .own import OwnRunner
from .own_outputs import Bounds
from .pipelines import check_pipelines
from .request_records import request_carrier
from .spider import EVERY, Rule, Spider
from .values import Values

# A spider's name and version: records have them as NAME@VERSION, and users type them.
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,99}")


def own_runner(found: FoundClass, ref: SpiderRef, bounds: Bounds) -> OwnRunner:
    """The runner of a class. Raises: Misconfigured: the class cannot be used; the message says why."""
    spider = own_spider(found, ref.args)
    values = Values(classes_of(project_modules(found)), [request_carrier(spider)])
    return OwnRunner(spider, facts_of(spider, found), ref, bounds, values)


def project_modules(found: FoundClass) -> list[tuple[str, ModuleType]]:
    """The spider's module, under a name that stays when the file changes, and those of its project that it imported."""
    folder = project_folder(found.file)
    beside = [
        (name, module)
        for name, module in list(sys.modules.items())
        if module is not found.module and _is_in(module, folder)
    ]
    return [("spider", found.module), *beside]


def project_folder(file: Path) -> Path:
    """The folder of the outermost package that a file is in; for a file in no package its own."""
    folder = file.parent
    while (folder / "__init__.py").is_file() and (folder.parent / "__init__.py").is_file():
        folder = folder.parent
    return folder


def _is_in(module: object, folder: Path) -> bool:
    file = getattr(module, "__file__", None)
    if not isinstance(file, str):
        return False
    path = Path(file)
    return path.is_relative_to(folder) and not is_installed(path)


def own_spider(found: FoundClass, args: tuple[tuple[str, str], ...] = ()) -> Spider:
    """The spider of a class, checked. Raises: Misconfigured: it cannot be used."""
    kind, file = found.kind, found.file
    if kind.parse is Spider.parse and kind.start is Spider.start and not kind.rules:
        raise Misconfigured(f"--spider {file}: {kind.__name__} has no parse(self, response)")
    _check_arguments(kind, args, file)
    try:
        spider: Spider = kind(**dict(args))
    except Exception as error:
        raise Misconfigured(f"--spider {file}: {kind.__name__}() fails{where(error, file)}") from error
    _check(spider, file)
    told = list(scrapy_names.of_spider(spider))
    if told:
        several = " names of Scrapy\n  " if len(told) > 1 else " "
        raise Misconfigured(f"--spider {file}:{several}" + "\n  ".join(told))
    return spider


def facts_of(spider: Spider, found: FoundClass) -> SpiderFacts:
    """A spider as its job must know it."""
    starts = type(spider).start is not Spider.start
    return SpiderFacts(
        path=found.path,
        label=_label(spider, found.file, found.digest[:8]),
        digest=found.digest[:16],
        start_urls=() if starts else tuple(spider.start_urls),
        starts=starts,
        every=getattr(type(spider).start, EVERY, 0.0),
        settings=_settings(spider),
        takes_errors=True,
        has_pipelines=bool(spider.pipelines) or callable(getattr(spider, "closed", None)),
        statuses=tuple(spider.handle_httpstatus_list),
        notes=tuple(_near_misses(type(spider))),
    )


# Names with a meaning in a class of the user.
_KNOWN = (*(name for name in vars(Spider) if not name.startswith("_")), "closed")


def _near_misses(kind: type[Spider]) -> Iterator[str]:
    """Attributes of the user's classes that are likely meant to be ours: nothing would ever read them."""
    names = {name for one in kind.__mro__[: kind.__mro__.index(Spider)] for name in vars(one)}
    for name in sorted(names.difference(_KNOWN)):
        for meant in get_close_matches(name, set(_KNOWN) - names, n=1, cutoff=0.85):
            yield f"{kind.__name__}.{name} is not an attribute that crawlog reads; did you mean {meant}?"


def _settings(spider: Spider) -> dict[str, Any]:
    """The settings; `allowed_domains` are a scope of their own, unless the spider names one.

    A spider that has no links followed for it gets every page that it asks for, whatever its type.
    """
    settings = {key: _listed(value) for key, value in spider.settings.items()}
    if type(spider).age:
        settings.setdefault("recrawl.age", type(spider).age)
    if not spider.follow_links:
        settings.setdefault("fetch.content_types", ["*/*"])
    if spider.allowed_domains and not settings.keys() & {"scope", "scope.kind", "scope.include"}:
        settings["scope.kind"] = "any"
        settings["scope.include"] = [domains_pattern(spider.allowed_domains)]
    return settings


def _listed(value: Any) -> Any:
    """A collection as a list. A set's order differs from process to process."""
    if isinstance(value, set | frozenset):
        return sorted(value, key=str)
    return list(value) if isinstance(value, tuple) else value


def _check_arguments(kind: type[Spider], args: tuple[tuple[str, str], ...], file: Path) -> None:
    """Refuse arguments that the spider does not take. Raises: Misconfigured."""
    parameters = list(inspect.signature(kind).parameters.values())
    takes_all = any(one.kind is one.VAR_KEYWORD for one in parameters)
    names = [one.name for one in parameters if one.kind in {one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY}]
    for name, _ in args:
        if name in names:
            continue
        if not takes_all:
            takes = f"it takes {', '.join(names)}" if names else "it takes none"
            raise Misconfigured(f"-a {name}: {kind.__name__} of {file} has no such argument; {takes}")
        if callable(getattr(kind, name, None)):
            raise Misconfigured(f"-a {name}: this is no name of an argument of {kind.__name__}")
    needed = [one.name for one in parameters if one.default is one.empty and one.name in names]
    missing = [name for name in needed if name not in dict(args)]
    if missing:
        raise Misconfigured(f"--spider {file}: {kind.__name__} needs arguments: -a {'=… -a '.join(missing)}=…")


def _check(spider: Spider, path: Path) -> None:
    """Refuse a spider that would fail for every page, before the first page."""
    urls, statuses, settings = spider.start_urls, spider.handle_httpstatus_list, spider.settings
    if isinstance(urls, str) or not isinstance(urls, Collection) or not all(isinstance(url, str) for url in urls):
        raise Misconfigured(f"--spider {path}: start_urls = {urls!r:.80}: it is a list of URLs")
    if not isinstance(statuses, Collection) or not all(isinstance(status, int) for status in statuses):
        raise Misconfigured(f"--spider {path}: handle_httpstatus_list = {statuses!r:.80}: it is a list of numbers")
    if not isinstance(settings, Mapping) or not all(isinstance(key, str) for key in settings):
        raise Misconfigured(f"--spider {path}: settings = {settings!r:.80}: it is a dict by dotted names")
    try:
        span_s(type(spider).age or 1)
    except (ValueError, TypeError) as error:
        raise Misconfigured(f"--spider {path}: age: {error}") from None
    check_pipelines(spider.pipelines, path)
    _check_rules(spider, path)
    marked = {name for one in type(spider).__mro__ for name, value in vars(one).items() if hasattr(value, EVERY)}
    if other := min(marked - {"start"}, default=""):
        raise Misconfigured(f"--spider {path}: @every stands on {other}; only `start` begins again by itself")
    if type(spider).parse is not Spider.parse:
        _check_parse(spider, path)


def _check_parse(spider: Spider, path: Path) -> None:
    has_own_start = type(spider).start is not Spider.start  # its requests may carry further arguments
    try:
        signature = inspect.signature(spider.parse)
        further = list(signature.parameters.values())[1:] if has_own_start else []
        carried = {one.name: None for one in further if one.kind in {one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY}}
        signature.bind(None, **carried)
    except TypeError as error:
        raise Misconfigured(
            f"--spider {path}: {type(spider).__name__}.parse cannot be called with a page ({error});"
            " write it as parse(self, response)"
        ) from None


def _check_rules(spider: Spider, path: Path) -> None:
    domains, rules = spider.allowed_domains, spider.rules
    if isinstance(domains, str) or not isinstance(domains, Collection) or not all(map(_is_domain, domains)):
        raise Misconfigured(f"--spider {path}: allowed_domains = {domains!r:.80}: it is a list of host names")
    if not isinstance(rules, Collection) or not all(isinstance(rule, Rule) for rule in rules):
        raise Misconfigured(f"--spider {path}: rules = {rules!r:.80}: it is a list of crawlog.Rule")
    for rule in rules:
        if rule.callback and not callable(getattr(spider, rule.callback, None)):
            raise Misconfigured(
                f"--spider {path}: a rule names the callback {rule.callback!r}; there is no such method"
            )


def _is_domain(domain: object) -> bool:
    return isinstance(domain, str) and re.fullmatch(r"[^\s/:?#@]+", domain) is not None


def _label(spider: Spider, path: Path, digest: str) -> str:
    name, version = spider.name or type(spider).__name__, str(spider.version) or digest
    for text, what in ((name, "name"), (version, "version")):
        if not _NAME.fullmatch(str(text)):
            raise Misconfigured(f"--spider {path}: {what} = {text!r}: letters, digits, and . _ + - only, at most 100")
    return f"{name}@{version}"


FORMAT = "[%(name)s] %(levelname)s: %(message)s"  # Of a line; crawl.logs finds its level in it


class _UsersLines(logging.Filter):
    """Lets pass what the spider's project logs, and warnings of libraries. The spider's module is named as its file is.

    At level info a library may tell secrets: httpx logs each URL, with its tokens.
    """

    def __init__(self, found: FoundClass) -> None:
        super().__init__()
        folder = project_folder(found.file)
        self._name, self._shown = found.module.__name__, found.file.stem
        self._own = folder if (folder / "__init__.py").is_file() else found.file  # it may be installed itself

    def filter(self, record: logging.LogRecord) -> bool:
        """True for a line of the project, and for a warning or an error."""
        path = Path(record.pathname)
        if record.name == self._name:
            record.name = self._shown
        return record.levelno >= logging.WARNING or not is_installed(path) or path.is_relative_to(self._own)


def log_lines(found: FoundClass, level: str) -> None:
    """Write the spider's lines, from this level up, to standard error, where the user has not set up `logging`.

    Python's last resort takes lines that no handler takes, so the user may set up `logging` at any time. It is for the
    spider's own process, after its module has run: of another process the logging is the user's.
    """
    root = logging.getLogger()
    if root.handlers:
        return
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter(FORMAT))
    handler.addFilter(_UsersLines(found))
    logging.lastResort = handler
    set_up = logging.basicConfig

    def basic(**given: Any) -> None:
        """Python's own; `logging.info` and its like call it without arguments, and then it takes our handler."""
        if given:
            set_up(**given)
        elif not root.handlers:
            root.addHandler(handler)

    logging.basicConfig = basic
    if root.level == logging.WARNING:  # Python's default: the module has set no level
        root.setLevel(level.upper())
