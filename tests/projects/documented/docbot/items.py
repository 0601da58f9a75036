from dataclasses import dataclass, field

import scrapy
from attrs import define
from itemloaders.processors import Join, MapCompose, TakeFirst
from w3lib.html import remove_tags


class Thing(scrapy.Item):
    id = scrapy.Field()
    name = scrapy.Field()
    description = scrapy.Field()
    link_text = scrapy.Field()
    additional_data = scrapy.Field()


class Product(scrapy.Item):
    name = scrapy.Field()
    price = scrapy.Field()
    stock = scrapy.Field()
    last_updated = scrapy.Field(serializer=str)


@dataclass
class ProductData:
    name: str | None = field(default=None)
    price: float | None = field(default=None)
    stock: int | None = field(default=None)


@define
class ProductAttrs:
    name: str
    price: str | None = None


def euros(value):
    if value.replace(".", "").isdigit():
        return value


@dataclass
class CleanProduct:
    name: str | None = field(
        default=None, metadata={"input_processor": MapCompose(remove_tags, str.strip), "output_processor": Join()}
    )
    price: str | None = field(
        default=None,
        metadata={"input_processor": MapCompose(remove_tags, str.strip, euros), "output_processor": TakeFirst()},
    )
