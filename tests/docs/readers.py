"""What a reader of the documentation has at hand: the files its commands name, the names in its code."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

from tests.cli import running
from tests.docs.blocks import ROOT

SAMPLES = ROOT / "sample_traces"
BEFORE, AFTER = (SAMPLES / f"generated_gpt2_vocab{size}.json.gz" for size in (50257, 50304))
_TRAIN = """
import torch

model = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.GELU(), torch.nn.Linear(64, 32))
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(20):
    loss = model(torch.randn(8, 32)).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
"""
_CONFIG = {
    "model_type": "llama", "hidden_size": 4096, "num_attention_heads": 32, "num_key_value_heads": 32,
    "num_hidden_layers": 32, "intermediate_size": 11008, "vocab_size": 32000, "hidden_act": "silu",
    "max_position_embeddings": 4096, "tie_word_embeddings": False,
}  # fmt: skip
_MEGATRON = """
torchrun pretrain_gpt.py --num-layers 32 --hidden-size 2560 --num-attention-heads 32 --seq-length 2048 \\
  --max-position-embeddings 2048 --micro-batch-size 4 --vocab-size 50257 --bf16
"""
_NANOGPT = "n_layer = 12\nn_head = 12\nn_embd = 768\nblock_size = 1024\nbatch_size = 12\nvocab_size = 50257\n"


def desk(folder: Path) -> Path:
    """Lay out the files that the pages name, with our own commands on the path; returns ``folder``."""
    (folder / "bin").mkdir(parents=True)
    for name in ("tracelens",):
        script = folder / "bin" / name
        script.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m {name} "$@"\n')
        script.chmod(0o755)
    (folder / "sample_traces").symlink_to(SAMPLES)
    for name, source in (("trace", BEFORE), ("before", BEFORE), ("after", AFTER)):
        shutil.copy(source, folder / f"{name}.json.gz")
    (folder / "traces").mkdir()
    for rank, source in enumerate((BEFORE, AFTER)):
        shutil.copy(source, folder / "traces" / f"rank{rank}.json.gz")
    (folder / "train.py").write_text(_TRAIN)
    (folder / "config.json").write_text(json.dumps(_CONFIG))
    (folder / "pretrain.sh").write_text(_MEGATRON)
    (folder / "config").mkdir()
    (folder / "config" / "train_gpt2.py").write_text(_NANOGPT)
    return folder


def shell(command: str, *, folder: Path, seconds: float = 3600) -> subprocess.CompletedProcess[str]:
    """Run a command as typed on that desk, 80 columns wide, into a pipe; a plain one of ours here."""
    words = shlex.split(command, comments=True)
    if words[:1] == ["tracelens"] and words[1:2] != ["capture"] and not set(command) & set("|&;<>()$`*?~"):
        return running.run(*words[1:], cwd=folder, COLUMNS="80")
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("GITHUB_", "COV_"))}
    path = os.pathsep.join(
        [str(folder / "bin"), str(Path(sys.executable).parent), os.environ.get("PATH", "")]
    )
    return subprocess.run(
        ["bash", "-c", command],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=seconds,
        check=False,
        env={
            **clean,
            "PATH": path,
            "COLUMNS": "80",
            "PYTHONPATH": str(ROOT),
        },
    )


#: What a block takes for granted, ``<!-- needs: training -->`` above it: a module, and code before the block.
NEEDS = {
    "training": (
        "torch",
        """
import torch

model = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.GELU(), torch.nn.Linear(64, 32))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loader = [torch.randn(8, 32) for _ in range(20)]


def train_step(batch):
    model(batch).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()


""",
    ),
    "hta": ("hta", ""),
}
