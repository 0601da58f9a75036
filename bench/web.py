"""The web's rules: scores on the corpora, with the failures, and the cost of one question.

    python -m bench.web                writes its section; needs the folder of test corpora (CRAWLOG_TESTDATA)
    python -m bench.web --short        writes nothing, and asks each question in one round

Costs are CPU microseconds, the best of several rounds; a page has 100 kB on average.
"""

import argparse
import base64
import gzip
import json
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import webencodings

from crawlog.schemas.urls import CanonicalRules
from crawlog.streams.html.charset import decide
from crawlog.streams.html.extract import extracted
from crawlog.streams.html.links import Links
from crawlog.streams.http.sniff import computed
from crawlog.streams.robots.robots import RobotsRules
from crawlog.streams.url.canonical import Canonicaliser, InvalidUrl, serialise
from crawlog.streams.url.place import Places
from tests.support.corpora import FOLDER, MISSING, Verdict, real_robots

from .results import options_of, run_as, section, table, versions

ROUNDS = 5


def corpora() -> Path:
    """The folder of the corpora; ends where there is none."""
    if not FOLDER.is_dir():
        sys.exit(MISSING)
    return FOLDER


def _json(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def urls(folder: Path) -> Iterator[Verdict]:
    """The web platform's cases: http(s) exactly, everything else refused."""
    for name in ("urltestdata.json", "ada_long_urltestdata.json", "urltestdata-javascript-only.json"):
        for case in _json(folder / "url-wpt" / name):
            if isinstance(case, str):
                continue
            href = None if case.get("failure") else case["href"]
            wanted = href.split("#")[0] if href and href.startswith(("http:", "https:")) else None
            yield case["input"], _serialised(case["input"], case.get("base")) == wanted


def _serialised(url: str, base: str | None) -> str | None:
    try:
        return serialise(url, base)
    except InvalidUrl:
        return None


def protego(folder: Path) -> Iterator[Verdict]:
    """Cases of another library; where the standard or Google decides otherwise, the tests say why."""
    for case in _json(folder / "robots-protego" / "unit_cases.json"):
        if case["func"] == "can_fetch" and not case["args"][0].startswith("ftp:"):
            url, agent = case["args"]
            rules = RobotsRules.parse(case["robots_txt"].encode())
            verdict = rules.allowed(serialise(url, "http://h.test/"), agent)[0]
            yield case["test"].rpartition("::")[2], verdict == case["expected"]


def encodings(folder: Path) -> Iterator[Verdict]:
    """html5lib's cases without scripts."""
    for case in _json(folder / "html-encoding-html5lib" / "encoding_cases.json"):
        wanted = webencodings.lookup(case["encoding"])
        if not case["scripted"] and wanted is not None:
            yield case["data_base64"][:60], decide(base64.b64decode(case["data_base64"]), "") == wanted.name


def pages(folder: Path) -> Iterator[Verdict]:
    """The links of real pages, the exact set."""
    links = Links(Canonicaliser(CanonicalRules(drop_params=())), Places(1))
    for case in _json(folder / "pages" / "links_oracle.json"):
        body = gzip.decompress((folder / "pages" / case["file"]).read_bytes())
        page = extracted(body, "", case["page_url"], ("a", "area"))
        yield case["file"], {link.url for link in links.resolve(page.base, page.hrefs)} == set(case["links"])


SCORES: dict[str, Callable[[Path], Iterator[Verdict]]] = {
    "WHATWG URLs": urls,
    "robots.txt, real files": real_robots,
    "robots.txt, protego's cases": protego,
    "encodings, html5lib's cases": encodings,
    "links of real pages": pages,
}


def costs(folder: Path, rounds: int = ROUNDS) -> Iterator[tuple[str, float]]:
    """Cost of one question, by name."""
    best = partial(_best, rounds)
    canonical = Canonicaliser(CanonicalRules()).canonical
    yield "canonical URL", best(canonical, [f"http://h.test/a/b{n}?x=1&y=2" for n in range(5000)])
    listed = b"User-agent: *\n" + b"".join(
        b"Disallow: /folder%d/*.php$\nAllow: /open%d/\n" % (n, n) for n in range(100)
    )
    rules = RobotsRules.parse(listed)
    asked = [f"http://h.test/folder{n}/page.html" for n in range(5000)]
    yield "robots.txt verdict, 200 rules", best(lambda url: rules.allowed(url, "crawlog"), asked)
    hostile = RobotsRules.parse(b"User-agent: *\n" + b"".join(b"Allow:/*%da*b\n" % n for n in range(60_000)))
    asked = [f"http://h.test/{'a' * 2000}{n}" for n in range(5)]
    yield "robots.txt verdict, hostile", best(lambda url: hostile.allowed(url, "crawlog"), asked)
    names = [case["file"] for case in _json(folder / "pages" / "links_oracle.json")[:60]]
    bodies = [gzip.decompress((folder / "pages" / name).read_bytes()) for name in names]
    yield "type of a page", best(lambda body: computed("text/html", body[:512]), bodies)
    yield "title and links of a page", best(lambda body: extracted(body, "", "http://h.test/", ("a", "area")), bodies)


def _best(rounds: int, ask: Callable[[Any], Any], questions: list[Any]) -> float:
    """CPU microseconds a question."""
    spent = []
    for _ in range(rounds):
        began = time.process_time()
        for question in questions:
            ask(question)
        spent.append(time.process_time() - began)
    return min(spent) / len(questions) * 1e6


def main() -> int:
    """Prints the scores with the failures, then the costs, and writes both."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--short", action="store_true", help="one round of each cost; nothing is written")
    args = options_of(parser)
    rounds = 1 if args.short else ROUNDS
    folder = corpora()
    scores, failed = [], []
    for name, cases in SCORES.items():
        verdicts = list(cases(folder))
        wrong = [case for case, is_right in verdicts if not is_right]
        share = 100 * (1 - len(wrong) / len(verdicts))
        scores.append([name, f"{len(verdicts):,}", f"{len(verdicts) - len(wrong):,}", f"{share:.2f}"])
        failed += [f"{name}: {case[:110]!r}" for case in dict.fromkeys(wrong)]
    body = table(["", "cases", "right", "%"], scores)
    body += "\n\nNot right, for reasons in `tests/streams/robots/test_robots.py` and `streams/robots/robots.py`:\n\n"
    body += "\n".join(["```", *failed, "```"]) + "\n\n"
    body += table(["", "µs"], [[name, f"{cost_us:,.1f}"] for name, cost_us in costs(folder, rounds)])
    print(body)
    if args.write:
        facts = {"run": run_as("web"), **versions(["crawlog", "selectolax"])}
        section("web", "The rules of the web", body, facts)
    return 0


if __name__ == "__main__":
    sys.exit(main())
