"""How long a product would take on a GPU: predicted from its shape, sharpened by measurements."""

from __future__ import annotations

from tracelens.gemm.predict.gemm import Prediction, predict_gemm

__all__ = ["Prediction", "predict_gemm"]
