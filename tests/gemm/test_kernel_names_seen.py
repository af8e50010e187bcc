"""Every kernel name of public traces: its family, its tile against launch grids, and what is no GEMM.

The labels and grids here are worked out from plain words, numbers and launches, without the parser's table.
"""

from __future__ import annotations

import ast
import csv
import gzip
import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import pytest

from tests.gemm.test_gemm_real_traces import gemms
from tracelens.gemm import KernelName, parse_kernel_name

SHARED = Path(__file__).resolve().parents[3] / "shared"
SEEN = SHARED / "facts" / "kernel_names_seen.tsv"
EVIDENCE = SHARED / "facts" / "trace_gemm_evidence.txt"
TRACES = SHARED / "traces"

#: Word in the name -> (kind, family), first match counts. Attention before GEMMs, helpers before both.
LABELS = (
    (r"FlashAttnBwd(Pre|Post)process|prepare_varlen_num_blocks", "attention_helper", "flash3"),
    (r"splitkv_combine|bwd_dot_do_o|bwd_convert_dq", "attention_helper", "flash2"),
    (r"FlashAttn(Fwd|Bwd)Sm90|compute_attn_ws", "attention", "flash3"),
    (r"\bflash_(fwd|bwd)_", "attention", "flash2"),
    (r"fmha_cutlass[FB]_", "attention", "mem_efficient"),
    (r"^fmhaSm1\d\d", "attention", "trtllm_fmha"),
    (r"^cudnn_generated_\w*sdpa", "attention", "cudnn_sdpa"),
    (r"^_fwd_kernel_aligned", "attention", "triton_attention"),
    (r"splitKreduce", "gemm_helper", "splitk_reduce"),
    (r"reduce_1Block_kernel.*Gemv", "gemm_helper", "cublas_dot"),
    (r"dot_kernel.*cublasDot", "gemm", "cublas_dot"),
    (r"prepare_grouped_gemm|set_grouped_gemm|prepare_kernel.*gmm", "gemm_helper", "grouped"),
    (r"grouped_gemm::cuda", "gemm_helper", "grouped"),
    (r"GroupProblemShape|GroupedBlockScaledGemm", "gemm", "grouped"),
    (r"^nvjet_", "gemm", "nvjet"),
    (r"^sm80_xmma_gemm_", "gemm", "sm80_xmma"),
    (r"^sm90_xmma_gemm_", "gemm", "sm90_xmma"),
    (r"cutlass_[78]\d_\w*gemm_", "gemm", "cutlass2"),
    (r"^(volta|turing|ampere)_\w*gemm_|sgemm_largek", "gemm", "legacy"),
    (r"gemmSN_", "gemm", "gemmsn"),
    (r"gemmk1_", "gemm", "gemmk1"),
    (r"gemv(2|NSP|x)", "gemm", "gemv"),
    (r"magma_sgemmEx", "gemm", "magma"),
    (r"^bmm_\w+_t\d+x\d+x\d+", "gemm", "trtllm_gen"),
    (r"^triton_tem_fused(_\w+)?_(mm|addmm|bmm)(_|$)", "gemm", "triton_template"),
    (r"^(XXT|ba_plus_cAA)_kernel$", "gemm", "triton_symmetric"),
)  # fmt: skip
#: Names with those words that are none: fused pointwise kernels, convolutions, embeddings, casts.
NONE_OF_THEM = re.compile(
    r"triton_(poi|per|red)|implicit_gemm|ImplicitGemm|convol|cudnn_(?!generated\w*sdpa)|fbgemm|igemm_|grouped_conv"
)
AMD = re.compile(r"^Cijk_|\bck::|ck_tile|^attn_fwd$|^aiter::|^igemm_")
#: A Triton template whose name lists neither a product nor a convolution nor flex attention.
UNTOLD = re.compile(r"^triton_tem_fused_(?!.*(mm|convolution|flex))")

Grid = tuple[int, int, int]


@dataclass(frozen=True)
class Launch:
    """One launch with known sizes: out[m, n], ``batch`` times."""

    name: str
    m: int
    n: int
    batch: int
    grid: Grid
    sms: int


@lru_cache(maxsize=1)
def seen() -> list[tuple[str, str]]:
    """(name, GPUs) of the shared list."""
    if not SEEN.exists():
        pytest.skip("the shared list of kernel names is not here")
    with SEEN.open(encoding="utf-8", newline="") as file:
        rows = csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE)
        return [(row["name"], row["gpus"]) for row in rows]


def labelled(name: str) -> tuple[str, str] | None:
    if NONE_OF_THEM.search(name):
        return None
    return next(((kind, family) for word, kind, family in LABELS if re.search(word, name)), None)


def test_every_name_of_nvidia_has_its_family_and_no_other_has_one() -> None:
    found: Counter[str] = Counter()
    for name, _ in seen():
        if AMD.search(name):
            continue
        kernel, label = parse_kernel_name(name), labelled(name)
        assert (None if kernel is None else (kernel.kind, kernel.family)) == label, name
        if label is not None:
            found[label[0]] += 1
    assert found["gemm"] > 200 and found["attention"] > 20 and found["gemm_helper"] > 10
    untold = [name for name, _ in seen() if UNTOLD.search(name)]
    assert len(untold) <= 4 and all(parse_kernel_name(name) is None for name in untold)


def test_no_pointwise_reduction_copy_softmax_or_norm_kernel_is_a_gemm() -> None:
    other = re.compile(
        r"elementwise|triton_(poi|per|red)_|at::native|Memcpy|Memset|nccl|softmax|layer_?norm|rms_?norm|RMSNorm"
        r"|implicit_gemm|_conv_|embedding|quantize|permute_|reshape_and_cache", re.IGNORECASE
    )  # fmt: skip
    refused = [name for name in all_names() if other.search(name) and not re.match("triton_tem|fmha", name)]
    assert len(refused) > 200
    assert [name for name in refused if parse_kernel_name(name) is not None] == []


def test_tiles_are_the_numbers_of_the_name_in_the_order_that_grids_show() -> None:
    """At least 99 % of the names of NVIDIA's kernels that carry a tile."""
    right, wrong = 0, []
    for name, _ in seen():
        if AMD.search(name) or labelled(name) is None:
            continue
        numbers = written_tile(name)
        kernel = parse_kernel_name(name)
        assert kernel is not None
        if numbers is None:
            assert kernel.tile_pair is None or kernel.family == "grouped", name
            continue
        swapped = kernel.family in {"nvjet", "cutlass2", "legacy", "trtllm_gen"}
        tile = numbers[::-1] if swapped else numbers
        if kernel.tile == tile and kernel.tile_pair == numbers:
            right += 1
        else:
            wrong.append(name)
    assert right > 180
    assert len(wrong) <= 0.01 * right, wrong


def written_tile(name: str) -> tuple[int, int] | None:
    for pattern in (
        r"^nvjet_(?:sm\d+_)?[a-z]+_(\d+)x(\d+)_",
        r"_tilesize(\d+)x(\d+)x",
        r"cutlass_\d+_\w+?_(\d+)x(\d+)_(?:\d+x\d+_)?[nt]{2}_align",
        r"^(?:volta|turing|ampere)_\w*?gemm_(?:[a-z]+\d+_)?(\d+)x(\d+)_",
        r"^bmm_\w+?_t(\d+)x(\d+)x",
        r"kernel_traits<\d+, (\d+), (\d+)",
        r"aligned_(\d+)x(\d+)_",
        r"Sm90<[\d, ]*cute::tuple<(?:cute::C<1>[, ]*){3}>, cute::tuple<cute::C<(\d+)>, cute::C<(\d+)>",
    ):
        if (found := re.search(pattern, name)) and "combine" not in name:
            return int(found[1]), int(found[2])
    return None


@lru_cache(maxsize=1)
def all_names() -> frozenset[str]:
    names = {name for name, _ in seen() if not AMD.search(name)}
    for path in sorted(TRACES.glob("*.json.gz")):
        if "d8" not in path.name and "large" not in path.name:
            names |= {str(one["name"]) for one in events(path) if str(one.get("cat")).lower() == "kernel"}
    return frozenset(names)


def events(path: Path) -> list[dict[str, object]]:
    data = json.loads(gzip.decompress(path.read_bytes()), strict=False)
    return data["traceEvents"] if isinstance(data, dict) else data  # type: ignore[no-any-return]


def test_every_kernel_of_the_traces_is_labelled_alike() -> None:
    for name in all_names():
        kernel = parse_kernel_name(name)
        assert (None if kernel is None else (kernel.kind, kernel.family)) == labelled(name), name


def evidence() -> Iterator[Launch]:
    """Launches of the shared extract: (kernel, op, Input Dims, grid, ...) per line."""
    if not EVIDENCE.exists():
        pytest.skip("the shared launches are not here")
    sms = 0
    for line in EVIDENCE.read_text(encoding="utf-8").splitlines():
        if line.startswith("## "):
            sms = 148 if "b200" in line else 132
        if not (found := re.match(r"[\d.]+ [\d.]+ (\(.*\))$", line)):
            continue
        name, op, dims, grid, *_ = ast.literal_eval(found[1])
        if op not in ("aten::mm", "aten::addmm", "aten::bmm"):
            continue
        a, b = (shape for shape in ast.literal_eval(dims) if len(shape) >= 2)
        x, y, z = ast.literal_eval(grid)
        yield Launch(name, a[-2], b[-1], a[0] if len(a) == 3 else 1, (x, y, z), sms)


def verdict(kernel: KernelName, launch: Launch) -> str:
    """right | wrong | undecided: does the grid have the CTAs that the tile and the sizes ask for?"""
    assert kernel.tile is not None
    rows, columns = -(-launch.m // kernel.tile[0]), -(-launch.n // kernel.tile[1])
    x, y, z = launch.grid
    ctas = x * y * z
    if kernel.family == "legacy":
        return "right" if (x, y) == (columns, rows) else "wrong"
    if kernel.family == "sm80_xmma":
        return "right" if (x, y) == (rows, columns) else "wrong"
    if kernel.family == "cutlass2":  # GemmIdentityThreadblockSwizzle<8>
        folded = 8 if columns >= 6 else 4 if columns >= 3 else 2 if columns == 2 else 1
        return "right" if (x, y) == (rows * folded, -(-columns // folded)) else "wrong"
    if kernel.family == "sm90_xmma":  # persistent, and padded along N
        if rows * columns > launch.sms:
            return "undecided" if ctas <= launch.sms else "wrong"
        return "right" if ctas % rows == 0 and rows * columns <= ctas <= launch.sms else "wrong"
    assert kernel.family == "nvjet" and kernel.cluster is not None
    along_n, along_m = (int(part) for part in kernel.cluster.split("x"))
    whole = -(-columns // along_n) * along_n * -(-rows // along_m) * along_m * launch.batch
    if ctas == whole or (kernel.split_k is not False and ctas % whole == 0):
        return "right"
    persistent = whole > ctas and 0.9 * launch.sms <= ctas <= launch.sms
    return "undecided" if persistent else "wrong"


def verdicts(launches: Iterable[Launch]) -> dict[str, set[str]]:
    """Per name, what its launches say; attention and kernels without a tile are left out."""
    found: dict[str, set[str]] = {}
    for launch in launches:
        kernel = parse_kernel_name(launch.name)
        if kernel is not None and kernel.kind == "gemm" and kernel.tile is not None:
            found.setdefault(launch.name, set()).add(verdict(kernel, launch))
    return found


def test_grids_of_public_launches_are_those_of_the_tiles() -> None:
    found = verdicts(evidence())
    assert sum("right" in one for one in found.values()) >= 14
    assert [name for name, one in found.items() if "wrong" in one] == []


@pytest.mark.parametrize(
    ("file", "sms", "right", "undecided"),
    [
        ("d1_h100_nanogpt_compile_8gpu_rank0_2025-10.json.gz", 132, 9, 7),
        ("d2_rtx3060_tinylm_compile_fp32.json.gz", 28, 8, 0),
        ("d3_h100_bert_small_modules_infer.json.gz", 132, 4, 0),
        ("d4_h100_encoder_eager_modules_tf32_extid_quirk.json.gz", 132, 3, 1),
        ("d6_h100_vgg13_train_modules_fwdbwd.json.gz", 132, 5, 0),
        ("job_h100_nanogpt_8ranks/rank0_trace.json.gz", 132, 10, 6),
    ],
)
def test_grids_of_the_traces_are_those_of_the_tiles(file: str, sms: int, right: int, undecided: int) -> None:
    """No launch contradicts its tile. Undecided: persistent kernels that fill the GPU with any tile."""
    launches = [
        Launch(kernel["name"], shape.m, shape.n, shape.batch, tuple(kernel["args"]["grid"]), sms)
        for kernel, _, shape in gemms(file)
    ]
    found = verdicts(launches)
    assert [name for name, one in found.items() if "wrong" in one] == []
    assert sum("right" in one for one in found.values()) == right
    assert sum(one == {"undecided"} for one in found.values()) == undecided


def test_a_tile_taken_the_other_way_round_does_not_fit() -> None:
    """The check above can fail: with M and N exchanged, the non-square tiles of the same launches do not."""
    wrong = set()
    for launch in evidence():
        kernel = parse_kernel_name(launch.name)
        if kernel is None or kernel.kind != "gemm" or kernel.tile is None or kernel.tile[0] == kernel.tile[1]:
            continue
        turned = Launch(launch.name, launch.n, launch.m, launch.batch, launch.grid, launch.sms)
        if verdict(kernel, turned) == "wrong":
            wrong.add(kernel.family)
    assert wrong == {"nvjet", "cutlass2", "sm90_xmma"}
