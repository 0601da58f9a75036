"""Projects in the log: deployed, listed, pinned, hidden, and run by a child that finds them there."""

import io
import subprocess
import zipfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple, cast

import msgspec
import pytest

from crawlog.agents.sandbox import ChildRules, SpiderChild
from crawlog.cli import deploying
from crawlog.commands import projects
from crawlog.schemas import code, control
from crawlog.schemas.code import CodeManifest, SignedManifest
from crawlog.schemas.control import JobCopy
from crawlog.schemas.job_orders import CodeRef
from crawlog.schemas.urls import JobSpec
from crawlog.service.answers import AnswerError
from crawlog.service.api_fleet import ENDPOINTS, RemovalQuery
from crawlog.streams.cluster import log_bounds
from crawlog.streams.code import CodeCache, CodeLog, folder_key, make_key
from crawlog.streams.errors import Misconfigured
from crawlog.streams.log import Producer, Topics, ensure_topics, read_records
from crawlog.streams.settings import Settings
from crawlog.streams.spiders import SpiderRef, trust_of
from tests.support.dying import dying

pytestmark = pytest.mark.broker

QUOTES = Path(__file__).parent.parent.parent / "projects" / "quotes"

SHOP = """
import crawlog
from prices import price

class Shop(crawlog.Spider):
    name = "shop"
    start_urls = ["http://shop.example/"]

    def parse(self, response):
        yield {"price": price(VERSION), "file": __file__}

VERSION = 1
"""


@pytest.fixture
def partitions() -> int:
    """Few: most of such a test's time goes into the making of topics."""
    return 2


@pytest.fixture
def settings(cluster: Settings, tmp_path: Path) -> Settings:
    """With topics, and a data folder of this test."""
    found = cluster.model_copy(update={"run": cluster.run.model_copy(update={"data": tmp_path / "data"})})
    (tmp_path / "data").mkdir()
    ensure_topics(found)
    return found


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    """A folder of one spider of crawlog's own, and a module beside it."""
    folder = tmp_path / "shop"
    folder.mkdir()
    (folder / "spiders.py").write_text(SHOP)
    (folder / "prices.py").write_text("def price(number):\n    return 10 * number\n")
    return folder


def elsewhere(settings: Settings, data: Path, **security: Any) -> Settings:
    """The same log, from another machine."""
    data.mkdir(exist_ok=True)
    run = settings.run.model_copy(update={"data": data})
    return settings.model_copy(update={"run": run, "security": settings.security.model_copy(update=security)})


def ref_of(found: projects.Deployed) -> CodeRef:
    """What a job pins."""
    return CodeRef(found.project, found.version, found.sha256)


def child_of(settings: Settings, ref: CodeRef, spider: str, *scrapy: tuple[str, str]) -> SpiderChild:
    """A child as workers start it for a job."""
    spec = JobSpec(spider=spider, code=ref, scrapy=scrapy)
    return SpiderChild(SpiderRef(spider, scrapy=scrapy, job="job", spec=spec), ChildRules.of(settings, None))


def write(settings: Settings, key: bytes, value: bytes | None) -> None:
    """A record of crawl.code, by anybody."""
    producer = Producer(settings, "stranger")
    producer.send(Topics(settings.kafka.prefix).code, value, key=key, partition=0)
    assert producer.flush(10)


def manifest_record(settings: Settings, ref: CodeRef) -> tuple[CodeManifest, SignedManifest]:
    """As it is in the log."""
    log = CodeLog(settings)
    log.look()
    entry = log.find(ref.project, ref.version, ref.sha256)
    assert entry is not None
    return entry.manifest, entry.signed


def refused(settings: Settings, ref: CodeRef) -> str:
    """Why the code may not run; nothing is unpacked."""
    with pytest.raises(Misconfigured) as told:
        CodeCache(settings).folder(ref)
    assert not list((settings.run.data / "code").glob("[!.]*/")) if (settings.run.data / "code").exists() else True
    return str(told.value)


def test_a_scrapy_project_is_deployed_listed_and_run_by_its_hash(settings: Settings) -> None:
    """The spider runs in the child from the cache."""
    found = projects.deploy(settings, QUOTES, "quotes", "1", by="ann")
    assert found.is_trusted
    assert {"authors", "pages"} <= set(found.spiders), found.spiders
    assert projects.list_projects(settings) == ["quotes"]
    assert projects.list_versions(settings, "quotes") == ["1"]
    assert projects.list_spiders(settings, "quotes") == sorted(found.spiders)
    assert projects.resolve(settings, "quotes") == ref_of(found)
    with child_of(settings, ref_of(found), "authors") as child:
        facts = child.facts()
    assert facts.is_scrapy
    assert facts.label.startswith("authors@")
    again = projects.deploy(settings, QUOTES, "quotes", "2")
    assert again.sha256 == found.sha256, "an archive depends on its files alone"
    assert projects.resolve(settings, "quotes").version == "2"


def test_a_version_whose_deploy_died_before_its_manifest_is_not_there_until_it_is_deployed_again(
    settings: Settings, shop: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its chunks are in the log; the same command writes them anew."""
    with dying(monkeypatch, "code.chunks", 1):
        projects.deploy(settings, shop, "shop", "1")
    assert projects.list_projects(settings) == []
    found = projects.deploy(settings, shop, "shop", "1")
    assert projects.resolve(settings, "shop") == ref_of(found)
    assert CodeCache(settings).folder(ref_of(found)).path.is_dir()


def test_versions_stand_side_by_side_and_a_pinned_one_does_not_change(settings: Settings, shop: Path) -> None:
    """A version deployed anew with other code is another hash."""
    first = projects.deploy(settings, shop, "shop", "1")
    (shop / "prices.py").write_text("def price(number):\n    return 99\n")
    second = projects.deploy(settings, shop, "shop", "1")
    assert first.sha256 != second.sha256
    assert projects.resolve(settings, "shop", "1") == ref_of(second)
    write_job(settings, "pins", ref_of(second))
    with child_of(settings, ref_of(second), "shop") as child:
        assert child.facts().label.startswith("shop@")


def write_job(settings: Settings, job: str, ref: CodeRef | None) -> None:
    """A job in crawl.control that pins code; without one it is deleted."""
    producer, topics = Producer(settings, "test"), Topics(settings.kafka.prefix)
    copy = JobCopy(job, JobSpec(spider="shop", code=ref, state="running" if ref else "deleted"))
    producer.send(topics.control, control.encode(copy), key=control.key(copy), partition=0)
    assert producer.flush(10)


def test_deleted_versions_are_hidden_and_leave_the_log_once_no_job_pins_them(settings: Settings, shop: Path) -> None:
    """The job that pins one goes on; a version deployed again is seen again."""
    found = projects.deploy(settings, shop, "shop", "1")
    write_job(settings, "old", ref_of(found))
    gone = projects.delete_version(settings, "shop", "1")
    assert gone.versions == ("1",)
    assert gone.pinned == ("old",)
    assert projects.list_projects(settings) == []
    with pytest.raises(Misconfigured, match="no project"):
        projects.resolve(settings, "shop")
    assert CodeCache(settings).folder(ref_of(found)).path.is_dir(), "the job goes on"
    assert projects.deploy(settings, shop, "shop", "1").sha256 == found.sha256
    assert projects.list_versions(settings, "shop") == ["1"]
    write_job(settings, "old", None)
    assert projects.delete_project(settings, "shop").pinned == ()
    log = CodeLog(settings)
    log.look()
    assert log.entries == []
    assert "no such version" in str(refusal_of(settings, ref_of(found)))


def refusal_of(settings: Settings, ref: CodeRef) -> Misconfigured:
    """The error."""
    with pytest.raises(Misconfigured) as told:
        CodeCache(settings).folder(ref)
    return told.value


def test_a_worker_runs_only_code_signed_by_a_key_that_it_trusts(settings: Settings, shop: Path, tmp_path: Path) -> None:
    """Looked at at each start of a child: a key that is trusted no more runs nothing, cached or not."""
    found = projects.deploy(settings, shop, "shop", "1")
    ref, public = ref_of(found), folder_key(settings.run.data).public
    stranger = elsewhere(settings, tmp_path / "other")
    assert "not in security.trusted_keys" in refused(stranger, ref)
    assert not projects.versions(stranger, "shop")[0].is_trusted
    projects.deploy(stranger, shop, "shop", "2")
    for ask in (projects.resolve, projects.delete_version):
        with pytest.raises(Misconfigured, match=r"'2' in the log, but it is signed by the key .* not in security"):
            ask(settings, "shop", "2")
    projects.delete_version(stranger, "shop", "2")
    with pytest.raises(Misconfigured, match="has no version '2'"):
        projects.resolve(settings, "shop", "2")
    trusting = elsewhere(settings, tmp_path / "other", trusted_keys=(public,))
    assert CodeCache(trusting).folder(ref).path.is_dir()
    assert "not in security.trusted_keys" in str(refusal_of(stranger, ref)), "the cache does not help"
    key = tmp_path / "own.key"
    make_key(key)
    (settings.run.data / "run" / "code.key").unlink()
    assert "not in security.trusted_keys" in str(refusal_of(settings, ref))


def test_a_command_that_may_not_load_code_says_how_it_may(settings: Settings, shop: Path, tmp_path: Path) -> None:
    """As `submit` on a machine without the key: workers may well trust it, and have no pages to give back."""
    ref = ref_of(projects.deploy(settings, shop, "shop", "1"))
    stranger = elsewhere(settings, tmp_path / "other")
    with child_of(stranger, ref, "shop") as child, pytest.raises(Misconfigured) as told:
        child.facts()
    assert "this command may not load it" in str(told.value)
    assert "`-s security.trusted_keys=KEY`" in str(told.value)
    assert "workers" not in str(told.value)
    assert "redrive" not in str(told.value)
    of_worker = ChildRules.of(stranger, trust_of(stranger)).code
    assert of_worker is not None
    with pytest.raises(Misconfigured, match=r"workers here may not run it.* redrive"):
        of_worker.folder(ref)


def test_a_revoked_version_starts_nowhere(settings: Settings, shop: Path) -> None:
    """Even for jobs that pin it."""
    found = projects.deploy(settings, shop, "shop", "1")
    write_job(settings, "old", ref_of(found))
    cache = CodeCache(settings)
    assert cache.folder(ref_of(found)).path.is_dir()
    projects.delete_version(settings, "shop", "1", revoke=True)
    with pytest.raises(Misconfigured, match="revoked"):
        cache.folder(ref_of(found))


@pytest.mark.parametrize(
    ("by", "how"),
    [
        ("command", "version"),
        ("service", "project"),
        pytest.param("command", "project", marks=pytest.mark.long),
        pytest.param("service", "version", marks=pytest.mark.long),
    ],
)
def test_a_deleted_version_that_a_job_still_has_can_be_revoked(
    settings: Settings, shop: Path, how: str, by: str
) -> None:
    """It is found to be bad only later; without `revoke` there is no such version."""
    found = projects.deploy(settings, shop, "shop", "1")
    write_job(settings, "old", ref_of(found))
    projects.delete_version(settings, "shop", "1")

    def delete(*, revoke: bool) -> projects.Removed:
        if by == "service":
            path = "/projects/{project}" + ("/versions/{version}" if how == "version" else "")
            (endpoint,) = (one for one in ENDPOINTS if (one.method, one.path) == ("DELETE", path))
            query, names = RemovalQuery(revoke), {"project": "shop", "version": "1"}
            call: Any = SimpleNamespace(settings=settings, path=names, query=query, user="ann")
            assert endpoint.does is not None
            return cast("projects.Removed", endpoint.does(call))
        if how == "version":
            return projects.delete_version(settings, "shop", "1", revoke=revoke)
        return projects.delete_project(settings, "shop", revoke=revoke)

    with pytest.raises((Misconfigured, AnswerError), match="no project"):
        delete(revoke=False)
    assert delete(revoke=True) == projects.Removed(("1",), ("old",))
    assert "revoked" in str(refusal_of(settings, ref_of(found)))


@pytest.mark.long
def test_a_revocation_lasts_for_older_versions_and_bars_no_later_one(settings: Settings, shop: Path) -> None:
    """Of a version, and of the whole project: deleting a later one plainly does not lift it."""
    first = projects.deploy(settings, shop, "shop", "1")
    write_job(settings, "old", ref_of(first))
    for number, version in enumerate(("1", "")):

        def delete(version: str = version, *, revoke: bool = False) -> None:
            if version:
                projects.delete_version(settings, "shop", version, revoke=revoke)
            else:
                projects.delete_project(settings, "shop", revoke=revoke)

        delete(revoke=True)
        assert "revoked" in str(refusal_of(settings, ref_of(first)))
        (shop / "prices.py").write_text(f"def price(_):\n    return {number}\n")
        later = projects.deploy(settings, shop, "shop", "1")
        assert CodeCache(settings).folder(ref_of(later)).path.is_dir()
        delete()
        assert "revoked" in str(refusal_of(settings, ref_of(first)))
        projects.deploy(settings, shop, "shop", "1")


class Forged(NamedTuple):
    """A record that a stranger with access to the topics writes, the code that a job then pins, and what it is told."""

    ref: CodeRef
    key: bytes
    value: bytes | None
    told: str


def forgeries(settings: Settings, ref: CodeRef, tmp_path: Path) -> dict[str, Forged]:
    """By kind."""
    manifest, signed = manifest_record(settings, ref)
    ours, strangers = folder_key(settings.run.data), make_key(tmp_path / "stranger.key")
    project, version, sha256 = ref.project, ref.version, ref.sha256
    later = code.encode(msgspec.structs.replace(manifest, at=manifest.at + 1)).decode()
    foreign = msgspec.structs.replace(manifest, project="other", cluster="elsewhere")
    place, chunk = code.key(project, version, sha256, "manifest"), code.key(project, version, sha256, 0)
    other, two = (code.key(*names, sha256, "manifest") for names in (("other", version), (project, "2")))
    cut = "not the one that was signed"
    return {
        "unsigned": Forged(ref, place, code.encode(SignedManifest(signed.manifest, signed.key, "")), "signature"),
        "by a stranger": Forged(ref, place, code.encode(strangers.sign(manifest)), "not in security.trusted_keys"),
        "changed": Forged(ref, place, code.encode(SignedManifest(later, signed.key, signed.signature)), "does not fit"),
        "of another project": Forged(CodeRef("other", version, sha256), other, code.encode(signed), "no such version"),
        "of another version": Forged(CodeRef(project, "2", sha256), two, code.encode(signed), "no such version"),
        "of another cluster": Forged(
            CodeRef("other", version, sha256), other, code.encode(ours.sign(foreign)), "another cluster"
        ),
        "other chunks": Forged(ref, chunk, b"x" * manifest.size, cut),
        "cut chunks": Forged(ref, chunk, b"PK", cut),
        "longer chunks": Forged(ref, chunk, b"x" * (manifest.size + 1), cut),
        "no chunks": Forged(ref, chunk, None, cut),
        "a path as a name": Forged(
            CodeRef("../../etc", version, sha256), place, code.encode(signed), "no such version"
        ),
        "no manifest": Forged(ref, place, b'{"v": 1, "manifest": []}', "no such version"),
    }


@pytest.mark.long
def test_what_a_stranger_writes_into_the_topic_runs_nowhere(settings: Settings, shop: Path, tmp_path: Path) -> None:
    """Unsigned, signed by a stranger, signed under another name, cut, swapped: refused, and nothing is written."""
    ref = ref_of(projects.deploy(settings, shop, "shop", "1"))
    records = log_of(settings)
    for kind, forgery in forgeries(settings, ref, tmp_path).items():
        write(settings, forgery.key, forgery.value)
        told = refused(settings, forgery.ref)
        assert told.startswith("code_refused: "), kind
        assert forgery.told in told, kind
        for key, value in records:
            write(settings, key, value)
    assert CodeCache(settings).folder(ref).path.is_dir(), "the true records are back"


def log_of(settings: Settings) -> list[tuple[bytes, bytes | None]]:
    """All records of crawl.code."""
    topic = Topics(settings.kafka.prefix).code
    end = log_bounds(settings, topic, [0])[0][1]
    return [(record.key() or b"", record.value()) for record in read_records(settings, topic, 0, 0, end)]


def test_a_strangers_version_is_not_the_newest_one(settings: Settings, shop: Path, tmp_path: Path) -> None:
    """Neither a version of a stranger's, nor an old one that is written into the log once more."""
    first = projects.deploy(settings, shop, "shop", "1")
    old = manifest_record(settings, ref_of(first))
    (shop / "prices.py").write_text("def price(number):\n    return 5\n")
    second = projects.deploy(settings, shop, "shop", "2")
    stranger = elsewhere(settings, tmp_path / "stranger")
    projects.deploy(stranger, shop, "shop", "3")
    write(settings, code.key("shop", "1", first.sha256, "manifest"), code.encode(old[1]))
    assert projects.resolve(settings, "shop") == ref_of(second)
    assert projects.list_versions(settings, "shop") == ["1", "2"]


def test_a_strangers_version_of_the_far_future_moves_no_later_deployment(
    settings: Settings, shop: Path, tmp_path: Path
) -> None:
    """Each one was signed with that time too, and no later one was newer; a time that no calendar has is shown too."""
    first = projects.deploy(settings, shop, "shop", "1")
    manifest, _ = manifest_record(settings, ref_of(first))
    stranger = make_key(tmp_path / "stranger.key")
    forged = stranger.sign(msgspec.structs.replace(manifest, version="9", at=1e18))
    write(settings, code.key("shop", "9", first.sha256, "manifest"), code.encode(forged))
    second = projects.deploy(settings, shop, "shop", "2")
    assert manifest.at < manifest_record(settings, ref_of(second))[0].at < manifest.at + 3600
    elsewhere_seen = projects.versions(elsewhere(settings, tmp_path / "other"), "shop")
    assert [deploying._when(one).startswith("9999-") for one in elsewhere_seen] == [False, False, True]


def test_a_strangers_version_of_the_far_future_is_deleted_and_its_name_can_be_used(
    settings: Settings, shop: Path, tmp_path: Path
) -> None:
    """A note of its time would hide all that is deployed later."""
    stranger = elsewhere(settings, tmp_path / "stranger")
    manifest, _ = manifest_record(settings, ref_of(projects.deploy(stranger, shop, "shop", "1")))
    forged = folder_key(stranger.run.data).sign(msgspec.structs.replace(manifest, at=1e18))
    write(settings, code.key("shop", "1", manifest.sha256, "manifest"), code.encode(forged))
    assert projects.delete_project(settings, "shop").versions == ("1",)
    projects.deploy(settings, shop, "shop", "2")
    assert projects.list_versions(settings, "shop") == ["2"]


def test_settings_over_the_wire_name_neither_code_nor_files(settings: Settings) -> None:
    """A job's record may be written by anybody."""
    found = ref_of(projects.deploy(settings, QUOTES, "quotes", "1"))
    wrong = ("ITEM_PIPELINES", "{'os.system': 1}")
    with (
        child_of(settings, found, "authors", ("DOWNLOAD_DELAY", "1"), wrong) as child,
        pytest.raises(Misconfigured, match="code_refused: ITEM_PIPELINES: it names code to import"),
    ):
        child.facts()
    with child_of(settings, found, "authors", ("DOWNLOAD_DELAY", "2.5")) as child:
        assert child.facts().settings["politeness.delay_s"] == 2.5


def test_a_missing_module_is_named_with_its_way_out(settings: Settings, shop: Path) -> None:
    """Nothing is installed."""
    (shop / "prices.py").write_text("import not_there_at_all\n")
    with pytest.raises(Misconfigured, match=r"not_there_at_all is not installed.*or deploy an egg that holds"):
        projects.deploy(settings, shop, "shop", "1")
    assert projects.list_projects(settings) == []


def egg(files: dict[str, str]) -> bytes:
    """A ZIP of these files."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for name, text in files.items():
            archive.writestr(name, text)
    return out.getvalue()


def test_an_egg_is_deployed_with_the_modules_that_it_holds(settings: Settings) -> None:
    """As scrapyd-client uploads it: its entry point names the settings."""
    found = projects.deploy(
        settings,
        egg(
            {
                "EGG-INFO/entry_points.txt": "[scrapy]\nsettings = tiny.settings\n",
                "tiny/__init__.py": "",
                "tiny/settings.py": "SPIDER_MODULES = ['tiny.spiders']\n",
                "tiny/spiders.py": "import scrapy, vendored_here\n\nclass One(scrapy.Spider):\n    name = 'one'\n",
                "vendored_here/__init__.py": "",
            }
        ),
        "tiny",
        "r1",
    )
    assert found.spiders == ("one",)
    with child_of(settings, ref_of(found), "one") as child:
        assert child.facts().is_scrapy
    with pytest.raises(Misconfigured, match="no egg and no ZIP"):
        projects.deploy(settings, b"not an egg", "tiny", "r2")


def test_a_changed_cache_is_made_again(settings: Settings, shop: Path) -> None:
    """And one that others may change is not used."""
    ref = ref_of(projects.deploy(settings, shop, "shop", "1"))
    folder = CodeCache(settings).folder(ref).path
    (folder / "spiders.py").write_text("raise SystemExit")
    assert CodeCache(settings).folder(ref).path == folder
    assert (folder / "spiders.py").read_text() == SHOP
    (folder / "spiders.py").chmod(0o666)
    assert "can be changed by everybody" in str(refusal_of(settings, ref))


def test_a_clean_repository_gives_the_version(settings: Settings, shop: Path) -> None:
    """Its commit; else the time."""
    git = ["git", "-C", str(shop), "-c", "user.name=a", "-c", "user.email=a@example.org"]
    for command in (["init", "-q"], ["add", "."], ["commit", "-qm", "one"]):
        subprocess.run([*git, *command], check=True)
    commit = subprocess.run([*git, "log", "-1", "--format=%h"], check=True, capture_output=True).stdout.decode().strip()
    assert projects.deploy(settings, shop).version == commit
    (shop / "prices.py").write_text("def price(number):\n    return 1\n")
    found = projects.deploy(settings, shop)
    assert (found.project, found.version.isdigit()) == ("shop", True)


def test_the_folder_above_gives_its_own_name(settings: Settings, shop: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As `..`; a link gives the name that it has."""
    (shop / "below").mkdir()
    (shop.parent / "link").symlink_to(shop)
    monkeypatch.chdir(shop / "below")
    assert projects.deploy(settings, Path("..")).project == "shop"
    assert projects._name(shop.parent / "link") == "link"
