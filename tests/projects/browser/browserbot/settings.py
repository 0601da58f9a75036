import shutil

BOT_NAME = "browserbot"
SPIDER_MODULES = ["browserbot.spiders"]
NEWSPIDER_MODULE = "browserbot.spiders"
ROBOTSTXT_OBEY = False
COOKIES_ENABLED = False
DOWNLOAD_DELAY = 0
TELNETCONSOLE_ENABLED = False
DOWNLOAD_HANDLERS = {
    "http": "scrapy_playwright.handler.ScrapyPlaywrightDownloadHandler",
    "https": "scrapy_playwright.handler.ScrapyPlaywrightDownloadHandler",
}
TWISTED_REACTOR = "twisted.internet.asyncioreactor.AsyncioSelectorReactor"
PLAYWRIGHT_BROWSER_TYPE = "chromium"
PLAYWRIGHT_LAUNCH_OPTIONS = {"headless": True, "executable_path": shutil.which("chromium")}
PLAYWRIGHT_DEFAULT_NAVIGATION_TIMEOUT = 60_000
PLAYWRIGHT_CONTEXTS = {"session": {"locale": "de-DE", "viewport": {"width": 1200, "height": 800}}}
