"""What the site has."""

import scrapy


class Picture(scrapy.Item):
    """A page with pictures."""

    name = scrapy.Field()
    image_urls = scrapy.Field()
    images = scrapy.Field()


class Paper(scrapy.Item):
    """A page with documents."""

    name = scrapy.Field()
    file_urls = scrapy.Field()
    files = scrapy.Field()
    sizes = scrapy.Field()
