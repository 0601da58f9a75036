BOT_NAME = "quotesbot"
SPIDER_MODULES = ["quotesbot.spiders"]
NEWSPIDER_MODULE = "quotesbot.spiders"
ROBOTSTXT_OBEY = False
DOWNLOAD_DELAY = 0
TELNETCONSOLE_ENABLED = False
