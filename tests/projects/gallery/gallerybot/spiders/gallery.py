"""Pictures, documents, and pages that a callback fetches in passing."""

import scrapy
from gallerybot.items import Paper, Picture

SITE = "http://gallery.test"


class Pictures(scrapy.Spider):
    """ImagesPipeline with thumbnails."""

    name = "pictures"
    start_urls = [f"{SITE}/"]
    custom_settings = {
        "ITEM_PIPELINES": {"scrapy.pipelines.images.ImagesPipeline": 1},
        "IMAGES_STORE": "pictures",
        "IMAGES_THUMBS": {"small": (24, 24), "big": (60, 60)},
        "IMAGES_MIN_WIDTH": 16,
        "IMAGES_MIN_HEIGHT": 16,
    }

    def parse(self, response):
        """A page for each link."""
        yield from response.follow_all(css="a", callback=self.parse_page)

    def parse_page(self, response):
        """One item a page."""
        yield Picture(
            name=response.css("h1::text").get(),
            image_urls=[response.urljoin(one) for one in response.css("img::attr(src)").getall()],
        )


class Moved(Pictures):
    """Redirects of files are followed."""

    name = "moved"
    custom_settings = Pictures.custom_settings | {"MEDIA_ALLOW_REDIRECTS": True, "IMAGES_STORE": "moved"}


class Papers(Pictures):
    """A subclass of FilesPipeline; the command says where they go."""

    name = "papers"
    custom_settings = {"ITEM_PIPELINES": {"gallerybot.pipelines.Papers": 1}, "FILES_STORE": "papers"}

    def parse_page(self, response):
        """One item a page."""
        yield Paper(
            name=response.css("h1::text").get(),
            file_urls=[response.urljoin(one) for one in response.css("embed::attr(src)").getall()],
        )


class Inline(Pictures):
    """Requests in a callback, in both ways that Scrapy has."""

    name = "inline"
    custom_settings = {}

    async def parse_page(self, response):
        """The size of each document."""
        sizes = []
        for src in response.css("embed::attr(src)").getall():
            paper = await self.crawler.engine.download_async(response.follow(src))
            sizes.append((paper.status, len(paper.body)))
        yield Paper(name=response.css("h1::text").get(), sizes=sizes)
