BOT_NAME = "idiombot"
SPIDER_MODULES = ["idiombot.spiders"]
NEWSPIDER_MODULE = "idiombot.spiders"
ROBOTSTXT_OBEY = False
DOWNLOAD_DELAY = 0
TELNETCONSOLE_ENABLED = False
