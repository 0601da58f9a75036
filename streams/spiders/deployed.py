"""Spiders of deployed code, by their names in its unpacked folder; in a child process alone. Their jobs' settings.

FOLDER with scrapy.cfg ─► the project's spider of this name     else: *.py at its top ─► the class of this name

The name comes from a job's record, which any writer of crawl.urls may have written: it is compared with the names that
there are, and is never a path.
"""

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from crawlog.streams import files
from crawlog.streams.errors import Misconfigured

from .exchange import SpiderFacts, SpiderRef
from .loading import PROJECT, FoundClass, found_class, no_crawls, told
from .trust import Trust

_CODE = "it names code to import"
_FILE = "it names a file or folder of a worker"
_STORE = "it names a place to write to"
_LOGIN = "it is a credential, or names one's owner"

# Scrapy's own, by name. A test compares it with the settings of the installed Scrapy.
REFUSED: dict[str, str] = {
    "ADDONS": _CODE,
    "ASYNCIO_EVENT_LOOP": _CODE,
    "AWS_ACCESS_KEY_ID": _LOGIN,
    "AWS_ENDPOINT_URL": _STORE,
    "AWS_REGION_NAME": _STORE,
    "AWS_SECRET_ACCESS_KEY": _LOGIN,
    "AWS_SESSION_TOKEN": _LOGIN,
    "COMMANDS_MODULE": _CODE,
    "DEFAULT_ITEM_CLASS": _CODE,
    "DNS_RESOLVER": _CODE,
    "DOWNLOADER": _CODE,
    "DOWNLOADER_CLIENTCONTEXTFACTORY": _CODE,
    "DOWNLOADER_HTTPCLIENTFACTORY": _CODE,
    "DOWNLOADER_MIDDLEWARES": _CODE,
    "DOWNLOADER_MIDDLEWARES_BASE": _CODE,
    "DOWNLOAD_HANDLERS": _CODE,
    "DOWNLOAD_HANDLERS_BASE": _CODE,
    "DUPEFILTER_CLASS": _CODE,
    "EDITOR": _CODE,
    "EXTENSIONS": _CODE,
    "EXTENSIONS_BASE": _CODE,
    "FEEDS": _STORE,
    "FEED_EXPORTERS": _CODE,
    "FEED_EXPORTERS_BASE": _CODE,
    "FEED_STORAGES": _CODE,
    "FEED_STORAGES_BASE": _CODE,
    "FEED_TEMPDIR": _FILE,
    "FEED_URI": _STORE,
    "FEED_URI_PARAMS": _CODE,
    "FILES_STORE": _STORE,
    "FILES_STORE_GCS_ACL": _STORE,
    "FILES_STORE_S3_ACL": _STORE,
    "FORCE_CRAWLER_PROCESS": _CODE,
    "FTP_PASSWORD": _LOGIN,
    "FTP_USER": _LOGIN,
    "GCS_PROJECT_ID": _STORE,
    "HTTPAUTH_DOMAIN": _LOGIN,
    "HTTPAUTH_PASS": _LOGIN,
    "HTTPAUTH_USER": _LOGIN,
    "HTTPCACHE_DBM_MODULE": _CODE,
    "HTTPCACHE_DIR": _FILE,
    "HTTPCACHE_POLICY": _CODE,
    "HTTPCACHE_STORAGE": _CODE,
    "IMAGES_STORE": _STORE,
    "IMAGES_STORE_GCS_ACL": _STORE,
    "IMAGES_STORE_S3_ACL": _STORE,
    "ITEM_PIPELINES": _CODE,
    "ITEM_PIPELINES_BASE": _CODE,
    "ITEM_PROCESSOR": _CODE,
    "JOBDIR": _FILE,
    "LOG_FILE": _FILE,
    "LOG_FILE_APPEND": _FILE,
    "LOG_FORMATTER": _CODE,
    "MAIL_HOST": _STORE,
    "MAIL_PASS": _LOGIN,
    "MAIL_USER": _LOGIN,
    "NEWSPIDER_MODULE": _CODE,
    "REFERRER_POLICIES": _CODE,
    "REFERRER_POLICY": _CODE,
    "REMOTE_CONTROL_ENABLED": _CODE,
    "REMOTE_CONTROL_JOBS_DIR": _FILE,
    "REQUEST_FINGERPRINTER_CLASS": _CODE,
    "RETRY_EXCEPTIONS": _CODE,
    "ROBOTSTXT_PARSER": _CODE,
    "SCHEDULER": _CODE,
    "SCHEDULER_DISK_QUEUE": _CODE,
    "SCHEDULER_MEMORY_QUEUE": _CODE,
    "SCHEDULER_PRIORITY_QUEUE": _CODE,
    "SCHEDULER_START_DISK_QUEUE": _CODE,
    "SCHEDULER_START_MEMORY_QUEUE": _CODE,
    "SPIDER_CONTRACTS": _CODE,
    "SPIDER_CONTRACTS_BASE": _CODE,
    "SPIDER_LOADER_CLASS": _CODE,
    "SPIDER_MIDDLEWARES": _CODE,
    "SPIDER_MIDDLEWARES_BASE": _CODE,
    "SPIDER_MODULES": _CODE,
    "STATSMAILER_RCPTS": _STORE,
    "STATS_CLASS": _CODE,
    "TELNETCONSOLE_HOST": _STORE,
    "TELNETCONSOLE_PASSWORD": _LOGIN,
    "TELNETCONSOLE_PORT": _STORE,
    "TELNETCONSOLE_USERNAME": _LOGIN,
    "TEMPLATES_DIR": _FILE,
    "TWISTED_DNS_RESOLVER": _CODE,
    "TWISTED_REACTOR": _CODE,
}

# Reasons by the words of other names: a later Scrapy's, those of extensions, and a project's own.
_WORDS: dict[str, re.Pattern[str]] = {
    _CODE: re.compile(
        r"(SCHEDULER|ASYNCIO|TWISTED|FORCE|SPIDER)_.*"
        r"|.*(MIDDLEWARES?|PIPELINES?|HANDLERS?|CONTRACTS|EXTENSIONS|EXPORTERS|STORAGES)(_BASE)?"
        r"|.*_(CLASS|CLASSES|CLS|MODULES?|FACTORY|SERIALIZER|BACKEND|LOADER|PARSER|PROCESSOR|RESOLVER)"
        r"|.*_(POLICY|POLICIES|QUEUE|PLUGINS?)|.*CONTEXTFACTORY",
        re.DOTALL,
    ),
    _FILE: re.compile(
        r"LOG_(FILE.*|VERSIONS)|REMOTE_CONTROL_.*"
        r"|.*_(DIR|DIRS|DIRECTORY|FOLDER|FILE|FILES|FILENAME|PATH|PATHS|TEMPDIR|ROOT)",
        re.DOTALL,
    ),
    _STORE: re.compile(
        r"FEED_(URI|EXPORTERS|STORAGE|FORMAT).*|(GCS|TELNETCONSOLE|STATSMAILER)_.*|DOWNLOAD_BIND_ADDRESS"
        r"|.*_(STORE|STORAGE|URI|DSN|DATABASE)",
        re.DOTALL,
    ),
    _LOGIN: re.compile(
        r"(AWS|FTP|MAIL)_.*|MEMUSAGE_NOTIFY_MAIL|.*_(PASSWORD|PASS|SECRET|TOKEN|CREDENTIALS)", re.DOTALL
    ),
}

_SWITCH = re.compile(r".*_(ENABLED|DEBUG)", re.DOTALL)
# A switch with such a value holds no path and no address, whatever its other words say.
_BOOLEAN = re.compile(r"[01]|[Tt]rue|[Ff]alse")


def wire_refusal(name: str, value: str = "") -> str:
    """Why a setting of Scrapy (`-s NAME=VALUE`, `setting=NAME=VALUE`) may not come with a job; empty if it may."""
    plain = name.upper()
    why = REFUSED.get(plain, "")
    if not why and not (_SWITCH.fullmatch(plain) and _BOOLEAN.fullmatch(value)):
        why = next((why for why, words in _WORDS.items() if words.fullmatch(plain)), "")
    if not why:
        return ""
    return f"{name}: {why}, so only the settings of the project itself may set it; set it there and deploy it again"


MAX_SHOWN = 20  # Names of spiders in a message


def check_settings(ref: SpiderRef) -> None:
    """Raises: Misconfigured: the job's record has a setting of Scrapy that only the project may set."""
    for name, value in ref.scrapy:
        if why := wire_refusal(name, value):
            raise Misconfigured(f"code_refused: {why}")


def is_scrapy_project(folder: Path) -> bool:
    """Whether a folder is a Scrapy project; else it has spider files at its top."""
    return (folder / PROJECT).is_file()


def deployed_class(folder: Path, name: str) -> FoundClass:
    """The class of a spider in a folder of spider files. Raises: Misconfigured: there is none, or it is broken."""
    every = list(_classes(folder))
    for file, kind in sorted(every, key=lambda one: name not in (one[1].name, _name_of(one[1]))):
        found = _found(folder, file, kind.name)
        if found is not None and name in (_spider_name(found.kind), found.kind.__name__):
            return found
    names = _names(folder)
    has = f"it has {', '.join(names[:MAX_SHOWN])}" if names else "it has none"
    raise Misconfigured(f"the deployed code has no spider {name!r:.100}; {has}")


def spider_names(folder: Path) -> list[str]:
    """Names of all spiders of a folder. Runs its code. Raises: Misconfigured: it cannot be loaded."""
    if not is_scrapy_project(folder):
        return _names(folder)
    from scrapy.spiderloader import get_spider_loader

    from .scrapy.project import settings_of

    settings = settings_of(folder, {})
    try:
        return list(get_spider_loader(settings).list())
    except Exception as error:
        raise Misconfigured(f"the project cannot be loaded: {told(error, folder)}") from error


def _names(folder: Path) -> list[str]:
    found = (_found(folder, file, kind.name) for file, kind in _classes(folder))
    return sorted({_spider_name(one.kind) for one in found if one is not None})


def _spider_name(kind: type[Any]) -> str:
    return str(getattr(kind, "name", "") or kind.__name__)


def _classes(folder: Path) -> Iterator[tuple[Path, ast.ClassDef]]:
    """The classes with bases in the files at a folder's top, found without running them."""
    for file in sorted(folder.glob("*.py")):
        try:
            tree = ast.parse(files.read_trusted(file))
        except (OSError, SyntaxError, ValueError) as error:
            raise Misconfigured(f"{file.name} cannot be read: {error}") from None
        yield from ((file, node) for node in tree.body if isinstance(node, ast.ClassDef) and node.bases)


def _name_of(kind: ast.ClassDef) -> str:
    """The `name = "…"` of a class; empty if it has none."""
    for node in kind.body:
        if isinstance(node, ast.Assign) and any(isinstance(one, ast.Name) and one.id == "name" for one in node.targets):
            return str(node.value.value) if isinstance(node.value, ast.Constant) else ""
    return ""


def _found(folder: Path, file: Path, kind: str) -> FoundClass | None:
    """A class, if it is a spider."""
    try:
        return found_class(f"{file}:{kind}", Trust((folder,)))
    except Misconfigured as error:
        if error.__cause__ is None:
            return None  # no spider: an item, a helper
        raise


def explained(error: Misconfigured) -> Misconfigured:
    """An error of loading, with what to do about a module that is not installed."""
    cause: BaseException | None = error.__cause__
    while cause is not None and not isinstance(cause, ModuleNotFoundError):
        cause = cause.__cause__
    if cause is None or not cause.name:
        return error
    missing = cause.name.partition(".")[0]
    return Misconfigured(
        f"{error}. The module {missing} is not installed beside this worker, and crawlog installs nothing: install it "
        f"into {sys.prefix} on the workers' machines, or deploy an egg that holds it"
    )


class ListingService:
    """Answers the one call for the names of the spiders."""

    def __init__(self, folder: Path) -> None:
        self.facts = SpiderFacts(path=str(folder), label="listing@0")
        self._folder = folder

    async def call(self, _name: str, _argument: bytes) -> bytes:
        """The names, as JSON."""
        try:
            with no_crawls(str(self._folder)):
                return msgspec.json.encode(spider_names(self._folder))
        except Misconfigured as error:
            raise explained(error) from error


def load_listing(ref: SpiderRef, **_: object) -> ListingService:
    """What lists the spiders of `ref.folder`: a loader of a child process."""
    return ListingService(Path(ref.folder))
