"""Runs one stage: item by item, in time, from where the last start left off, and refuses what is bad."""

from __future__ import annotations

import datetime
import hashlib
import json
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.gpu import checks
from benchmarks.gpu import device as devices
from benchmarks.gpu.device import Device
from benchmarks.gpu.stage import Item, Row, Setting, Skip, Stage
from benchmarks.gpu.store import SCHEMA, Folder, Progress, State, write_json

#: Estimates are estimates: an item is begun when it would fit even if it took this much longer.
MARGIN = 1.25
#: Reading clocks and neighbours: two readings under load, each with a command that may take its 20 s.
CLOCKS_S = 90.0


def quiet_s(item: Item) -> float:
    """After so long an item hangs: a first one compiles, loads libraries and lets cuDNN plan."""
    return 60.0 + 4.0 * item.seconds


class DeviceLost(Exception):
    """After a CUDA error that stays, nothing runs in this process any more; another process can go on."""


@dataclass(slots=True)
class Run:
    """One start of the collection."""

    device: Device
    folder: Folder
    traces: Path
    command: str
    until: float = float("inf")  # by ``clock``
    clock: Callable[[], float] = time.monotonic
    say: Callable[[str], None] = print
    #: Tells the watchdog for how many seconds nothing more may be heard; what takes longer is ended.
    quiet: Callable[[float], None] = lambda seconds: None
    known_traces: Path | None = None  # of earlier runs, when new ones go elsewhere
    read_clocks: Callable[[Device], dict[str, Any]] = devices.read_clocks
    read_others: Callable[[Device], dict[str, Any]] = devices.others

    @property
    def left_s(self) -> float:
        return self.until - self.clock()

    def setting(self, scratch: Path) -> Setting:
        return Setting(
            kind=self.device.kind,
            gpu=self.device.gpu,
            dry_run=self.device.kind == "cpu",
            traces=self.traces,
            scratch=scratch,
            results=self.folder.path,
            known_traces=self.known_traces,
            left_s=lambda: self.left_s,
            say=self.say,
        )


def run_stage(stage: Stage, run: Run) -> State:
    """Measure what is missing of ``stage`` until it is done or the time is over; the state afterwards."""
    state = run.folder.look(stage)
    if state.current:
        run.say(f"{stage.name}: current, {state.why}")
        return state
    if state.state == "damaged":
        run.say(f"{stage.name}: {state.why}; measured again")
    with tempfile.TemporaryDirectory(prefix="tracelens-gpu-") as scratch:
        _Measuring(stage, run, run.setting(Path(scratch))).run()
    return run.folder.look(stage)


class _Measuring:
    def __init__(self, stage: Stage, run: Run, setting: Setting):
        self.stage, self.outer, self.setting = stage, run, setting
        self.progress: Progress = run.folder.begin(stage)
        self.items: Sequence[Item] = stage.items(setting)
        self.pace = 1.0  # seconds taken over seconds expected, so far
        self.spent = self.expected = 0.0
        self.mine: list[str] = []  # items measured in this session
        gone = [key for key, row in self.progress.rows.items() if not self._has_files(row)]
        if gone:  # the row came home, its trace did not
            self.progress.append("drop", gone)

    def _has_files(self, row: Row) -> bool:
        return all(self.setting.trace(name) is not None for name in row.get("files", ()))

    def missing(self) -> list[Item]:
        """What is to be measured; an item that ended an earlier process comes last."""
        progress = self.progress
        over = progress.rows.keys() | progress.skipped.keys() | progress.given_up.keys()
        left = [item for item in self.items if item.key not in over]
        return sorted(left, key=lambda item: progress.tries.get(item.key, 0))

    def run(self) -> None:
        todo, run, name = self.missing(), self.outer, self.stage.name
        if todo and not self._fits(self.stage.setup_s + todo[0].seconds):
            run.say(f"{name}: not begun, {run.left_s:.0f} s are left")
            return
        if todo and not self._measure(todo):
            return
        if left := self.missing():
            run.say(f"{name}: {len(self.items) - len(left)} of {len(self.items)} items, the rest next time")
            return
        self._finish()

    def _fits(self, seconds: float) -> bool:
        return self.outer.left_s >= MARGIN * self.pace * seconds

    # -- measuring --------------------------------------------------------------------------------

    def _measure(self, todo: Sequence[Item]) -> bool:
        """One session. False: its conditions were bad and nothing of it is kept."""
        run, progress = self.outer, self.progress
        run.quiet(CLOCKS_S)
        busy = checks.alone([run.read_others(run.device)])
        if busy:
            run.say(f"{self.stage.name}: not begun, {busy[0]}")
            self._refuse(busy)
            return False
        before = run.read_clocks(run.device)
        begun = run.clock()
        progress.append(
            "session", {"date": now(), "command": run.command, "clocks_before": before, "clocks_after": None}
        )
        self._items(todo)
        self._items(self.missing())  # a second try for what failed
        run.quiet(CLOCKS_S)
        after, company = run.read_clocks(run.device), run.read_others(run.device)
        progress.append(
            "session_end",
            {"clocks_after": after, "others": company, "seconds": round(run.clock() - begun, 1)},
        )
        bad = checks.clocks([before, after]) + checks.alone([company])
        if bad:
            self._refuse(bad)
            progress.append("drop", self.mine)
            return False
        return True

    def _items(self, todo: Sequence[Item]) -> None:
        run = self.outer
        for item in todo:
            if not self._fits(item.seconds):
                run.say(f"{self.stage.name}: stopped in time, {run.left_s:.0f} s are left")
                return
            started = run.clock()
            self._one(item)
            self.spent, self.expected = self.spent + run.clock() - started, self.expected + item.seconds
            if self.expected > 0:
                # a first item may be slow (compilation); never believe in less than half
                self.pace = max(0.5, self.spent / self.expected)

    def _one(self, item: Item) -> None:
        run, progress, name = self.outer, self.progress, self.stage.name
        at = len(progress.rows) + len(progress.skipped) + 1
        run.quiet(quiet_s(item))
        if item.key not in progress.predictions and self.stage.predict is not None:
            progress.append("predicted", [item.key, self._predicted(item)])
        progress.append("begin", item.key)
        started = run.clock()
        try:
            row = self.stage.measure(self.setting, item)
            json.dumps(row, allow_nan=False)
        except Skip as skip:
            progress.append("skipped", [item.key, str(skip)])
            run.say(f"{name} {at}/{len(self.items)} {item.key}: not on this device: {skip}")
            return
        except Exception as error:
            why = f"{type(error).__name__}: {error}".splitlines()[0][:300]
            progress.append("failed", [item.key, why])
            run.say(f"{name} {at}/{len(self.items)} {item.key}: failed: {why}")
            self._survives(why)
            return
        progress.append("row", [item.key, row])
        self.mine.append(item.key)
        run.say(f"{name} {at}/{len(self.items)} {item.key}: {_brief(row)}, {run.clock() - started:.1f} s")

    def _predicted(self, item: Item) -> dict[str, Any] | None:
        """A prediction that fails costs itself, never the measurement."""
        assert self.stage.predict is not None
        try:
            found = self.stage.predict(self.setting, item)
            json.dumps(found, allow_nan=False)
        except Exception as error:
            return {"why": f"{type(error).__name__}: {error}"[:300]}
        return found

    def _survives(self, why: str) -> None:
        """An error of a kernel stays with the process: every later call would fail for another's fault."""
        if self.outer.device.kind != "cuda":
            return
        import torch

        self.setting.store.clear()
        try:
            torch.cuda.synchronize()
            torch.cuda.empty_cache()
            torch.zeros(1, device="cuda").item()
        except Exception as error:
            raise DeviceLost(why) from error

    # -- the result -------------------------------------------------------------------------------

    def _finish(self) -> None:
        """Every item has a row or a reason: the result file, or the refused one."""
        stage, progress = self.stage, self.progress
        wanted = {item.key for item in self.items}
        rows = {item.key: progress.rows[item.key] for item in self.items if item.key in progress.rows}
        failed = {key: why for key, why in progress.given_up.items() if key in wanted}
        facts = checks.spread(rows, stage.max_spread_frac)
        try:
            data = stage.summarize(self.setting, list(rows.values()))
            checked = wrong = stage.check(data)
        except Exception as error:
            data, wrong = {"rows": list(rows.values())}, [f"no summary: {type(error).__name__}: {error}"]
            checked = []
        if not self.setting.dry_run:  # toy sizes on a busy CPU spread as they like
            wrong = checks.rows(stage, items=len(self.items), failed=failed, facts=facts) + wrong
        elif failed:
            wrong = checks.rows(stage, items=len(self.items), failed=failed, facts={}) + wrong
        result = self._result(data, facts, failed, self._files(rows), wrong)
        total = len(json.dumps(result, indent=1)) + sum(one["bytes"] for one in result["files"])
        wrong += checks.size(stage, total)
        if wrong:
            result |= {"state": "refused", "refused": wrong, "of_data": wrong == checked}
            write_json(self.outer.folder.refused(stage), result)
            self.outer.say(f"{stage.name}: refused: {'; '.join(wrong)}")
        else:
            write_json(self.outer.folder.result(stage), result)
            self.outer.folder.refused(stage).unlink(missing_ok=True)
            self.outer.say(f"{stage.name}: done, {len(rows)} items, {total / 1e6:.1f} MB")
        progress.remove()

    def _refuse(self, reasons: list[str]) -> None:
        """A session in bad conditions: said in a file of its own; rows of good sessions stay."""
        rows = {key: self.progress.rows[key] for key in self.mine if key in self.progress.rows}
        facts = checks.spread(rows, self.stage.max_spread_frac)
        result = self._result({"rows": rows}, facts, {}, [], reasons)
        write_json(self.outer.folder.refused(self.stage), result | {"state": "refused", "refused": reasons})
        self.outer.say(f"{self.stage.name}: refused: {'; '.join(reasons)}")

    def _files(self, rows: Mapping[str, Row]) -> list[dict[str, Any]]:
        """What the rows wrote beside the result, with its size and digest."""
        found = []
        for name in dict.fromkeys(name for row in rows.values() for name in row.get("files", ())):
            path = self.setting.trace(name)
            assert path is not None, name
            data = path.read_bytes()
            digest = hashlib.sha256(data).hexdigest()
            found.append({"name": name, "bytes": len(data), "sha256": digest})
        return found

    def _result(
        self,
        data: Mapping[str, Any],
        facts: Mapping[str, Any],
        failed: Mapping[str, str],
        files: list[dict[str, Any]],
        refused: list[str],
    ) -> dict[str, Any]:
        run, sessions = self.outer, self.progress.sessions
        return {
            "schema": SCHEMA,
            "stage": self.stage.name,
            "gpu": run.device.gpu,
            "dry_run": self.setting.dry_run,
            "state": "refused" if refused else "done",
            "refused": refused,
            "date": now(),
            "command": run.command,
            "method": self.stage.method,
            "device": dict(run.device.properties),
            "software": dict(run.device.software),
            "clocks": {
                "before": sessions[0].get("clocks_before") if sessions else None,
                "after": sessions[-1].get("clocks_after") if sessions else None,
            },
            "sessions": sessions,
            "seconds": round(sum(one.get("seconds") or 0.0 for one in sessions), 1),
            "spread": dict(facts),
            "failed": dict(failed),
            "skipped": dict(self.progress.skipped),
            "files": files,
            "predictions": {
                item.key: self.progress.predictions[item.key]
                for item in self.items
                if self.progress.predictions.get(item.key) is not None
            },
            "data": dict(data),
        }


def now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


def _brief(row: Row) -> str:
    """The line a person reads while waiting: the row's own words, or its first figures."""
    if isinstance(row.get("brief"), str):
        return str(row["brief"])
    figures = [(key, value) for key, value in row.items() if isinstance(value, (int, float))]
    return ", ".join(f"{key} {value:.4g}" for key, value in figures[:3]) or "measured"
