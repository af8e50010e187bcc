"""``tracelens gemm``: the time of one GEMM, and the sizes near it that are faster."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

from tracelens.cli.gates import taking
from tracelens.cli.gpus import show_gpus
from tracelens.cli.help import Grouped, complete_gpu
from tracelens.cli.streams import give_json
from tracelens.errors import InputError, UsageError

if TYPE_CHECKING:
    from tracelens.gemm.study import Study
    from tracelens.hardware import Gpu


#: Options of experts -> as they are written where they take a whole number.
EXPERT_OPTIONS = {
    "experts": "--experts", "top_k": "--top-k", "ep": "--ep", "tp": "--tp", "row_multiple": "--row-multiple",
    "load": None, "backward": None,
}  # fmt: skip
#: Options of one GEMM that a layer of experts has no use for -> what they are unless given.
_OF_ONE_GEMM = {
    "out_dtype": None, "layout": "TN", "batch": None, "vary": "n", "span": None, "explain": False,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class GemmOptions:
    """What the command line said."""

    shape: tuple[str, ...]
    gpu: str | None
    dtype: str
    out_dtype: str | None
    layout: str
    batch: str | None
    vary: str
    span: str | None
    explain: bool
    json: str | None
    experts: str | None
    top_k: str | None
    ep: str | None
    tp: str | None
    load: str
    row_multiple: str | None
    backward: bool


_GROUPS = {
    "The GEMM": ("gpu", "dtype", "out_dtype", "layout", "batch"),
    "Experts: TOKENSxHIDDENxINTER instead of MxNxK": tuple(EXPERT_OPTIONS),
    "The answer": ("vary", "span", "explain", "json"),
}


@click.command(
    cls=Grouped, groups=_GROUPS, short_help="Predict a GEMM on a GPU, and which shapes near it are faster."
)
@click.argument("shape", nargs=-1, metavar="MxNxK")
@click.option(
    "--gpu",
    metavar="NAME",
    shell_complete=complete_gpu,
    help="Predict for this GPU, e.g. h100-sxm; 'list' shows them all"
    " [default: the one `tracelens bench` measured last, else h100-sxm].",
)
@click.option(
    "--dtype",
    default="bf16",
    show_default=True,
    help="bf16, fp16, fp8, fp8-block, nvfp4, tf32, fp32, fp64 or int8.",
)
@click.option("--out-dtype", metavar="TEXT", help="Of the result, where it differs.")
@click.option(
    "--layout",
    default="TN",
    show_default=True,
    help="forward (TN), dgrad (NN), wgrad (NT) or TT: how the operands lie.",
)
@click.option("--batch", metavar="B", help="A batch of B such GEMMs; also B@MxNxK.")
@click.option(
    "--vary", default="n", show_default=True, metavar="DIMS", help="Look at other sizes of n, m, k: n,k"
)
@click.option("--span", metavar="A:B", help="Look at sizes from A to B.")
@click.option("--explain", is_flag=True, help="The derivation of the time, with its numbers.")
@click.option(
    "--json", metavar="FILE", is_flag=False, flag_value="-", help="Everything as JSON ('-': standard output)."
)
@click.option("--experts", metavar="E", help="One layer of E experts, each HIDDEN by INTER, with a gate.")
@click.option("--top-k", metavar="K", help="Experts that each token chooses.")
@click.option("--ep", metavar="N", help="GPUs that share the experts; TOKENS are of all of them.")
@click.option("--tp", metavar="N", help="GPUs that share each expert.")
@click.option("--load", default="balanced", show_default=True, help="balanced, or power-law:1.2.")
@click.option("--row-multiple", metavar="R", help="Pad each expert's rows to a multiple.")
@click.option("--backward", is_flag=True, help="Gradients, at the forward's rates.")
@taking(GemmOptions)
def gemm(options: GemmOptions) -> None:
    """Predict out[M,N] = a[M,K] @ b[K,N] on a GPU, and say which sizes near it are faster.

    Needs no trace and no GPU. M, N and K are those of the GEMM itself, whatever its layout: for
    y = x W^T they are tokens, output features, input features. Also written M,N,K or M N K.
    """
    from tracelens.gemm.spelling import parse_dtype, parse_layout, parse_sizes

    if options.gpu == "list":
        show_gpus()
        return
    if options.experts is not None:
        _experts(options)
        return
    _without_experts(options)
    sizes = parse_sizes(" ".join(options.shape), batch=_whole("--batch", options.batch))
    one, gpu_why = _gpu(options.gpu)
    study = _study(
        (sizes.m, sizes.n, sizes.k),
        gpu=one,
        batch=sizes.batch,
        dtype=parse_dtype(options.dtype),
        out_dtype=parse_dtype(options.out_dtype) if options.out_dtype is not None else None,
        layout=parse_layout(options.layout),
        vary=_dimensions(options.vary),
        span=_span(options.span),
        columns=_columns(),
    )
    _print(study, gpu_why, explain=options.explain, json=options.json)


def _experts(options: GemmOptions) -> None:
    from tracelens.gemm.predict.experts import experts_changes, predict_experts
    from tracelens.gemm.spelling import parse_dtype, parse_sizes
    from tracelens.results.experts import ExpertLayer

    sizes = parse_sizes(" ".join(options.shape))
    for name, default in _OF_ONE_GEMM.items():
        if getattr(options, name) != default or (name == "batch" and sizes.batch > 1):
            option = f"--{name.replace('_', '-')}"
            raise UsageError(f"{option} is of one GEMM, and --experts predicts a layer of them: leave it out")
    given = {
        name: _whole(option, getattr(options, name)) for name, option in EXPERT_OPTIONS.items() if option
    }
    if given["top_k"] is None:
        raise UsageError("--experts needs --top-k: how many experts each token chooses")
    one, gpu_why = _gpu(options.gpu)
    try:
        layer = ExpertLayer(
            sizes.n, sizes.k, given["experts"] or 0, given["top_k"], ep=given["ep"] or 1, tp=given["tp"] or 1
        )
        found = predict_experts(
            layer,
            sizes.m,
            gpu=one,
            dtype=parse_dtype(options.dtype),
            direction="backward" if options.backward else "forward",
            load=options.load,
            row_multiple=1 if given["row_multiple"] is None else given["row_multiple"],
        )
    except InputError as error:  # on a command line the input is the call itself
        raise UsageError(str(error)) from error
    changes = experts_changes(found, gpu=one)
    if options.json is not None:
        from tracelens.render.experts import experts_json

        give_json(experts_json(found, changes, gpu=one, gpu_why=gpu_why), options.json)
        if options.json == "-":
            return
    from tracelens.render.console import stdout_console
    from tracelens.render.experts import render_experts

    render_experts(found, changes, gpu=one, gpu_why=gpu_why, console=stdout_console())


def _without_experts(options: GemmOptions) -> None:
    for name, option in EXPERT_OPTIONS.items():
        if option and getattr(options, name) is not None:
            raise UsageError(f"{option} is of experts: give --experts and --top-k, too")
    if options.backward or options.load != "balanced":
        raise UsageError("--backward and --load are of experts: give --experts and --top-k, too")


def _study(sizes: tuple[int, int, int], *, gpu: Gpu, **asked: object) -> Study:
    from tracelens.gemm.study import study_gemm
    from tracelens.hardware.measurements import find_measurements

    measured = find_measurements(gpu.name, sms=gpu.sms)
    try:
        return study_gemm(*sizes, gpu=gpu, measured=measured, **asked)  # type: ignore[arg-type]
    except InputError as error:  # on a command line the input is the call itself
        raise UsageError(str(error)) from error


def _gpu(name: str | None) -> tuple[Gpu, str | None]:
    from tracelens.hardware import find_gpu
    from tracelens.hardware.default import default_gpu
    from tracelens.hardware.gpu import taken_as

    if name is None:
        return default_gpu()
    try:
        return find_gpu(None, override=name), taken_as(name)
    except UsageError as error:
        raise UsageError(f"{error} (--gpu list shows all)") from error


def _columns() -> int:
    from tracelens.render.console import stdout_console
    from tracelens.render.gemm import chart_columns

    return chart_columns(stdout_console())


def _print(study: Study, gpu_why: str | None, *, explain: bool, json: str | None) -> None:
    if json is not None:
        from tracelens.render.gemm_json import gemm_json

        give_json(gemm_json(study, gpu_why=gpu_why), json)
        if json == "-":
            return
    from tracelens.render.console import stdout_console
    from tracelens.render.gemm import render_gemm

    render_gemm(study, console=stdout_console(), gpu_why=gpu_why, explain=explain)


def _whole(option: str, text: str | None) -> int | None:
    from tracelens.gemm.spelling import shown

    if text is None:
        return None
    if not re.fullmatch("[0-9]{1,20}", text):
        raise UsageError(f"{option} {shown(text)}: give a whole number")
    return int(text)


def _dimensions(text: str) -> tuple[str, ...]:
    from tracelens.gemm.spelling import shown

    words = [one for one in re.split(r"[\s,]+", text.lower()) if one]
    if not words or not set(words) <= {"m", "n", "k"}:
        raise UsageError(f"--vary {shown(text)}: give one or more of m, n, k, e.g. --vary n,k")
    return tuple(dict.fromkeys(words))


def _span(text: str | None) -> tuple[int, int] | None:
    from tracelens.gemm.spelling import shown

    if text is None:
        return None
    match = re.fullmatch("([0-9]{1,20}):([0-9]{1,20})", text)
    if match is None:
        raise UsageError(f"--span {shown(text)}: give the first and the last size, e.g. --span 1024:4096")
    return int(match[1]), int(match[2])
