"""Projects: list, deploy by upload, delete."""

from typing import Annotated

import msgspec

from crawlog.commands.projects import (
    Deployed,
    ProjectVersion,
    Removed,
    delete_project,
    delete_version,
    deploy,
    is_in_log,
    versions,
)

from .answers import AnswerError
from .endpoint import ApiCall, ApiEndpoint


class VersionsQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Of which project; empty for all."""

    project: Annotated[str, msgspec.Meta(max_length=200)] = ""


class RemovalQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Whether no worker starts the code any more, for jobs that pin it, too."""

    revoke: bool = False


def _versions(call: ApiCall) -> list[ProjectVersion]:
    return versions(call.settings, call.query.project)


def _known(call: ApiCall, version: str | None = None, *, revoke: bool = False) -> str:
    """The project that the path names. Raises: AnswerError: there is none, or it has no such version.

    Args:
        revoke: Whether a deleted version that the log still has counts too.
    """
    project = call.path["project"]
    if revoke and is_in_log(call.settings, project, version or ""):
        return project
    found = versions(call.settings, project)
    if not found or version not in (None, *(one.version for one in found)):
        named = project if version is None else f"{project} {version}"
        raise AnswerError(404, f"there is no project {named!r:.260}")
    return project


def _of_project(call: ApiCall) -> list[ProjectVersion]:
    return versions(call.settings, _known(call))


def _deploy(call: ApiCall) -> Deployed:
    return deploy(call.settings, call.body, call.path["project"], call.path["version"], call.user)


def _delete_version(call: ApiCall) -> Removed:
    version, revoke = call.path["version"], call.query.revoke
    return delete_version(call.settings, _known(call, version, revoke=revoke), version, call.user, revoke=revoke)


def _delete_project(call: ApiCall) -> Removed:
    revoke = call.query.revoke
    return delete_project(call.settings, _known(call, revoke=revoke), call.user, revoke=revoke)


_ONE = "/projects/{project}"
_VERSION = "/projects/{project}/versions/{version}"

ENDPOINTS = (
    ApiEndpoint("GET", "/projects", "read", "Projects' versions", list[ProjectVersion], _versions, query=VersionsQuery),
    ApiEndpoint("GET", _ONE, "read", "A project's versions, the newest last", list[ProjectVersion], _of_project),
    ApiEndpoint("PUT", _VERSION, "deploy", "Deploy an egg or a ZIP", Deployed, _deploy, body=bytes, status=201),
    ApiEndpoint("DELETE", _VERSION, "deploy", "Delete a version", Removed, _delete_version, query=RemovalQuery),
    ApiEndpoint("DELETE", _ONE, "deploy", "Delete a project", Removed, _delete_project, query=RemovalQuery),
)
