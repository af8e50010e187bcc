"""The lists of products that are measured. Pure: what is measured can be counted and tested without a GPU.

Sweeps A to I are the families of the raw data behind arXiv 2401.14489 (EleutherAI/cookbook, sizing/results).
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Sequence

from benchmarks.gpu.expected import aligned, gemm_bytes
from benchmarks.gpu.model_shapes import MODELS
from tracelens.measure.cases import GemmCase
from tracelens.measure.layer_shapes import attention_gemms, linear_gemms

#: One product may cost at most this: 5 ms at 800 TFLOP/s, and buffers that fit several times.
MAX_FLOPS = 4e12
MAX_BYTES = 1.6e9
#: Tokens of a micro-batch: of a whole layer, and of a tensor-parallel rank.
TOKENS = (1024, 2048, 4096, 8192)
SHARDED_TOKENS = (4096, 8192)
#: Sizes whose largest power of two is 1, 2, 4...: the classes of alignment, in elements.
ALIGNMENTS = (1, 2, 4, 8, 16, 32, 64)
LAYOUTS = ("TN", "NN", "NT")
_SEED = 20240125  # of the order and of the shapes drawn by chance


def product(case: GemmCase) -> tuple[int, int, int, int, str, str]:
    """What is multiplied: two cases of one product measure the same thing."""
    return case.m, case.n, case.k, case.batch, case.dtype, case.layout


def gemm_sweep(sms: int) -> list[GemmCase]:
    """Every product of the calibration, each once, in an order that makes any beginning of it useful.

    ``sms`` places the wave sawtooths. Shuffled with a fixed seed: a sweep cut short is a sample of all
    families, and a clock that drifts does not look like a trend of one of them.
    """
    cases = _distinct(case for sweep in _GEMM_SWEEPS for case in sweep(sms))
    drawn = {product(case) for case in curves(sms)}
    cases = [case for case in cases if product(case) not in drawn]
    random.Random(_SEED).shuffle(cases)
    return cases


def unsure(case: GemmCase) -> bool:
    """Where a prediction from the datasheet is least sure: rows that do not start at 16 bytes (the range is
    four times as wide as of an aligned GEMM), and shapes that nobody chose."""
    return case.sweep == "random" or not aligned(case)


def gemm_unsure(sms: int) -> list[GemmCase]:
    """The part of the sweep that says most in a minute."""
    return [case for case in gemm_sweep(sms) if unsure(case)]


def gemm_rest(sms: int) -> list[GemmCase]:
    """The other part."""
    return [case for case in gemm_sweep(sms) if not unsure(case)]


def curves(sms: int) -> list[GemmCase]:
    """Wave and alignment curves, dense enough to draw, in the order of their x axis."""
    return _distinct((*wave_curves(sms), *alignment_curves()))


def repeat_sample(cases: Sequence[GemmCase], count: int = 200) -> list[GemmCase]:
    """``count`` cases to be measured a second time, of every sweep in proportion."""
    ordered = sorted(cases, key=lambda case: (case.sweep, product(case)))
    step = len(ordered) / count
    return [ordered[int((index + 0.5) * step)] for index in range(min(count, len(ordered)))]


# --- products of transformers -------------------------------------------------------------------------


def _models(sms: int) -> Iterator[GemmCase]:
    """Linear layers of published models: forward, dgrad and wgrad at several micro-batches and degrees t."""
    for family, layer, vocabulary in MODELS.values():
        for t in (1, 2, 4, 8) if layer.hidden >= 4096 else (1, 2):
            if layer.heads % t or layer.kv_heads % t or layer.ffn % t:
                continue
            sharded = layer.changed(tensor_parallel=t)
            shapes = [sharded]
            if vocabulary and not vocabulary % t:
                shapes.append(sharded.changed(vocab=vocabulary))
            many = TOKENS if t == 1 else SHARDED_TOKENS
            for tokens in (layer.tokens,) if family == "vit" else many:
                for linear in (linear for shape in shapes for linear in shape.linears()):
                    for gemm in linear_gemms(linear, tokens=tokens):
                        yield GemmCase(f"model_{family}", gemm.m, gemm.n, gemm.k, layout=gemm.layout)


def _attention(sms: int) -> Iterator[GemmCase]:
    """Scores, values and their gradients as batched products, one matrix per head (no fused kernel)."""
    for sequence in (128, 197, 512, 1024, 2048):
        for head_dim in (32, 40, 48, 64, 72, 80, 96, 100, 112, 128, 160, 192, 256):
            for batch in (32, 128):
                for gemm in attention_gemms(batch=batch, sequence=sequence, head_dim=head_dim):
                    yield GemmCase("attention", gemm.m, gemm.n, gemm.k, gemm.batch, layout=gemm.layout)


def _experts(sms: int) -> Iterator[GemmCase]:
    """Experts of equal capacity as one batched product (experts, hidden, width)."""
    for experts, hidden, width in ((8, 4096, 14336), (16, 4096, 6400), (64, 2048, 1024), (128, 2048, 768)):
        for capacity in (16, 64, 100, 128, 256, 512, 1000, 1024):
            for n, k in ((width, hidden), (hidden, width)):
                yield GemmCase("experts", capacity, n, k, experts, layout="NN")


# --- the paper's sweeps -------------------------------------------------------------------------------


def _paper(sms: int) -> Iterator[GemmCase]:
    for m in (*range(32, 512, 32), *range(512, 8193, 128)):  # A: (m, 4096) x (4096, m)
        yield GemmCase("paper_a_square", m, m, 4096)
    for size in (1024, 1536, 2048, 4096, 8192):  # D: cubes in a batch
        for batch in (*range(1, 16), *range(16, 65, 4)):
            yield GemmCase("paper_d_batch", size, size, size, batch, layout="NN")
    for batch in (1, 2, 4, 8, 16, 32, 64):  # E: (m, 4096) x (4096, m) in a batch
        for m in (32, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096, 8192):
            yield GemmCase("paper_e_batch_m", m, m, 4096, batch, layout="NN")
    yield from _paper_attention()
    for hidden in range(1024, 8193, 128):  # G: the four linear layers over h
        for t in (1, 2, 4, 8):
            for n, k in ((3 * hidden // t, hidden), (hidden, hidden // t), (4 * hidden // t, hidden),
                         (hidden, 4 * hidden // t)):  # fmt: skip
                yield GemmCase("paper_g_linear", 4096, n, k)
    for vocabulary in (*range(50240, 50313), *range(51136, 51265, 8)):  # H: the logits layer over v
        yield from _vocabulary(vocabulary)


def _paper_attention() -> Iterator[GemmCase]:
    """F: scores and values over h at a fixed number of heads: the head dimension takes every remainder."""
    for heads in (16, 32, 64, 128):
        for t in (1, 2, 4):
            for head_dim in (*range(8, 161, 8), 20, 36, 50, 63, 65, 66, 68, 100, 127, 129):
                batch = 4 * heads // t
                yield GemmCase("paper_f_scores", 1024, 1024, head_dim, batch, layout="TN")
                yield GemmCase("paper_f_values", 1024, head_dim, 1024, batch, layout="NN")


def _vocabulary(vocabulary: int) -> Iterator[GemmCase]:
    yield GemmCase("paper_h_vocabulary", 4096, vocabulary, 2560)
    if vocabulary % 2 == 0 or vocabulary in (50257, 50265):  # odd ones: one per role is enough
        yield GemmCase("paper_h_vocabulary", 4096, 2560, vocabulary, layout="NN")
        yield GemmCase("paper_h_vocabulary", vocabulary, 2560, 4096, layout="NT")


def _swiglu(sms: int) -> Iterator[GemmCase]:
    """L: d_ff around 8h/3 for h = 4096, up and down, every role."""
    odd_or_twice = (*range(10822, 11023, 4), 10923)  # as the paper steps: none divisible by 4
    for width in (*odd_or_twice, *range(10828, 11020, 24), *range(10824, 11025, 8), 11264):
        for n, k in ((width, 4096), (4096, width)):
            yield GemmCase("swiglu", 4096, n, k)
            yield GemmCase("swiglu", 4096, k, n, layout="NN")
            yield GemmCase("swiglu", n, k, 4096, layout="NT")


# --- alignment, waves, small shapes -------------------------------------------------------------------


def _staircase(sms: int) -> Iterator[GemmCase]:
    """Each of M, N and K through the classes of alignment, in every layout and several types."""
    for dtype, bases in (
        ("bf16", ((4096, 4096, 4096), (2048, 2048, 2048), (8192, 1024, 4096))),
        ("fp16", ((4096, 4096, 4096),)),
        ("tf32", ((4096, 4096, 4096),)),
    ):
        for base in bases:
            for which in range(3):
                for size in (base[which] + step * odd for step in ALIGNMENTS for odd in (1, 3, 5)):
                    m, n, k = (size if index == which else base[index] for index in range(3))
                    for layout in LAYOUTS:
                        yield GemmCase("alignment", m, n, k, dtype=dtype, layout=layout)


def _sawtooth(sms: int) -> Iterator[GemmCase]:
    """Products of whole 128 x 128 tiles whose number crosses multiples of the SM count, in M and in N."""
    for rows in (2, 4, 6, 8, 11, 12, 16, 22, 33, 44):
        for k in (1024, 4096, 8192):
            period = max(1, round(sms / rows))  # column tiles of one wave
            for column in sorted({part * period // 4 + extra for part in range(1, 13) for extra in (0, 1)}):
                yield GemmCase("wave", rows * 128, max(1, column) * 128, k)
    for m in range(256, 8193, 256):  # micro-batch x sequence
        for n, k in ((2560, 2560), (4096, 4096), (12288, 4096), (4096, 11008)):
            yield GemmCase("tokens", m, n, k)
            yield GemmCase("tokens", m, k, n, layout="NN")


def _small(sms: int) -> Iterator[GemmCase]:
    """Skinny and small products: the launch floor, the memory bound, and split-K."""
    for m in (1, 2, 4, 8, 16, 32, 64, 128, 256):
        for n, k in ((64, 64), (256, 256), (512, 512), (768, 3072), (1024, 1024), (2560, 10240), (4096, 1024),
                     (4096, 4096), (4096, 11008), (8192, 8192), (28672, 4096)):  # fmt: skip
            yield GemmCase("skinny", m, n, k)
            yield GemmCase("skinny", n, m, k)
    for size in (16, 32, 64, 96, 128, 192, 256, 384, 512, 640, 768):
        for layout in LAYOUTS:
            yield GemmCase("small", size, size, size, layout=layout)
    for k in (4096, 8192, 16384, 32768, 65536):  # few tiles, long K
        for size in (64, 128, 256, 512, 1024):
            yield GemmCase("split_k", size, size, k, layout="NT")


def _other_types(sms: int) -> Iterator[GemmCase]:
    """The same widths in fp16, fp8 (rows by columns only, multiples of 16) and fp32 with and without TF32."""
    for hidden in (768, 1024, 2048, 2560, 4096, 5120, 8192):
        for tokens in (1024, 2048, 4096, 8192):
            for n, k in ((3 * hidden, hidden), (hidden, hidden), (4 * hidden, hidden), (hidden, 4 * hidden)):
                yield GemmCase("types", tokens, n, k, dtype="fp8")
                yield GemmCase("types", tokens, n, k, dtype="fp16")
                if tokens <= 4096:
                    yield GemmCase("types", tokens, n, k, dtype="tf32")
                if tokens == 1024 and hidden <= 4096:
                    yield GemmCase("types", tokens, n, k, dtype="fp32")
    for size in (*range(1024, 8193, 512),):
        yield GemmCase("types", size, size, size, dtype="fp8")
    for n in (4096 + step for step in (16, 32, 48, 64, 128, 256)):  # fp8: the alignment it accepts
        yield GemmCase("types", 4096, n, 4096, dtype="fp8")
        yield GemmCase("types", 4096, 4096, n, dtype="fp8")


def _random(sms: int) -> Iterator[GemmCase]:
    """Shapes nobody chose, half of them multiples of 8: what a predictor has not been fitted to."""
    draw = random.Random(_SEED)
    for index in range(800):
        m, n, k = (int(2 ** draw.uniform(6, 13.5)) for _ in range(3))
        if index % 2:
            m, n, k = (max(8, value // 8 * 8) for value in (m, n, k))
        yield GemmCase("random", m, n, k, layout=LAYOUTS[index % 3])


_GEMM_SWEEPS: tuple[Callable[[int], Iterable[GemmCase]], ...] = (
    _models, _attention, _experts, _paper, _swiglu, _staircase, _sawtooth, _small, _other_types, _random,
)  # fmt: skip


# --- curves -------------------------------------------------------------------------------------------


def wave_curves(sms: int) -> Iterator[GemmCase]:
    """Throughput over N, through four waves of 128 x 256 tiles, and the paper's own curve (B).

    The paper multiplies row-major operands, NN; TN is what a linear layer does.
    """
    for n in range(1536, 6145, 32):
        yield GemmCase("paper_b_wave", 2304, n, 4096)
    for n in range(1536, 6145, 64):
        yield GemmCase("paper_b_wave", 2304, n, 4096, layout="NN")
    for rows, k in ((12, 4096), (11, 1024), (33, 4096)):
        wave = max(1, round(sms / rows)) * 256  # N of one wave of 128 x 256 tiles
        step = max(32, wave * 4 // 160 // 32 * 32)
        for n in range(step, wave * 4 + 1, step):
            yield GemmCase(f"wave_m{rows * 128}_k{k}", rows * 128, n, k)
    for m in range(128, 8193, 64):
        yield GemmCase("wave_tokens", m, 2560, 10240)


def alignment_curves() -> Iterator[GemmCase]:
    """Throughput over N (the paper's C) and over K, one curve in steps of 2 and one of every size."""
    for n in range(64, 512, 2):
        yield GemmCase("paper_c_alignment", 27648, n, 4096, layout="NN")  # the paper's: rows of b are n long
        yield GemmCase("paper_c_alignment", 27648, n, 4096)  # a linear layer's: only rows of the result are
    for n in range(2496, 2626):
        yield GemmCase("alignment_n", 8192, n, 2560)
    for k in range(2496, 2626):
        yield GemmCase("alignment_k", 8192, 2560, k)


def _distinct(cases: Iterable[GemmCase]) -> list[GemmCase]:
    """Each product once, under the sweep that named it first; what is too large for the minutes left out."""
    kept: dict[tuple[int, int, int, int, str, str], GemmCase] = {}
    for case in cases:
        if case.flops <= MAX_FLOPS and gemm_bytes(case) <= MAX_BYTES:
            kept.setdefault(product(case), case)
    return list(kept.values())
