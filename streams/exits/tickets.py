"""Tickets: how an exit worker knows that a tunnel is for a fetch worker of its own fleet, without a shared secret.

    fetch worker                          crawl.progress                        exit worker
    makes a key pair ── public key ──────────► report ──────────────────────► knows its fleet's keys
    knows the exits  ◄──────────────────────── report ◄── a random nonce ──── makes a nonce
    signs nonce, key, host and port ── CONNECT, with key and signature ─────► checks the signature

A reader of the log learns public keys and nonces, which open nothing. Who writes crawl.progress has the log's login and
may use the exits. A ticket that was seen on the network opens a tunnel to the same host and port only, by the same
process of the exit, while the fetch worker lives. No clock takes part. The pair lives as long as the process.
"""

import binascii
from base64 import urlsafe_b64decode, urlsafe_b64encode
from functools import cache
from typing import NamedTuple

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

PRIVATE_TOO = "+"  # Behind the key of a user that may reach private addresses, if the exit allows them as well


class Ticket(NamedTuple):
    """User and password of a CONNECT request (RFC 7617): a public key, and a signature by it."""

    user: str
    password: str

    @property
    def key(self) -> str:
        """The public key, as reports have it."""
        return self.user.removesuffix(PRIVATE_TOO)

    @property
    def allows_private(self) -> bool:
        return self.user.endswith(PRIVATE_TOO)

    def opens(self, nonce: str, target: str) -> bool:
        """Whether the key's owner has signed for this exit and this target; the key itself is not judged."""
        try:
            key = Ed25519PublicKey.from_public_bytes(urlsafe_b64decode(self.key))
            key.verify(urlsafe_b64decode(self.password), _signed(nonce, self.user, target))
        except (InvalidSignature, ValueError, binascii.Error):
            return False
        return True


class TicketKey:
    """The key pair of a fetch worker.

    Attributes:
        public: Base64, for its reports.
    """

    def __init__(self) -> None:
        self._private = Ed25519PrivateKey.generate()
        self.public = urlsafe_b64encode(
            self._private.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)
        ).decode()

    def ticket(self, nonce: str, target: str, *, allows_private: bool) -> Ticket:
        """A ticket for one exit.

        Args:
            nonce: Of the exit's reports.
            target: `HOST:PORT`.
        """
        user = self.public + PRIVATE_TOO * allows_private
        return Ticket(user, urlsafe_b64encode(self._private.sign(_signed(nonce, user, target))).decode())


@cache
def own_key() -> TicketKey:
    """The key pair of this process. Call it in the worker, not in the forkserver."""
    return TicketKey()


def _signed(nonce: str, user: str, target: str) -> bytes:
    return f"crawlog exit\n{nonce}\n{user}\n{target}".encode("utf-8", "surrogateescape")
