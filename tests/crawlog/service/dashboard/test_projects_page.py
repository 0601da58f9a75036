"""The pages of projects: versions by project, an upload as the API's PUT, and names that are only text."""

import re
from typing import Any

import pytest
from aiohttp import FormData, encode_basic_auth

from crawlog.commands.projects import Deployed, ProjectVersion
from crawlog.service import api_v1
from crawlog.service.dashboard import forms, projects_page
from crawlog.service.endpoint import ApiCall
from crawlog.streams.settings import Settings
from tests.support.serving import Client, served, service_settings

BAD = "<script>window.hit=1</script>\"'><img src=x onerror=alert(1)>"

USERS = {"ann": {"password": "a", "role": "deploy"}, "olga": {"password": "o", "role": "operate"}}

KNOWN = [
    ProjectVersion("books", "1", "aa", ("one",), 1.0, 10),
    ProjectVersion("shop", "1", "aa", ("old",), 1.0, 10),
    ProjectVersion(
        "shop", BAD, "bb", (BAD, *(f"s{number}" for number in range(20))), 2.0, 10, BAD, BAD, is_trusted=False
    ),
]


def _versions(_: Settings, project: str = "") -> list[ProjectVersion]:
    return [one for one in KNOWN if project in ("", one.project)]


async def _text(client: Client, path: str, user: str = "ann", status: int = 200) -> str:
    got = await client.get(path, headers={"Authorization": encode_basic_auth(user, user[0])})
    assert got.status == status, path
    return await got.text()


async def test_pages_show_versions_and_spiders_as_text(monkeypatch: pytest.MonkeyPatch) -> None:
    """Any writer of the topic may have chosen the names; only who may deploy has forms."""
    monkeypatch.setattr(projects_page, "versions", _versions)
    async with served(service_settings(users=USERS)) as client:
        for path in ("/ui/projects", "/ui/projects/shop"):
            for user in USERS:
                text = await _text(client, path, user)
                assert "<script>w" not in text
                assert "<img" not in text
                assert "not trusted" in text
                assert ('method="post"' in text) == (user == "ann")
        text = await _text(client, "/ui/projects/shop")
        assert text.count('name="each"') == 2
        assert "and 11 more" in text
        assert "books" not in (await _text(client, "/ui/projects?q=OLD")).partition("<tbody>")[2]
        assert "there is no project" in await _text(client, "/ui/projects/none", status=404)


async def test_an_upload_names_its_project_and_version_in_fields(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without scripts a form cannot put them into its address; no file is an error with a hint."""
    asked: list[tuple[dict[str, str], Any]] = []

    def deploy(call: ApiCall) -> Deployed:
        asked.append((call.path, call.body))
        return Deployed("shop", "2", "cc", ("a", "b"), is_trusted=False)

    changed = tuple(one._replace(does=deploy) if one.method == "PUT" else one for one in api_v1.ENDPOINTS)
    monkeypatch.setattr(forms, "ENDPOINTS", changed)
    monkeypatch.setattr(projects_page, "versions", _versions)
    async with served(service_settings(users=USERS)) as client:
        (token,) = set(re.findall(r'name="token" value="(\w+)"', await _text(client, "/ui/projects")))
        for content in (b"", b"PK"):
            form = FormData({"token": token, "back": "/ui/projects", "project": "shop", "version": "2"})
            form.add_field("file", content, filename="shop.zip")
            headers = {"Authorization": encode_basic_auth("ann", "a")}
            await client.post("/ui/do/projects/_/versions/_/put", data=form, headers=headers, allow_redirects=False)
            told = await _text(client, "/ui/projects")
            assert ("no file was chosen" in told) == (not content)
        assert "shop 2 is deployed with 2 spiders; workers here do not run it" in told
    assert asked == [({"project": "shop", "version": "2"}, b"PK")]
