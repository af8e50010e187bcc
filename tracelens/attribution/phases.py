"""Forward, backward, recompute, optimizer: what every place in the host code is part of."""

from __future__ import annotations

import re

import numpy as np

from tracelens.attribution.paths import Paths
from tracelens.trace import BoolArray, CodeArray, Links, Trace, look_up
from tracelens.trace.autograd import EVALUATE
from tracelens.words import PHASES

_ACCUMULATE = EVALUATE + "torch::autograd::AccumulateGrad"
#: Of ranges that name a phase, as a word of its own (``backward``, ``bwd_inner`` of DeepSpeed) or behind the
#: part: ``mlp(F)``, ``mlp(B)``, ``mlp(W)`` of DualPipe. ``forward_backward`` is both, and so neither.
_END = r"([ _.-]?(pass|step|inner|micro_?step))?\W*$)"
_BACKWARD_RANGE = re.compile(
    r"(?i)^(?!.*(forward|fwd|hook))(.*\((B|W)\)$|\W*(\w+[ .:])?(backward|bwd)" + _END
)
_FORWARD_RANGE = re.compile(r"(?i)^(?!.*(backward|bwd|hook))(.*\(F\)$|\W*(\w+[ .:])?(forward|fwd)" + _END)
#: Autograd names the operator of a node after it; before PyTorch 1.10 nothing else says so.
_NODE = re.compile(r"\w+Backward\d*$|torch::autograd::\w+$")
_PHASE = {phase: code for code, phase in enumerate(PHASES)}


class Phases:
    """The phase of every host node."""

    def __init__(self, trace: Trace, links: Links, paths: Paths):
        texts = trace.symbols
        forest = links.forest
        evaluates = links.is_op & texts.where(lambda t: t.startswith(EVALUATE))[links.name]
        self.evaluate = forest.nearest(evaluates)
        self.accumulates = links.is_op & texts.where(lambda t: t.startswith(_ACCUMULATE))[links.name]
        self.backward = self.evaluate >= 0
        backward_ops = np.zeros(len(links.name), np.bool_)
        backward_ops[links.ops_at] = trace.ops.forward_thread > 0
        backward_ops |= links.is_op & texts.where(lambda t: bool(_NODE.match(t)))[links.name]
        self.backward |= forest.nearest(backward_ops) >= 0
        forward_ops = np.zeros(len(links.name), np.bool_)
        forward_ops[links.ops_at] = (trace.ops.sequence >= 0) & (trace.ops.forward_thread <= 0)
        forward_op = forest.nearest(forward_ops)
        self.with_gradient = forward_op >= 0
        no_op = forest.nearest(links.is_op) < 0
        ranges = links.mask(links.ranges_at)
        says_backward, says_forward = (
            ranges & texts.where(lambda t, p=pattern: bool(p.match(t)))[links.name]
            for pattern in (_BACKWARD_RANGE, _FORWARD_RANGE)
        )
        said = forest.nearest(says_backward | says_forward)  # operators say it themselves
        self.backward |= no_op & look_up(says_backward, said, False)
        self.recompute = self.backward & self._forward_again(links, paths, forward_op)
        in_optimizer = np.array(
            [bool({"optimizer", "grad_clip"} & {*path.roles()}) for path in paths.paths] + [False]
        )
        self.optimizer = in_optimizer[paths.of_node] & (paths.of_node >= 0)
        self.optimizer |= self._behind_closure(links, paths)
        in_model = np.array(
            [any(not e.named or e.role for e in path.elements) for path in paths.paths] + [False]
        )[paths.of_node]
        # operators and no backward; of launches alone nothing says what they are part of
        alone = bool(links.is_op.any()) and not self.backward.any()
        forward = self.with_gradient | (no_op & look_up(says_forward, said, False)) | in_model | alone
        forward |= self._amid_forward(links)
        self._code = np.full(len(links.name), _PHASE["other"])
        self._code[forward] = _PHASE["forward"]
        self._code[self.backward] = _PHASE["backward"]
        self._code[self.recompute] = _PHASE["recompute"]
        self._code[self.optimizer] = _PHASE["optimizer"]

    def _forward_again(self, links: Links, paths: Paths, forward_op: CodeArray) -> BoolArray:
        """Forward code run inside the backward: a module or a forward operator within an evaluate node.

        A range there proves nothing: libraries label their backward too.
        """
        frames = links.mask(links.frames_at)
        context = np.where(look_up(frames, paths.context, False), paths.context, -1)
        operators = self._evaluated(links, forward_op)
        return self._evaluated(links, context) | operators | self._among(links, operators)

    def _evaluated(self, links: Links, inner: CodeArray) -> BoolArray:
        """Per node: does what is around it lie within an evaluate node?"""
        depth = links.forest.depth()
        both = (inner >= 0) & (self.evaluate >= 0)
        both[both] = depth[inner[both]] > depth[self.evaluate[both]]
        return both

    def _among(self, links: Links, again: BoolArray) -> BoolArray:
        """What runs among such operators and has no gradient itself: positions, masks."""
        size = len(again) + 1  # the last place is of what is in no evaluate node
        first, last = np.full(size, np.iinfo(np.int64).max), np.full(size, np.iinfo(np.int64).min)
        np.minimum.at(first, self.evaluate[again], links.ts_ns[again])
        np.maximum.at(last, self.evaluate[again], links.ts_ns[again])
        among: BoolArray = (self.evaluate >= 0) & (self.evaluate != np.arange(len(again)))
        among &= (first[self.evaluate] <= links.ts_ns) & (links.ts_ns <= last[self.evaluate])
        return among

    def _amid_forward(self, links: Links) -> BoolArray:
        """What has no gradient itself (positions, masks, tables of rotations), between two operators that
        have one: on their thread, in their step, with nothing of a backward or an optimizer in between."""
        out = np.zeros(len(links.name), np.bool_)
        ends = np.sort(np.concatenate([links.ts_ns[self.backward | self.optimizer], links.steps.start_ns]))
        forward = links.is_op & self.with_gradient & ~self.backward
        for thread in np.unique(links.thread[forward]).tolist():
            here = np.flatnonzero(links.thread == thread)
            times = np.sort(links.ts_ns[here[forward[here]]])
            at = np.searchsorted(times, links.ts_ns[here])
            inside = (at > 0) & (at < len(times))
            here, at = here[inside], at[inside]
            since, until = np.searchsorted(ends, times[at - 1]), np.searchsorted(ends, times[at])
            out[here[since == until]] = True
        return out

    def _behind_closure(self, links: Links, paths: Paths) -> BoolArray:
        """What an optimizer does itself, after its closure has run the forward and the backward."""
        out = np.zeros(len(links.name), np.bool_)
        inside = links.forest.outermost(paths.closure)
        work = np.flatnonzero(links.is_op & (self.with_gradient | self.backward))
        for step in np.unique(inside[inside >= 0]).tolist():
            mine = inside == step
            end = links.ts_ns[mine].max()
            during = work[(links.ts_ns[work] >= links.ts_ns[step]) & (links.ts_ns[work] <= end)]
            if len(during):
                out |= mine & (links.ts_ns > links.ts_ns[during].max())
        return out

    def of(self, node: CodeArray) -> CodeArray:
        """Phase codes for nodes; -1 (no node) gives ``other``."""
        return look_up(self._code, node, _PHASE["other"]).astype(np.int32)
