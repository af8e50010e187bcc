"""``tracelens bench``: measure GEMMs and attention on the GPU at hand."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from tracelens.cli.progress import progress
from tracelens.cli.streams import end_measuring, need_torch, resume_option
from tracelens.errors import UsageError
from tracelens.numbers import count, mnk, ms, pct, sig

if TYPE_CHECKING:
    from tracelens.hardware import Gpu
    from tracelens.hardware.measurements import GemmMeasurement, Measurements
    from tracelens.measure.run import Result, Settings
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
@resume_option
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

    device = open_device("cpu" if cpu_dry_run else "cuda")
    budget = minutes if minutes is not None else _QUICK_MINUTES if quick else _MINUTES
    settings = _settings(device, wanted, minutes=budget, out=path, fresh=not resume)
    with progress(f"at most {budget:g} min", long=True, first="warming up") as bar:
        result = run(settings, device=device, progress=bar)
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


def summarize(result: Result) -> list[str]:
    """The lines to print after a run; the first says what was measured, the last where it is."""
    measured = result.measurements
    kept = f", {count(result.resumed)} of them in an earlier run" if result.resumed else ""
    name = measured.device.get("name")
    if measured.gpu == "cpu":
        name = "CPU, a test of the program that says nothing of a GPU"
    products, calls = count(len(measured.gemms)), count(len(measured.attention))
    took = f"{result.seconds:.0f} s" if result.seconds < 60 else f"{result.seconds / 60:.1f} min"
    lines = [
        f"{name}: {products} GEMMs and {calls} attention calls measured ({took}{kept})",
        *(f"  {line}" for line in _facts(measured, result.facts.gpu)),
    ]
    if not result.tried and result.stopped is None and not result.left:
        lines.append("  nothing was left to measure: --fresh measures anew")
    if result.stopped is not None:
        lines.append(f"  stopped early: {result.stopped}")
    if result.left:
        lines.append(f"  {count(result.left)} shapes left: the same command goes on with them")
    if result.previous is not None:
        lines.append(f"  the file that was there before is now {result.previous.name}")
    lines.append(f"written to {result.path}")
    return lines


def _facts(measured: Measurements, gpu: Gpu) -> list[str]:
    from tracelens.measure.summary import UNSTEADY_FRAC, ceilings, unsteady, worst_cliff

    lines = [_ceiling(best, gpu.peak(best.dtype)) for best in ceilings(measured.gemms)]
    if measured.bandwidth_gbps is not None:
        share = (
            f", {pct(measured.bandwidth_gbps / gpu.bandwidth_gbps)} of the datasheet's"
            f" {count(gpu.bandwidth_gbps)}"
            if gpu.bandwidth_gbps
            else ""
        )
        lines.append(f"memory {sig(measured.bandwidth_gbps)} GB/s copied{share}")
    if measured.launch_floor_us is not None:
        lines.append(f"the quickest GEMM takes {ms(measured.launch_floor_us / 1e3)}")
    if (cliff := worst_cliff(measured.gemms)) is not None:
        lines.append(
            f"the worst cliff: {_shape(cliff.slow)} takes {sig(cliff.factor, 2)} times as long as"
            f" the larger {_shape(cliff.fast)}"
        )
    varied = len(unsteady(measured.gemms))
    if varied > 0.05 * len(measured.gemms) and measured.gpu != "cpu":
        lines.append(
            f"{count(varied)} GEMMs varied by more than {UNSTEADY_FRAC:.0%}:"
            " does something else use this GPU?"
        )
    return lines + list(measured.notes)


def _ceiling(best: GemmMeasurement, peak: float | None) -> str:
    share = f", {pct(best.tflops / peak)} of the datasheet's {sig(peak)}" if peak else ""
    return f"{best.dtype} {sig(best.tflops)} TFLOP/s{share} ({_shape(best)})"


def _shape(row: GemmMeasurement) -> str:
    return f"{mnk(row.m, row.n, row.k, row.batch)} {row.dtype} {row.layout}"
