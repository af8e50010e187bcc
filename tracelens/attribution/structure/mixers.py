"""State-space mixers (Mamba, Mamba-2, gated DeltaNet), wherever they stand: no attention need be there.

Each is: products of the residual stream, a short causal convolution of every channel by itself, a scan along
the sequence whose state decays (an exponential), and a product that comes back to the stream
(state-spaces/mamba mamba_ssm/modules/mamba2.py, fla-org/flash-linear-attention fla/layers/gated_deltanet.py).
A short convolution without a decay is none of them, and neither is one with a window over pictures.
"""

from __future__ import annotations

from dataclasses import dataclass

from tracelens.attribution.structure.runs import Label, Run

_WINDOW = 8  # taps of the convolution at most: all public models take 3 or 4
_DECAYS = frozenset({"exp", "exp_"})
_NONE_INSIDE = frozenset({"core", "embedding", "loss", "fused_logits_loss", "optimizer"})
_PRODUCTS = ("gemm", "bmm")


@dataclass(frozen=True, slots=True)
class WithoutMixers:
    """What is left of ``whole`` without its state-space mixers: ``kept`` says where each unit stood."""

    whole: Run
    kept: list[int]
    run: Run

    def give_back(self) -> None:
        """The labels and the attention cores of the rest to the whole."""
        if self.run is self.whole:
            return
        self.whole.labels |= {self.kept[at]: label for at, label in self.run.labels.items()}
        self.whole.cores = [core.at(self.kept) for core in self.run.cores]


def without_mixers(run: Run) -> WithoutMixers:
    """Name the state-space mixers of a forward or recomputed run; returns the run without them."""
    inside: set[int] = set()
    for conv in range(len(run)):
        found = _mixer(run, conv) if conv not in inside and _is_short_convolution(run, conv) else None
        if found is not None:
            inside |= {*found}
            for at in found:
                run.labels[at] = Label(_part(run, at), evidence="local")
    if not inside:
        return WithoutMixers(run, [], run)
    kept = [at for at in range(len(run)) if at not in inside]
    left = Run(run.phase, [run.units[at] for at in kept], [run.kinds[at] for at in kept])
    left.counts_layers = run.counts_layers
    return WithoutMixers(run, kept, left)


def _part(run: Run, at: int) -> str:
    """A norm that is written out is part of the scan: queries and keys are normed in it, and its output."""
    kind = run.kinds[at]
    if kind.what == "norm":
        return "norm"
    if kind.what == "gemm":
        return "ssm.projection"
    convolves = any(run.kinds[p].what == "convolution" for p in (at, at - 1)) and kind.what not in _PRODUCTS
    return "ssm.conv" if convolves else "ssm.scan"


def _is_short_convolution(run: Run, at: int) -> bool:
    """Over the sequence, of each channel by itself: weight [channels, 1, taps]; without shapes any over one
    dimension."""
    kind = run.kinds[at]
    if not kind.tensors:
        return kind.what == "convolution" and kind.name == "conv1d"
    wide = [t for t in kind.tensors if len(t) == 3]
    if kind.what != "convolution" or len(wide) < 2:
        return False
    channels, within, taps = wide[1]
    return within == 1 and wide[0][1] == channels > 1 and 2 <= taps <= _WINDOW


def _mixer(run: Run, conv: int) -> range | None:
    """From the first product of the stream to the one that comes back to it, around a convolution."""
    opens = _opens(run, conv)
    for at in range(conv + 1, len(run)) if opens else ():
        kind = run.kinds[at]
        if kind.what in _NONE_INSIDE:
            return None
        if kind.what == "gemm" and _comes_back(run, opens[0], at):
            decays = any(run.kinds[p].name in _DECAYS for p in range(opens[0], at))
            return range(opens[0], at + 1) if decays else None
    return None


def _comes_back(run: Run, first: int, at: int) -> bool:
    """As wide as what the first product takes; without shapes: added to something, scaled or not, and that is
    no bias before an activation."""
    width, shape = run.shape(first), run.shape(at)
    if width is not None:
        return shape is not None and shape.n == width.k
    behind = (
        kind.what
        for kind in run.kinds[at + 1 :]
        if kind.what not in ("copy", "dropout") and kind.name != "mul"
    )
    return next(behind, "") == "add" and next(behind, "") != "activation"


def _opens(run: Run, conv: int) -> list[int]:
    """The products of one input before the convolution, one of them as wide as it at least."""
    channels = next((t[1] for t in run.kinds[conv].tensors if len(t) == 3), None)
    found: list[int] = []
    for at in range(conv - 1, -1, -1):
        kind, shape = run.kinds[at], run.shape(at)
        if kind.what in _NONE_INSIDE or kind.what in ("norm", "bmm", "softmax", "activation"):
            break
        if channels is None and kind.what == "add":
            break  # of the normalization before, or of the layer
        if kind.what == "gemm" and channels is None:
            found.insert(0, at)
        elif kind.what == "gemm":
            first = run.shape(found[0]) if found else shape
            if shape is None or first is None or (shape.m, shape.k) != (first.m, first.k):
                break
            found.insert(0, at)
    if channels is None:
        return found
    return found if any((s := run.shape(at)) is not None and s.n >= channels for at in found) else []
