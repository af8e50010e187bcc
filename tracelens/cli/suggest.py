"""``tracelens suggest``: a faster shape, for a step in a trace or for a model that need not exist yet."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import click

from tracelens.cli.gpus import show_gpus
from tracelens.cli.help import Grouped, complete_gpu
from tracelens.cli.streams import give_json
from tracelens.errors import UsageError

if TYPE_CHECKING:
    from tracelens.config import Configuration
    from tracelens.config.training import Training

_FLAGS = {
    "hidden": "Hidden size.",
    "heads": "Attention heads.",
    "kv_heads": "Key/value heads (GQA).",
    "head_dim": "Size of a head.",
    "ffn": "Width of the MLP.",
    "vocab": "Vocabulary size.",
    "layers": "Layers.",
    "sequence": "Tokens of a sequence.",
    "decoder_sequence": "Those of the decoder of an encoder-decoder.",
    "micro_batch": "Sequences of a micro-batch, on one GPU.",
    "tensor_parallel": "GPUs that share each layer.",
    "pipeline_parallel": "Stages of layers, each on GPUs of its own.",
    "context_parallel": "GPUs that share each sequence.",
    "virtual_stages": "Parts of its layers that a stage takes turns with (interleaved).",
    "expert_parallel": "GPUs that share the experts, each with its own tokens.",
}
_TRAINING = ("gpus", "strategy", "stack", "sequence_parallel", "checkpoint", "micro_batches")


def _sizes(command: click.decorators.FC) -> click.decorators.FC:
    for name, words in reversed(_FLAGS.items()):
        flag = "--" + name.replace("_", "-")
        command = click.option(flag, name, type=click.IntRange(1), metavar="N", help=words)(command)
    return command


_GROUPS = {
    "The model": (*_FLAGS, "gated", "tied"),
    "The search": ("params", "fix", "free", "memory_gb"),
    "A whole step": ("whole", *_TRAINING),
}


@click.command(cls=Grouped, groups=_GROUPS, short_help="A faster shape of the same size for a model.")
@click.argument("source", required=False)
@click.option("--config", metavar="FILE", help="A configuration: SOURCE as an option.")
@_sizes
@click.option("--gated/--no-gated", default=None, help="The MLP has a gate (SwiGLU, GeGLU), or none.")
@click.option("--tied/--untied", default=None, help="Logits share the embedding's weights, or not.")
@click.option("--gpu", metavar="NAME", shell_complete=complete_gpu,
              help="The GPU to train on, e.g. h100-sxm, or 'list'; a trace names its own.")  # fmt: skip
@click.option(
    "--dtype",
    type=click.Choice(["bf16", "fp16", "fp8", "nvfp4"]),
    help="Of a configuration.  [default: bf16]",
)
@click.option("--params", "params", default="1%", show_default=True, metavar="X%",
              help="How far the number of weights can move.")  # fmt: skip
@click.option("--fix", default="", metavar="A,B", help="Sizes that stay: hidden, heads, ffn, vocab.")
@click.option("--free", default="", metavar="A,B",
              help="Further sizes that can change: layers, kv_heads, micro_batch, sequence; heads: to"
                   " counts that fewer of 2, 4 and 8 tensor-parallel ranks can share.")  # fmt: skip
@click.option("--memory-gb", type=float, metavar="GB", help="Memory of one GPU, to search the micro-batch.")
@click.option("--step", "whole", is_flag=True, help="Predict a whole step, tokens/s and MFU.")
@click.option("--gpus", type=click.IntRange(1), metavar="N", help="GPUs of the step.  [default: one node]")
@click.option("--strategy", type=click.Choice(["fsdp", "ddp", "zero1", "tp"]),
              help="How GPUs share the step.  [default: the file's, or fsdp]")  # fmt: skip
@click.option("--sequence-parallel", is_flag=True, default=None,
              help="Tensor-parallel ranks share what is between their GEMMs, too.")  # fmt: skip
@click.option("--stack", type=click.Choice(["plain", "compiled", "megatron"]),
              help="PyTorch as it is, under torch.compile or with fused kernels, or Megatron-Core with"
                   " Transformer Engine (Megatron-Bridge, NeMo).  [default: the file's, or plain]",
)  # fmt: skip
@click.option("--checkpoint", type=click.Choice(["full", "selective", "selective-op", "none"]),
              help="Activations computed again in the backward.  [default: the file's, or none]")  # fmt: skip
@click.option("--micro-batches", type=click.IntRange(1), metavar="N",
              help="Micro-batches of a step (gradient accumulation).  [default: the file's, or 1]",
)  # fmt: skip
@click.option("--json", "json_path", metavar="FILE", help="Everything as JSON ('-': standard output).")
def suggest(
    source: str | None,
    config: str | None,
    params: str,
    fix: str,
    free: str,
    memory_gb: float | None,
    whole: bool,
    json_path: str | None,
    **model: Any,
) -> None:
    """Suggest a faster shape for the model of SOURCE, of the same size.

    \b
    SOURCE is a trace (.json or .json.gz), or a report that `analyze --json`
    saved: its measured step is what every shape is judged on. Or it is a
    configuration, without a trace or a GPU: a Hugging Face config.json (or its
    folder), a Megatron-LM script or YAML/JSON of its arguments, or a nanoGPT
    config, whose sizes the options replace. Without a file give at least
    --hidden, --heads and --layers. Of a trace that does not show its layers,
    --layers tells them.
    """
    from tracelens.suggestions import suggest as find

    if model["gpu"] == "list":
        show_gpus()
        return
    if source is not None and config is not None:
        raise UsageError("give SOURCE or --config, not both")
    given = {name: model[name] for name in _FLAGS if model[name] is not None}
    training = _training(model, given, whole=whole)
    found = find(
        _source(source or config, given, gated=model["gated"], tied=model["tied"]),
        gpu=model["gpu"],
        parameters_frac=_share(params),
        fix=_names(fix),
        free=_names(free),
        memory_gb=memory_gb,
        dtype=model["dtype"],
        sizes=given,
        tied=model["tied"],
        training=training,
    )
    if json_path is not None:
        from tracelens.results.json import suggestions_json

        give_json(suggestions_json(found), json_path)
    if json_path != "-":
        from tracelens.render.console import stdout_console
        from tracelens.render.suggestions import render_suggestions

        render_suggestions(found, console=stdout_console())


def _training(model: dict[str, Any], given: dict[str, int], *, whole: bool) -> Training | None:
    """How the step is run, where one is asked for; under tp all GPUs share each layer unless told."""
    from tracelens.config.training import Training

    asked = {name: model[name] for name in _TRAINING if model[name] is not None}
    if asked and not whole:
        flag = "--" + next(iter(asked)).replace("_", "-")
        raise UsageError(f"{flag} says how a whole step is run: add --step")
    if asked.get("strategy") == "tp" and "tensor_parallel" not in given:
        if "gpus" not in asked:
            raise UsageError("--strategy tp: say how many GPUs share each layer: --gpus N")
        given["tensor_parallel"] = asked["gpus"]
    return Training(**asked).checked() if whole else None


def _source(
    source: str | None, given: dict[str, int], *, gated: bool | None, tied: bool | None
) -> str | Configuration:
    """The path of a trace or report, else the configuration with what was given beside it."""
    from tracelens.config import config_from_flags, read_config
    from tracelens.kinds import kind_of

    if source is None:
        return config_from_flags(given, gated=gated, tied=tied)
    if kind_of(source) == "other":
        return read_config(source, overrides=given, gated=gated, tied=tied)
    if gated is not None:
        raise UsageError("whether the MLP has a gate is read from the trace")
    return source


def _share(text: str) -> float:
    match = re.fullmatch(r"\s*(\d{1,3}(?:\.\d{1,6})?)\s*%?\s*", text)
    if match is None:
        raise UsageError(f"--params {text[:20]!r}: give percent, e.g. --params 1%")
    return float(match[1]) / 100


def _names(text: str) -> tuple[str, ...]:
    return tuple(name.strip().replace("-", "_") for name in text.split(",") if name.strip())
