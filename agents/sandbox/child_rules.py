"""What the children of a process get: limits, environment, the files and the deployed code that they may run."""

from typing import NamedTuple

from crawlog.streams.code import CodeCache
from crawlog.streams.settings import Settings
from crawlog.streams.spiders import Bounds, Trust

from .child_code import CodeSource
from .limits import ChildLimits


class ChildRules(NamedTuple):
    """What each child of a process gets.

    Attributes:
        timeout_s: CPU seconds of one page; thrice that by the clock.
        env: Names of further variables of the environment that it gets, see `zygote_process.PASSED`.
        trust: The files that may be run; None if the operator's own command names the spider.
        code: Finds the code of deployed projects; None where none is run.
        is_own_user: Whether deployed code gets a user of its own, where this process runs as root.
    """

    timeout_s: float = 10.0
    limits: ChildLimits = ChildLimits()
    env: tuple[str, ...] = ()
    trust: Trust | None = None
    bounds: Bounds = Bounds()
    code: CodeSource | None = None
    is_own_user: bool = True

    @classmethod
    def of(cls, settings: Settings, trust: Trust | None, bounds: Bounds = Bounds()) -> "ChildRules":  # noqa: B008  # frozen
        """The rules by the settings."""
        limits = ChildLimits(settings.parse.max_memory_mb << 20)
        own_user = settings.spider.own_user
        code = CodeCache(settings, is_of_command=trust is None)
        return cls(settings.parse.timeout_s, limits, settings.spider.env, trust, bounds, code, own_user)
