"""A shape search for the renderers' tests; made-up numbers, none was measured."""

from __future__ import annotations

from tracelens.results import Estimate, FrontPoint, PickReason, ShapePick, ShapeSearch

PICK = ShapePick(
    "heads 32 → 20", {"heads": [32, 20], "kv_heads": [32, 20], "head_dim": [80, 128]},
    Estimate(0.017, 0.033, 0.046, "model"), Estimate(1.7, 3.3, 4.6, "model"), 0.033, 2_651_000_000, 0.0, 0.0,
    0.0, "retrain", "another architecture, for a model trained from the start",
    [PickReason("attention.core", "forward", "b=4", "b=4", 8.8, 5.74, 3.06, "fewer exponentials")],
    ["- heads = 32", "+ heads = 20"],
)  # fmt: skip
FRONT = [
    FrontPoint({"ffn": [10240, 10304]}, 0.005, 1.002),
    FrontPoint({"heads": [32, 20], "head_dim": [80, 128]}, 0.0, 0.966),
    FrontPoint({"heads": [32, 20], "ffn": [10240, 10176]}, -0.005, 0.961),
]
VERDICT = "heads 32 → 20: predicted 3.3% less time per token (1.7% to 4.6%)."
FOUND = ShapeSearch("found", VERDICT, [PICK], PICK,
                    front=FRONT, tried=351, searched=["heads"], not_searched={"vocab": "not known"},
                    parameters_limit_frac=0.01)  # fmt: skip
GOOD = ShapeSearch("good", "This shape is already good on the H100.", tried=20, parameters_limit_frac=0.01)
