"""Redis: `-o redis://:PASSWORD@HOST:PORT/DB/KEY?as=list|stream|hash`, rows as JSON, the position with them.

One script does each write, so it is done or not: compare the position in `crawlog:KEY:JOB` → rows → the new position. A
worker that lost its place meets another serial there, and writes nothing. WRONGTYPE and a full memory stop the script
at its first row; in MULTI the commands behind an error would go on, and move the position.

    list     one element a row, by RPUSH, as scrapy-redis's pipeline. This is the default
    stream   one entry a row: `url`, `row`
    hash     one field a row, `JOB URL NUMBER`; `crawlog:KEY:JOB:keys` has the crawl, page and rows of each URL

List and stream are queues for other programs: nothing is replaced there, so a newer page adds its rows. Only a hash has
just the newest rows.
"""

from collections.abc import Iterator
from typing import Any
from urllib.parse import parse_qsl, unquote, urlencode, urlsplit, urlunsplit

from crawlog.streams.errors import Misconfigured

from .base import ANSWER_S, CONNECT_S, Store, lost_place, needed
from .changes import MOST_CHANGES, Feed, KeyRows, RowChanges

WRITES = {
    "list": "redis.call('RPUSH', KEYS[2], row)",
    "stream": "redis.call('XADD', KEYS[2], '*', 'url', url, 'row', row)",
    "hash": "redis.call('HSET', KEYS[2], name .. ' ' .. number - 1, row)",
}
"""What a script does with each row of a key."""

SCRIPT = """
local crawl, serial, keeps = ARGV[1], ARGV[2], ARGV[5] ~= 'delete'
local there = redis.call('HMGET', KEYS[1], 'serial', 'position')
if there[1] ~= serial or there[2] ~= ARGV[3] then return 0 end
local at = 6
while at <= #ARGV do
  local name, url, page, rows = ARGV[at], ARGV[at + 1], tonumber(ARGV[at + 2]), tonumber(ARGV[at + 3])
  local old = KEYS[3] and redis.call('HGET', KEYS[3], name)
  local old_crawl, old_page, old_rows = string.match(old or '', '^(%%S+) (%%d+) (%%d+)$')
  if old_crawl ~= crawl or tonumber(old_page) <= page then
    for number = 1, rows do
      local row = ARGV[at + 3 + number]
      %s
    end
    if KEYS[3] then
      for number = rows, keeps and 0 or (tonumber(old_rows) or 0) - 1 do
        redis.call('HDEL', KEYS[2], name .. ' ' .. number)
      end
      if rows > 0 then
        redis.call('HSET', KEYS[3], name, crawl .. ' ' .. ARGV[at + 2] .. ' ' .. rows)
      else
        redis.call('HDEL', KEYS[3], name)
      end
    end
  end
  at = at + 4 + rows
end
redis.call('HSET', KEYS[1], 'position', ARGV[4])
return 1
"""


class Redis(Store):
    """See the module."""

    def __init__(self, spec: Any) -> None:
        super().__init__(spec)
        address = urlsplit(spec.output)
        options = dict(parse_qsl(address.query))
        database, _, key = address.path.removeprefix("/").partition("/")
        self._as, self._key = options.pop("as", "list"), unquote(key)
        if not (database.isdecimal() and key and self._as in WRITES):
            raise Misconfigured(
                f"{self.place}: name the database by its number, and the key behind it:"
                " redis://:PASSWORD@HOST:PORT/0/KEY?as=list (or stream, or hash)"
            )
        self._uri = urlunsplit((address.scheme, address.netloc, database, urlencode(options), ""))
        self._position = f"crawlog:{self._key}:{spec.job}"
        self._feed = Feed("", "", "")
        self._client: Any = None  # redis-py types its answers for its two protocols and both kinds of clients at once

    def check(self) -> None:
        """Connects, and looks at the key's type."""
        try:
            with self.reported():
                self._connect()
        finally:
            self.close()

    def open(self, feed: Feed) -> int:
        """Sets the serial that writes compare."""
        self.close()
        with self.reported():
            self._connect()
            there = self._client.hgetall(self._position)
            is_known = there.get(b"serial") == feed.serial.encode() and there.get(b"crawl") == feed.crawl.encode()
            position = int(there[b"position"]) if is_known else 0
            self._client.hset(self._position, mapping=feed._asdict() | {"position": position})
            self._feed = feed
        return position

    def write(self, changes: RowChanges) -> None:
        """One script, see the module."""
        with self.reported():
            keys = [self._position, self._key, *([f"{self._position}:keys"] if self._as == "hash" else ())]
            head = (self._feed.crawl, self._feed.serial, changes.start, changes.end, self.spec.on_gone)
            rows = (value for one in changes.keys for value in self._values(one))
            if not self._client.eval(SCRIPT % WRITES[self._as], len(keys), *keys, *head, *rows):
                raise lost_place(self)

    def finish(self) -> None:
        """Removes the rows of a hash that the crawl has not seen since it began again."""
        if self._as != "hash" or self.spec.on_gone != "delete":
            return
        with self.reported():
            at = int(self._client.hget(self._position, "position") or 0)
            gone = [KeyRows(key, (0, 0), b"") for key in self._unseen()]
            for first in range(0, len(gone), MOST_CHANGES):
                self.write(RowChanges(at, at, gone[first : first + MOST_CHANGES]))

    def close(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            client.close()

    def _connect(self) -> None:
        with needed("redis"):
            import redis
        self._client = redis.Redis.from_url(
            self._uri, socket_connect_timeout=CONNECT_S, socket_timeout=ANSWER_S, client_name="crawlog"
        )
        there = self._client.type(self._key).decode()
        if there not in {self._as, "none"}:
            raise Misconfigured(
                f"{self.place}: the key is a {there}, and rows are to be a {self._as}: name another key, or add"
                f" ?as={there}" + ("" if there in WRITES else " — a key of this type cannot take rows")
            )

    def _values(self, one: KeyRows) -> Iterator[object]:
        rows = one.block.splitlines()
        yield from (self._name(one.key), one.url, one.page_number, len(rows), *rows)

    def _name(self, key: bytes) -> bytes:
        return self.spec.job.encode() + b" " + key

    def _unseen(self) -> list[bytes]:
        crawl, job = self._feed.crawl.encode() + b" ", self._name(b"")
        found = self._client.hscan_iter(f"{self._position}:keys", count=MOST_CHANGES)
        return [name.removeprefix(job) for name, there in found if not there.startswith(crawl)]
