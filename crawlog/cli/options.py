"""Options that several commands share, the settings made of them, and a group of commands."""

from collections.abc import Callable, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import rich_click as click

from crawlog import outcome
from crawlog.terminal import repeat

if TYPE_CHECKING:
    from crawlog.commands.named_spider import Pairs
    from crawlog.streams.settings import Settings, Sources

Command = TypeVar("Command", bound=Callable[..., Any])

ON_FINISH = "Post the end to this URL, or run a declared command. Repeatable."

WHEREABOUTS = ("run.data", "kafka.bootstrap", "kafka.prefix")  # Settings that identify a crawl


def settings_options(command: Command) -> Command:
    """Adds `-s`, `--config`, `--data`, `--bootstrap` and `-v`, for every command with settings."""
    for option in (
        click.option("-v", "--verbose", is_flag=True, help="Log more; show the traceback of an error."),
        click.option("--bootstrap", metavar="HOST:PORT", help="Your Kafka cluster; without it crawlog runs its own."),
        click.option("--data", metavar="DIR", type=click.Path(path_type=Path), help="Data folder (.crawlog)."),
        click.option("--config", metavar="FILE", type=click.Path(path_type=Path), help="Settings file (crawlog.toml)."),
        click.option("-s", "pairs", metavar="KEY=VALUE", multiple=True, help="Set one setting; may be repeated."),
    ):
        command = option(command)
    return command


# Option of the commands that start workers.
accept_skipped = click.option(
    "--accept-skipped",
    "accepts_skipped",
    is_flag=True,
    help="Leave out the records that another program, such as Kafka's tools, had a consumer group skip.",
)


def one_file(context: click.Context, _: click.Parameter, given: tuple[str, ...]) -> str | None:
    """The file of an `-o` that may be given once; click itself would take the last one and drop the others.

    Raises: UsageError: several were given.
    """
    if len(given) > 1:
        raise click.UsageError(
            f"-o {' and -o '.join(given)}: `{context.command_path}` writes one file; `crawlog submit` takes several -o,"
            " and `crawlog export` makes more files from the log"
        )
    return given[0] if given else None


def _whereabouts(given: dict[str, Any]) -> dict[str, object]:
    """The given options that identify the crawl."""
    named = {f"--{name}": given[name] for name in ("data", "bootstrap", "config") if given[name] is not None}
    pairs = (pair.partition("=") for pair in given["pairs"])
    return named | {f"-s {key}=": value for key, _, value in pairs if key in WHEREABOUTS}


def sources_of(
    given: dict[str, Any], flags: dict[str, object] | None = None, spider: "Mapping[str, object] | None" = None
) -> "Sources":
    """The sources of the settings, from the values of `settings_options` and a command's own flags."""
    from crawlog.streams.settings import Sources

    repeat(_whereabouts(given))
    named = {"run.data": given["data"], "kafka.bootstrap": given["bootstrap"], **(flags or {})}
    if given["verbose"]:
        named["log.level"] = "debug"
    flagged = {key: value for key, value in named.items() if value is not None}
    return Sources(flags=flagged, pairs=given["pairs"], spider=spider or {}, config=given["config"])


def scrapy_apart(given: dict[str, Any]) -> "tuple[dict[str, Any], Pairs]":
    """The values of `settings_options` without Scrapy's settings (`-s UPPER=VALUE`), and these."""
    from crawlog.commands.named_spider import scrapy_apart as apart

    pairs, scrapy = apart(given["pairs"])
    return given | {"pairs": pairs}, scrapy


def settings_of(
    given: dict[str, Any], flags: dict[str, object] | None = None, spider: "Mapping[str, object] | None" = None
) -> "Settings":
    """The settings in force, from the values of `settings_options` and a command's own flags."""
    from crawlog.streams.settings import resolve

    return resolve(sources_of(given, flags, spider)).settings


class CommandGroup(click.RichGroup):
    """A group that keeps the order of its commands, and suggests a command for a misspelt one."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002  # click's signature
        return list(self.commands)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """The arguments after the options. Without any, help goes to standard error."""
        if not args and self.no_args_is_help and not ctx.resilient_parsing:
            click.echo(ctx.get_help(), err=True)
            ctx.exit(outcome.USAGE)
        return super().parse_args(ctx, args)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """The command that the first argument names.

        Raises: UsageError: there is no command of this name; the message suggests one.
        """
        if args and args[0] not in self.commands and not args[0].startswith("-"):
            close = get_close_matches(args[0], self.commands, n=1)
            meant = f"Did you mean `{ctx.command_path} {close[0]}`?" if close else ""
            hint = meant or f"There are: {', '.join(self.commands)}."
            raise click.UsageError(f"No such command '{args[0]}'. {hint}", ctx)
        return super().resolve_command(ctx, args)
