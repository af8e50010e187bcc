"""The report for a tired reader at a terminal: identity, numbers, verdict, fixes, step bar, top GEMMs."""

from __future__ import annotations

import re
from collections.abc import Sequence

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from tracelens import numbers as f
from tracelens.render import costs, facts, groups, limit, search, step_times, verified, waits, what_if
from tracelens.render.console import NARROW, ROOMY
from tracelens.render.console import Out as _Out
from tracelens.render.findings import is_worth
from tracelens.render.five_numbers import five_numbers
from tracelens.render.terminal_verbose import TOP, communication, coverage, gemm_rows, step_bar
from tracelens.render.text import clean
from tracelens.render.verdict import lower, with_verdict
from tracelens.results import Finding, Report, Summary

WHYS = 2  # findings whose evidence is told
FINDINGS, NAMED = 3, 2  # findings, a line each, and how many of them a verdict names
COMPONENTS = 5  # groups of them
_FEW = 3  # on a narrow terminal
_VERDICT = 4  # lines, with what to try
_SENTENCE = re.compile(r"\S.*?[.!](?=\s|$)")
_PARTS = 5  # components of a group
_BAR = 8
_SEEN = 0.001  # of GPU time
_FIGURES = 21  # columns of share, time and gaps beside name, bar and parts
_OUTSIDE = 0.10  # of GPU time in no part of a transformer: from here on the terminal says what and why
_TITLE = 2  # the cell of a finding's line that is cut
_CELLS = 38  # columns of a finding's line beside its title
_SEVERITY = {"high": "bold red", "medium": "bold yellow", "low": "bold blue"}


def render_terminal(
    report: Report, *, console: Console, outputs: Sequence[tuple[str, int]] = (), verbose: bool = False
) -> None:
    """Print the report to ``console``; ``outputs`` are the (path, bytes) of files that were written.

    About 20 lines of 80 columns, and what was asked for by an option; ``verbose`` adds GEMMs, communication,
    coverage and evidence. Colour follows the console (NO_COLOR, pipes); strings from the trace are stripped
    of control characters and never read as markup.
    """
    out, report = _Out(console), with_verdict(report)
    _head(out, report, verbose=verbose)
    _numbers(out, report, verbose=verbose)
    _findings(out, report, verbose=verbose)
    _what_if(out, report)
    if verbose:
        step_bar(out, report)
        gemm_rows(out, report)
        communication(out, report)
        _waits(out, report)
        coverage(out, report)
    else:
        _components(out, report)
        _waits(out, report)
    _tail(out, report, outputs, verbose=verbose)


def _head(out: _Out, report: Report, *, verbose: bool) -> None:
    if report.trace.generated:
        out.line(f" {facts.GENERATED} ", "reverse bold")
    if report.trace.partial:
        out.line(_cut(out, facts.partial_line(report), verbose), "bold yellow")
    model, run = (" · ".join(clean(part, limit=60) for part in line)
                  for line in (facts.model_line(report), facts.run_line(report)))  # fmt: skip
    out.line(model if verbose else _fitting(model, out.width), "bold")
    out.line(run if verbose else _fitting(run, out.width, least=2))  # steps and GPU
    if verbose:
        out.line(report.trace.path, "dim")
    out.line()
    said = out.text(report.summary.verdict, "bold", limit=900 if verbose else _VERDICT * out.width)
    below = _below(report.summary, None if verbose else _VERDICT * out.width - len(said))
    out.line(said + out.text(below, limit=900))
    for found in limit.cards(report) if verbose else ():
        for line in [*found.saw, *(f"→ {one}" for one in found.todo)]:
            out.line(f"  {line}")
    out.line()


def _cut(out: _Out, text: str, verbose: bool, *, room: int = 0) -> str:
    """One line of a text, cut between words: a number that lost digits is a wrong number."""
    if verbose or cell_len(text) <= out.width - room:
        return text
    return clean(text, limit=out.width - room - 2).rpartition(" ")[0] + " …"


def _fitting(line: str, room: int, between: str = " · ", least: int = 1) -> str:
    """As many parts of a line as there is room for, and the first ``least`` of them on two lines."""
    parts = line.split(between)
    while len(parts) > least and cell_len(between.join(parts)) > room:
        parts.pop()
    return clean(between.join(parts), limit=least * room)


def _below(summary: Summary, room: int | None) -> str:
    """What to try, whatever room there is, and then the first sentences that still fit."""
    to_try, detail = summary.verdict_to_try, summary.verdict_detail
    if room is not None:
        room -= len(to_try) + 1 + _VERDICT * 6  # words do not end where lines do
        detail = " ".join(_first_sentences(detail, room))
    return "".join(f" {one}" for one in (to_try, detail) if one)


def _first_sentences(text: str, room: int) -> list[str]:
    """The first sentences that fit, whole ones only."""
    kept: list[str] = []
    for sentence in _SENTENCE.findall(text):
        room -= len(sentence) + 1
        if room < 0:
            break
        kept.append(sentence)
    return kept


def _numbers(out: _Out, report: Report, *, verbose: bool) -> None:
    numbers = five_numbers(report)
    if out.width < NARROW:
        for n in numbers:
            out.line(out.text(f"{n.value}  ", "bold") + out.text(n.label))
            if verbose:
                out.line(f"  {n.note}", "dim")
        out.line()
        return
    table = out.table([("", "fold")] * len(numbers), expand=True, gap=2 if out.width >= ROOMY else 1)
    table.add_row(*(out.text(n.value, "bold") for n in numbers))
    table.add_row(*(out.text(n.label if verbose else n.short or n.label) for n in numbers))
    if verbose:
        table.add_row(*(out.text(n.note, "dim") for n in numbers))
    out.print(table)
    for line in step_times.lines(report)[: None if verbose else 1]:
        out.line(_cut(out, line, verbose))
    out.line()


def _findings(out: _Out, report: Report, *, verbose: bool) -> None:
    checks = facts.checks_line(report)
    if not report.findings:
        passed = facts.checks_by_state(report)["passed"]
        head = "No findings" if passed else "No check could judge this trace"
        out.line(out.text(head, "bold") + out.text(f": {checks}{' (the page says why)' if verbose else ''}."))
        _job(out, report)
        _shape_search(out, report, verbose=verbose)
        out.line()
        return
    shown = report.findings if verbose else _first(report.findings)
    if out.width < NARROW and not verbose:
        for finding in shown:
            mark, rule, title, claim, part, _ = _finding_cells(out, finding)
            out.line(Text("  ").join([mark, rule, claim, part]))
            out.line(title)
    else:
        _findings_table(out, report, shown, verbose=verbose)
    more = len(report.findings) - len(shown)
    if verbose:
        _why(out, report)
    _job(out, report)
    for line in verified.lines(report):
        out.line(clean(line, limit=240))
    notes = [f"{more} more finding{'s' if more > 1 else ''}"] if more else []
    notes.append(checks)
    notes += [] if verbose else [f"% of the {'step' if report.summary.steps_marked else 'trace'}"]
    if any(finding.saving_ms.mid is None or finding.saving_of == "gpu_work" for finding in shown):
        notes.append("≤ is a bound")
    notes += [f"{one.rule} counts GEMMs alone" for one in shown if one.counts == "gemms"][:1]
    overlap = facts.overlap_words(report)
    if overlap and verbose:
        notes.append(overlap)
    out.line("; ".join(notes) if verbose else _fitting("; ".join(notes), out.width, "; "), "dim")
    _shape_search(out, report, verbose=verbose)
    out.line()


def _first(findings: Sequence[Finding]) -> list[Finding]:
    """The largest, and among them the predicted ones that the verdict names, larger bounds or not."""
    named = [at for at, one in enumerate(findings) if one.saving_ms.mid is not None][:NAMED]
    others = [at for at in range(len(findings)) if at not in named]
    return [findings[at] for at in sorted([*named, *others][:FINDINGS])]


def _findings_table(out: _Out, report: Report, shown: Sequence[Finding], *, verbose: bool) -> None:
    """A row each: mark, rule, title, saving and share; titles are cut where there are several."""
    kind = "fold" if verbose or len(shown) == 1 else "cut"
    heads = [("", "l"), ("rule", "l"), ("fix", kind), (facts.per_step(report).strip(), "r"), ("share", "r")]
    heads += [("confidence", "l")] if verbose else []
    table = out.table(heads if verbose else [("", how) for _, how in heads], expand=not verbose)
    rows = [_finding_cells(out, finding)[: len(heads)] for finding in shown]
    beside = sum(2 + max(row[at].cell_len for row in rows) for at in range(len(heads)) if at != _TITLE)
    for finding, row in zip(shown, rows, strict=True):
        if kind == "cut":
            row[_TITLE] = out.text(_cut(out, _told(finding, finding.title), verbose, room=beside))
        table.add_row(*row)
    out.print(table)


def _finding_cells(out: _Out, finding: Finding) -> list[Text]:
    """Mark, rule, title, saving, share and confidence."""
    style = _SEVERITY.get(finding.severity, "bold blue")
    saving, share = finding.saving_ms, finding.saving_frac
    if saving.mid is not None and saving.mid < 0:
        claim, part = f"slower by {f.ms(-saving.mid)}", f.pct((-share).mid)
    elif finding.saving_of == "gpu_work" and finding.counts == "kernels":
        claim, part = f"GPU ≤ {f.ms(saving.high)}", f.pct(share.high)
    elif finding.saving_of == "gpu_work":
        claim, part = f"0 to {f.ms(saving.high)}", f"≤ {f.pct(share.high)}"
    elif saving.mid is not None:
        claim, part = f"saves ≈ {f.ms(saving.mid)}", f.pct(share.mid)
    else:
        claim, part = f"≤ {f.ms(saving.high)}", f.pct(share.high)
    return [
        out.text(facts.MARKS.get(finding.severity, "●"), style),
        out.text(finding.rule, limit=8),
        out.text(_short(finding, out.width - _CELLS), limit=160),
        out.text(claim, style),
        out.text(part),
        out.text(finding.confidence, limit=18),
    ]


def _short(finding: Finding, room: int) -> str:
    """A title of two lines at most: without what stands behind its colon, where it takes more."""
    whole = _told(finding, finding.title)
    return whole if cell_len(whole) <= 2 * room else _told(finding, finding.action)


def _told(finding: Finding, title: str) -> str:
    """A title; of a change that trained weights do not survive, with that ahead."""
    return f"New model: {lower(title)}" if costs.new_model(finding) else title


def _why(out: _Out, report: Report) -> None:
    """Say what was seen, and what each change costs; findings that share both share the lines."""
    price = report.cost.price if report.cost else None
    worth = [one for one in report.findings if is_worth(one)]
    said = [(f"{one.rule}: {one.saw}", costs.finding_line(one, price)) for one in worth]
    for saw, takes in list(dict.fromkeys(said))[:WHYS]:
        out.line(clean(" ".join(_first_sentences(saw, 300)) or saw, limit=300))
        out.line(f"  {clean(takes, limit=240)}", "dim")


def _job(out: _Out, report: Report) -> None:
    """What the job costs, where a price was given; the page has the GPU-hours without one."""
    if report.cost is not None and report.cost.price is not None:
        for line in costs.job_lines(report):
            out.line(clean(line, limit=240), "dim")


def _what_if(out: _Out, report: Report) -> None:
    """Show each scenario that was asked for: the claim, what else changes, and the rows behind it."""
    for one in report.what_if:
        out.line(out.text("What if  ", "bold") + out.text(what_if.title(one), "bold"))
        parts = [part for part in (what_if.claim(one), what_if.spread(one)) if part]
        saving = one.saving_ms.mid
        style = "" if not saving else "bold green" if saving > 0 else "bold red"
        out.line(out.text(parts[0], style) + out.text("".join(f" · {part}" for part in parts[1:])))
        out.line(" · ".join([what_if.step(one), *what_if.costs(one)]))
        if one.rows:
            heads = [("row", "fold"), ("now", "fold"), ("then", "fold"), ("ms", "r"), ("then", "r")]
            table = out.table(heads)
            for row in one.rows[: what_if.ROWS]:
                table.add_row(
                    out.text(what_if.row_name(row), limit=30),
                    out.text(row.shape_now, limit=40),
                    out.text(row.shape_then, limit=60),
                    out.text(f.sig(row.time_ms)),
                    out.text(f.sig(row.then_ms.mid)),
                )
            out.print(table)
        for line in [*what_if.rest_lines(one), *one.notes]:
            out.line(line, "dim")
        out.line()


def _shape_search(out: _Out, report: Report, *, verbose: bool) -> None:
    """Say what the search for a faster shape came to; without ``verbose``, only where it found a change."""
    found = report.shape_search
    if found is None or (found.state == "could_not_run" and not report.model.transformer):
        return
    new = [one for one in found.picks if not any(search.same_change(each, one) for each in report.findings)]
    if not verbose and not new:
        return
    style = "green" if found.picks else ""
    out.line(
        out.text("Shape search  ", "bold") + out.text(search.line(found, report.findings), style, limit=300)
    )


def _components(out: _Out, report: Report) -> None:
    """The groups of components that take most GPU time, what is in each, and why some is unattributed."""
    shares = groups.group_shares(report)
    if not shares:
        return
    why = _outside(out, report) if out.width >= ROOMY else []
    many = max(_FEW, COMPONENTS - len(why)) if out.width >= ROOMY else _FEW
    largest = groups.largest(report, many)
    shown = [one for one in largest if one.frac >= _SEEN] or largest[:1]
    rest = [one for one in shares if one not in shown]
    said = [f"{len(rest)} more {f.pct(sum(one.frac for one in rest))}"] if rest else []
    said += [f"unattributed {f.pct(one.frac)}" for one in rest if one.key == "unattributed"]
    head = f"GPU time by component, {f.ms(report.summary.gpu_ms_per_step)}{facts.per_step(report)}"
    out.line(head + (f" ({'; '.join(said)})" if said else ""), "dim")
    names = [share.title if out.width >= ROOMY else share.short for share in shown]
    room = out.width - max(len(name) for name in names) - _BAR - _FIGURES
    table = out.table([("", "l"), ("", "r"), ("", "r"), ("", "l"), ("", "l")])
    for name, share in zip(names, shown, strict=True):
        bar = "█" * max(1, round(_BAR * share.frac / (shown[0].frac or 1.0)))
        below = share.key == "other" and share.frac >= _OUTSIDE
        parts = "" if below else _fitting(", ".join(groups.parts_of(report, share, _PARTS)), room, ", ")
        table.add_row(
            out.text(name, limit=24),
            out.text(f.pct(share.frac), "bold"),
            out.text(f.ms(share.ms_per_step), "dim"),
            out.text(bar, groups.colour_of(share.key)),
            out.text(parts if cell_len(parts) <= room and not parts.endswith("…") else "", "dim"),
        )
    out.print(table)
    for line in why:
        out.line(line, "dim")


def _outside(out: _Out, report: Report) -> list[str]:
    """What the time is that is in no part of a transformer, or why that is not known, where it is much."""
    covered, said = report.coverage, []
    parts = groups.outside_parts(covered, ("other",), _PARTS)
    if covered.other_frac >= _OUTSIDE and parts:
        said.append(_fitting(f"Other: {', '.join(parts)}", out.width, ", "))
    if covered.unattributed_frac >= _OUTSIDE and covered.unattributed:
        main = covered.unattributed[0]
        said.append(f"Unattributed: {main.reason}.")
        said += [f"Fix: {main.remedy}."] if main.remedy not in report.summary.verdict_detail else []
    return said


def _waits(out: _Out, report: Report) -> None:
    """Say where the step waits, where it was asked for."""
    said = waits.lines(report)
    if said:
        out.line(out.text("Waits  ", "bold") + out.text(" ".join(said), limit=500))
        out.line()


def _tail(out: _Out, report: Report, outputs: Sequence[tuple[str, int]], *, verbose: bool) -> None:
    warnings = [] if report.trace.partial else report.trace.warnings
    for warning in warnings if verbose else warnings[:1]:
        more = f" (and {len(warnings) - 1} more)" if len(warnings) > 1 and not verbose else ""
        out.line(_cut(out, f"warning: {clean(warning, limit=200)}", verbose, room=len(more)) + more, "yellow")
    out.wrote(outputs)
    if verbose:
        more_lines = _more(report)
        if more_lines:
            out.line(" · ".join(more_lines), "dim")
    else:
        rule = f", tracelens explain {clean(report.findings[0].rule, limit=12)}" if report.findings else ""
        changes = report.findings or report.summary.limited_by not in ("", "shapes")
        then = " · Check a fix: tracelens compare BEFORE AFTER" if changes and out.width >= ROOMY else ""
        out.line(f"More: -v{rule}{then}", "dim")


def _more(report: Report) -> list[str]:
    """Where the numbers above come from: commands that tell more."""
    told = (
        [f"the rule: tracelens explain {clean(report.findings[0].rule, limit=12)}"] if report.findings else []
    )
    row = next((row.id for row in report.gemms[:TOP] if row.lost_ms.useful is not None), None)
    told += [f"a GEMM: tracelens analyze TRACE --gemm {row}"] if row else []
    found = report.shape_search
    told += ["other shapes: tracelens suggest TRACE"] if found and (found.picks or found.unsure) else []
    return told
