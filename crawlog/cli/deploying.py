"""`crawlog deploy`, `projects` and `key`: code in the log, and the keys that sign it."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import rich_click as click
from click.core import ParameterSource

from crawlog import outcome
from crawlog.streams.printable import escaped, shown_time
from crawlog.terminal import answer, table, tell

from .options import CommandGroup, settings_of, settings_options
from .reach import existing_log, reachable_log

if TYPE_CHECKING:
    from crawlog.commands.projects import Deployed, ProjectVersion, Removed


@click.command()
@click.argument("source", metavar="[DIR]", type=click.Path(path_type=Path, exists=True), default=Path())
@click.option("--project", metavar="P", default="", help="Its name; without it the folder's.")
@click.option("--version", metavar="V", default="", help="Without it a clean repository's commit, or the time.")
@click.option("--key", "key_file", metavar="FILE", type=click.Path(path_type=Path), help="Sign with this key.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@settings_options
def deploy(source: Path, project: str, version: str, key_file: Path | None, as_json: bool, **given: Any) -> int:
    """Put a project into the log, signed: workers that trust the key run its spiders.

    DIR is a Scrapy project (the folder of its scrapy.cfg), a folder of spider files, or an egg. Default: here.
    """
    from crawlog.commands.projects import deploy as put
    from crawlog.jobs.schedules import follow_project

    settings = settings_of(given)
    with reachable_log(settings) as reached:
        from crawlog.streams.code import read_key
        from crawlog.streams.log import ensure_topics

        ensure_topics(reached, tell)
        key = read_key(key_file) if key_file else None
        named = project or (source.stem.partition("-")[0] if source.is_file() else "")
        found = put(reached, source.read_bytes() if source.is_file() else source, named, version, _user(), key)
        follow_project(reached, found.project, tell)
    if as_json:
        answer(msgspec.json.encode(found).decode())
    else:
        answer(*_deployed(found))
    return outcome.FINISHED


def _user() -> str:
    """The login name, for people."""
    import getpass

    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return ""


def _deployed(found: "Deployed") -> list[str]:
    shown = ", ".join(map(escaped, found.spiders[:20])) + (" …" if len(found.spiders) > 20 else "")
    lines = [
        f"deployed   {found.project} {found.version}, {found.size / 1e3:.0f} kB, sha256 {found.sha256[:12]}",
        f"spiders    {shown}",
        f"signed by  {found.key}",
    ]
    if not found.is_trusted:
        lines.append("workers of this data folder do not trust that key: add it to security.trusted_keys of workers")
    return lines


@click.group(cls=CommandGroup, invoke_without_command=True)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object a project.")
@settings_options
@click.pass_context
def projects(ctx: click.RichContext, /, as_json: bool, **given: Any) -> int:
    """Projects in the log: list (the default), show, delete."""
    if ctx.invoked_subcommand is None:
        return _list(as_json, given)
    if any(ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE for name in ctx.params):
        said = f"options go behind the action: `crawlog projects {ctx.invoked_subcommand} [OPTIONS]`"
        raise click.UsageError(said, ctx)
    return outcome.FINISHED


@projects.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object a project.")
@settings_options
def projects_list(as_json: bool, **given: Any) -> int:
    """List the projects with their newest version."""
    return _list(as_json, given)


def _list(as_json: bool, given: dict[str, Any]) -> int:
    from crawlog.commands.projects import versions

    with existing_log(settings_of(given)) as reached:
        found = versions(reached)
    newest = {one.project: one for one in found}
    if as_json:
        answer(*(msgspec.json.encode(one).decode() for one in newest.values()))
        return outcome.FINISHED
    counts = {name: sum(one.project == name for one in found) for name in newest}
    rows = [
        (one.project, one.version, str(counts[one.project]), str(len(one.spiders)), _when(one))
        for one in newest.values()
    ]
    heads = ("PROJECT", "NEWEST", "VERSIONS", "SPIDERS", "DEPLOYED")
    answer(*(table([heads, *rows], (2, 3)) if rows else ["no projects; `crawlog deploy` puts one into the log"]))
    return outcome.FINISHED


def _when(version: "ProjectVersion") -> str:
    at = f"{shown_time(version.at, None):%Y-%m-%d %H:%M}"
    by = f" by {escaped(version.by)}" if version.by else ""
    return f"{at}{by}{'' if version.is_trusted else ', key not trusted here'}"


@projects.command("show")
@click.argument("project")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object a version.")
@settings_options
def projects_show(project: str, as_json: bool, **given: Any) -> int:
    """Show the versions of a project, the newest last, and their spiders."""
    from crawlog.commands.projects import list_spiders, versions

    with existing_log(settings_of(given)) as reached:
        list_spiders(reached, project)  # says what there is, if this is not
        found = versions(reached, project)
    for one in found:
        if as_json:
            answer(msgspec.json.encode(one).decode())
        else:
            answer(
                f"{one.version}   {_when(one)}   sha256 {one.sha256[:12]}   key {one.key}",
                f"  {', '.join(map(escaped, one.spiders))}",
            )
    return outcome.FINISHED


@projects.command("delete")
@click.argument("project")
@click.option("--version", metavar="V", default="", help="This version only.")
@click.option("--revoke", is_flag=True, help="Workers start it no more, for jobs that have it too.")
@settings_options
def projects_delete(project: str, version: str, revoke: bool, **given: Any) -> int:
    """Delete a project, or one version: nothing new runs with it, and jobs that have it go on."""
    from crawlog.commands.projects import delete_project, delete_version

    with existing_log(settings_of(given)) as reached:
        if version:
            gone = delete_version(reached, project, version, _user(), revoke=revoke)
        else:
            gone = delete_project(reached, project, _user(), revoke=revoke)
    tell(*_removed(project, gone, revoke=revoke))
    return outcome.FINISHED


def _removed(project: str, gone: "Removed", *, revoke: bool) -> list[str]:
    lines = [f"{'revoked' if revoke else 'deleted'}   {project} {', '.join(gone.versions)}"]
    if gone.pinned:
        goes_on = "start it no more" if revoke else "go on with it, and its code stays in the log for them"
        lines.append(f"jobs that have it {goes_on}: {', '.join(map(escaped, gone.pinned[:20]))}")
    return lines


@click.group(cls=CommandGroup)
def key() -> None:
    """Keys that sign deployed code."""


@key.command("new")
@click.argument("file", type=click.Path(path_type=Path), default=Path("crawlog.key"))
def key_new(file: Path) -> int:
    """Make a key in FILE (crawlog.key), readable by you alone; print its public key for security.trusted_keys."""
    from crawlog.streams.code import make_key

    made = make_key(file)
    tell(f"keep {file} secret: who has it runs code on all workers that trust it")
    answer(made.public)
    return outcome.FINISHED


@key.command("show")
@click.argument("file", type=click.Path(path_type=Path), required=False)
@settings_options
def key_show(file: Path | None, **given: Any) -> int:
    """Print the public key of FILE; without it that of the data folder."""
    from crawlog.streams.code import folder_key_path, read_key

    answer(read_key(file or folder_key_path(settings_of(given).run.data)).public)
    return outcome.FINISHED
