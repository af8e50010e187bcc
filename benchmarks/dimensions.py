"""Compare the model dimensions that a report states with the configurations of `transformers`.

``python -m benchmarks.dimensions`` analyzes the recordings of ``benchmarks.attribution_zoo`` (half a minute
each where none is kept) without any name, and counts per dimension the models of which it is one that their
configuration states, another, or not known. ``--held``, ``--fresh 3``, 4 and 5 choose as there. A
configuration inside a configuration counts too, and so do the layers of an encoder and a decoder together.
"""

from __future__ import annotations

import argparse
import logging
import tempfile
from collections import Counter
from collections.abc import Collection, Iterator
from itertools import product
from pathlib import Path
from typing import Any

from benchmarks.attribution_zoo import FRESH, NAMES, held, held_half
from benchmarks.hub.configs import config_of, inside
from benchmarks.hub.models import SPECIAL
from benchmarks.hub.recording import record_hub
from tests.synthetic.layout import document
from tracelens import analyze

_HEADS = "num_attention_heads n_head n_heads num_heads encoder_attention_heads decoder_attention_heads"
#: What configurations call a dimension, beside names that end alike ("text_hidden_size").
_CALLED = {
    "hidden": "hidden_size d_model n_embd dim embed_dim hidden_dim model_dim emb_dim",
    "heads": f"{_HEADS} attention_heads",
    "kv_heads": f"num_key_value_heads num_kv_heads n_head_kv multi_query_group_num {_HEADS} attention_heads",
    "head_dim": "head_dim d_kv attention_head_size kv_channels qk_head_dim v_head_dim",
    "ffn": "intermediate_size ffn_dim d_ff n_inner ffn_hidden_size dff dim_feedforward "
    "encoder_ffn_dim decoder_ffn_dim feed_forward_size",
    "vocab": "vocab_size",
    "layers": "num_hidden_layers n_layer n_layers num_layers encoder_layers decoder_layers depth",
    "experts": "num_experts num_local_experts n_routed_experts moe_num_experts",
    "top_k": "num_experts_per_tok top_k num_selected_experts moe_topk moe_k",
}
_MLP = 4  # times the hidden size, where a configuration leaves it open


def stated(configs: Collection[dict[str, Any]]) -> dict[str, set[int]]:
    """Per dimension all that a model's configurations state or imply."""
    out = {name: {*_values(configs, called.split())} for name, called in _CALLED.items()}
    out["head_dim"] |= {hidden // heads for hidden, heads in product(out["hidden"], out["heads"]) if heads}
    out["ffn"] |= {_MLP * hidden for hidden in out["hidden"]}
    out["layers"] |= {one + other for one, other in product(out["layers"], repeat=2)}
    return out


def _values(configs: Collection[dict[str, Any]], names: list[str]) -> Iterator[int]:
    for config, name in product(configs, names):
        for key, value in config.items():
            if key == name or key.endswith(f"_{name}"):
                each = value if isinstance(value, list) else [value]
                yield from (one for one in each if type(one) is int)


def _configs(name: str) -> list[dict[str, Any]]:
    _, over = SPECIAL.get(name.partition("?")[0], (None, {}))
    for part in (False, True):
        try:
            return [one.to_dict() for one in inside(config_of(name, over, part=part))]
        except Exception as error:
            print(f"{name}: {type(error).__name__} {str(error)[:80]!r}")
    return []


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--held", action="store_true", help="judge what was set aside")
    parser.add_argument("--fresh", type=int, choices=(3, 4, 5), help="judge this list of benchmarks/fresh")
    given = parser.parse_args(arguments)
    logging.disable(logging.WARNING)
    chosen = [name for name in NAMES if held(name) == given.held]
    if given.fresh:
        names = FRESH.joinpath(f"hub_{given.fresh}.txt").read_text().split()
        chosen = [name for name in names if held_half(name) == given.held]
    counts: dict[str, Counter[str]] = {name: Counter() for name in _CALLED}
    for name in given.names or chosen:
        try:
            recorded = record_hub(name)
        except Exception as error:  # what a model asks of its library on the meta device
            print(f"{name}: not recorded, {type(error).__name__} {str(error)[:80]!r}", flush=True)
            continue
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "trace.json"
            path.write_text(document(recorded.trace("none")))
            model = analyze(path).report.model
        if not model.transformer:
            continue
        right = stated(_configs(name))
        for dimension, count in counts.items():
            known = getattr(model, dimension)
            if not right[dimension]:
                continue  # called something else there
            verdict = (
                "unknown" if known.value is None else "right" if known.value in right[dimension] else "other"
            )
            count[verdict] += 1
            if verdict == "other":
                print(
                    f"{name}: {dimension} {known.value} ({known.source}), stated {right[dimension]}",
                    flush=True,
                )
    for dimension, count in counts.items():
        print(
            f"{dimension:9}", *(f"{verdict} {count[verdict]:4}" for verdict in ("right", "other", "unknown"))
        )


if __name__ == "__main__":
    main()
