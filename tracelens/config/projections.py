"""GEMMs of layers whose core is not predicted: those around a state-space scan or a gated delta network."""

from __future__ import annotations

from collections.abc import Mapping

from tracelens.config.configuration import LARGEST, USUAL_TOKENS

_HIDDEN = ("hidden_size", "d_model")
_INNER = ("mamba_d_ssm",)
_HEADS = ("mamba_num_heads", "mamba_n_heads", "n_mamba_heads", "num_heads")
_HEAD = ("mamba_head_dim",)
_EXPAND = ("mamba_expand", "expand")
_GROUPS = ("mamba_n_groups", "mamba_ngroups", "n_groups")
_STATE = ("mamba_d_state", "ssm_state_size", "state_size")


def projections(table: Mapping[str, object]) -> tuple[str, ...]:
    """MxNxK of a micro-batch's forward GEMMs in and out of such a layer, for ``tracelens gemm``.

    As transformers builds them (modeling_mamba.py, modeling_mamba2.py, modeling_qwen3_next.py and their kin).
    Empty where the file does not say the sizes.
    """
    hidden = _first(table, _HIDDEN)
    inner, into = _delta(table) if "linear_num_value_heads" in table else _scan(table, hidden)
    if not (hidden and inner and into):
        return ()
    return (f"{USUAL_TOKENS}x{into}x{hidden}", f"{USUAL_TOKENS}x{hidden}x{inner}")


def _scan(table: Mapping[str, object], hidden: int) -> tuple[int, int]:
    """Width of the scan, and of what is projected for it: with a state for each group in Mamba-2."""
    heads, groups = _first(table, _HEADS), _first(table, _GROUPS)
    inner = _first(table, _INNER) or heads * _first(table, _HEAD) or _first(table, _EXPAND) * hidden
    if not groups:
        return inner, 2 * inner
    return inner, 2 * inner + 2 * groups * _first(table, _STATE) + heads


def _delta(table: Mapping[str, object]) -> tuple[int, int]:
    """Width of the values, and of queries, keys and values, with their gate where one GEMM makes all."""
    keys = _first(table, ("linear_num_key_heads",)) * _first(table, ("linear_key_head_dim",))
    values = _first(table, ("linear_num_value_heads",)) * _first(table, ("linear_value_head_dim",))
    kind = str(table.get("model_type"))
    if kind.startswith("qwen3_5"):
        return values, 2 * keys + values
    return values, 2 * keys + 2 * values if kind == "qwen3_next" else keys


def _first(table: Mapping[str, object], keys: tuple[str, ...]) -> int:
    found = next((table[key] for key in keys if table.get(key) is not None), 0)
    return found if isinstance(found, int) and not isinstance(found, bool) and 0 < found < LARGEST else 0
