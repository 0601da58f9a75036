"""Deployed code on this machine: where root runs the suite with a Python that nobody else can read, as root."""

from pathlib import Path

from crawlog.agents.sandbox import ChildRules, why_root
from crawlog.commands import projects
from crawlog.schemas.control import JobCopy
from crawlog.streams.control import known_job
from crawlog.streams.log import Topics, ensure_topics
from crawlog.streams.settings.settings import Settings

OWN_USER = not why_root(is_own_user=True)
"""Whether deployed code can have a user of its own here. A machine where it cannot must allow it root, as users do."""

ENVIRON = {} if OWN_USER else {"CRAWLOG_SPIDER__OWN_USER": "false"}

RULES = ChildRules(is_own_user=OWN_USER)


def allowed(settings: Settings) -> Settings:
    """The settings, with which deployed code runs here."""
    return settings.model_copy(update={"spider": settings.spider.model_copy(update={"own_user": OWN_USER})})


def job(settings: Settings, name: str) -> JobCopy:
    """The copy of a job's record."""
    copy = known_job(settings, Topics(settings.kafka.prefix), name)
    assert copy is not None
    return copy


def deployed(cluster: Settings, folder: Path, code: str) -> Settings:
    """The settings of a data folder from which version 1 of the project `shop` is deployed."""
    (folder / "data").mkdir()
    settings = cluster.model_copy(update={"run": cluster.run.model_copy(update={"data": folder / "data"})})
    ensure_topics(settings)
    (folder / "shop").mkdir()
    (folder / "shop" / "spiders.py").write_text(code)
    projects.deploy(settings, folder / "shop", "shop", "1")
    return settings
