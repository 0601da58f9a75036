"""As the tutorials set the pipelines of images and of files."""

BOT_NAME = "gallerybot"
SPIDER_MODULES = ["gallerybot.spiders"]
NEWSPIDER_MODULE = "gallerybot.spiders"
ROBOTSTXT_OBEY = True
DOWNLOAD_DELAY = 0
TELNETCONSOLE_ENABLED = False
