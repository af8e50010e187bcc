"""The callbacks, in the real libraries on the CPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests.capture.recorded import gemm_owners, load, steps
from tests.docs.blocks import ROOT, blocks

pytestmark = pytest.mark.filterwarnings("default")  # the libraries' own


def test_hugging_face_trainer(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    pytest.importorskip("accelerate", reason="accelerate is not installed; the Trainer needs it")
    from tracelens.capture.callbacks.huggingface import HuggingFaceCapture

    class Data(torch.utils.data.Dataset[dict[str, torch.Tensor]]):
        def __len__(self) -> int:
            return 64

        def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
            ids = torch.randint(0, 32, (8,))
            return {"input_ids": ids, "labels": ids}

    config = transformers.GPT2Config(vocab_size=32, n_positions=8, n_embd=16, n_layer=1, n_head=2)
    callback = HuggingFaceCapture(out=tmp_path / "traces", wait=1, warmup=1, active=2)
    transformers.Trainer(
        model=transformers.GPT2LMHeadModel(config),
        args=transformers.TrainingArguments(
            output_dir=str(tmp_path),
            max_steps=6,
            per_device_train_batch_size=2,
            gradient_accumulation_steps=2,
            report_to=[],
            save_strategy="no",
            use_cpu=True,
            disable_tqdm=True,
        ),
        train_dataset=Data(),
        callbacks=[callback],
    ).train()
    assert callback.path == str(tmp_path / "traces" / "rank0.json.gz")
    trace = load(Path(callback.path))
    assert steps(trace) == ["ProfilerStep#2", "ProfilerStep#3"]
    window = trace["tracelens"]["window"]
    assert (window["backward_passes"], window["step_source"]) == ([2, 2], "marked")
    owners = gemm_owners(trace)
    assert owners[("aten::addmm", "transformer.h.0.mlp.c_fc", "forward")] == 4
    assert not any(owner == "?" for _, owner, _ in owners)
    (model,) = trace["tracelens"]["models"]
    found = {name: entry["value"] for name, entry in model["dimensions"].items()}
    assert found == {
        "hidden": 16,
        "heads": 2,
        "head_dim": 8,
        "layers": 1,
        "vocab": 32,
        "context": 8,
        "micro_batch": 2,
        "sequence": 8,
    }  # no "ffn": the configuration leaves it out, and GPT-2's Conv1D is no nn.Linear
    assert model["dimensions"]["hidden"]["source"].startswith("config.")
    assert model["tied"] == [["transformer.wte.weight", "lm_head.weight"]]


def lightning_task(net: nn.Module, *, fails: bool = False) -> Any:
    """A module of Lightning around ``net``; ``fails``: at its eighth batch."""
    import lightning

    class Task(lightning.LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.net = net

        def training_step(self, batch: Any, index: int) -> torch.Tensor:
            if fails and index == 7:
                raise RuntimeError("as asked")
            return self.net(batch[0]).square().mean()  # type: ignore[no-any-return]

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    return Task()


@pytest.mark.parametrize("fails", [False, True])
def test_lightning(tmp_path: Path, fails: bool) -> None:
    lightning = pytest.importorskip("lightning", reason="lightning is not installed")
    from tracelens.capture.callbacks.lightning import LightningCapture

    task = lightning_task(nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2)), fails=fails)
    callback = LightningCapture(out=tmp_path / "traces", wait=1, warmup=1, active=2)
    trainer = lightning.Trainer(
        max_steps=6,
        accumulate_grad_batches=2,
        accelerator="cpu",
        devices=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[callback],
    )
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.randn(64, 8)), batch_size=4)
    if fails:
        with pytest.raises(RuntimeError, match="as asked"):
            trainer.fit(task, loader)
    else:
        trainer.fit(task, loader)
    assert callback.path is not None
    trace = load(Path(callback.path))
    window = trace["tracelens"]["window"]
    assert steps(trace) == ["ProfilerStep#2", "ProfilerStep#3"]
    if fails:
        assert (window["steps"], window["complete"]) == (1, False)
        assert window["ended"].endswith(RuntimeError.__name__)
    else:
        assert window["backward_passes"] == [2, 2]
        owners = gemm_owners(trace)
        assert owners[("aten::addmm", "net.0", "forward")] == 4
        assert owners[("aten::mm", "net.2", "backward")] == 8
        assert not any(owner == "?" for _, owner, _ in owners)


@pytest.mark.parametrize("library", ["transformers", "lightning"])
def test_the_lines_on_the_docs_page_record_a_trace(
    library: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed = pytest.importorskip(library, reason=f"{library} is not installed")
    pytest.importorskip("accelerate", reason="accelerate is not installed; the Trainer needs it")
    (block,) = (
        one
        for one in blocks(ROOT / "docs" / "profile-a-job.md")
        if one.language == "python" and ("HuggingFace" in one.text) == (library == "transformers")
    )
    monkeypatch.chdir(tmp_path)
    given: dict[str, Any] = {"Trainer": installed.Trainer}
    if library == "transformers":
        config = installed.GPT2Config(vocab_size=32, n_positions=8, n_embd=16, n_layer=1, n_head=2)
        given["model"] = installed.GPT2LMHeadModel(config)
        given["args"] = installed.TrainingArguments(
            output_dir="out", max_steps=8, report_to=[], save_strategy="no", use_cpu=True, disable_tqdm=True
        )
        given["data"] = [{"input_ids": row, "labels": row} for row in torch.randint(0, 32, (64, 8))]
    else:
        given["model"] = lightning_task(nn.Linear(8, 2))
        data = torch.utils.data.TensorDataset(torch.randn(64, 8))
        given["loader"] = torch.utils.data.DataLoader(data, batch_size=4)
    exec(compile(block.text, block.where, "exec"), given)
    assert len(steps(load(Path(given["callback"].path)))) == 2
