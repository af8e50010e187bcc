"""The command line: thin commands over the Python functions of the same names."""

from __future__ import annotations

import difflib
import sys

import click

from tracelens.cli.analyze import analyze
from tracelens.cli.bench import bench
from tracelens.cli.capture import capture
from tracelens.cli.compare import compare
from tracelens.cli.doctor import doctor
from tracelens.cli.explain import explain
from tracelens.cli.gemm import gemm
from tracelens.cli.history import history
from tracelens.cli.job import merge
from tracelens.cli.mcp import mcp
from tracelens.cli.open import open_trace
from tracelens.cli.streams import nobody_reads, open_closed, warn
from tracelens.cli.suggest import suggest
from tracelens.cli.verify import verify
from tracelens.errors import TracelensError, UsageError
from tracelens.version import __version__


class _Commands(click.Group):
    """A name that is no command gets the one it looks like."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        close = difflib.get_close_matches(args[0], self.commands, 1)
        if args[0] not in self.commands and close:
            ctx.fail(f"No such command {args[0]!r}. Did you mean {close[0]!r}?")
        return super().resolve_command(ctx, args)


@click.group(
    cls=_Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100}
)
@click.version_option(__version__, prog_name="tracelens")
def cli() -> None:
    """Where every GPU microsecond of a training step went, and what wastes it.

    \b
    Exit codes: 0 fine, 1 a gate failed, 2 wrong use, 3 input unusable.
    """


cli.add_command(analyze)
cli.add_command(bench)
cli.add_command(capture)
cli.add_command(compare)
cli.add_command(doctor)
cli.add_command(explain)
cli.add_command(gemm)
cli.add_command(mcp)
cli.add_command(history)
cli.add_command(merge)
cli.add_command(open_trace)
cli.add_command(suggest)
cli.add_command(verify)


def main() -> None:
    """Run the command line; a problem is one clear line on stderr, never a traceback."""
    open_closed()
    try:
        code = cli.main(standalone_mode=False)  # a command's Exit(n) comes back as n
        sys.stdout.flush()
    except click.ClickException as error:
        error.show()
        sys.exit(2)
    except (click.Abort, KeyboardInterrupt):
        click.echo("interrupted", err=True)
        sys.exit(130)
    except TracelensError as error:
        warn(str(error))
        sys.exit(error.exit_code)
    except BrokenPipeError:  # the reader of our output went away: `| head`
        nobody_reads()
        sys.exit(0)
    except OSError as error:
        if error.filename is not None:  # not of a stream: a fault of ours, to be seen whole
            raise
        nobody_reads()
        warn(f"cannot write to standard output: {error.strerror or error}")
        sys.exit(UsageError.exit_code)
    else:
        sys.exit(code if isinstance(code, int) else 0)
