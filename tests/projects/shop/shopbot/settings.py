BOT_NAME = "shopbot"
SPIDER_MODULES = ["shopbot.spiders"]
NEWSPIDER_MODULE = "shopbot.spiders"
ROBOTSTXT_OBEY = False
DOWNLOAD_DELAY = 0
TELNETCONSOLE_ENABLED = False
ITEM_PIPELINES = {
    "shopbot.pipelines.Validating": 100,
    "shopbot.pipelines.Deduplicating": 200,
    "shopbot.pipelines.Numbering": 300,
}
SPIDER_MIDDLEWARES = {"shopbot.middlewares.Marking": 543, "shopbot.middlewares.Rescuing": 600}
DOWNLOADER_MIDDLEWARES = {
    "shopbot.middlewares.Signing": 400,
    "shopbot.middlewares.Answering": 450,
    "shopbot.middlewares.Mending": 560,
}
FEED_EXPORT_FIELDS = {"name": "name", "price": "price", "by": "seen_by", "signed": "signed"}
