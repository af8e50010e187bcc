"""From result files to the calibration that ships and the page a person reads.

``python -m benchmarks.gpu.summarize`` writes the ledger of predictions ``results/<gpu>.ledger.csv`` and
``benchmarks/gpu/README.md``; with ``--ship`` also ``tracelens/hardware/calibration/<gpu>.json.gz`` for each
GPU with a finished GEMM sweep. A calibration knows one machine: it ships where it beats the model on
others' measurements, which that of the H100 does not (docs/bench.md). Results that were refused are judged
again by the checks as they are now. A dry run ships nothing: its results make a page in a folder of its own
with ``--results DIR --out DIR``, marked as what it is.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from benchmarks.gpu.ledger import as_csv, entries
from benchmarks.gpu.plan import make_plan
from benchmarks.gpu.proof_tables import stages_table
from benchmarks.gpu.record import TRACES, Record, calibration, read_records, verification_file
from benchmarks.gpu.stage import Setting
from benchmarks.gpu.stages import STAGES
from benchmarks.gpu.store import ROOT, Damaged, Folder, read_result, write_bytes, write_json
from benchmarks.gpu.tables import tables
from benchmarks.gpu.verification import verification
from benchmarks.paper.families import figures
from benchmarks.paper.source import of_record, read_published
from tracelens.errors import InputError
from tracelens.hardware.measurements import write_measurements

RESULTS = ROOT / "benchmarks" / "gpu" / "results"
README = ROOT / "benchmarks" / "gpu" / "README.md"
CALIBRATION = ROOT / "tracelens" / "hardware" / "calibration"
TEMPLATE = Path(__file__).with_name("readme.template.md")
#: Whose tables stand empty until something is measured.
_EXPECTED = "h200"
_DRY = "**A dry run on a CPU: nothing below was measured on a GPU.**\n\n"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu.summarize", description=__doc__)
    parser.add_argument(
        "--results", type=Path, default=RESULTS, metavar="DIR", help="results/ of a collection"
    )
    parser.add_argument("--traces", type=Path, metavar="DIR", help="where the captured traces lie")
    parser.add_argument("--ship", action="store_true", help="write the calibration into the package")
    parser.add_argument("--out", type=Path, metavar="DIR", help="README.md and calibration/ go here")
    options = parser.parse_args(arguments)
    readme = options.out / "README.md" if options.out else README
    shipped = options.out / "calibration" if options.out else CALIBRATION
    try:
        beside = options.results.parent / TRACES.name if options.out else TRACES
        traces = options.traces or beside
        for line in judge_again(options.results):
            print(line)
        records = read_records(options.results, traces=traces)
        if options.out is None and any(record.dry_run for record in records):
            raise InputError("these are results of a dry run: give --out, they are no part of the record")
        for line in ship(records, shipped) if options.ship or options.out else ():
            print(line)
        records = [verified(record, options.results) for record in records]
        readme.parent.mkdir(parents=True, exist_ok=True)
        readme.write_text(page(records), encoding="utf-8")
    except InputError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    print(f"{readme.name}: {len(records) or 'no'} GPU{'s' * (len(records) != 1)} measured")
    return 0


def judge_again(results: Path) -> list[str]:
    """Refused results whose data pass the checks as they are now become results; a line on each that does.

    Only what a stage's own check alone refused is asked again: neither a throttled GPU nor items that failed
    can be made good.
    """
    said = []
    by_name = {stage.name: stage for stage in STAGES}
    for path in sorted(results.glob("*/*.refused.json")):
        try:
            refused = read_result(path)
        except Damaged:
            continue
        stage = by_name.get(str(refused["stage"]))
        whole = path.with_name(f"{refused['stage']}.json")
        if stage is None or whole.exists() or not refused.get("of_data") or stage.check(refused["data"]):
            continue
        write_json(whole, refused | {"state": "done", "judged_again": refused["refused"], "refused": []})
        path.unlink()
        said.append(f"{path.parent.name}/{whole.name}: passes the checks as they are now")
    return said


def ship(records: Sequence[Record], folder: Path) -> list[str]:
    """Write the calibration of each GPU whose sweep is there; a line on each, with the reason for none."""
    said = []
    for record in records:
        try:
            measured = calibration(record)
        except InputError as reason:
            said.append(str(reason))
            continue
        path = folder / f"{record.gpu}.json.gz"
        write_measurements(measured, path)
        said.append(
            f"{path.name}: {len(measured.gemms)} GEMMs, {len(measured.attention)} attention calls, "
            f"{path.stat().st_size / 1e6:.1f} MB"
        )
    return said


def verified(record: Record, results: Path) -> Record:
    """The record with its predictions and traces checked anew, and written beside its results."""
    if record.dry_run:
        return record
    found = verification(record)
    write_json(verification_file(results / record.gpu), found)
    ledger = results / f"{record.gpu}.ledger.csv"
    write_bytes(ledger, as_csv(entries(record)).encode())
    return replace(record, verified=found)


def page(records: Sequence[Record]) -> str:
    """README.md. Without a record, the list of what is not measured."""
    sections = [_section(record) for record in records or [Record(_EXPECTED, {})]]
    return TEMPLATE.read_text(encoding="utf-8").format(stages=_stages(), records="\n".join(sections).rstrip())


def _section(record: Record) -> str:
    known = record.known
    title = known.title if known is not None else record.gpu
    empty = Record(record.gpu, {})
    blank = [stages_table(empty, STAGES), *tables(empty)]
    parts = list(zip([stages_table(record, STAGES), *tables(record)], blank, strict=True))
    shown = [table for table, without in parts if table != without]
    missing = [table.title for table, without in parts if table == without]
    text = f"## {title}\n{_DRY if record.dry_run else ''}"
    if missing:
        what = "Nothing" if not shown else "Only what the tables below show"
        text += f"{what} has been measured on this GPU. Not measured:\n\n"
        text += "".join(f"- {name}\n" for name in missing) + "\n"
    return text + "\n".join([*(table.markdown() for table in shown), *_beside_the_paper(record)])


def _beside_the_paper(record: Record) -> Iterator[str]:
    """What each figure of ``benchmarks.paper`` says of this GPU and of the paper's, without the figures."""
    drawn = figures(of_record(record), read_published(None)) if record.results else []
    for one in drawn:
        if one.measured and one.differs:
            said = "\n".join(f"- {line}" for line in one.differs)
            table = "".join(f"\n{line}" for line in ("", *one.table)) if one.table else ""
            yield f"### The paper's {one.letter}: {one.title}\n{one.shape}.\n\n{said}{table}\n"


def _stages() -> str:
    """What each stage writes, in order of value, with the minutes it is expected to take."""
    nowhere = Path("nowhere")
    plan = make_plan(STAGES, Folder(nowhere), Setting("none", _EXPECTED, False, nowhere, nowhere))
    lines = ["| stage | writes | items | about |", "|---|---|---|---|"]
    lines += [
        f"| `{line.stage.name}` | {line.stage.writes} | {line.items} | {_minutes(line.seconds)} min |"
        for line in plan
    ]
    total = sum(line.seconds for line in plan)
    return "\n".join([*lines, "", f"About {_minutes(total)} minutes in all."])


def _minutes(seconds: float) -> int:
    return max(1, round(seconds / 60))


if __name__ == "__main__":
    sys.exit(main())
