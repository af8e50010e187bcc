"""A Lightning script: knows nothing of tracelens."""

import argparse

import lightning
import torch
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=12)
parser.add_argument("--accumulate", type=int, default=1)
args = parser.parse_args()


class Encoder(nn.Module):
    def __init__(self, size=32):
        super().__init__()
        self.embed = nn.Embedding(64, size)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(size, 4, 64, dropout=0.0, batch_first=True) for _ in range(2)
        )
        self.head = nn.Linear(size, 64)

    def forward(self, ids):
        x = self.embed(ids)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


class Task(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.model = Encoder()
        self.losses = []

    def training_step(self, batch, batch_index):
        (ids,) = batch
        loss = nn.functional.cross_entropy(self.model(ids).flatten(0, 1), ids.flatten())
        self.losses.append(loss.item())
        return loss

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


if __name__ == "__main__":
    lightning.seed_everything(0, verbose=False)
    data = torch.utils.data.TensorDataset(torch.randint(0, 64, (256, 16)))
    task = Task()
    trainer = lightning.Trainer(
        max_steps=args.steps,
        accelerator="cpu",
        devices=1,
        accumulate_grad_batches=args.accumulate,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(task, torch.utils.data.DataLoader(data, batch_size=4))
    print("losses", task.losses)
