"""The rules, in the order their checks are listed. One file per rule; a page for each in ``docs/rules``."""

from __future__ import annotations

from tracelens.advice.facts import Rule
from tracelens.advice.rules.align_dimensions import AlignDimensions
from tracelens.advice.rules.compiled_padding import CompiledPadding
from tracelens.advice.rules.experts import Experts
from tracelens.advice.rules.fp8 import Fp8
from tracelens.advice.rules.head_dimension import HeadDimension
from tracelens.advice.rules.kv_heads import KvHeads
from tracelens.advice.rules.layout_copies import LayoutCopies
from tracelens.advice.rules.misaligned_views import MisalignedViews
from tracelens.advice.rules.odd_sequence import OddSequence
from tracelens.advice.rules.pad_vocabulary import PadVocabulary
from tracelens.advice.rules.pipeline_layers import PipelineLayers
from tracelens.advice.rules.swiglu_width import SwigluWidth
from tracelens.advice.rules.tensor_cores import TensorCores
from tracelens.advice.rules.tensor_parallel import TensorParallel
from tracelens.advice.rules.unfused_attention import UnfusedAttention
from tracelens.advice.rules.unfused_projections import UnfusedProjections
from tracelens.advice.rules.wave_cliffs import WaveCliffs

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
)
