"""The model's dimensions in real steps whose products torch.compile padded."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.kept import analyzed

SAMPLES = Path(__file__).parents[2] / "sample_traces"


@pytest.mark.parametrize(("name", "words"), [("bert_vocab30522", 30522), ("gpt2_vocab50257_head80", 50257)])
def test_the_vocabulary_is_the_models_and_not_what_its_product_ran_with(name: str, words: int) -> None:
    report = analyzed(SAMPLES / f"h100-sxm_{name}_compile.json.gz").report
    assert report.model.vocab.value == words
    padded = [row for row in report.gemms if row.component == "logits" and row.padded_from]
    assert padded
    assert all("v" in (row.m_expr, row.n_expr, row.k_expr) for row in padded)
    assert any("vocab_size" in finding.change for finding in report.findings)


def test_the_width_of_the_mlp_is_the_models_and_not_what_its_products_ran_with() -> None:
    report = analyzed(SAMPLES / "h100-sxm_llama_gqa_ffn10922_compile.json.gz").report
    assert report.model.ffn.value == 10922
    padded = {(row.component, row.role) for row in report.gemms if row.padded_from}
    roles = ("forward", "dgrad", "wgrad")  # the operands of wgrad were padded for the other two
    assert padded == {(f"mlp.{part}", role) for part in ("up", "gate", "down") for role in roles}
    assert all("f" in (row.m_expr, row.n_expr, row.k_expr) for row in report.gemms if row.padded_from)
