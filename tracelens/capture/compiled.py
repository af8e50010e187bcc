"""Which modules run inside ``torch.compile``: there no hook may go.

Dynamo inlines the hooks of the modules it traces and guards on their dictionaries: a hook that comes or goes
is then a recompilation (measured with torch 2.13: hooks on the blocks of a compiled model turned 2 compiled
frames into 5). So a compiled region gets one range around it; what lies inside is left to the module tree.
"""

from __future__ import annotations

import re
import sys
from types import CodeType
from typing import Any

from torch import nn

_RESUMED = re.compile(r"torch_dynamo_resume_in_(.+)_at_\d+$")


class Compiled:
    """A picture of what Dynamo has compiled so far."""

    def __init__(self) -> None:
        self._codes = _seen_codes()
        self.blind = self._unknown_region()

    def verdict(self, module: nn.Module) -> str:
        """``eager``; ``region``: hook it but nothing within; ``call``: its whole call is compiled."""
        if module.__dict__.get("_compiled_call_impl") is not None:
            return "call"
        if type(module).__name__ == "OptimizedModule":
            return "region"
        if hasattr(module.__dict__.get("forward"), "_torchdynamo_orig_callable"):
            return "region"
        return "region" if self._has_compiled_method(type(module)) else "eager"

    def _has_compiled_method(self, kind: type) -> bool:
        for base in kind.__mro__:
            if base is nn.Module:
                return False
            for value in base.__dict__.values():
                inner = getattr(value, "_torchdynamo_orig_callable", value)
                if inner is not value or getattr(inner, "__code__", None) in self._codes:
                    return True
        return False

    def _unknown_region(self) -> str | None:
        """A compiled function that uses modules and is no module's method: which ones cannot be told."""
        frames = sys.modules.get("torch._dynamo.eval_frame")
        entries = getattr(frames, "_debug_get_cache_entry_list", None)
        methods = _method_codes() if self._codes else set()
        places = {(code.co_filename, code.co_name) for code in methods}
        for code in self._codes:
            resumed = _RESUMED.match(code.co_name)  # what follows a graph break in the function of that name
            name = resumed[1] if resumed else code.co_name
            if code in methods or (resumed and (code.co_filename, name) in places):
                continue
            # how Dynamo calls an OptimizedModule's inner one
            if code.co_filename.endswith("external_utils.py"):
                continue
            if entries is None:
                return name
            for entry in entries(code):
                if _mentions_modules(entry):
                    return name
        return None


def _seen_codes() -> set[CodeType]:
    frames = sys.modules.get("torch._dynamo.convert_frame")
    seen = getattr(getattr(frames, "input_codes", None), "seen", ())
    codes = {reference() for reference in tuple(seen)}
    return {code for code in codes if isinstance(code, CodeType)}


def _mentions_modules(entry: Any) -> bool:
    parts = getattr(getattr(entry, "guard_manager", None), "code_parts", None)
    return parts is None or any("._modules" in str(part) or "_parameters[" in str(part) for part in parts)


def _method_codes() -> set[CodeType]:
    """The code of every method of every module class."""
    codes: set[CodeType] = set()
    todo: list[type] = [nn.Module]
    seen: set[type] = set()
    while todo:
        kind = todo.pop()
        if kind in seen:
            continue
        seen.add(kind)
        todo.extend(type.__subclasses__(kind))
        for value in kind.__dict__.values():
            inner = getattr(value, "_torchdynamo_orig_callable", value)
            code = getattr(inner, "__code__", None)
            if isinstance(code, CodeType):
                codes.add(code)
    return codes


def counters() -> dict[str, int]:
    """Graph breaks and compiled frames so far; empty without Dynamo."""
    utils = sys.modules.get("torch._dynamo.utils")
    found = getattr(utils, "counters", None)
    if found is None:
        return {}
    return {
        "graph_breaks": sum(found["graph_break"].values()) if "graph_break" in found else 0,
        "compiled_frames": int(found["frames"]["ok"]) if "frames" in found else 0,
        "graphs": int(found["stats"]["unique_graphs"]) if "stats" in found else 0,
    }
