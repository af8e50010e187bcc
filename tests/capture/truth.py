"""Which module each GEMM of each step belongs to, found another way than the capture finds it.

``python truth.py OUT.json SCRIPT.py ARGS``. Forward: global module hooks keep a stack. Backward: what
autograd saves in a module's forward is marked with the module and says so when it is taken out again, which
a GEMM's node does right before its GEMMs. No profiler, no sequence number, no hook on a node.
"""

from __future__ import annotations

import json
import runpy
import sys
from typing import Any

import torch
from torch.nn.modules import module as nn_module
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils._python_dispatch import TorchDispatchMode

GEMMS = {"aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm"}


class Truth(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.modules: list[Any] = []
        self.called: dict[int, Any] = {}  # held: the script may let go of its model at its end
        self.backward: Any = None
        self.steps: list[list[tuple[str, Any, str]]] = [[]]
        self.inside = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func._schema.name
        if name in GEMMS:
            recomputed = self.inside and self.modules
            owner = self.modules[-1] if recomputed or not self.inside else self.backward
            self.steps[-1].append((name, owner, "backward" if self.inside else "forward"))
        return func(*args, **(kwargs or {}))

    def pack(self, tensor: Any) -> Any:
        return (self.modules[-1] if self.modules else None), tensor

    def unpack(self, packed: Any) -> Any:
        self.backward = packed[0]
        return packed[1]

    def enter(self, module: Any) -> None:
        self.modules.append(module)
        self.called[id(module)] = module

    def install(self) -> None:
        nn_module.register_module_forward_pre_hook(lambda module, args: self.enter(module))
        nn_module.register_module_forward_hook(
            lambda module, args, result: self.modules.pop() and None, always_call=True
        )
        register_optimizer_step_post_hook(lambda *_: self.steps.append([]))
        original = torch.autograd._engine_run_backward  # type: ignore[attr-defined]

        def run(*args: Any, **kwargs: Any) -> Any:
            before, self.inside = self.inside, True
            try:
                return original(*args, **kwargs)
            finally:
                self.inside = before

        torch.autograd._engine_run_backward = run  # type: ignore[attr-defined]

    def named(self) -> list[list[tuple[str, str, str]]]:
        """Names relative to the only root that is in no other module of those seen."""
        seen = {id(module): module for step in self.steps for _, module, _ in step if module is not None}
        roots = [module for module in everything() if any(id(m) in seen for m in module.modules())]
        names: dict[int, str] = {}
        for root in roots:
            for name, module in root.named_modules():
                names.setdefault(id(module), plain(name) or type(module).__name__)
        return [
            [(op, names.get(id(module), "?"), where) for op, module, where in step] for step in self.steps
        ]


def plain(name: str) -> str:
    """Without what the wrappers of data parallelism and checkpointing add."""
    return name.removeprefix("module.").replace("._checkpoint_wrapped_module", "")


def everything() -> list[torch.nn.Module]:
    import gc

    found = [thing for thing in gc.get_objects() if issubclass(type(thing), torch.nn.Module)]
    inner = {id(child) for module in found for child in module.children()}
    return [module for module in found if id(module) not in inner]


def main() -> None:
    out, script, *arguments = sys.argv[1:]
    sys.argv = [script, *arguments]
    truth = Truth()
    truth.install()
    with truth, torch.autograd.graph.saved_tensors_hooks(truth.pack, truth.unpack):
        held = runpy.run_path(script, run_name="__main__")
        named = truth.named()
    with open(out, "w", encoding="utf-8") as file:
        json.dump(named, file)
    del held


if __name__ == "__main__":
    main()
