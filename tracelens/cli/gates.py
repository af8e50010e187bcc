"""Options of commands that a CI runs: ``--fail-on``, annotations, Markdown for a job's summary."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

import click

from tracelens.errors import GateError, UsageError

if TYPE_CHECKING:
    from tracelens.gates import Judged

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Ci:
    """Which gates there are, and how they are to be judged and told."""

    fail_on: tuple[str, ...]
    unknown_fails: bool
    annotations: bool


def gate_options(kind: str, example: str) -> Callable[[click.decorators.FC], click.decorators.FC]:
    """``--fail-on`` and its kin for a command whose figures are of a "report", a "comparison" or a "job".

    The command gets them as one ``ci``, and its further options as it names them.
    """

    def decorate(command: click.decorators.FC) -> click.decorators.FC:
        @wraps(command)
        def with_ci(
            *, fail_on: tuple[str, ...], if_unknown: str, annotations: str | None, **given: Any
        ) -> None:
            ci = Ci(fail_on, unknown_fails=if_unknown == "fail", annotations=annotations is not None)
            command(ci=ci, **given)

        decorated: Any = with_ci
        for option in reversed(_options(kind, example)):
            decorated = option(decorated)
        return cast("click.decorators.FC", decorated)

    return decorate


def taking(options: Callable[..., T]) -> Callable[[Callable[[T], None]], Callable[..., None]]:
    """Give a command all its options as one value."""

    def decorate(command: Callable[[T], None]) -> Callable[..., None]:
        @wraps(command)
        def with_options(**given: Any) -> None:
            command(options(**given))

        return with_options

    return decorate


def _options(kind: str, example: str) -> list[Callable[[Any], Any]]:
    return [
        click.option(
            "--fail-on",
            "fail_on",
            multiple=True,
            metavar="EXPR",
            help=f'Exit with 1 when this holds, e.g. "{example}" (figures: --list-metrics); '
            "everything is written first. Repeatable.",
        ),
        click.option(
            "--if-unknown",
            type=click.Choice(["fail", "warn"]),
            default="fail",
            show_default=True,
            help="What a --fail-on does whose figure is not known here.",
        ),
        click.option(
            "--annotations",
            type=click.Choice(["github"]),
            help="Also print gates and findings as annotations of GitHub Actions, on standard output.",
        ),
        click.option(
            "--list-metrics",
            is_flag=True,
            is_eager=True,
            expose_value=False,
            callback=_lister(kind),
            help="Show the figures that --fail-on knows, and stop.",
        ),
    ]


def _lister(kind: str) -> Callable[[click.Context, click.Parameter, bool], None]:
    def show(context: click.Context, parameter: click.Parameter, asked: bool) -> None:
        if not asked or context.resilient_parsing:
            return
        from tracelens.gates import COMPARISON_METRICS, JOB_METRICS, REPORT_METRICS
        from tracelens.render.console import stdout_console
        from tracelens.render.gates import OF_A_FOLDER, render_metrics

        known: Mapping[str, Mapping[str, Mapping[str, Any]]] = {
            "report": {"": REPORT_METRICS, OF_A_FOLDER: JOB_METRICS},
            "comparison": {"": COMPARISON_METRICS},
            "job": {"": JOB_METRICS},
        }
        render_metrics(
            {title: list(one.values()) for title, one in known[kind].items()}, console=stdout_console()
        )
        context.exit(0)

    return show


def check_forms(forms: Mapping[str, str | None], ci: Ci, *, inputs: Sequence[str | None]) -> None:
    """Before the work: standard output holds one thing, and each file has a name and can be written.

    ``--markdown "$GITHUB_STEP_SUMMARY"`` has none outside of Actions. Raises UsageError.
    """
    if forms.get("markdown") == "":
        raise UsageError("--markdown: no file is named (is GITHUB_STEP_SUMMARY set here?)")
    on_stdout = printed(forms)
    if len(on_stdout) > 1:
        both = " and ".join(on_stdout)
        raise UsageError(f"{both} both write to standard output: give one of them a file")
    if ci.annotations and on_stdout:
        other = on_stdout[0]
        raise UsageError(f"--annotations and {other} both write to standard output: give it a file")
    check_files({_OPTIONS.get(form, f"--{form}"): path for form, path in forms.items()}, inputs=inputs)


_OPTIONS = {"html": "-o"}


def printed(forms: Mapping[str, str | None]) -> list[str]:
    """What goes to standard output in place of the summary, as it was asked for."""
    return [f"--{form} -" for form in ("json", "markdown") if forms.get(form) == "-"]


def check_files(files: Mapping[str, str | None], *, inputs: Sequence[str | None]) -> None:
    """Before the work: every file can be written, and none of them is an input or another output.

    ``files``: option -> file; None and "-" are none. Raises UsageError.
    """
    from tracelens.files import check_place

    taken = {_place(one): "it is an input" for one in inputs if one is not None}
    for option, path in files.items():
        if path is None or path == "-":
            continue
        place = _place(path)
        if place in taken and (os.path.isfile(place) or not os.path.exists(place)):
            raise UsageError(f"{option} {path}: {taken[place]}; give another name")
        taken[place] = f"{option} writes it too"
        if not _is_job_summary(path):
            check_place(path)


def _is_job_summary(path: str) -> bool:
    """Is it the file of a GitHub job, which is there and only added to?"""
    summary = os.environ.get("GITHUB_STEP_SUMMARY")
    return bool(summary) and _place(path) == _place(str(summary))


def _place(path: str) -> str:
    try:
        return os.path.realpath(path)
    except ValueError:  # a name that no file has
        return path


def write_markdown(path: str, text: str) -> None:
    """Write Markdown to a file; the file of $GITHUB_STEP_SUMMARY is added to, as GitHub wants it."""
    from tracelens.files import append_text, write_text

    if _is_job_summary(path):
        append_text(path, text)
    else:
        write_text(path, text)


def echo_markdown(text: str) -> None:
    """Print Markdown; on GitHub Actions no line of it is a command to the runner."""
    from tracelens.render.actions import disarm, on_actions

    click.echo(disarm(text) if on_actions() else text, nl=False)


def answer(
    forms: Mapping[str, str | None],
    made: Callable[[str], bytes | None],
    show: Callable[[list[tuple[str, int]]], None],
    *,
    gates: Sequence[Judged],
    ci: Ci,
    quiet: bool,
    notes: Callable[[], Sequence[str]] = tuple,
) -> None:
    """Write the forms that were asked for, print one of them or the summary, and end with the gates.

    ``forms``: name -> file, None where it was not asked for, "-" for standard output. ``made`` gives a form's
    bytes, or None where it has written the file itself. ``show`` prints the summary, with the (name, bytes)
    that were written. ``notes`` are further annotations. Raises GateError as ``finish`` does.
    """
    from tracelens.cli.streams import echo_json
    from tracelens.render.console import stdout_console
    from tracelens.render.gates import gate_annotations, render_gates

    on_stdout = printed(forms)
    written = _written(forms, made)
    told = not quiet and not on_stdout
    with shown():
        if on_stdout:
            form = "json" if forms.get("json") == "-" else "markdown"
            text = made(form) or b""
            echo_json(text) if form == "json" else echo_markdown(text.decode())
        elif told:
            show(written)
            render_gates(gates, console=stdout_console())
        if ci.annotations:
            for line in [*gate_annotations(gates, unknown_fails=ci.unknown_fails), *notes()]:
                click.echo(line)
    finish(gates, ci, told=told)


def _written(forms: Mapping[str, str | None], made: Callable[[str], bytes | None]) -> list[tuple[str, int]]:
    """Write the forms that go to files; (name, bytes) of each, in their order."""
    from tracelens.files import write_bytes

    written = []
    for form, path in forms.items():
        if path is None or (path == "-" and form != "html"):
            continue
        data = made(form)
        if data is not None and form == "markdown":
            write_markdown(path, data.decode())
        elif data is not None:
            write_bytes(path, data)
        written.append((path, Path(path).stat().st_size if Path(path).is_file() else 0))
    return written


@contextlib.contextmanager
def shown() -> Iterator[None]:
    """What is printed here can lose its reader (``| head``) without the gates losing their say."""
    from tracelens.cli.streams import nobody_reads

    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        nobody_reads()


def finish(gates: Sequence[Judged], ci: Ci, *, told: bool) -> None:
    """End with the gates' verdict, once everything else is written. ``told``: they were printed.

    Raises GateError when one failed, or could not be judged and that counts as failing.
    """
    from tracelens.cli.streams import warn
    from tracelens.render.gates import line

    failed = [one for one in gates if one.state == "failed"]
    unknown = [one for one in gates if one.state == "unknown"]
    if not told:
        for one in gates:
            if one.state == "open" or (one.state == "unknown" and not ci.unknown_fails):
                warn(line(one))
    if not ci.unknown_fails:
        unknown = []
    if not failed and not unknown:
        return
    said = []
    if failed:
        said.append(f"{_of(failed, gates)} failed: {', '.join(_short(one) for one in failed)}")
    if unknown:
        said.append(
            f"{_of(unknown, gates)} could not be judged: {', '.join(_short(one) for one in unknown)} "
            "(--if-unknown warn lets that pass)"
        )
    raise GateError("; ".join(said))


def _of(some: Sequence[Judged], gates: Sequence[Judged]) -> str:
    return "the gate" if len(gates) == 1 else f"{len(some)} of {len(gates)} gates"


def _short(one: Judged) -> str:
    from tracelens.render.gates import value, why

    return f"{one.gate.text} ({value(one) or why(one)[:160]})"
