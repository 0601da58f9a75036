"""Scrapy's spiders and projects, unchanged: Scrapy's own classes around a spider, without its engine. In a child alone.

project.py: class, settings ─► crawler.py: spider, middlewares ─► scrapy_runner.py: pages in, items and requests out
                                                                      │ ├─► facts.py: the job's settings, what differs
page ─► arrived.py ─► downloading.py ─► scraping.py ◄─────────────────┤ │     └──► settings_table.py, meta_table.py
requests ◄─ recorded.py ◄─────────────────┴─► feeds.py ─► items       │ └─► idle.py: behind `start`, if nothing is left
                                              item_processing.py ◄────┘
"""

from .crawler import StandInCrawler
from .feeds import Exporter, item_of, raw_item
from .kinds import Kinds
from .loaded import of_class, of_project
from .meta_table import META
from .scrapy_runner import ScrapyRunner
from .settings_table import SETTINGS

__all__ = [
    "META",
    "SETTINGS",
    "Exporter",
    "Kinds",
    "ScrapyRunner",
    "StandInCrawler",
    "item_of",
    "of_class",
    "of_project",
    "raw_item",
]
