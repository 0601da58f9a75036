"""Who asks, and what they may do: `service.users`, `service.tokens`, or the data folder's token; passwords and hashes..

Authorization ─► Accounts ─► an account with a role ─► the role of the route ─► the handler, 401 or 403
"""

import base64
import binascii
import hashlib
import hmac
import ipaddress
import os
import secrets
import sys
from typing import TYPE_CHECKING, NamedTuple

from aiohttp import web

from crawlog.streams.errors import Misconfigured

from .answers import AnswerError, error_answer
from .doors import Rates
from .routing import LOGINS, ROLE, ROLES, USER, Handler, Role, route_of

if TYPE_CHECKING:
    from crawlog.streams.settings import Settings

N, R, P = 1 << 14, 8, 1  # Cost of a new hash: 16 MiB and some 40 ms

SCRYPT_MEMORY = 256 << 20  # Most memory that a hash in the settings may ask for, bytes


def matches(given: str, kept: str) -> bool:
    """Whether a password is the one that the settings hold; takes the same time for wrong ones."""
    parts = kept.split("$")
    try:
        if kept.startswith("scrypt$") and len(parts) == 6:
            n, r, p = map(int, parts[1:4])
            return hmac.compare_digest(_scrypt(given, parts[4], n, r, p), _decoded(parts[5]))
        if kept.startswith("pbkdf2_sha256$") and len(parts) == 4:
            made = hashlib.pbkdf2_hmac("sha256", given.encode(), parts[2].encode(), int(parts[1]))
            return hmac.compare_digest(made, _decoded(parts[3]))
    except ValueError:
        return False
    digest = hashlib.sha256(given.encode(errors="surrogateescape")).digest()  # a header may hold any byte
    return hmac.compare_digest(digest, hashlib.sha256(kept.encode()).digest())


def hashed(password: str) -> str:
    """The hash of a password, for the settings."""
    salt = base64.b64encode(os.urandom(12)).decode()
    made = base64.b64encode(_scrypt(password, salt, N, R, P)).decode()
    return f"scrypt${N}${R}${P}${salt}${made}"


def is_hash(kept: str) -> bool:
    return kept.startswith(("scrypt$", "pbkdf2_sha256$"))


def _scrypt(password: str, salt: str, n: int, r: int, p: int) -> bytes:
    return hashlib.scrypt(password.encode(), salt=salt.encode(), n=n, r=r, p=p, maxmem=SCRYPT_MEMORY, dklen=32)


def _decoded(text: str) -> bytes:
    return base64.b64decode(text + "=" * (-len(text) % 4))


if __name__ == "__main__":
    sys.stdout.write(hashed(sys.stdin.readline().rstrip("\n")) + "\n")


OWN = "local"  # Name of the user who shows the token of the data folder

# Wrong credentials of one address a second, and at once; further ones are not looked at. What it has proven counts.
WRONG_PER_S, WRONG_AT_ONCE = 0.5, 20.0

REMEMBERED = 1_000  # Right passwords that are remembered, so that a hash is computed once; wrong ones are not


class Account(NamedTuple):
    """A user or a program.

    Attributes:
        secret: The password or token, or its hash.
    """

    name: str
    role: Role
    secret: str


class Accounts:
    """Everybody who may use the service.

    Args:
        own_token: That of the data folder; it counts while there are no users.

    Attributes:
        is_slow: Whether `who` takes long, since hashes have to be computed.
    """

    def __init__(self, settings: "Settings", own_token: str) -> None:
        service = settings.service
        self._users = {name: _account(name, given, "password") for name, given in service.users.items()}
        self._tokens = [_account(name, given, "token") for name, given in service.tokens.items()]
        self._own = Account(OWN, "deploy", own_token) if own_token and not self._users else None
        self._key = secrets.token_bytes(16)
        self._right: dict[bytes, Account] = {}
        self.is_slow = any(is_hash(one.secret) for one in (*self._users.values(), *self._tokens))

    def proven(self, header: str, address: str) -> Account | None:
        """The account that this Authorization header has proven before, from this address.

        From any address it would tell guesses beyond the limit apart: the right one is let in.
        """
        return self._right.get(self._mark(header, address))

    def who(self, header: str, address: str) -> Account | None:
        """The account that an Authorization header proves; None if it proves none."""
        found = self._look(header)
        if found is not None:
            if len(self._right) >= REMEMBERED:
                self._right.clear()
            self._right[self._mark(header, address)] = found
        return found

    def _mark(self, header: str, address: str) -> bytes:
        told = f"{address} {header}"
        return hmac.digest(self._key, told.encode(errors="surrogateescape"), hashlib.sha256)

    def _look(self, header: str) -> Account | None:
        scheme, _, rest = header.partition(" ")
        if scheme.lower() == "bearer":
            return self._token(rest.strip())
        if scheme.lower() != "basic":
            return None
        try:
            name, _, password = base64.b64decode(rest.strip(), validate=True).decode().partition(":")
        except (binascii.Error, UnicodeDecodeError, ValueError):
            return None
        return self._user(name, password) or self._token(password)

    def _user(self, name: str, password: str) -> Account | None:
        account = self._users.get(name) or next(iter(self._users.values()), None)  # an unknown one takes as long
        if account is None or not matches(password, account.secret):
            return None
        return account if account.name == name else None

    def _token(self, token: str) -> Account | None:
        known = [*self._tokens, *([self._own] if self._own else [])]
        right = [one for one in known if matches(token, one.secret)]  # all of them: the time tells nothing
        return right[0] if token and right else None


ACCOUNTS: web.AppKey[Accounts] = web.AppKey("accounts", Accounts)
WRONG: web.AppKey[Rates] = web.AppKey("wrong", Rates)


def _account(name: str, given: str | dict[str, str], word: str) -> Account:
    if isinstance(given, str):
        return Account(name, "deploy", given)
    roles: dict[str | None, Role] = {role: role for role in ROLES}
    return Account(name, roles.get(given.get("role"), "deploy"), given[word])


def check_reach(settings: "Settings") -> None:
    """Refuses to listen where others can reach the service while nobody has to log in with a name of the settings.

    Raises: Misconfigured: the address is not loopback, and there are neither users nor tokens.
    """
    service = settings.service
    if is_loopback(service.address) or service.users or service.tokens:
        return
    raise Misconfigured(
        f"service.address = {service.address} can be reached from other machines, and nobody is named who may use the "
        "service: it does not start.\n"
        'Set service.users or service.tokens (CRAWLOG_SERVICE__USERS=\'{"ann": "her password"}\'), '
        "leave service.address at 127.0.0.1, or set service.enabled=false."
    )


def is_loopback(address: str) -> bool:
    """Whether only this machine reaches an address."""
    if address == "localhost":
        return True
    try:
        return ipaddress.ip_address(address.strip("[]")).is_loopback
    except ValueError:
        return False


def is_allowed(role: Role, needed: Role) -> bool:
    return ROLES.index(role) >= ROLES.index(needed)


@web.middleware
async def access(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Lets only those in who may do what they ask for; an unknown path is told only to users."""
    route = route_of(request)
    if route is not None and route.role is None:
        return await handler(request)
    header = request.headers.get("Authorization", "")
    account = await _who(request, header) if header else None
    if account is None:
        return _unauthorized()
    request[USER] = account.name
    request[ROLE] = account.role
    if route is not None and route.role is not None and not is_allowed(account.role, route.role):
        return error_answer(403, f"{account.name} has the role {account.role}; this needs {route.role}")
    return await handler(request)


async def _who(request: web.Request, header: str) -> Account | None:
    accounts, wrong = request.app[ACCOUNTS], request.app[WRONG]
    address = request.remote or ""
    if (known := accounts.proven(header, address)) is not None:
        return known
    if not wrong.take(address):  # before the look: many at once may not all be looked at
        raise AnswerError(429, "too many wrong passwords\nWait some seconds.")
    if accounts.is_slow:
        account = await request.app[LOGINS].do(accounts.who, header, address)
    else:
        account = accounts.who(header, address)
    if account is not None:
        wrong.give_back(address)
    return account


def _unauthorized() -> web.Response:
    return web.Response(status=401, text="Unauthorized", headers={"WWW-Authenticate": 'Basic realm="crawlog"'})
