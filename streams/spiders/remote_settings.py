"""Which of Scrapy's settings may not come with a job's record: any writer of the log could run code or write files.

Import paths, files, folders, addresses of stores and credentials come from the deployed project's own settings only:
with `ITEM_PIPELINES` over the wire a record could run any module on a worker's machine, with `LOG_FILE` write any file.
Names of the user's own are judged by their words, since nobody else knows what the project does with them.
"""

import re

_CODE = "it names code to import"
_FILE = "it names a file or folder of a worker"
_STORE = "it names a place to write to"
_LOGIN = "it is a credential, or names one's owner"

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
"""Scrapy's own, by name. A test compares it with the settings of the installed Scrapy."""

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
"""Reasons by the words of other names: a later Scrapy's, those of extensions, and a project's own."""

_SWITCH = re.compile(r".*_(ENABLED|DEBUG)", re.DOTALL)
_BOOLEAN = re.compile(r"[01]|[Tt]rue|[Ff]alse")
"""A switch with such a value holds no path and no address, whatever its other words say."""


def wire_refusal(name: str, value: str = "") -> str:
    """Why a setting of Scrapy (`-s NAME=VALUE`, `setting=NAME=VALUE`) may not come with a job; empty if it may."""
    plain = name.upper()
    why = REFUSED.get(plain, "")
    if not why and not (_SWITCH.fullmatch(plain) and _BOOLEAN.fullmatch(value)):
        why = next((why for why, words in _WORDS.items() if words.fullmatch(plain)), "")
    if not why:
        return ""
    return f"{name}: {why}, so only the settings of the project itself may set it; set it there and deploy it again"
