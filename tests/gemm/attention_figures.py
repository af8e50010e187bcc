"""Published speeds of attention kernels, and which of them the model's rates were fitted to.

Useful TFLOP/s as the sources count them (a causal mask halves the operations). Fitted: lengths 512, 2048
and 16384 of the README's A100 figure and of FlashAttention-3 in arXiv 2407.08608 (of 1024 to 16384 on the
B200), and the H20's without a mask. Everything else is held out, among it whole sources.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

LENGTHS = (512, 1024, 2048, 4096, 8192, 16384)
A100, H100, H20, B200 = "a100-sxm-80gb", "h100-sxm", "h20", "b200"
README = "flash-attention README (July 2023)"
FA3_PAPER = "arXiv 2407.08608 figures 5 and 6 (July 2024)"


@dataclass(frozen=True, slots=True)
class Figure:
    source: str
    gpu: str
    backend: str
    direction: str  # forward | backward | both
    head_dim: int
    causal: bool
    seq: int
    batch: int
    heads: int
    tflops: float
    fitted: bool

    @property
    def time_us(self) -> float:
        flops = 4 * self.batch * self.heads * self.seq**2 * self.head_dim * (0.5 if self.causal else 1)
        passes = {"forward": 1, "backward": 2.5, "both": 3.5}[self.direction]
        return flops * passes / self.tflops / 1e6


def figures() -> list[Figure]:
    return [*_readme(), *_fa3_paper(), *_h20(), *_b200(), *_others()]


def _row(
    source: str, gpu: str, backend: str, direction: str, head_dim: int, causal: bool,
    values: Sequence[float | None], fitted: tuple[int, ...], lengths: Sequence[int] = LENGTHS,
    tokens: int = 16384, hidden: int = 2048,
) -> Iterator[Figure]:  # fmt: skip
    for seq, value in zip(lengths, values, strict=True):
        if value is not None:
            yield Figure(
                source, gpu, backend, direction, head_dim, causal, seq, tokens // seq, hidden // head_dim,
                value, seq in fitted,
            )  # fmt: skip


_FITTED = (512, 2048, 16384)


def _readme() -> Iterator[Figure]:
    for backend, head_dim, causal, values in (
        ("flash", 64, False, (132, 153, 162, 171, 175, 176)),
        ("flash", 128, False, (151, 173, 187, 196, 201, 203)),
        ("flash", 64, True, (88, 119, 140, 156, 165, 171)),
        ("flash", 128, True, (99, 133, 155, 173, 182, 189)),
        ("efficient", 64, False, (68, 73, 76, 77, 75, 75)),
        ("efficient", 128, False, (83, 91, 95, 96, 97, 98)),
        ("efficient", 64, True, (51, 60, 66, 68, 69, 67)),
        ("efficient", 128, True, (58, 72, 82, 87, 91, 92)),
    ):
        yield from _row(README, A100, backend, "both", head_dim, causal, values, _FITTED)
    for head_dim, causal, values in (
        (64, False, (215, 254, 274, 288, 294, 296)),
        (128, False, (248, 294, 320, 326, 335, 338)),
        (64, True, (141, 192, 232, 257, 273, 284)),
        (128, True, (163, 221, 265, 294, 308, 328)),
    ):
        yield from _row(README + ", H100", H100, "flash", "both", head_dim, causal, values, ())


def _fa3_paper() -> Iterator[Figure]:
    forward: tuple[tuple[str, int, bool, Sequence[float | None]], ...] = (
        ("flash", 64, False, (282, 306, 318, 321, 322, 324)),
        ("cudnn", 64, False, (335, 373, 395, 408, 412, 413)),
        ("flash3", 64, False, (333, 392, 460, 476, 496, 497)),
        ("flash", 64, True, (180, 229, 262, 284, 295, 299)),
        ("cudnn", 64, True, (225, 288, 334, 363, 379, 388)),
        ("flash3", 64, True, (197, 265, 371, 420, 460, 473)),
        ("flash", 128, False, (309, 350, 362, 368, 370, 370)),
        ("cudnn", 128, False, (497, 574, 617, 609, 600, 595)),
        ("flash3", 128, False, (467, 565, 625, 638, 646, 648)),
        ("flash", 128, True, (191, 260, 298, 319, 333, 335)),
        ("cudnn", 128, True, (315, 410, 484, 518, 529, 539)),
        ("flash3", 128, True, (292, 423, 521, 579, 602, 616)),
        ("flash", 256, False, (275, 313, 321, 323, 324, 326)),
        ("cudnn", 256, False, (470, 546, 580, 581, 580, 581)),
        ("flash3", 256, False, (482, None, 707, 736, 746, 756)),  # one label is hidden by the legend
        ("flash", 256, True, (208, 251, 278, 293, 297, 298)),
        ("cudnn", 256, True, (308, 391, 450, 483, 497, 509)),
        ("flash3", 256, True, (286, 427, 537, 612, 628, 642)),
    )
    for backend, head_dim, causal, values in forward:
        fitted = _FITTED if backend == "flash3" else ()
        yield from _row(FA3_PAPER, H100, backend, "forward", head_dim, causal, values, fitted)
    for backend, head_dim, measured in (
        ("flash", 64, (198, 238, 264, 279, 287, 291)),
        ("cudnn", 64, (266, 348, 395, 417, 432, 433)),
        ("flash3", 64, (272, 363, 422, 453, 472, 474)),
        ("flash", 128, (214, 260, 291, 310, 318, 322)),
        ("cudnn", 128, (305, 408, 465, 499, 518, 516)),
        ("flash3", 128, (316, 424, 501, 542, 559, 561)),
    ):
        fitted = _FITTED if backend == "flash3" else ()
        yield from _row(FA3_PAPER, H100, backend, "backward", head_dim, False, measured, fitted)


def _h20() -> Iterator[Figure]:
    source = "flash-attention issue 1310 (November 2024)"
    for head_dim, causal, by_backend in (
        (64, False, (81.8, 126.1, 120.1)),
        (64, True, (71.0, 109.1, 100.3)),
        (128, False, (83.7, 129.1, 126.2)),
        (128, True, (65.9, 107.8, 107.8)),
    ):
        for backend, value in zip(("flash", "cudnn", "flash3"), by_backend, strict=True):
            yield from _row(
                source, H20, backend, "forward", head_dim, causal, (value,), () if causal else (2048,),
                (2048,), tokens=4096,
            )  # fmt: skip


def _b200() -> Iterator[Figure]:
    issue = "flash-attention issue 1589 (April 2025)"
    forward, backward = (308.4, 359.3, 381.0, 306.9, 343.1, 379.4), (243.1, 280.6, 301.6, 314.7, 329.1, 334.0)
    yield from _row(issue, B200, "flash", "forward", 64, False, forward, _FITTED)
    yield from _row(issue, B200, "flash", "backward", 64, False, backward, _FITTED)
    pull = "flash-attention pull 2605 (2026)"
    for head_dim, causal, values in (
        (64, False, (619, 755, 825, 863, 879)),
        (64, True, (384, 561, 708, 797, 852)),
        (128, False, (975, 1131, 1256, 1289, 1330)),
    ):
        fitted = (1024, 2048, 16384) if causal else (1024, 16384)
        yield from _row(
            pull, B200, "flash4", "forward", head_dim, causal, values, fitted, LENGTHS[1:], tokens=32768
        )
    bench = "tritonbench pull 171 (March 2025)"
    for seq, value in zip(LENGTHS, (245.3, 315.1, 352.1, 353.9, 361.6, 330.6), strict=True):
        fitted_here = seq in (512, 2048, 8192)
        yield Figure(bench, B200, "flash", "forward", 128, False, seq, 8, 16, value, fitted_here)
    for direction, causal, value, fitted_here in (
        ("forward", False, 1534.8, False),
        ("forward", True, 1418.1, False),
        ("backward", False, 1247.5, True),
        ("backward", True, 1117.9, False),
    ):
        yield Figure(
            "flash-attention pull 2280 (February 2026)", B200, "flash4", direction, 128, causal, 8192, 4, 16,
            value, fitted_here,
        )  # fmt: skip


def _others() -> Iterator[Figure]:
    """Other people's H100s: nothing here was fitted to."""
    pull = "flash-attention pull 1791 (July 2025)"
    for causal, by_kernel in ((False, (369.9, 290.6, 659.1, 553.9)), (True, (284.1, 287.1, 630.0, 531.6))):
        for at, value in enumerate(by_kernel):
            backend, direction = ("flash", "flash3")[at // 2], ("forward", "backward")[at % 2]
            yield Figure(pull, H100, backend, direction, 128, causal, 8192, 2, 16, value, False)
    bench = "tritonbench pull 1254 (September 2026)"
    for seq, value in zip((1024, 2048, 4096, 8192), (541.3, 617.8, 628.4, 638.6), strict=True):
        yield Figure(bench, H100, "flash3", "forward", 128, False, seq, 4, 48, value, False)
    values = (430.3, 517.1, 565.5, 590.2, 614.2, 620.7)
    yield from _row("pytorch/benchmark pull 2391 (2024)", H100, "flash3", "forward", 128, False, values, ())
    for gpu, time_ms in ((H100, 4.27728), ("h200", 4.51709)):
        tflops = 4 * 8 * 32768**2 * 64 / time_ms / 1e9
        yield Figure(
            "flash-attention issue 1438 (January 2025)", gpu, "flash3", "forward", 64, False, 32768, 1, 8,
            tflops, False,
        )  # fmt: skip
    stable = "flash-attention pull 2688 (2026)"
    forward, backward = (252.5, 294.8, 308.1, 312.0, 310.2), (189.9, 238.8, 263.7, 279.8, 299.2)
    yield from _row(stable, H100, "flash", "forward", 64, False, forward, (), LENGTHS[:5])
    yield from _row(stable, H100, "flash", "backward", 64, False, backward, (), LENGTHS[:5])
