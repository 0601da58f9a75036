from itemadapter import ItemAdapter
from scrapy.exceptions import DropItem


class Validating:
    def process_item(self, item):
        if not ItemAdapter(item).get("price"):
            raise DropItem("no price")
        return item


class Deduplicating:
    def open_spider(self):
        self.seen = set()

    def process_item(self, item):
        adapter = ItemAdapter(item)
        if adapter["name"] in self.seen:
            raise DropItem(f"twice: {adapter['name']}")
        self.seen.add(adapter["name"])
        return item


class Numbering:
    """Gives another item than it got."""

    @classmethod
    def from_crawler(cls, crawler):
        pipeline = cls()
        pipeline.stats = crawler.stats
        return pipeline

    def process_item(self, item):
        self.stats.inc_value("offers")
        adapter = ItemAdapter(item)
        return {**adapter.asdict(), "secret": None} if adapter["name"] == "rake" else item
