"""The settings of exits, see `sections`."""

import shlex
from ipaddress import ip_address
from typing import Annotated
from urllib.parse import urlsplit

from pydantic import Field, field_validator

from crawlog.streams.exits import read_exit, read_group, read_policy

from .field_types import Count, NotNegative, Positive, Section, compiled, each_readable


class Exits(Section):
    """The ways out of a worker, so that a site sees more addresses than one: proxies, addresses of its machine, and
    machines that lend theirs (`crawlog worker exit`).
    """

    proxies: Annotated[tuple[str, ...], Field(repr=False)] = ()
    """Proxies, `[NAME=]SCHEME://[USER:PASSWORD@]HOST[:PORT]`, of HTTP (`http`, `https`) or SOCKS (`socks5h`, `socks5`,
    `socks4a`, `socks4`). No request leaves without one. All but `socks5` and `socks4` resolve names themselves: the
    guard then judges URLs, not the addresses behind their names. Pages and reports name an exit by NAME, else by
    HOST:PORT. `fetch.proxies` is the same setting."""
    lists: Annotated[tuple[str, ...], Field(repr=False)] = ()
    """Lists of further proxies: paths of files, or URLs. Each line is as in `exits.proxies`, or HOST:PORT, or
    HOST:PORT:USER:PASSWORD; one with # at its beginning is left out."""
    lists_every_s: Positive = 60.0
    """Time between two looks at the lists, seconds. One that cannot be read stays as it was."""
    addresses: tuple[str, ...] = ()
    """Addresses of this machine by which requests leave, each an exit; empty for the one that the system chooses."""
    workers: bool = True
    """Whether a fetch worker uses the addresses that machines lend by `crawlog worker exit`, beside its own."""
    listen: str = ""
    """HOST:PORT at which `crawlog worker exit` listens, with several `exits.addresses` at the ports after it as well;
    empty for a free port of the address from which this machine reaches the cluster."""
    advertised: str = ""
    """HOST:PORT at which fetch workers reach `crawlog worker exit`, if it is another one (NAT); the ports after
    it as well with several `exits.addresses`."""
    redial: Annotated[dict[str, str], Field(repr=False)] = Field(default_factory=dict)
    """How exits get a new address: for each name of an exit, `*` for any characters, a command or a URL. Requests in
    flight end first, and one exit is redialed at a time. The command finds the name in `CRAWLOG_EXIT`."""
    redial_every_s: NotNegative = 0.0
    """Time between two redials of an exit, seconds; 0 for none but after a ban."""
    redial_pause_s: NotNegative = 1.0
    """Pause before a redial and after it, seconds."""
    groups: dict[str, str] = Field(default_factory=dict)
    """Names for sets of exits: each with the names of its exits, with commas, `*` for any characters."""
    group: str = ""
    """The group by whose exits a job goes; empty for all exits. A worker without the group leaves its URLs queued."""
    policy: str = "sticky"
    """When the requests to a host change their exit: `sticky` never, while it serves; `request` each time; `every:N`
    after N requests; `time:60s` after so many seconds. What has cookies or a login keeps its exit in any case."""

    refusals: Count = 5
    """Times that exits may turn out refused for one URL: so often it is sent again by another exit, which is no attempt
    of the URL. After that the answer counts as the page's own."""
    ban_statuses: tuple[Annotated[int, Field(ge=100, le=999)], ...] = (403, 429, 503)
    """Statuses by which a site turns an exit away, where a job has more than one: that exit rests for the host, after
    429 and 503 at once, else after two in a row."""
    ban_redirects: tuple[str, ...] = (r"(?i)/(captcha|sorry|blocked|challenge)([/?._-]|$)",)
    """Regular expressions (RE2); a redirect to a URL that matches one does so, too."""
    ban_texts: tuple[str, ...] = (
        r"(?i)<title[^>]*>[^<]*(captcha|robot check|are you (a robot|human)|verify you|just a moment)",
        r"(?i)<title[^>]*>[^<]*(unusual traffic|attention required|access denied)",
    )
    """The same for the first 16,384 characters of a page, whatever its status."""
    ban_rest_s: NotNegative = 60.0
    """First rest of an exit for a host that turned it away, seconds; doubles each time, up to an hour."""

    @field_validator("ban_redirects", "ban_texts")
    @classmethod
    def patterns_compile(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        """As for scopes."""
        return compiled(value)

    @field_validator("proxies")
    @classmethod
    def proxies_are_exits(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        """What is wrong with one is reported without repeating it."""
        return each_readable(value, read_exit)

    @field_validator("addresses")
    @classmethod
    def each_is_an_address(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        """A name may have several."""
        return each_readable(value, ip_address)

    @field_validator("listen", "advertised")
    @classmethod
    def is_a_place(cls, value: str) -> str:
        """Port 0 is any free one."""
        parts = urlsplit(f"//{value}")
        if value and (not parts.hostname or parts.port is None or parts.netloc != value or "@" in value):
            raise ValueError(f"{value!r:.100} is no HOST:PORT")
        return value

    @field_validator("redial")
    @classmethod
    def commands_have_words(cls, value: dict[str, str]) -> dict[str, str]:
        """As a shell splits them."""
        if not all(map(shlex.split, value.values())):
            raise ValueError("a redial is a command or a URL")
        return value

    @field_validator("groups")
    @classmethod
    def groups_have_exits(cls, value: dict[str, str]) -> dict[str, str]:
        """Each names at least one."""
        for names in value.values():
            read_group(names)
        return value

    @field_validator("policy")
    @classmethod
    def policy_is_known(cls, value: str) -> str:
        """As exits have it."""
        read_policy(value)
        return value
