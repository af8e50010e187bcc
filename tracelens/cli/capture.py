"""``tracelens capture``: run a training command and record some of its steps."""

from __future__ import annotations

import click

from tracelens.errors import UsageError


@click.command(
    context_settings={"ignore_unknown_options": False, "allow_interspersed_args": False},
    short_help="Run a training script and record some of its steps.",
)
@click.option(
    "--out",
    default="traces",
    show_default=True,
    metavar="DIR",
    help="Where the trace files go, one per rank.",
)
@click.option(
    "--wait",
    default=5,
    show_default=True,
    type=click.IntRange(1),
    metavar="N",
    help="Steps before the profiler starts.",
)
@click.option(
    "--warmup",
    default=2,
    show_default=True,
    type=click.IntRange(0),
    metavar="N",
    help="Profiled and thrown away.",
)
@click.option(
    "--active", default=3, show_default=True, type=click.IntRange(1), metavar="N", help="Profiled and kept."
)
@click.option(
    "--ranks",
    default="all",
    show_default=True,
    metavar="LIST",
    help="Which ranks record: all, 0, 0,8 or 0-3.",
)
@click.option("--stop", is_flag=True, help="End the training once the traces are written.")
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
def capture(
    out: str, wait: int, warmup: int, active: int, ranks: str, stop: bool, command: tuple[str, ...]
) -> None:
    """Run COMMAND, a training script as it is, and record some of its steps.

    \b
    tracelens capture -- train.py ARGS
    tracelens capture -- -m package.train ARGS
    tracelens capture -- torchrun --nproc-per-node 8 train.py ARGS
    torchrun --nproc-per-node 8 -m tracelens capture -- train.py ARGS

    A step ends when the optimizer has stepped. Some steps are timed without the profiler, before and after.
    The exit code is the command's own.
    """
    from tracelens.capture.options import Options, parse_ranks
    from tracelens.capture.runner import run

    try:
        options = Options(
            out=out, wait=wait, warmup=warmup, active=active, ranks=parse_ranks(ranks), stop=stop
        )
    except ValueError as error:
        raise UsageError(str(error)) from error
    run(command, options)
