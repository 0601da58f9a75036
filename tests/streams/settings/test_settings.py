"""Settings: precedence, the environment, and what is said about a wrong one."""

import functools
import json
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from crawlog.streams.errors import Misconfigured
from crawlog.streams.printable import HIDDEN
from crawlog.streams.settings.field_types import RECORD_HEADROOM
from crawlog.streams.settings.reference import as_markdown, description, wanted
from crawlog.streams.settings.sections import Fetch
from crawlog.streams.settings.settings import (
    Settings,
    environ_name,
    for_stage,
    known_keys,
    masked,
    to_environ,
    values,
)
from crawlog.streams.settings.sources import NO_FILE, Sources, load, origins, parse_pairs, resolve


def _problems(sources: Sources) -> str:
    with pytest.raises(Misconfigured) as caught:
        resolve(sources)
    return str(caught.value)


@pytest.fixture(autouse=True)
def _empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No crawlog.toml of the repository or the user takes part."""
    monkeypatch.chdir(tmp_path)


def test_without_any_source_every_value_is_its_default() -> None:
    """`load` on an empty machine is `Settings()`."""
    assert load(environ={}) == Settings()


def test_a_stronger_source_wins(tmp_path: Path) -> None:
    """Flag > -s > spider > environment > file > default, each removed in turn."""
    (tmp_path / "crawlog.toml").write_text("[fetch]\nconcurrency = 2\n")
    sources = Sources(
        flags={"fetch.concurrency": 6},
        pairs=["fetch.concurrency=5"],
        spider={"fetch.concurrency": 4},
        environ={"CRAWLOG_FETCH__CONCURRENCY": "3"},
    )
    weaker: list[dict[str, Any]] = [{}, {"flags": {}}, {"pairs": []}, {"spider": {}}, {"environ": {}}]
    got = []
    for change in weaker:
        sources = sources._replace(**change)
        got.append(resolve(sources).settings.fetch.concurrency)
    assert got == [6, 5, 4, 3, 2]


def test_origins_name_who_set_a_value(tmp_path: Path) -> None:
    """The file by its path, the environment by its variable."""
    (tmp_path / "crawlog.toml").write_text("scope = 'host'\n")
    environ = {"CRAWLOG_ROBOTS__OBEY": "no"}
    by_key = {one.key: one for one in origins(Sources(pairs=["run.depth=3"], environ=environ))}
    assert by_key["run.depth"][1:3] == (3, "-s")
    assert by_key["robots.obey"][1:3] == (False, "environment CRAWLOG_ROBOTS__OBEY")
    assert by_key["scope.kind"][1:3] == ("host", "crawlog.toml")
    assert by_key["fetch.timeout_s"].origin == "default"
    assert (by_key["run.depth"].default, by_key["run.depth"].about) == (None, description("run.depth"))


def test_a_child_process_knows_who_set_a_value() -> None:
    """All of its settings come in its environment, with their sources; these change nothing else."""
    sources = Sources({"kafka.prefix": "x."}, ["run.depth=3"], config=NO_FILE, environ={"CRAWLOG_LOG__LEVEL": "debug"})
    settings = resolve(sources).settings
    kafka = settings.kafka.model_copy(update={"bootstrap": "127.0.0.1:9"})
    environ = to_environ(for_stage(settings.model_copy(update={"kafka": kafka}), "service"))
    child = load(config=NO_FILE, environ=environ)
    by = {one.key: one.origin for one in origins(child) if one.origin != "default"}
    assert by == {
        "kafka.bootstrap": "crawlog",
        "kafka.prefix": "flag",
        "log.level": "environment CRAWLOG_LOG__LEVEL",
        "run.depth": "-s",
    }
    assert to_environ(child) == environ
    assert [name for name, _ in child] == list(Settings.model_fields)
    for garbage in ("", "[]", "{", '{"run.depth": 5}'):
        assert load(config=NO_FILE, environ=environ | {"CRAWLOG_SET_BY": garbage}) == child


def test_origins_hide_secrets() -> None:
    """A password is never shown, an empty one is seen to be empty."""
    shown = {one.key: one.value for one in origins(Sources(pairs=["kafka.sasl_password=hunter2"], environ={}))}
    assert shown["kafka.sasl_password"] == HIDDEN
    assert "hunter2" not in repr(load({"kafka.sasl_password": "hunter2"}, environ={}))


@pytest.mark.parametrize(
    ("key", "given", "shown"),
    [
        ("fetch.headers", "X-Api-Key: hunter2,From: me@a.example", (f"X-Api-Key: {HIDDEN}", f"From: {HIDDEN}")),
        ("snapshots.to", "ftp://me:hunter2@a.example/x", f"ftp://{HIDDEN}@a.example/x"),
        ("snapshots.to", "ftp://me:hunter2@hunter2/y@a.example/x", f"ftp://{HIDDEN}@a.example/x"),
        ("snapshots.to", "https://a.example/x?token=hunter2", f"https://a.example/x?{HIDDEN}"),
        ("snapshots.to", "s3://bucket/path", "s3://bucket/path"),
        ("snapshots.to", "/mnt/a@b/what?", "/mnt/a@b/what?"),
        ("engine.maven_url", "https://a.example/m2", "https://a.example/m2"),
    ],
)
def test_of_a_value_with_a_secret_in_it_the_rest_is_shown(key: str, given: str, shown: object) -> None:
    """The names of headers, and where snapshots go; a token in a header or a password in a URL is nobody's business."""
    by_key = {one.key: one.value for one in origins(Sources(pairs=[f"{key}={given}"], environ={}))}
    assert by_key[key] == shown
    assert "hunter2" not in repr(load(parse_pairs([f"{key}={given}"]), environ={}))


@pytest.mark.parametrize(
    ("pair", "told"),
    [
        ("fetch.headers=Fine: 1,X-Api-Key hunter2", "(number 2: a header is `Name: value`"),
        ("fetch.headers=Cookie: hunter2", "Cookie cannot be set here"),
        ("fetch.logins=https://a:b@c.example,hunter2", "(number 2: a login is https://USER:PASSWORD@HOST"),
        ("snapshots.to=ftp://me:hunter2@a\0b/x", "NUL"),
        ("engine.maven_url=https://me:hunter2@repo.example/m2", "no login is sent to a repository"),
    ],
)
def test_a_wrong_value_with_a_secret_in_it_is_told_by_its_place(pair: str, told: str) -> None:
    """The message does not repeat it."""
    text = _problems(Sources(pairs=[pair], environ={}))
    assert told in text
    assert "hunter2" not in text


@pytest.mark.parametrize(
    ("key", "told"),
    [
        ("politeness.dely_s", "did you mean politeness.delay_s?"),
        ("politness.delay_s", "did you mean politeness.delay_s?"),
        ("delay_s", "did you mean politeness.delay_s?"),
        ("max_pages", "did you mean run.max_pages?"),
        ("politeness.x", "politeness has delay_s, per_host, per_ip, ip_rate, per_exit, max_delay_s"),
        ("zzz", "`crawlog settings` lists all"),
    ],
)
def test_an_unknown_key_gets_a_suggestion(key: str, told: str) -> None:
    """The likely key, else where to look."""
    with pytest.raises(Misconfigured) as caught:
        parse_pairs([f"{key}=1"])
    assert told in str(caught.value)


@pytest.mark.parametrize(
    ("pair", "told"),
    [
        ("politeness.delay_s=-1", "a number >= 0"),
        ("network.dns_servers=127.0.0.1,ns.example.org", "'ns.example.org' is no ADDRESS[:PORT]"),
        ("network.dns_servers=127.0.0.1:dns", "is no ADDRESS[:PORT]"),
        ("network.dns_servers=1.1.1.1/x", "is no ADDRESS[:PORT]"),
        ("politeness.delay_s=nan", "a number >= 0"),
        ("politeness.delay_s=inf", "a number >= 0"),
        ("politeness.delay_s=fast", "a number >= 0"),
        ("fetch.timeout_s=0", "a number > 0"),
        ("kafka.partitions=0", "a whole number from 1 to 10000"),
        ("kafka.partitions=1.5", "a whole number from 1 to 10000"),
        ("kafka.max_record_bytes=1000000001", "a whole number from 1048576 to 1000000000"),
        ("fetch.max_body_bytes=1073741824", "a whole number from 1024 to 999737856"),
        ("run.depth=-1", "a whole number >= 0 or none"),
        ("run.max_pages=100000000000000000000000", "more than 9223372036854775807"),
        ("traps.strays=9223372036854775808", "more than 9223372036854775807"),
        ("sitemaps.max_bytes=9223372036854775808", "more than 9223372036854775807"),
        ("fetch.timeout_s=1e308", "more than 1000000000"),
        ("limits.timeout_s=1e10", "more than 1000000000"),
        ("network.tls=old", "'old' is neither compatible nor modern, nor ciphers that OpenSSL knows"),
        ("robots.obey=perhaps", "true or false"),
        ("scope=hosts", "one of domain, host, seeds, any"),
        ("links.sources=a,b", "each one of a, area, frame, refresh"),
        ("scope.exclude=(?=x)", "is not an RE2 expression"),
        ("log.level=a\0b", "debug, info"),
        ("engine.java=a\0b", "NUL"),
        ("fetch.user_agent=a\nb", "one line of Latin-1"),
        ("kafka.prefix=a b", "only letters, digits"),
        ("kafka.prefix=", "at least one"),
        ("kafka.bootstrap=http://kafka:9092", "HOST:PORT"),
        ("robots.token=crawl/1", "a product token"),
    ],
)
def test_a_wrong_value_is_told_its_range(pair: str, told: str) -> None:
    """The message names the key, what was given and what it must be."""
    with pytest.raises(Misconfigured) as caught:
        parse_pairs([pair])
    assert told in str(caught.value)


def test_all_problems_are_told_at_once(tmp_path: Path) -> None:
    """Whichever sources they are in, and also where another source overrides them."""
    (tmp_path / "crawlog.toml").write_text("[fetch]\ntimeout_s = 'long'\n[fetsch]\nx = 1\n")
    text = _problems(
        Sources(
            flags={"fetch.timeout_s": 3},
            pairs=["nonsense", "run.depth=deep"],
            environ={"CRAWLOG_ROBOTS__OBAY": "1"},
        )
    )
    assert text.startswith("5 problems")
    assert all(word in text for word in ("timeout_s", "fetsch.x", "nonsense", "run.depth", "robots.obey"))


@pytest.mark.parametrize("name", ["CRAWLOG_WORKER", "CRAWLOG_TESTDATA", "CRAWLOGX__Y", "PATH"])
def test_other_variables_are_ignored(name: str) -> None:
    """Only names with `__` after the prefix claim to be settings."""
    assert load(environ={name: "1"}) == Settings()


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("CRAWLOG_POLITENESS__DELEY_S", "politeness.delay_s"),
        ("CRAWLOG_POLITNESS__DELAY_S", "politeness.delay_s"),
        ("CRAWLOG_POLITENESS_DELAY_S", "CRAWLOG_POLITENESS__DELAY_S"),
    ],
)
def test_a_misspelt_variable_is_an_error(name: str, told: str) -> None:
    """It looks like a setting and is none."""
    assert told in _problems(Sources(environ={name: "1"}))


def test_scope_alone_is_its_kind_everywhere(tmp_path: Path) -> None:
    """In a flag, a pair, the environment and the file."""
    path = tmp_path / "other.toml"
    path.write_text("scope = 'host'\n")
    assert load({"scope": "host"}, environ={}).scope.kind == "host"
    assert parse_pairs(["scope=host"]) == {"scope.kind": "host"}
    assert load(environ={"CRAWLOG_SCOPE": "host"}).scope.kind == "host"
    assert load(config=path, environ={}).scope.kind == "host"


@pytest.mark.parametrize(
    ("pair", "value"),
    [
        ("links.sources=a,area,refresh", ("a", "area", "refresh")),
        ('links.sources=["a"]', ("a",)),
        ("canonical.drop_params=", ()),
        ("scope.include=^https://a/[0-9]{1,3}$", ("^https://a/[0-9]{1,3}$",)),
        ('scope.include=["a,b", "c"]', ("a,b", "c")),
        ("run.depth=none", None),
        ("run.max_pages=7", 7),
    ],
)
def test_text_stands_for_lists_and_none(pair: str, value: object) -> None:
    """Commas separate, except in expressions; JSON is taken everywhere."""
    assert list(parse_pairs([pair]).values()) == [value]


def test_a_list_given_twice_collects() -> None:
    """A second `-s scope.exclude=…` adds an expression; a plain value is replaced."""
    got = parse_pairs(["scope.exclude=a", "scope.exclude=b", "run.depth=1", "run.depth=2"])
    assert got == {"scope.exclude": ("a", "b"), "run.depth": 2}


@pytest.mark.parametrize(("content", "told"), [(b"x = [", "not TOML"), (b"\xff", "not TOML"), (None, "No such file")])
def test_a_bad_file_is_one_clear_message(tmp_path: Path, content: bytes | None, told: str) -> None:
    """Its path and the cause."""
    path = tmp_path / "my.toml"
    if content is not None:
        path.write_bytes(content)
    text = _problems(Sources(config=path, environ={}))
    assert told in text
    assert str(path) in text


def test_a_body_must_fit_into_a_record() -> None:
    """The message says which number to set."""
    text = _problems(Sources(pairs=[f"fetch.max_body_bytes={20 << 20}"], environ={}))
    assert f"set kafka.max_record_bytes to {(20 << 20) + RECORD_HEADROOM} or more" in text
    assert "Value error" not in text


def test_true_is_no_number(tmp_path: Path) -> None:
    """`delay_s = true` in the file is a slip, not one second."""
    (tmp_path / "crawlog.toml").write_text("[politeness]\ndelay_s = true\n")
    assert "a number >= 0" in _problems(Sources(environ={}))


@pytest.mark.parametrize("key", sorted(known_keys()))
def test_every_setting_is_described(key: str) -> None:
    """A docstring that ends in a full stop, a type in words, and two segments in its name."""
    assert description(key).endswith(".")
    assert wanted(key)
    assert key.count(".") == 1
    assert "__" not in key


@pytest.mark.parametrize("key", ["service.users", "service.tokens", "sink.outputs"])
def test_a_setting_by_names_is_no_text(key: str) -> None:
    """The error about one that is no JSON said that it must be text, which it was."""
    problems = _problems(Sources(pairs=[f"{key}=ann"], environ={}))
    assert "it must be a table, or a JSON object" in problems


@pytest.mark.parametrize("host", ["http://crawl.example", "crawl.example:8080", "crawl.example/x", "bücher.example"])
def test_a_host_that_no_request_can_name_is_refused(host: str) -> None:
    """Requests for it were refused with the advice to add it."""
    known = ["crawl.example", "xn--bcher-kva.example.", "my_host", "192.0.2.1", "::1", "[2001:db8::1]"]
    assert resolve(Sources(pairs=[f"service.hosts={','.join(known)}"], environ={})).settings.service.hosts == tuple(
        known
    )
    assert "number 2: it is a name" in _problems(Sources(pairs=[f"service.hosts=crawl.example,{host}"], environ={}))


TEXT = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=12)


def _any_value(annotation: Any, bounds: dict[str, Any]) -> st.SearchStrategy[Any]:
    annotation = get_args(annotation)[0] if get_origin(annotation) is Annotated else annotation
    if get_origin(annotation) is Literal:
        return st.sampled_from(get_args(annotation))
    if get_origin(annotation) is tuple:
        return st.lists(_any_value(get_args(annotation)[0], bounds.get("items", {})), max_size=4).map(tuple)
    if annotation is bool:
        return st.booleans()
    if annotation is int:
        return st.integers(bounds.get("minimum", 0), bounds.get("maximum", 1 << 40))
    if annotation is float:
        return st.floats(max(bounds.get("minimum", 0), 1e-9), bounds.get("maximum", 1e9))
    return TEXT.map(Path) if annotation is Path else TEXT


PLAIN = {
    "kafka.prefix": r"[A-Za-z0-9._-]{1,9}",
    "kafka.bootstrap": r"[a-z]{1,5}:[1-9]{4}(,[a-z]{1,5}:[1-9]{4})?",
    "exits.groups": r"[a-z*]{1,5}(,[a-z:1]{1,5})?",
    "exits.policy": r"sticky|request|every:[1-9]|time:[1-9]s",
    "fetch.user_agent": r"[ -~]{0,20}",
    "exits.redial": r"/[a-z]{1,9}( [a-z]{1,9})?",
    "exits.listen": r"([a-z]{1,9}:[1-9]{4})?",
    "exits.advertised": r"([a-z]{1,9}:[1-9]{4})?",
    "robots.token": r"[A-Za-z_-]{1,9}",
    "network.tls": r"compatible|modern|AES(128|256)-SHA",
}
"""Keys whose text has a form, as an expression that gives some of it."""


ACCOUNTS = {"service.users": "password", "service.tokens": "token"}
"""Tables of accounts, and their word for the secret."""


def _accounts(word: str) -> st.SearchStrategy[dict[str, Any]]:
    """Names with a secret, or with a secret and a role."""
    secret = st.text(st.characters(exclude_characters="\0$", exclude_categories=["Cs"]), min_size=1, max_size=9)
    with_role = st.fixed_dictionaries({word: secret}, optional={"role": st.sampled_from(["read", "operate", "deploy"])})
    return st.dictionaries(st.from_regex(r"[!-9;-~]{1,9}", fullmatch=True), secret | with_role, max_size=2)


FORMS = {
    "fetch.forms": r"https://[a-z]{1,9}(:[1-9]{4})?/[a-z]{1,9}#[a-z]{1,9}=[a-z]{0,9}",
    "fetch.headers": r"X-[a-z]{1,9}: [!-~]([ -~]{0,9}[!-~])?",
    "fetch.logins": r"https://[a-z]{1,9}:[a-z]{0,9}@[a-z]{1,9}(:[1-9]{4})?",
    "exits.ban_redirects": r"(?:\^http|[a-z]{1,9})",
    "exits.ban_texts": r"(?:[a-z]{1,9},[a-z]|[a-z]{1,9})",
    "exits.proxies": r"https?://([a-z]{1,9}:[a-z]{0,9}@)?[a-z]{1,9}(:[1-9]{4})?",
    "exits.addresses": r"10\.[0-9]\.[0-9]\.1|::[1-9]",
    "network.dns_servers": r"(10\.[0-9]\.[0-9]\.1|\[::[1-9]\])(:[1-9]{4})?",
    "security.spider_folders": r"~?/[ -~]{0,9}",
    "service.hosts": r"[a-z0-9.-]{1,9}|::[1-9]",
}
"""The same for lists."""


@functools.cache
def _schemas(section: type[BaseModel]) -> dict[str, dict[str, Any]]:
    """Made once: it takes longer than all that is drawn."""
    properties: dict[str, dict[str, Any]] = section.model_json_schema()["properties"]
    return properties


@st.composite
def _settings(draw: st.DrawFn) -> Settings:
    """Any valid settings."""
    chosen: dict[str, object] = {}
    for key, section in known_keys().items():
        name = key.partition(".")[2]
        field, schema = section.model_fields[name], _schemas(section)[name]
        kinds = [kind for kind in get_args(field.annotation) or (field.annotation,) if kind is not type(None)]
        whole = get_origin(field.annotation) in {Literal, tuple}
        base = field.annotation if whole else get_args(kinds[0])[0] if get_args(kinds[0]) else kinds[0]
        bounds = next((one for one in schema.get("anyOf", []) if one["type"] != "null"), schema)
        value = st.from_regex(PLAIN[key], fullmatch=True) if key in PLAIN else _any_value(base, bounds)
        if get_origin(field.annotation) is dict:
            value = _accounts(ACCOUNTS[key]) if key in ACCOUNTS else st.dictionaries(TEXT, value, max_size=2)
        if "anyOf" in schema:
            value = value | st.sampled_from([one.get("const") for one in schema["anyOf"][1:]])  # `auto`, or None
        if key not in FORMS and draw(st.booleans()):
            chosen[key] = draw(value)
    for key, form in FORMS.items():
        chosen[key] = tuple(draw(st.lists(st.from_regex(form, fullmatch=True), max_size=2)))
    for key in (key for key in known_keys() if key.endswith((".include", ".exclude"))):
        chosen[key] = tuple(draw(st.lists(st.sampled_from(["^http://a/[0-9]{1,2}$", "a,b", "[x]", " "]), max_size=2)))
    chosen["kafka.max_record_bytes"] = 1_000_000_000
    return load(chosen, environ={})


@given(_settings())
def test_a_child_process_loads_the_same_settings(settings: Settings) -> None:
    """`load` of `to_environ` is the identity, for every value that a setting can have."""
    environ = to_environ(settings)
    assert load(environ=environ) == settings
    assert all(isinstance(value, str) for value in environ.values())


def test_the_environment_beats_the_file_in_a_child(tmp_path: Path) -> None:
    """A flag that the parent was given survives a crawlog.toml that says otherwise, defaults included."""
    (tmp_path / "crawlog.toml").write_text("[fetch]\nconcurrency = 2\n[scope]\ninclude = ['x']\n")
    settings = load({"fetch.concurrency": 256, "scope.include": ()}, environ={})
    assert load(environ=to_environ(settings)) == settings


@pytest.mark.parametrize(
    ("table", "key"),
    [
        ("[engine]\njava = '/tmp/java'\n", "engine.java"),
        ("[render]\nbrowser = '/tmp/chromium'\n", "render.browser"),
        ("[security]\nspider_folders = ['/tmp']\n", "security.spider_folders"),
    ],
)
def test_a_file_that_was_found_and_not_named_decides_nothing_that_is_run(tmp_path: Path, table: str, key: str) -> None:
    """It came with what was unpacked there. Named, or where a stronger source sets the same, it is no error."""
    (tmp_path / "crawlog.toml").write_text(table)
    told = _problems(Sources(environ={}))
    assert f"crawlog.toml: {key} decides what is run" in told
    assert "--config crawlog.toml" in told
    named = load(config=Path("crawlog.toml"), environ={})
    assert values(named)[key] != values(Settings())[key]
    assert load(environ=to_environ(named)) == named


def test_a_process_that_is_told_its_settings_reads_no_file(tmp_path: Path) -> None:
    """Where it was started a broken one, or one of somebody else, may lie."""
    (tmp_path / "crawlog.toml").write_text("[engine]\njava = '/srv/theirs'\n[fetsch]\nx = 1\n")
    settings = Settings(fetch=Fetch(concurrency=7))
    assert load(config=NO_FILE, environ=to_environ(settings)) == settings


def test_a_stage_gets_only_the_secrets_that_it_uses() -> None:
    """All of them log in at the cluster, and only fetch anywhere else."""
    pairs = ["kafka.sasl_password=cluster", "snapshots.to=s3://key:secret@bucket", "fetch.headers=Key: said"]
    pairs += ["fetch.logins=https://u:secret@a.com", "exits.proxies=http://u:secret@p:1"]
    pairs += ["fetch.forms=https://a.com/in#password=secret", "fetch.concurrency=7"]
    pairs += ['service.users={"ann": "hers"}', 'service.tokens={"ci": "theirs"}']
    settings = resolve(Sources(pairs=pairs, environ={})).settings
    fetch = for_stage(settings, "fetch")
    assert (fetch.fetch, fetch.snapshots, fetch.service.users, fetch.service.tokens) == (
        settings.fetch,
        settings.snapshots,
        {},
        {},
    )
    service = for_stage(settings, "service").service
    assert (service.users, service.tokens) == ({"ann": "hers"}, {"ci": "theirs"})
    for stage in ("parse", "sink", "service"):
        told = for_stage(settings, stage)
        environ = to_environ(told)
        assert "secret" not in "".join(environ.values())
        # The service writes records of jobs: they name the headers, and say whether requests must go through a proxy.
        assert ("said" in environ["CRAWLOG_FETCH__HEADERS"]) == (stage == "service")
        assert bool(told.exits.proxies) == (stage == "service")
        assert resolve(Sources(environ=environ, config=NO_FILE)).settings.fetch == told.fetch
        assert (told.kafka.sasl_password, told.fetch.concurrency) == ("cluster", 7)


@pytest.mark.parametrize(
    ("table", "told"),
    [
        ({"a:b": "hunter2"}, "a name has 1 to 100 printable"),
        ({"": "hunter2"}, "a name has 1 to 100 printable"),
        ({"ann": ""}, "its password is missing"),
        ({"ann": {"role": "read"}}, "its password is missing"),
        ({"ann": {"password": "hunter2", "role": "root"}}, "its role is one of read, operate, deploy"),
        ({"ann": {"password": "hunter2", "rights": "all"}}, "rights: unknown"),
        ({"ann": "scrypt$hunter2"}, "its hash is scrypt$N$R$P$SALT$HASH"),
    ],
)
def test_a_wrong_account_is_told_by_its_number_without_its_secret(table: dict[str, Any], told: str) -> None:
    """In a file, in the environment, and from `-s`."""
    for sources in (
        Sources(pairs=[f"service.users={json.dumps(table)}"], environ={}),
        Sources(environ={"CRAWLOG_SERVICE__USERS": json.dumps(table)}),
    ):
        text = _problems(sources)
        assert "number 1: " + told in text
        assert "hunter2" not in text


def test_a_user_may_have_a_hash_of_scrypt_or_of_django() -> None:
    """Both forms are text; a password without such a beginning is a password."""
    users = {
        "ann": "scrypt$16384$8$1$c2FsdA$" + "A" * 43,
        "bob": {"password": "pbkdf2_sha256$600000$salt$" + "A" * 43 + "=", "role": "operate"},
        "cid": "plain$1$words",
    }
    assert load({"service.users": users}, environ={}).service.users == users


def test_variables_are_named_after_their_keys() -> None:
    """One name, two spellings."""
    assert environ_name("politeness.delay_s") == "CRAWLOG_POLITENESS__DELAY_S"
    assert json.loads(to_environ(Settings())["CRAWLOG_LINKS__SOURCES"]) == list(Settings().links.sources)


def test_the_reference_is_up_to_date() -> None:
    """docs/settings.md is what `crawlog settings --markdown` prints."""
    written = Path(__file__).parents[3] / "docs" / "settings.md"
    assert written.read_text() == as_markdown()


def test_addresses_of_outputs_are_shown_without_their_passwords() -> None:
    """Role `read` of the service sees them."""
    outputs = {"db": "postgresql://writer:hunter2@db.example/rows", "file": "/srv/{job}.csv"}
    shown = masked("sink.outputs", outputs)
    assert shown == {"db": "postgresql://********@db.example/rows", "file": "/srv/{job}.csv"}
