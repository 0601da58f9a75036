"""The cookie jars of one partition: a row for each (job, registrable domain, name).

A done names the cookies that changed. They are taken in the order of the log, at the done's time and within the limits
of a jar (`crawlog.streams.http.cookies`), so a row stays small whatever a record says. Jars go with their job's epoch.
"""

from crawlog.schemas import urls as u
from crawlog.schemas.requests import MAX_JAR_BYTES
from crawlog.streams.http import CookieJar, StoredCookie

from . import rows as r
from .overlay import Rows


class JarRows:
    """Reads and changes the rows of jars.

    Attributes:
        mark: Identity of this state, for those who keep what they read.
    """

    def __init__(self, rows: Rows) -> None:
        self.mark = object()
        self._rows = rows

    def read(self, job: int, domain: int, name: str) -> tuple[StoredCookie, ...]:
        """The cookies of a jar; `domain` is a hash."""
        stored = self._rows.get(r.jar_key(job, domain, name))
        return r.read_jar(stored).cookies if stored else ()

    def take(self, job: int, domain: int, result: u.Result, at: float) -> bool:
        """Take the changes that a done names; False if its jar has no name that a key can hold."""
        if len(result.jar.encode()) > MAX_JAR_BYTES:
            return False
        key = r.jar_key(job, domain, result.jar)
        jar = CookieJar(self.read(job, domain, result.jar))
        jar.apply(result.cookies, at)
        if cookies := jar.stored():
            self._rows.put(key, r.pack(r.JarRow(cookies)))
        else:
            self._rows.delete(key)
        return True
