"""The rules, by their numbers. One file per rule; a page for each in ``docs/rules``."""

from __future__ import annotations

from tracelens.errors import UsageError
from tracelens.rules.align_dimensions import AlignDimensions
from tracelens.rules.attention_backend import AttentionBackend
from tracelens.rules.collectives_in_line import CollectivesInLine
from tracelens.rules.compiled_padding import CompiledPadding
from tracelens.rules.engine.pages import page
from tracelens.rules.engine.rule import Rule
from tracelens.rules.expert_imbalance import ExpertImbalance
from tracelens.rules.expert_tiles import ExpertTiles
from tracelens.rules.experts import Experts
from tracelens.rules.falling_clock import FallingClock
from tracelens.rules.fp8 import Fp8
from tracelens.rules.gemms_beside_collectives import GemmsBesideCollectives
from tracelens.rules.head_dimension import HeadDimension
from tracelens.rules.host_waits import HostWaits
from tracelens.rules.kv_heads import KvHeads
from tracelens.rules.layout_copies import LayoutCopies
from tracelens.rules.low_precision import LowPrecision
from tracelens.rules.misaligned_views import MisalignedViews
from tracelens.rules.odd_sequence import OddSequence
from tracelens.rules.pad_vocabulary import PadVocabulary
from tracelens.rules.padded_buckets import PaddedBuckets
from tracelens.rules.padded_tokens import PaddedTokens
from tracelens.rules.pipeline_layers import PipelineLayers
from tracelens.rules.small_collectives import SmallCollectives
from tracelens.rules.swiglu_width import SwigluWidth
from tracelens.rules.tensor_cores import TensorCores
from tracelens.rules.tensor_parallel import TensorParallel
from tracelens.rules.unaligned_payload import UnalignedPayload
from tracelens.rules.unfused_attention import UnfusedAttention
from tracelens.rules.unfused_loss import UnfusedLoss
from tracelens.rules.unfused_norm import UnfusedNorm
from tracelens.rules.unfused_optimizer import UnfusedOptimizer
from tracelens.rules.unfused_projections import UnfusedProjections
from tracelens.rules.wave_cliffs import WaveCliffs

#: TL1xx: alignment and the fixed sizes of kernels, what runs beside the products, and their precision.
RULES: tuple[Rule, ...] = (
    PadVocabulary(),
    AlignDimensions(),
    HeadDimension(),
    SwigluWidth(),
    WaveCliffs(),
    KvHeads(),
    TensorParallel(),
    PipelineLayers(),
    Experts(),
    OddSequence(),
    TensorCores(),
    UnfusedProjections(),
    LayoutCopies(),
    MisalignedViews(),
    Fp8(),
    CompiledPadding(),
    UnfusedAttention(),
    GemmsBesideCollectives(),
    UnalignedPayload(),
    CollectivesInLine(),
    FallingClock(),
    HostWaits(),
    ExpertTiles(),
    LowPrecision(),
    AttentionBackend(),
    ExpertImbalance(),
    PaddedTokens(),
    SmallCollectives(),
    UnfusedOptimizer(),
    PaddedBuckets(),
    UnfusedNorm(),
    UnfusedLoss(),
)


def explain(rule: str) -> str:
    """The page of a rule as Markdown; ``rule`` is an id or a slug, in any case.

    Raises ``UsageError`` naming the rules there are when none has that id.

    >>> explain("tl101").splitlines()[0]
    '# TL101 pad-vocabulary'
    """
    wanted = rule.strip().lower()
    for known in RULES:
        if wanted in (known.id.lower(), known.slug):
            return page(known.id)
    near = [known for known in RULES if len(wanted) > 2 and wanted in known.slug]
    names = ", ".join(f"{known.id} ({known.slug})" for known in near or RULES)
    raise UsageError(
        f"unknown rule {rule[:40]!r}; {'did you mean' if near else 'known:'} {names}{'?' * bool(near)}"
    )
