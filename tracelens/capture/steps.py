"""Where a training step ends, from what happens in it: backward passes and optimizer steps. No torch here.

A *burst* is a run of optimizer steps with no backward pass between them: one optimizer, or several one after
the other (Muon and AdamW; one per parameter group). A training step ends with a burst. With several kinds of
burst (the two halves of a GAN) it ends with the one that comes least often, the last in order among equals.
Gradient accumulation is several backward passes before a burst.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable

#: Backward passes without any optimizer step after which each pass is taken for a step: the optimizer runs
#: where no hook sees it (compiled as a whole, or the user's own).
BLIND = 16
#: A kind of burst that has not come for so many others is over (a phase of the training has ended).
STALE = 64


class StepFinder:
    """Feed it events; it calls ``on_step(backward_passes, skipped)`` where a training step ends."""

    def __init__(self, on_step: Callable[[int, bool], None]):
        self._on_step = on_step
        self._depth = 0  # backward within backward: reentrant checkpoints
        self._passes = 0  # backward passes in this training step
        self._total = self._marked = 0
        self._fresh = True  # a backward pass has run since the last optimizer step
        self._inside = False  # an optimizer stepped within a backward pass
        self._lead: Hashable = None  # what began the open burst
        self._size = 0
        self._open = False
        self._skipped = False
        self._sizes: dict[Hashable, int] = {}
        self._bursts: dict[Hashable, int] = {}
        self._since = 0  # bursts since the last step ended
        self.optimizer_steps = 0
        self.source = "optimizer"

    def backward_begins(self) -> None:
        self._depth += 1
        if self._depth == 1 and self._open:  # the burst was shorter than the last one
            self._sizes[self._lead] = self._size
            self._burst_ends(self._lead)

    def backward_ends(self, *, counts: bool = True) -> None:
        """``counts``: it accumulated gradients, unlike ``torch.autograd.grad``."""
        self._depth = max(0, self._depth - 1)
        if self._depth or not counts:
            return
        self._passes += 1
        self._total += 1
        self._fresh = True
        if self._inside:
            self._inside = False
            self._burst_ends("inside backward")
        elif not self.optimizer_steps and self._passes >= (BLIND if self.source == "optimizer" else 1):
            self.source = "backward"
            self._step_ends()

    @property
    def outermost(self) -> bool:
        """The backward pass that runs now is in no other."""
        return self._depth <= 1

    def take_passes(self) -> int:
        """Backward passes since the last call; for steps that somebody else marks."""
        passes, self._marked = self._total - self._marked, self._total
        return passes

    def optimizer_stepped(self, key: Hashable, *, skipped: bool = False) -> None:
        """``skipped``: the gradient scaler found an infinity and left the weights alone."""
        if self.source == "backward":  # it can be seen after all
            self.source = "optimizer"
        self.optimizer_steps += 1
        self._skipped |= skipped
        if self._depth:
            self._inside = True
            return
        if self._fresh:
            self._fresh, self._open = False, True
            self._lead, self._size = key, 1
        else:
            self._size += 1
            if not self._open:  # the burst is longer than the last one: known from now on
                self._sizes[self._lead] = self._size
                return
        if self._size >= self._sizes.get(self._lead, 1):
            self._burst_ends(self._lead)

    def _burst_ends(self, lead: Hashable) -> None:
        self._open = False
        self._since += 1
        if self._since > STALE:
            self._bursts.clear()
        self._bursts[lead] = self._bursts.get(lead, 0) + 1
        rarest = min(self._bursts.values())
        if lead == [kind for kind, count in self._bursts.items() if count == rarest][-1]:
            self._step_ends()

    def _step_ends(self) -> None:
        passes, skipped = self._passes, self._skipped
        self._passes, self._skipped, self._since = 0, False, 0
        self._on_step(passes, skipped)
