"""The command line: arguments in, one command called, its result rendered, an exit code out.

Each command function imports its own code: `--help` loads no Kafka client, and `probe` loads no Faust. Answers go to
standard output, all other text to standard error.
"""

import sys
from typing import NoReturn

import rich_click as click

from crawlog import __version__, outcome
from crawlog.streams.errors import Misconfigured
from crawlog.streams.kernel import collect_seldom
from crawlog.terminal import repeat

from . import (
    changing,
    crawling,
    deploying,
    exporting,
    jobs,
    local,
    operate,
    querying,
    questions,
    recrawling,
    scheduling,
    stored,
    trying,
)
from .options import CommandGroup

click.rich_click.MAX_WIDTH = 120
click.rich_click.STYLE_HELPTEXT = ""

# The commands, in the order in which users need them.
IN_ORDER = (
    crawling.run,
    local.up,
    local.down,
    local.status,
    local.worker,
    local.engine,
    jobs.submit,
    jobs.jobs,
    jobs.outputs,
    scheduling.schedule,
    exporting.export,
    querying.query,
    operate.workers,
    crawling.seed,
    recrawling.recrawl,
    changing.changes,
    stored.topics,
    operate.control,
    stored.verify,
    questions.why,
    operate.dead,
    deploying.deploy,
    deploying.projects,
    deploying.key,
    stored.repair,
    questions.pages,
    stored.replay,
    trying.shell,
    trying.fetch,
    trying.parse,
    trying.init,
    trying.genspider,
    questions.doctor,
    questions.settings,
    stored.kcat_config,
    questions.probe,
)


@click.group(cls=CommandGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120})
@click.version_option(__version__, prog_name="crawlog")
def cli() -> None:
    """A web crawler whose only memory is a Kafka log."""


for _command in IN_ORDER:
    cli.add_command(_command)


def main(argv: list[str] | None = None) -> NoReturn:
    """Entry point of the console script."""
    outcome.open_streams()
    collect_seldom()
    arguments = sys.argv[1:] if argv is None else argv
    sys.exit(outcome.exit_code(lambda: _invoke(arguments), verbose=lambda: _is_verbose(arguments)))


def _invoke(arguments: list[str]) -> int:
    outcome.hear_interrupts()
    repeat({})
    try:
        code = cli.main(args=arguments, prog_name="crawlog", standalone_mode=False)
    except click.Abort:
        return outcome.INTERRUPTED
    except click.FileError as error:
        raise Misconfigured(error.format_message()) from None
    except click.ClickException as error:
        context = getattr(error, "ctx", None)
        path = context.command_path if context else "crawlog"
        message = error.format_message().replace("\n\t", " ")  # of a missing choice; tabs would be escaped
        raise Misconfigured(f"{message}\nSee `{path} --help`.") from None
    return code if isinstance(code, int) else outcome.FINISHED


def _is_verbose(arguments: list[str]) -> bool:
    before_operands = arguments[: arguments.index("--")] if "--" in arguments else arguments
    return bool({"-v", "--verbose"} & set(before_operands))
