"""MongoDB: `-o mongodb://USER:PASSWORD@HOST/DB.COLLECTION`, rows as documents; also of servers that speak its protocol.

No transactions, which a single server does not have. So the order counts: is the feed still ours? → which documents of
these keys are there → new ones inserted, older ones replaced, those that are gone deleted → the position in
`crawlog_outputs`, by compare-and-set. What dies in between is written again, and replaces itself. A worker that lost
its place stops before or behind a write; what it writes in between replaces no newer page.

    _id             the key, a hyphen, the number of the item on its page
    _key _n         hash of job and URL (with the request's identity); the number
    _job _url       where the row is from
    _page           the page it was parsed from: partition << 40 | offset; -1: not seen since the crawl began again
    _rest           fields that BSON cannot have, as JSON: names with `$` or `.`, integers over 64 bits, deep nesting
"""

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from crawlog.streams.errors import Misconfigured

from .base import ANSWER_S, CONNECT_S, Store, lost_place, needed
from .changes import Feed, KeyRows, RowChanges
from .columns import LEAST, MOST, OWN, json_text

if TYPE_CHECKING:
    from pymongo import MongoClient
    from pymongo.collection import Collection

POSITIONS = "crawlog_outputs"

MOST_DEPTH = 90  # MongoDB takes 100 levels

MOST_WRITTEN = 200_000  # Keys in memory, some 20 MB

LARGE = 1 << 20  # JSON of fewer bytes has less than 16 MB as BSON: at worst some twelve for each byte

ODD = {*'.\0"\\'}  # No name has one: MongoDB takes no U+0000, old ones no full stop, FerretDB no quotes

MOST_BYTES = (16 << 20) - (16 << 10)  # Of a document

Document = dict[str, Any]


class MongoDB(Store):
    """See the module."""

    def __init__(self, spec: Any) -> None:
        super().__init__(spec)
        self._client: MongoClient[Document] | None = None
        self._serial = ""
        self._written: set[str] | None = None  # All keys that the collection has, if it was empty: no look for others
        self._database, _, self._name = unquote(urlsplit(spec.output).path[1:]).partition(".")
        if not self._name:
            raise Misconfigured(
                f"{self.place}: name database and collection: mongodb://USER:PASSWORD@HOST/DATABASE.COLLECTION"
            )

    def check(self) -> None:
        """Connects, and logs in."""
        try:
            with self.reported():
                self._connect()
                self._positions.find_one({"_id": self._output})
        finally:
            self.close()

    def open(self, feed: Feed) -> int:
        """Makes the index by key, and sets the serial that writes compare."""
        self.close()
        with self.reported():
            self._connect()
            self._rows.create_index("_key")
            self._written = None if self._rows.estimated_document_count() else set()
            there = self._positions.find_one({"_id": self._output}) or {"crawl": feed.crawl}
            if there["crawl"] != feed.crawl:
                self._rows.update_many({"_job": self.spec.job}, {"$set": {"_page": -1}})
            position = int(there["position"]) if there.get("serial") == feed.serial else 0
            new = {"crawl": feed.crawl, "serial": feed.serial, "position": position}
            self._positions.replace_one({"_id": self._output}, new, upsert=True)
            self._serial = feed.serial
        return position

    def write(self, changes: RowChanges) -> None:
        """See the module."""
        with self.reported():
            self._write(changes)

    def finish(self) -> None:
        """Deletes or marks the rows of the job that the crawl has not seen since it began again."""
        with self.reported():
            self._gone({"_job": self.spec.job, "_page": -1})

    def close(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            client.close()

    def text_of(self, error: Exception) -> str:
        """The first row's error, without the driver's picture of its servers."""
        of_rows = (getattr(error, "details", None) or {}).get("writeErrors") or [{"errmsg": str(error)}]
        return str(of_rows[0]["errmsg"]).partition(", Timeout: ")[0].partition(", full error: ")[0]

    @property
    def _output(self) -> str:
        return f"{self._name} {self.spec.job}"

    @property
    def _rows(self) -> "Collection[Document]":
        assert self._client is not None
        return self._client[self._database][self._name]

    @property
    def _positions(self) -> "Collection[Document]":
        return self._rows.database[POSITIONS]

    def _connect(self) -> None:
        with needed("mongodb"):
            import pymongo
        ms = CONNECT_S * 1000
        self._client = pymongo.MongoClient(
            self.spec.output,
            appname="crawlog",
            serverSelectionTimeoutMS=ms,
            connectTimeoutMS=ms,
            socketTimeoutMS=ANSWER_S * 1000,
            journal=True,
        )

    def _write(self, changes: RowChanges) -> None:
        mine = {"_id": self._output, "serial": self._serial, "position": changes.start}
        if self._positions.find_one(mine) is None:
            raise lost_place(self)
        self._replace({one.hash(self.spec.job): one for one in changes.keys})
        if self._positions.update_one(mine, {"$set": {"position": changes.end}}).matched_count != 1:
            raise lost_place(self)

    def _replace(self, keys: dict[str, KeyRows]) -> None:
        from pymongo import ReplaceOne

        known = [*keys] if self._written is None else [key for key in keys if key in self._written]
        found = self._rows.find({"_key": {"$in": known}}, {"_key": 1, "_page": 1}) if known else ()
        there = {one["_id"]: one for one in found}
        new: list[Document] = []
        replaced: list[ReplaceOne[Document]] = []
        for document in (document for key, one in keys.items() for document in self._documents(key, one)):
            old = there.pop(document["_id"], None)
            if old is None:
                new.append(document)
            elif old["_page"] <= document["_page"]:
                replaced.append(ReplaceOne({"_id": document["_id"], "_page": old["_page"]}, document))
        if new:
            self._rows.insert_many(new, ordered=False)
        if replaced:
            self._rows.bulk_write(replaced, ordered=False)
        if gone := [id_ for id_, old in there.items() if old["_page"] <= keys[old["_key"]].page_number]:
            self._gone({"_id": {"$in": gone}})
        if self._written is not None:
            self._written.update(keys)
            self._written = self._written if len(self._written) < MOST_WRITTEN else None

    def _documents(self, key: str, one: KeyRows) -> Iterator[Document]:
        """The rows of a key as BSON can have them."""
        for number, row in enumerate(one.rows()):
            document: Document = {"_id": f"{key}-{number}", "_key": key, "_n": number, "_job": self.spec.job}
            document |= {"_url": one.url, "_page": one.page_number}
            rest = {name: value for name, value in row.items() if name in OWN or not _fits(name, value)}
            made = document | {name: value for name, value in row.items() if name not in rest}
            if rest:
                made["_rest"] = json_text(rest)
            yield document | {"_rest": json_text(row)} if len(one.block) > LARGE and _size(made) > MOST_BYTES else made

    def _gone(self, which: Document) -> None:
        if self.spec.on_gone == "delete":
            self._rows.delete_many(which)
        elif self.spec.on_gone == "mark":
            self._rows.update_many(which | {"_gone": None}, {"$set": {"_gone": datetime.now(UTC)}})


def _size(document: Document) -> int:
    import bson

    return len(bson.encode(document))


def _fits(name: str, value: object, depth: int = MOST_DEPTH) -> bool:
    """Whether a field is one that every MongoDB takes."""
    return name not in {"", "_id"} and name[0] != "$" and not ODD & {*name} and _is_plain(value, depth)


def _is_plain(value: object, depth: int) -> bool:
    if isinstance(value, int):
        return LEAST <= value <= MOST
    if isinstance(value, list):
        return depth > 0 and all(_is_plain(one, depth - 1) for one in value)
    if isinstance(value, dict):
        return depth > 0 and all(_fits(name, one, depth - 1) for name, one in value.items())
    return True
