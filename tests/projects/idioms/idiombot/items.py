from dataclasses import dataclass, field
from datetime import date, datetime
from decimal import Decimal

import scrapy


class Note(scrapy.Item):
    text = scrapy.Field()
    tags = scrapy.Field()
    inner = scrapy.Field()


@dataclass
class Basket:
    owner: str
    things: list = field(default_factory=list)
    since: datetime | None = None
    total: Decimal = Decimal(0)
    day: date | None = None
