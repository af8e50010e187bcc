"""What users call and get: the results of the rooms below, which also show themselves in a notebook.

The rooms give plain values that know nothing of how they are shown; here each gets its page and its
pictures. ``tracelens`` offers these names on first use.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import fields
from difflib import get_close_matches
from functools import wraps
from inspect import signature
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from tracelens import analysis, suggestions
from tracelens.comparison import load
from tracelens.errors import UsageError
from tracelens.job import compare as jobs
from tracelens.render import compare_words
from tracelens.render.compare_folder_words import told_folders
from tracelens.render.verdict import told
from tracelens.results import Term
from tracelens.results.comparison import Comparison
from tracelens.results.folders import FolderComparison
from tracelens.results.suggestions import Suggestions

if TYPE_CHECKING:
    from tracelens.render.plots import Plots
    from tracelens.render.plots_compare import ComparisonPlots

P = ParamSpec("P")
T = TypeVar("T")
Shown = TypeVar("Shown")


class ShownAnalysis(analysis.Analysis):
    """An analysis with its page and pictures: ``tracelens.Analysis``."""

    @property
    def plots(self) -> Plots:
        """The pictures of the page, each by itself as SVG: ``analysis.plots.roofline()``."""
        from tracelens.render.plots import Plots

        return Plots(self.report)

    def figures(self, *, prefix: str = "") -> dict[str, float]:
        """What a logger of experiments takes: "step_ms", "mfu_frac", ...; see ``gates.figures``."""
        from tracelens.gates.figures import figures

        return figures(self.report, prefix=prefix)

    def derive(self, gemm: str) -> list[Term]:
        """How the figures of one GEMM row ("g1") come about, in lines that can be redone by hand.

        Raises UsageError when the report has no such row.
        """
        from tracelens.render.derivation import derive  # late, as all that draws

        for row in self.report.gemms:
            if row.id == gemm:
                return derive(row, self.report.gpu)
        raise UsageError(f"no GEMM row {gemm!r}: the report has g1 to g{len(self.report.gemms)}")

    def _repr_html_(self) -> str:
        """The page itself, in a frame of a notebook."""
        from tracelens.render.notebook import report_html

        return report_html(self.report)


class ShownComparison(Comparison):
    """A comparison with its page and pictures."""

    __slots__ = ()

    @property
    def plots(self) -> ComparisonPlots:
        """Pictures of the comparison as SVG: ``comparison.plots.components()``."""
        from tracelens.render.plots_compare import ComparisonPlots

        return ComparisonPlots(self)

    def _repr_html_(self) -> str:
        """The page of ``tracelens compare``, in a frame of a notebook."""
        from tracelens.render.notebook import comparison_html

        return comparison_html(self)


class ShownFolderComparison(FolderComparison):
    """A comparison of folders with its page."""

    __slots__ = ()

    def _repr_html_(self) -> str:
        """The page of ``tracelens compare``, in a frame of a notebook."""
        from tracelens.render.notebook import comparison_html

        return comparison_html(self)


class ShownSuggestions(Suggestions):
    """Suggestions as the terminal shows them."""

    __slots__ = ()

    def _repr_html_(self) -> str:
        """What the terminal shows, in a notebook."""
        from tracelens.render.notebook import suggestions_html

        return suggestions_html(self)


def _shown(
    kind: Callable[..., Shown], make: Callable[P, T], finish: Callable[[T], T] = lambda found: found
) -> Callable[P, Shown]:
    """The same function, which gives its result as ``kind``, a subclass without fields of its own."""

    @wraps(make)
    def made(*args: P.args, **options: P.kwargs) -> Shown:
        _check_names(make, options)
        found: Any = finish(make(*args, **options))
        return kind(**{one.name: getattr(found, one.name) for one in fields(found)})

    return made


def _check_names(make: Callable[..., Any], options: Iterable[str]) -> None:
    """Raises TypeError for an argument that ``make`` does not have, with the one that was probably meant."""
    known = list(signature(make).parameters)
    for name in options:
        if name not in known:
            close = get_close_matches(name, known, 1)
            meant = f"; did you mean {close[0]!r}?" if close else ""
            raise TypeError(f"{make.__name__}() has no argument {name!r}{meant}. It takes {', '.join(known)}")


analyze = _shown(ShownAnalysis, analysis.analyze, told)
compare = _shown(ShownComparison, load.compare, compare_words.told)
compare_folders = _shown(ShownFolderComparison, jobs.compare_folders, told_folders)
suggest = _shown(ShownSuggestions, suggestions.suggest)
