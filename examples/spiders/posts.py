"""The posts of the demo site's blog: links by rules, items as a dataclass.

python examples/demo_site.py &
crawlog run --spider examples/spiders/posts.py -o posts.jsonl
"""

from dataclasses import dataclass

from crawlog import Response, Rule, Spider


@dataclass
class Post:
    """A row."""

    url: str
    title: str | None
    tag: str | None


class Posts(Spider):
    """Searches archive and tags, and takes each post."""

    version = "1"
    start_urls = ("http://127.0.10.2:8800/",)
    allowed_domains = ("127.0.10.2",)
    settings = {"network.allow_private": True, "politeness.delay_s": 0.05}  # noqa: RUF012  # read only
    rules = (
        Rule(r"/posts/\d+$", callback="parse_post", follow=True),
        Rule(r"/archive/|/tag/", deny="1999"),
    )

    def parse_post(self, response: Response) -> Post:
        """One post."""
        return Post(response.url, response.css("h1::text").get(), response.css("a[href^='/tag/']::text").get())
