"""What an output tells its reader to run, runs: each command, flag, rule and file that any of them names."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import click
import pytest

from tests.truth.commands import Named, named, prepare, run, said_in_source
from tests.truth.outputs import ROOT
from tracelens.cli import cli

#: Flags of other programs that texts name.
OTHERS = {
    # Megatron-LM, megatron/training/arguments.py
    "--make-vocab-size-divisible-by", "--num-query-groups", "--num-experts", "--group-query-attention",
    "--overlap-param-gather", "--overlap-grad-reduce", "--tp-comm-overlap", "--tensor-model-parallel-size",
    "--sequence-parallel", "--attention-backend", "--use-flash-attn",
    "--swiglu", "--seq-length", "--num-layers", "--num-attention-heads", "--multi-latent-attention",
    "--moe-router-load-balancing-type", "--moe-aux-loss-coeff", "--moe-expert-capacity-factor",
    "--moe-router-topk", "--moe-ffn-hidden-size",
    "--moe-grouped-gemm", "--micro-batch-size", "--kv-channels", "--hidden-size", "--ffn-hidden-size",
    "--decoder-first-pipeline-num-layers", "--account-for-embedding-in-pipeline-split",
    # nvidia-smi; Perfetto's trace_processor
    "--query-gpu", "--format", "--httpd",
}  # fmt: skip
_FLAG = re.compile(r"(?<![\w-])--[a-z][a-z-]+(?![\w-]*=%)")
_DOC = re.compile(r"\bdocs/[\w/-]+\.md\b")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("commands")
    prepare(made)
    return made


@cache
def source_commands() -> dict[Named, str]:
    return {one: where for where, text in said_in_source() for one in named(text)}


@pytest.mark.parametrize("one", sorted(source_commands(), key=str), ids=str)
def test_every_command_that_the_source_names_runs(one: Named, folder: Path) -> None:
    assert run(one, folder) is None, source_commands()[one]


def test_every_flag_that_the_source_names_exists() -> None:
    known = {"--help", "--version", *OTHERS}
    for command in cli.commands.values():
        for option in command.params:
            if isinstance(option, click.Option):
                known.update([*option.opts, *option.secondary_opts])
    unknown = {
        f"{where}: {flag}"
        for where, text in said_in_source()
        for flag in _FLAG.findall(text)
        if flag not in known and not (flag.endswith("-") and any(one.startswith(flag) for one in OTHERS))
    }
    assert unknown == set()


def test_every_page_of_the_documentation_that_the_source_names_exists() -> None:
    missing = {
        f"{w}: {page}" for w, t in said_in_source() for page in _DOC.findall(t) if not (ROOT / page).is_file()
    }
    assert missing == set()


def test_a_command_that_does_not_exist_is_found(folder: Path) -> None:
    """The check itself: it would have caught a folder given to analyze, and a flag or command made up."""
    quoted = 'find it ("tracelens analyze FOLDER" reads all ranks)'
    assert {str(one) for one in named(quoted)} == {"tracelens analyze FOLDER"}
    for text in ('"tracelens fuse TRACE"', "tracelens analyze TRACE --fix", "tracelens explain TL999"):
        (one,) = named(text)
        assert run(one, folder) is not None, text
