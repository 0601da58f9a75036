"""ScrapydWeb against the service of crawlog: each of its pages, its buttons, and a timer task that fires.

`python -m bench.scrapydweb FOLDER` makes an environment with ScrapydWeb in the folder (it wants packages too old for
ours), a fleet with the demo site, and a project of Scrapy's. It prints a line a step, and ends with 1 if one fails.
"""

import argparse
import os
import re
import runpy
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import requests

from tests.support.synthetic_site import free_port

ROOT = Path(__file__).parents[1]

PACKAGES = ("scrapydweb==1.6.0", "setuptools<81")  # it imports pkg_resources

USER, PASSWORD = "ann", "open sesame"

SPIDER = """\
import scrapy


class Books(scrapy.Spider):
    name = "books"
    start_urls = ["http://127.0.10.1:8800/books/"]

    def parse(self, response):
        for link in response.css("a[href^='/books/']"):
            yield {"title": link.css("::text").get()}
"""

WAIT_S = 120.0

FINISHED = r'"finished":\s*\[[^\]]*{}'  # The job in an answer of `listjobs`


def fails(page: str) -> str:
    """The alert of a page on which ScrapydWeb says that a request failed; empty if there is none."""
    found = re.search(
        r"<h3>(?:FAIL|Fail)[^<]*</h3>|alert: ['\"]?(?:FAIL|Fail)[^<]*|Internal Server Error|Traceback", page
    )
    return found[0] if found else ""


class Walk:
    """Requests to ScrapydWeb, with what came of them."""

    def __init__(self, address: str) -> None:
        self._address = address
        self.failed = 0

    def step(self, label: str, path: str, wants: str = "", **form: object) -> str:
        """One page; with a form it is posted. A page without the text that it should have counts as failed."""
        method = "POST" if form else "GET"
        files = form.pop("files", None)
        answer = requests.request(method, self._address + path, data=form, files=cast("Any", files), timeout=60)
        why = fails(answer.text) or ("" if re.search(wants, answer.text) else f"without {wants!r}")
        why = why if answer.ok else f"status {answer.status_code} {why}"
        self.failed += bool(why)
        sys.stdout.write(f"{'FAIL' if why else 'ok  '}  {label}{f': {why}' if why else ''}\n")
        sys.stdout.flush()
        return answer.text

    def until(self, name: str, path: str, wants: str) -> None:
        """The same page again and again until it has the text."""
        end = time.monotonic() + WAIT_S
        while time.monotonic() < end and not re.search(wants, requests.get(self._address + path, timeout=60).text):
            time.sleep(1.0)
        self.step(name, path, wants)


@contextmanager
def scrapydweb(folder: Path, service_port: int) -> Iterator[str]:
    """Its address."""
    venv, port = folder / "venv", free_port()
    if not (venv / "bin" / "scrapydweb").exists():
        subprocess.run([sys.executable, "-m", "venv", str(venv)], check=True)
        subprocess.run([venv / "bin" / "pip", "install", "--quiet", *PACKAGES], check=True)
    package = next(venv.glob("lib/python*/site-packages/scrapydweb"))
    settings = (package / "default_settings.py").read_text(encoding="utf-8")
    settings += f"""
SCRAPYDWEB_BIND, SCRAPYDWEB_PORT = "127.0.0.1", {port}
SCRAPYD_SERVERS = [({USER!r}, {PASSWORD!r}, "127.0.0.1", "{service_port}", "fleet")]
CHECK_TASK_RESULT_INTERVAL = 5
"""
    (folder / "scrapydweb_settings_v11.py").write_text(settings, encoding="utf-8")
    environ = os.environ | {"DATA_PATH": str(folder / "scrapydweb-data")}
    with (folder / "scrapydweb.log").open("wb") as log:
        process = subprocess.Popen([venv / "bin" / "scrapydweb"], cwd=folder, env=environ, stdout=log, stderr=log)
    address = f"http://127.0.0.1:{port}"
    try:
        wait(lambda: requests.get(address, timeout=5).ok)
        yield address
    finally:
        process.terminate()
        process.wait()


def wait(is_so: Callable[[], object]) -> None:
    """Waits for a server.

    Raises: TimeoutError: it does not answer.
    """
    end = time.monotonic() + WAIT_S
    while time.monotonic() < end:
        try:
            if is_so():
                return
        except requests.RequestException:
            pass
        time.sleep(0.2)
    raise TimeoutError


def crawlog(folder: Path, *words: str) -> None:
    """A command on the folder's fleet."""
    environ = os.environ | {"CRAWLOG_SERVICE__USERS": f'{{"{USER}": "{PASSWORD}"}}'}
    subprocess.run([sys.executable, "-m", "crawlog", *words], cwd=folder, env=environ, check=True)


def egg(folder: Path) -> bytes:
    """A project with one spider, as scrapyd-client packs it."""
    project = folder / "project"
    if not project.exists():
        scripts = Path(sys.executable).parent
        subprocess.run([scripts / "scrapy", "startproject", "shop", str(project)], check=True, capture_output=True)
        (project / "shop" / "spiders" / "books.py").write_text(SPIDER)
        subprocess.run(
            [scripts / "scrapyd-deploy", "--build-egg", "shop.egg"], cwd=project, check=True, capture_output=True
        )
    return (project / "shop.egg").read_bytes()


def walk(web: Walk, packed: bytes) -> None:
    """All of it, in the order in which a user meets it."""
    pages = ("servers", "jobs", "nodereports", "clusterreports", "deploy", "schedule", "tasks", "logs", "items")
    for page in (*pages, "projects", "parse/upload", "sendtext", "settings"):
        web.step(f"page {page}", f"/1/{page}/")
    web.step("daemonstatus", "/1/api/daemonstatus/", "finished")

    egg = {"files": {"file": ("shop.egg", packed)}}
    web.step("deploy an egg", "/1/deploy/upload/", "shop", project="shop", version="v1", **egg)
    web.step("projects", "/1/projects/", "shop")
    web.step("versions", "/1/projects/listversions/shop/", "v1")
    web.step("spiders", "/1/projects/listspiders/shop/v1/", "books")
    web.step("schedule: the spider's page", "/1/schedule/shop/v1/books/", "books")

    form = {"project": "shop", "_version": "v1", "spider": "books", "jobid": "by-hand", "DOWNLOAD_DELAY": "0"}
    run = {"filename": "shop_v1_books.pickle", "checked_amount": "1", "1": "on"}
    web.step("schedule: check", "/1/schedule/check/", "shop_v1_books", **form)
    web.step("schedule: run", "/1/schedule/run/", "by-hand", **run)
    web.until("schedule: the job has finished", "/1/api/listjobs/shop/", FINISHED.format("by-hand"))
    web.step("jobs", "/1/jobs/", "by-hand")
    web.step("jobs as Scrapyd's table", "/1/jobs/?style=classic", "by-hand")
    web.step("logs of the spider", "/1/logs/shop/books/", "by-hand")
    web.step("items of the spider", "/1/items/shop/books/", "by-hand")
    web.step("log: text", "/1/log/utf8/shop/books/by-hand/", "Spider closed")
    web.step("log: stats", "/1/log/stats/shop/books/by-hand/?realtime=True", "finish_reason")
    web.step("log: report", "/1/log/report/shop/books/by-hand/", r'"items": [1-9]')

    web.step("stop: check", "/1/schedule/check/", **(form | {"jobid": "slow", "DOWNLOAD_DELAY": "60"}))
    web.step("stop: run", "/1/schedule/run/", "slow", **run)
    web.until("stop: the job runs", "/1/api/listjobs/shop/", r'"(running|pending)":\s*\[[^\]]*slow')
    web.step("stop: stop it", "/1/api/stop/shop/slow/", "ok")
    web.until("stop: the job has finished", "/1/api/listjobs/shop/", FINISHED.format("slow"))

    timer = {"trigger": "cron", "action": "add_fire", "name": "nightly", "hour": "3"}
    web.step("timer: check", "/1/schedule/check/", "shop_v1_books", **(form | timer))
    web.step("timer: add and fire", "/1/schedule/run/", "nightly", **run)
    web.until("timer: the task in its list", "/1/tasks/", "nightly")
    web.until("timer: its job has finished", "/1/api/listjobs/shop/", FINISHED.format("task_1_"))
    web.step("timer: results of the task", "/1/tasks/1/", "1")
    for action in ("pause", "resume", "fire", "delete"):
        web.step(f"timer: {action}", f"/1/tasks/xhr/{action}/1/", '"status": "ok"')

    web.step("delete the version", "/1/api/delversion/shop/v1/", '"status": "ok"')


def main() -> None:
    """Makes everything, walks, ends everything."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    folder: Path = parser.parse_args().folder.absolute()
    folder.mkdir(parents=True, exist_ok=True)
    for kept in (".crawlog", "scrapydweb-data"):
        shutil.rmtree(folder / kept, ignore_errors=True)
    packed, port = egg(folder), free_port()
    site = runpy.run_path(str(ROOT / "examples" / "demo_site.py"))["Site"](8800).start()
    crawlog(folder, "up", f"-sservice.port={port}", "-snetwork.allow_private=true", "-sspider.own_user=false")
    try:
        with scrapydweb(folder, port) as address:
            web = Walk(address)
            walk(web, packed)
    finally:
        crawlog(folder, "down")
        site.stop()
    sys.exit(bool(web.failed))


if __name__ == "__main__":
    main()
