import scrapy


def two_digits(value):
    return f"{value:.2f}"


class Offer(scrapy.Item):
    name = scrapy.Field()
    price = scrapy.Field(serializer=two_digits)
    by = scrapy.Field()
    signed = scrapy.Field()
    secret = scrapy.Field()
