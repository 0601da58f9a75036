"""A group of commands."""

from difflib import get_close_matches

import rich_click as click

from crawlog import outcome


class CommandGroup(click.RichGroup):
    """A group that keeps the order of its commands, and suggests a command for a misspelt one."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002  # click's signature
        """The commands as they were added."""
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
