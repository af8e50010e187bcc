"""Real traces with names or shapes withheld: what is still said must not contradict the whole trace."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.withheld import contradicted, less, load

SAMPLES = Path(__file__).parents[2] / "sample_traces"

#: trace, what is withheld, and what shows there
CASES = (
    ("h100-sxm_gpt2_vocab50257_eager", "shapes", "the sum at a normalization is of the residual before it"),
    (
        "h100-sxm_bert_vocab30522_eager",
        "shapes",
        "queries, keys and values bring three gradients of one norm",
    ),
    ("h100-sxm_llama_gqa_ffn11008_eager", "shapes", "gate and up bring two gradients of one norm"),
    ("h100-sxm_moe_8experts_eager", "shapes", "so do experts"),
    ("h100-sxm_vit_h14_eager", "shapes", "weights are no longer told by their shape"),
    ("h100-sxm_gpt2_vocab50304_head128_fp8_eager", "names", "products in fp8 are scaled by operators beside"),
    ("h100-sxm_gpt2_vocab50304_head128_fp8_eager", "shapes", "and without shapes"),
    ("h100-sxm_bert_vocab30522_compile", "shapes", "biases put off to one place, a padded vocabulary"),
    ("h100-sxm_gpt2_vocab50257_head80_compile", "shapes", "a padded vocabulary, casts of weights"),
    ("h100-sxm_vit_h14_compile", "shapes", "a bias's gradient, named after the activation"),
    ("h100-sxm_llama_gqa_ffn10922_compile", "shapes", "a padded MLP"),
)


@pytest.mark.parametrize(("name", "withheld", "why"), CASES)
def test_less_does_not_contradict_more(tmp_path: Path, name: str, withheld: str, why: str) -> None:
    document = load(SAMPLES / f"{name}.json.gz")
    fewer = dict(less(document["traceEvents"]))[withheld]
    said = contradicted(document, fewer, tmp_path)
    assert said.other <= 0.004, (why, said.what)
