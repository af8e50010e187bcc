"""Make sample_traces/ again, byte for byte: python -m benchmarks.make_samples"""

from __future__ import annotations

import argparse
import gzip
from pathlib import Path

from tests.synthetic import ModelSpec, Options, build

FOLDER = Path(__file__).resolve().parent.parent / "sample_traces"
#: GPT-2 large's width and head size, 12 of its 36 layers; the two files differ in the vocabulary only.
VOCABULARIES = (50257, 50304)
STEPS = 4  # the fewest that a test of two recordings can tell apart
PACE = 0.003  # steps differ by this share or less: of equal steps no test says anything


def file_name(vocabulary: int) -> str:
    return f"generated_gpt2_vocab{vocabulary}.json.gz"


def sample_text(vocabulary: int) -> str:
    """JSON of the sample with that vocabulary."""
    model = ModelSpec(hidden=1280, heads=20, layers=12, sequence=1024, micro_batch=8, vocab=vocabulary)
    return build(model, Options(steps=STEPS, pace=PACE, seed=vocabulary)).text()


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Write the two sample traces.")
    parser.add_argument("--out", type=Path, default=FOLDER)
    folder: Path = parser.parse_args(arguments).out
    for vocabulary in VOCABULARIES:
        path = folder / file_name(vocabulary)
        path.write_bytes(gzip.compress(sample_text(vocabulary).encode(), 9, mtime=0))
        print(f"{path.name}: {path.stat().st_size} bytes")


if __name__ == "__main__":
    main()
