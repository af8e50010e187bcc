"""``tracelens bench``: measure GEMMs and attention on the GPU at hand."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tracelens.cli.streams import end_measuring, need_torch
from tracelens.errors import UsageError

if TYPE_CHECKING:
    from tracelens.measure.cases import CaseOutcome
    from tracelens.measure.run import Settings
    from tracelens.measure.timing import Device

_MINUTES, _QUICK_MINUTES = 5.0, 1.0


@click.command(short_help="Measure this GPU: GEMMs and attention of training.")
@click.option(
    "--minutes",
    type=click.FloatRange(0, min_open=True),
    metavar="N",
    help=f"Stop after this time [default: {_MINUTES:g}]. A shorter run has a part of every sweep.",
)
@click.option("--quick", is_flag=True, help=f"bf16 only, {_QUICK_MINUTES:g} minute.")
@click.option(
    "--dtypes",
    metavar="LIST",
    help="What GEMMs are computed in, the first in full: bf16, fp16, fp8, tf32, fp32"
    " [default: bf16,fp16,fp8,tf32].",
)
@click.option(
    "--out",
    metavar="FILE",
    help="Where the measurements go, .json or .json.gz [default: where predictions look for them].",
)
@click.option(
    "--resume/--fresh",
    default=True,
    show_default=True,
    help="Take what was measured before by the same method, or measure anew.",
)
@click.option("--cpu-dry-run", is_flag=True, hidden=True)
def bench(
    minutes: float | None, quick: bool, dtypes: str | None, out: str | None, resume: bool, cpu_dry_run: bool
) -> None:
    """Measure this GPU: GEMMs and attention, as training runs them.

    What it finds calibrates predictions for this GPU: `analyze` and the other commands look for the file
    by themselves ($TRACELENS_CALIBRATION names another folder for it). Needs PyTorch with CUDA and the
    GPU to itself; nothing is set on the GPU. Ctrl-C keeps what was measured but the last few seconds, and
    the same command goes on from there.
    """
    path = _out(out)
    wanted = _dtypes(dtypes, quick=quick)
    need_torch("bench")
    from tracelens.measure.devices import open_device
    from tracelens.measure.run import run
    from tracelens.measure.summary import summarize

    device = open_device("cpu" if cpu_dry_run else "cuda")
    budget = minutes if minutes is not None else _QUICK_MINUTES if quick else _MINUTES
    settings = _settings(device, wanted, minutes=budget, out=path, fresh=not resume)
    with _progress(budget) as heard:
        result = run(settings, device=device, progress=heard)
    for line in summarize(result):
        click.echo(line)
    end_measuring(result.stopped)


def _out(out: str | None) -> Path | None:
    if out is None:
        return None
    if not out.endswith((".json", ".json.gz")):
        raise UsageError(f"cannot tell the format of {out}: end it in .json or .json.gz")
    return Path(out)


def _dtypes(text: str | None, *, quick: bool) -> tuple[str, ...]:
    known = ("bf16", "fp16", "fp8", "tf32", "fp32")
    if text is None:
        return ("bf16",) if quick else known[:4]
    wanted = tuple(dict.fromkeys(one.strip().lower() for one in text.split(",") if one.strip()))
    if not wanted or not set(wanted) <= set(known):
        raise UsageError(f"--dtypes {text}: choose among {', '.join(known)}")
    return wanted


def _settings(
    device: Device, dtypes: tuple[str, ...], *, minutes: float, out: Path | None, fresh: bool
) -> Settings:
    from tracelens.measure import sweeps
    from tracelens.measure.cases import MeasureOptions
    from tracelens.measure.facts import device_facts
    from tracelens.measure.run import Settings

    command = f"tracelens bench --minutes {minutes:g} --dtypes {','.join(dtypes)}"
    if device.kind == "cuda":
        gemms = sweeps.default_gemms(sms=device_facts(device).device["sms"], dtypes=dtypes)
        attention = sweeps.default_attention(dtypes=dtypes)
        return Settings(gemms, attention, minutes, out=out, fresh=fresh, command=command)
    gemms, attention = sweeps.dry_run()
    hasty = MeasureOptions(seconds_per_case=0.002, min_seconds=0.0, batch_us=50, max_calls=4, min_batches=3)
    return Settings(gemms, attention, minutes, out, fresh, f"{command} --cpu-dry-run", hasty)


@contextmanager
def _progress(minutes: float) -> Iterator[Callable[[CaseOutcome, int, int], None] | None]:
    """A bar on a terminal, nothing elsewhere: logs stay short."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    words = TextColumn(f"of at most {minutes:g} min: {{task.description}}")
    columns = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), words)
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("warming up", total=None)

        def heard(outcome: CaseOutcome, done: int, total: int) -> None:
            bar.update(task, completed=done, total=total, description=str(outcome.case))

        yield heard
