import json

from itemadapter import ItemAdapter
from scrapy.exceptions import DropItem


class PricePipeline:
    """VAT is added to prices without it; no price, no item."""

    vat_factor = 1.15

    def process_item(self, item):
        adapter = ItemAdapter(item)
        if not adapter.get("price"):
            raise DropItem(f"no price: {item!r}")
        if adapter.get("price_excludes_vat"):
            adapter["price"] = round(adapter["price"] * self.vat_factor, 2)
        return item


class JsonWriterPipeline:
    """Each item as a line of a file."""

    def open_spider(self):
        self.file = open("items.jsonl", "w")

    def close_spider(self):
        self.file.close()

    def process_item(self, item):
        self.file.write(json.dumps(ItemAdapter(item).asdict()) + "\n")
        return item


class StorePipeline:
    """A store whose address is a setting, opened and closed with the spider (the documentation has MongoDB)."""

    def __init__(self, address):
        self.address, self.rows = address, None

    @classmethod
    def from_crawler(cls, crawler):
        return cls(address=crawler.settings.get("STORE_ADDRESS", "memory"))

    def open_spider(self):
        self.rows = []

    def close_spider(self):
        self.rows = None

    def process_item(self, item):
        self.rows.append(ItemAdapter(item).asdict())
        ItemAdapter(item)["stored_at"] = self.address
        return item


class AsyncPipeline:
    """The documentation takes a screenshot here; any coroutine is the same to a pipeline."""

    async def process_item(self, item):
        import asyncio

        await asyncio.sleep(0.01)
        ItemAdapter(item)["shot"] = f"{ItemAdapter(item)['name']}.png"
        return item


class DuplicatesPipeline:
    """The first of a name stays."""

    def __init__(self):
        self.seen = set()

    def process_item(self, item):
        name = ItemAdapter(item)["name"]
        if name in self.seen:
            raise DropItem(f"again: {name}")
        self.seen.add(name)
        return item
