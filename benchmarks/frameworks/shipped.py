"""Recordings of frameworks kept in the repository, for machines that have none of them.

``python -m benchmarks.frameworks.shipped`` makes the file anew. It holds operators, sizes, names of modules
and the truth about each kernel; nothing of a framework's source.
"""

from __future__ import annotations

import lzma
from functools import cache
from pathlib import Path

import msgspec

from benchmarks.hub.recording import Recorded

FILE = Path(__file__).with_name("recorded.json.xz")
#: One for each fault that these models showed: a shared expert's gate and rows sent to experts, a head's bias
#: inside an autograd function, biases of experts, heads chunk by chunk, latent queries put together.
NAMES = (
    "megatron/qwen_moe",
    "megatron/bert",
    "torchtitan/gpt_oss",
    "torchtitan/llama3_chunked",
    "torchtitan/moonlight",
)


@cache
def shipped() -> dict[str, Recorded]:
    """The recordings that are kept, by name."""
    return msgspec.json.decode(lzma.decompress(FILE.read_bytes()), type=dict[str, Recorded])


def main() -> None:
    from benchmarks.frameworks.recording import record_framework

    text = msgspec.json.encode({name: record_framework(name) for name in NAMES})
    FILE.write_bytes(lzma.compress(text, preset=9 | lzma.PRESET_EXTREME))


if __name__ == "__main__":
    main()
