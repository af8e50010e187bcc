"""Attribution of architectures that nobody here wrote: python -m benchmarks.attribution_zoo [NAME ...]

Architectures of `transformers` (benchmarks/hub), or with ``--vision`` of `timm` and `torchvision`
(benchmarks/vision), or with ``--frameworks`` models as megatron-core and torchtitan write them
(benchmarks/frameworks), or with ``--libraries`` models of litgpt, torchtune, x-transformers, open_clip,
vit-pytorch and diffusers (benchmarks/libraries), recorded with shapes, are judged with module names given and
hidden against the table of the ``truth.py`` there: shares of the judged GPU time that are right, wrong and
unattributed. A third of the names, drawn by hash, is set aside: ``--held`` judges that third alone.

``--fresh N`` judges the N-th list that was written down before any of it was recorded (benchmarks/fresh), of
what none before held. Of `transformers`: 1 and 2 in the order of a hash, 3 one half of all else that can be
recorded, with ``--held`` the other half; 4 what could be recorded of the rest later, halved alike.
Of `timm` (``--vision``): 1 families, 2 models of modules with
attention, 3 to 5 one model more of each module. ``--libraries``: 1 of the six libraries (more.py), 2 of
packages of their authors (originals.py), 3 of packages for text (texts.py), 4 for pictures, sound, series and
molecules (senses.py), 5 of repositories that people clone (clones.py), 6 of more such
repositories (repos.py), 13 of what people write for themselves (owns.py); of 15, originals of papers and
packages of their authors, the names alone are here.

``--no-shapes`` judges recordings without shapes, ``--compiled`` those of `transformers` under torch.compile
(half a minute each), which hold no names, ``--setup`` those of `transformers` as people train them
(benchmarks/setups.py), ``--recorded DIR`` what ``benchmarks.gpu.hub`` recorded on a GPU. ``-v`` lists what is
wrong and what is open, by truth, what was found and operator.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import logging
import re
import statistics
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.gpu.recorded import read_recorded
from tests.synthetic.spec import Synthetic
from tests.trace.tools import read
from tracelens.attribution import attribute, open_functions
from tracelens.trace import link
from tracelens.words import COMPONENTS, EVIDENCE

#: Architectures; those unlike a plain decoder first.
NAMES = Path(__file__).with_name("hub").joinpath("names.txt").read_text().split()
VISION = Path(__file__).with_name("vision").joinpath("names.txt").read_text().split()
FRAMEWORKS = Path(__file__).with_name("frameworks").joinpath("names.txt").read_text().split()
LIBRARIES = Path(__file__).with_name("libraries").joinpath("names.txt").read_text().split()
FRESH = Path(__file__).with_name("fresh")


@dataclass
class Score:
    """Shares of judged GPU time, and what makes up the wrong and the open part."""

    right: float
    wrong: float
    open: float
    judged: float  # share of all GPU time
    plain: bool  # no attention in the model: nothing of a transformer is to be found
    what: dict[str, float]


def held(name: str) -> bool:
    """Is it of the third that is not looked at?"""
    return int(hashlib.sha256(name.encode()).hexdigest(), 16) % 3 == 0


def held_half(name: str) -> bool:
    """Is it of the half of the third or fourth list that is not looked at?"""
    return int(hashlib.sha256(("h3 " + name).encode()).hexdigest(), 16) % 2 == 0


def judge(folder: Path, made: Synthetic) -> Score:
    """Attribute a recording and compare; of a kernel that fuses several parts each of them is right."""
    from tests.synthetic.layout import document

    return judge_rows(folder, document(made), made.truth)


def judge_rows(folder: Path, document: Any, rows: Sequence[Any]) -> Score:
    """The same of a trace and its truth, a row for each kernel."""
    trace = open_functions(read(folder, document))
    links = link(trace)
    found = attribute(trace, links)
    truth = {row.correlation: row for row in rows if row.component != "optimizer"}
    plain = not any(row.component.startswith("attention") for row in rows)
    total = {"right": 0, "wrong": 0, "open": 0}
    everything = 0
    what: Counter[str] = Counter()
    for at in range(len(trace.kernels)):
        row = truth.get(int(trace.kernels.correlation[at]))
        if row is None:
            continue
        everything += row.duration_ns
        words = [word for part in (row.component, *getattr(row, "components", ())) for word in part.split()]
        if not words or not row.strict:  # the sum of two gradients is of either
            continue
        if plain:  # without attention all that is no part of a transformer is rightly called so
            words.append("other")
        component = COMPONENTS[found.component[at]]
        verdict = "right" if _fits(component, words) else "open" if _is_open(component, words) else "wrong"
        total[verdict] += row.duration_ns
        if verdict != "right":
            op = int(links.kernel_op[at])
            name = trace.symbols[int(trace.ops.name[op])] if op >= 0 else ""
            evidence = EVIDENCE[found.evidence[at]]
            module = re.sub(r"\.\d+", ".N", row.module or "")
            what[f"{verdict} {words[0]} -> {component} [{evidence}] {name} | {module}"] += row.duration_ns
    judged = sum(total.values()) or 1
    shares = {key: value / judged for key, value in total.items()}
    return Score(
        **shares,
        plain=plain,
        judged=judged / max(everything, 1),
        what={k: v / judged for k, v in what.items()},
    )


def _is_open(component: str, words: list[str]) -> bool:
    """Unattributed, no more than the block it is part of, or a copy that is nothing but a copy."""
    family, _, part = component.partition(".")
    return component in ("unattributed", "memory") or (
        part == "other" and any(w.startswith(family) for w in words)
    )


def _fits(component: str, words: list[str]) -> bool:
    return any(component == w or (w.endswith(".*") and component.startswith(w[:-1])) for w in words)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--vision", action="store_true", help="models of timm and torchvision")
    parser.add_argument("--frameworks", action="store_true", help="models of megatron-core and torchtitan")
    parser.add_argument("--libraries", action="store_true", help="models of six other libraries")
    parser.add_argument("--compiled", action="store_true", help="models of transformers under torch.compile")
    parser.add_argument(
        "--setup", help="models of transformers, trained so: benchmarks/setups.py has the words"
    )
    parser.add_argument("--recorded", type=Path, help="judge the recordings of a GPU in this folder")
    parser.add_argument("--no-shapes", action="store_true", help="judge recordings without shapes")
    parser.add_argument("--held", action="store_true", help="judge what was set aside")
    parser.add_argument(
        "--fresh", type=int, nargs="?", const=1, default=0, help="judge this list of benchmarks/fresh"
    )
    parser.add_argument("-v", action="store_true", help="list what is wrong and what is open")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args(arguments)
    source = next((name for name in ("frameworks", "libraries", "vision") if getattr(given, name)), "hub")
    record, everyone = _source("compiled" if given.compiled else source)
    if given.setup:
        record = partial(import_module("benchmarks.setups").record_setup, setup=given.setup)
    if given.recorded:
        files = {path.name.removesuffix(".json.xz"): path for path in given.recorded.glob("*.json.xz")}
        record, everyone = lambda name: read_recorded(files[name]), sorted(files)
    chosen = [name for name in everyone if held(name) == given.held]
    if given.fresh:
        kind = source if source in ("libraries", "vision") else "hub"
        lists = FRESH.joinpath(f"{kind}_{given.fresh}.txt" if given.fresh > 1 else f"{kind}.txt")
        chosen = lists.read_text().split()
    if given.fresh > 2 and source == "hub":
        chosen = [name for name in chosen if held_half(name) == given.held]
    logging.disable(logging.WARNING)
    rows: dict[str, dict[str, Any]] = {}
    for name in given.names or chosen:
        try:
            recorded = record(name)
        except Exception as error:  # what a model asks of its library on the meta device
            print(f"{name:24} not recorded: {type(error).__name__} {str(error)[:80]!r}", flush=True)
            continue
        rows[name] = {}
        for names in ("none",) if given.compiled else ("none", "frames"):
            made = recorded.trace(names, shapes=not given.no_shapes)
            with tempfile.TemporaryDirectory() as folder:
                score = (
                    judge_rows(Path(folder), made, recorded.rows())
                    if given.recorded
                    else judge(Path(folder), made)
                )
            rows[name][names] = vars(score)
        print(f"{name:24} " + "   ".join(_line(rows[name][names]) for names in rows[name]), flush=True)
        if given.v:
            for names, score in rows[name].items():
                for text, share in sorted(score["what"].items(), key=lambda kv: -kv[1])[:14]:
                    if share >= 0.001:
                        print(f"    {names:7} {share:6.2%} {text}")
    if given.json:
        given.json.write_text(json.dumps(rows))
    _summary(rows)


def _source(which: str) -> tuple[Callable[[str], Any], list[str]]:
    """What records an architecture, and the names of all."""
    if which == "frameworks":
        return import_module("benchmarks.frameworks.recording").record_framework, FRAMEWORKS
    if which == "libraries":
        return import_module("benchmarks.libraries.recording").record_library, LIBRARIES
    if which == "vision":
        return import_module("benchmarks.vision.recording").record_vision, VISION
    import_module("transformers").logging.set_verbosity_error()
    if which == "compiled":
        return import_module("benchmarks.hub.compiled").record_compiled_hub, NAMES
    return import_module("benchmarks.hub.recording").record_hub, NAMES


def _line(score: dict[str, Any]) -> str:
    return f"{score['right']:7.2%} wrong {score['wrong']:6.2%} open {score['open']:6.2%}"


def _summary(rows: dict[str, dict[str, Any]]) -> None:
    for names, least in (("none", 0.99), ("frames", 0.995)):
        scores = [row[names] for row in rows.values() if names in row and not row[names]["plain"]]
        plain = [row[names]["wrong"] for row in rows.values() if names in row and row[names]["plain"]]
        if plain:
            over = sum(wrong > 0.005 for wrong in plain)
            print(f"names {names}: {len(plain)} without attention; wrong > 0.5%: {over}")
        if not scores:
            continue
        good = sum(score["right"] >= least for score in scores)
        fair = sum(score["right"] >= 0.95 for score in scores)
        wrong = sum(score["wrong"] > 0.005 for score in scores)
        print(
            f"names {names}: {len(scores)} with attention; right >= {least:.1%}: {good}, >= 95%: {fair};"
            f" wrong > 0.5%: {wrong}; median right {statistics.median(s['right'] for s in scores):.2%},"
            f" mean wrong {np.mean([s['wrong'] for s in scores]):.2%}"
        )


if __name__ == "__main__":
    main()
