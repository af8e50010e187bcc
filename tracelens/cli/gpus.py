"""``--gpu list``: every GPU that can be named."""

from __future__ import annotations


def show_gpus() -> None:
    """Print them, with what is known of each."""
    from tracelens.hardware import list_gpus
    from tracelens.hardware.default import measured_gpus
    from tracelens.render.console import stdout_console
    from tracelens.render.gemm import render_gpus

    render_gpus(list_gpus(), measured=measured_gpus(), console=stdout_console())
