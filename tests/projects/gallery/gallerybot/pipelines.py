"""A subclass as Scrapy's documentation writes it."""

from pathlib import PurePosixPath
from urllib.parse import urlparse

import scrapy
from itemadapter import ItemAdapter
from scrapy.exceptions import DropItem
from scrapy.pipelines.files import FilesPipeline


class Papers(FilesPipeline):
    """Files by their names; an item without any is dropped."""

    def get_media_requests(self, item, info):
        """With a header of its own."""
        for url in ItemAdapter(item)["file_urls"]:
            yield scrapy.Request(url, headers={"X-Paper": item["name"]})

    def file_path(self, request, response=None, info=None, *, item=None):
        """`papers/NAME-OF-THE-PAGE/NAME-OF-THE-FILE`."""
        return f"papers/{item['name']}/{PurePosixPath(urlparse(request.url).path).name}"

    def item_completed(self, results, item, info):
        """Which files came."""
        adapter = ItemAdapter(item)
        adapter["files"] = [(file["path"], file["checksum"]) for ok, file in results if ok]
        if not adapter["files"]:
            raise DropItem(f"{item['name']} has no files")
        return item
