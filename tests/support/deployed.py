"""Deployed code on this machine: where root runs the suite with a Python that nobody else can read, as root."""

from crawlog.agents.sandbox import ChildRules, why_root
from crawlog.streams.settings.settings import Settings

OWN_USER = not why_root(is_own_user=True)
"""Whether deployed code can have a user of its own here. A machine where it cannot must allow it root, as users do."""

ENVIRON = {} if OWN_USER else {"CRAWLOG_SPIDER__OWN_USER": "false"}

RULES = ChildRules(is_own_user=OWN_USER)


def allowed(settings: Settings) -> Settings:
    """The settings, with which deployed code runs here."""
    return settings.model_copy(update={"spider": settings.spider.model_copy(update={"own_user": OWN_USER})})
