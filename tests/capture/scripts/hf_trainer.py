"""A Hugging Face Trainer script: knows nothing of tracelens."""

import argparse

import torch
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments, set_seed

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=12)
parser.add_argument("--accumulate", type=int, default=1)
parser.add_argument("--checkpoint", action="store_true")
parser.add_argument("--output", default="out")
args = parser.parse_args()


class Data(torch.utils.data.Dataset):
    def __len__(self):
        return 256

    def __getitem__(self, index):
        ids = torch.randint(0, 64, (16,), generator=torch.Generator().manual_seed(index))
        return {"input_ids": ids, "labels": ids}


if __name__ == "__main__":
    set_seed(0)
    config = LlamaConfig(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=32,
    )
    model = LlamaForCausalLM(config)
    if args.checkpoint:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    arguments = TrainingArguments(
        output_dir=args.output,
        max_steps=args.steps,
        per_device_train_batch_size=2,
        gradient_accumulation_steps=args.accumulate,
        logging_steps=1,
        report_to=[],
        save_strategy="no",
        use_cpu=True,
        disable_tqdm=True,
    )
    trainer = Trainer(model=model, args=arguments, train_dataset=Data())
    trainer.train()
    print("losses", [entry["loss"] for entry in trainer.state.log_history if "loss" in entry])
