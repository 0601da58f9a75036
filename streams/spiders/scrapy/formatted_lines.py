"""Lines of the project's LOG_FORMATTER, in the log of this process: of dropped items, and of errors."""

import logging
from typing import Any

from scrapy.crawler import Crawler
from scrapy.utils.log import logformatter_adapter

from ..traces import users_traceback

log = logging.getLogger(__name__)


def write_line(crawler: Crawler, name: str, *about: Any, error: BaseException | None = None) -> None:
    """Write the line that a method of the log formatter makes; it makes None where nothing is to be written.

    Args:
        about: What the method takes before the spider.
        error: Its traceback from the project's code on follows the line; Scrapy's own 60 lines are in the dead letter.
    """
    try:
        said = getattr(crawler.logformatter, name)(*about, crawler.spider)
        if said is not None:
            log.log(*logformatter_adapter(said), exc_info=error and (type(error), error, users_traceback(error)))
    except Exception:  # a project's formatter may raise anything; the item is dropped, or the error kept, all the same
        log.exception("LOG_FORMATTER: its method %s failed", name)
