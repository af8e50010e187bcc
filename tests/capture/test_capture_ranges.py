"""Named ranges: around every GEMM, in every kind of forward and backward, and gone after the window."""

from __future__ import annotations

import copy
import pickle
import threading
import traceback
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.modules import module as nn_module
from torch.utils.checkpoint import checkpoint, set_checkpoint_early_stop

import tracelens
from tests.capture.recorded import gemm_owners, load, module_names, spans

pytestmark = pytest.mark.filterwarnings("default")  # PyTorch's own


class Mlp(nn.Module):
    def __init__(self, size: int = 8) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(size, 4 * size), nn.Linear(4 * size, size)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(torch.relu(self.up(x)))  # type: ignore[no-any-return]


class Stack(nn.Module):
    """Two blocks; the second is used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([Mlp(), Mlp()])
        self.head = nn.Linear(8, 3)
        self.weight = nn.Parameter(torch.randn(8, 8))
        self.how = "plain"

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in [*self.blocks, self.blocks[1]]:
            if self.how == "plain":
                x = block(x)
            else:
                x = checkpoint(block, x, use_reentrant=self.how == "reentrant")
        return self.head(x @ self.weight)  # type: ignore[no-any-return]


def recorded(folder: Path, model: nn.Module, step: Callable[[], Any], *, steps: int = 3) -> dict[str, Any]:
    """The trace of one step in the middle of ``steps``."""
    with tracelens.capture(model, out=folder, wait=1, warmup=0, active=1) as capture:
        for _ in range(steps):
            step()
            capture.step()
    return load(folder / "rank0.json.gz")


def train(model: nn.Module, size: int = 8) -> Callable[[], None]:
    def step() -> None:
        x = torch.randn(4, size, requires_grad=True)
        model(x).square().mean().backward()

    return step


FORWARD = Counter(
    {
        ("aten::addmm", "blocks.0.up", "forward"): 1,
        ("aten::addmm", "blocks.0.down", "forward"): 1,
        ("aten::addmm", "blocks.1.up", "forward"): 2,
        ("aten::addmm", "blocks.1.down", "forward"): 2,
        ("aten::mm", "Stack", "forward"): 1,
        ("aten::addmm", "head", "forward"): 1,
    }
)
BACKWARD = Counter({("aten::mm", owner, "backward"): 2 * count for (_, owner, _), count in FORWARD.items()})
AGAIN = Counter(
    {
        (op, owner, "backward"): count
        for (op, owner, _), count in FORWARD.items()
        if owner.startswith("blocks")
    }
)


def test_nested_and_reused_modules(tmp_path: Path) -> None:
    model = Stack()
    assert gemm_owners(recorded(tmp_path, model, train(model))) == FORWARD + BACKWARD


@pytest.mark.parametrize("how", ["reentrant", "not reentrant"])
def test_activation_checkpointing(tmp_path: Path, how: str) -> None:
    model = Stack()
    model.how = how
    with set_checkpoint_early_stop(False):
        trace = recorded(tmp_path, model, train(model))
    assert gemm_owners(trace) == FORWARD + BACKWARD + AGAIN
    assert trace["tracelens"]["window"]["recomputed"] == sorted(
        {"blocks.0", "blocks.0.down", "blocks.0.up", "blocks.1", "blocks.1.down", "blocks.1.up"}
    )
    # run again is told from differentiated: a user range against an operator range
    for event, around in spans(trace):
        if event["name"] == "aten::addmm" and any("evaluate_function" in outer["name"] for outer in around):
            names = module_names(trace)
            assert [o["cat"] for o in around if o["name"] in names][-1] == "user_annotation"


def test_a_checkpoint_that_stops_early_leaves_no_range_open(tmp_path: Path) -> None:
    model = Stack()
    model.how = "not reentrant"
    owners = gemm_owners(recorded(tmp_path, model, train(model)))
    assert FORWARD + BACKWARD < owners <= FORWARD + BACKWARD + AGAIN


def test_an_exception_in_forward_leaves_no_range_open(tmp_path: Path) -> None:
    class Fails(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            raise RuntimeError("out of memory")

    model = nn.Sequential(Mlp(), Fails(), nn.Linear(8, 8))

    def step() -> None:
        x = torch.randn(4, 8)
        with pytest.raises(RuntimeError, match="out of memory"):
            model(x)
        model[2](model[0](x)).sum().backward()

    trace = recorded(tmp_path, model, step)
    assert gemm_owners(trace) == Counter(
        {
            ("aten::addmm", "0.up", "forward"): 2,
            ("aten::addmm", "0.down", "forward"): 2,
            ("aten::addmm", "2", "forward"): 1,
            ("aten::mm", "0.up", "backward"): 1,  # the input needs no gradient
            ("aten::mm", "0.down", "backward"): 2,
            ("aten::mm", "2", "backward"): 2,
        }
    )
    after = [around for event, around in spans(trace) if event["name"] == "2"]
    assert all(not any(outer["name"] == "1" for outer in around) for around in after)


def test_in_place_operations_on_outputs_still_work(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(inplace=True), nn.Linear(8, 8))
    owners = gemm_owners(recorded(tmp_path, model, train(model)))
    assert {owner for _, owner, _ in owners} == {"0", "2"}


def test_threads_do_not_mix_their_modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """torch's profiler leaves out the operators of the user's own threads, so what is opened is watched."""
    from tracelens.capture import ranges

    opened: dict[int, Counter[str]] = {}
    closed: dict[int, Counter[str]] = {}

    def enter(name: str) -> str:
        opened.setdefault(threading.get_ident(), Counter())[name] += 1
        return name

    monkeypatch.setattr(ranges, "_enter_user", enter)
    monkeypatch.setattr(
        ranges, "_exit_user", lambda name: closed.setdefault(threading.get_ident(), Counter()).update([name])
    )
    models = nn.ModuleList([Mlp(), nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))])

    def step() -> None:
        together = threading.Barrier(2)

        def work(model: nn.Module) -> None:
            for _ in range(5):
                together.wait(10)
                model(torch.randn(4, 8)).sum().backward()

        threads = [threading.Thread(target=work, args=(model,)) for model in models]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    recorded(tmp_path, models, step)
    assert len(opened) == 2 and opened == closed
    for names in opened.values():
        (model,) = {name[0] for name in names}
        assert names[model] == 5


def test_copies_made_in_the_window_are_their_own(tmp_path: Path) -> None:
    """Evaluation on a copy, an average of weights, a pickled model: none may call the original."""
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
    wrong = []

    def step() -> None:
        x = torch.randn(2, 8, requires_grad=True)
        for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
            with torch.no_grad():
                for parameter in other.parameters():
                    parameter.zero_()
            wrong.append(bool(other(x).any()))
        shallow = copy.copy(model)
        shallow._modules = {"0": model[0]}
        wrong.append(not torch.equal(shallow(x), model[0](x)))
        model(x).sum().backward()

    recorded(tmp_path, model, step)
    assert wrong == [False] * 9


class OwnCall(nn.Linear):
    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return super().__call__(x)  # type: ignore[no-any-return]


class OwnCopy(nn.Linear):
    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__.copy()


@pytest.mark.parametrize("kind", [OwnCall, OwnCopy])
def test_modules_that_do_calls_or_copies_their_own_way_have_ranges_too(
    tmp_path: Path, kind: type[nn.Linear]
) -> None:
    model = nn.Sequential(kind(8, 8), nn.Linear(8, 8))

    def step() -> None:
        x = torch.randn(2, 8, requires_grad=True)
        model(x).sum().backward()
        other = copy.deepcopy(model)
        with torch.no_grad():
            for parameter in other.parameters():
                parameter.zero_()
        assert not other(x).any()

    owners = gemm_owners(recorded(tmp_path, model, step))
    assert owners[("aten::mm", "0", "backward")] == owners[("aten::mm", "1", "backward")] == 2


def test_replicas_of_data_parallel_are_not_the_module_they_replicate(tmp_path: Path) -> None:
    model = nn.DataParallel(nn.Sequential(nn.Linear(8, 8)))
    wrong = []

    def step() -> None:
        replica = model.module[0]._replicate_for_data_parallel()
        replica.weight, replica.bias = torch.zeros(8, 8), torch.zeros(8)
        wrong.append(bool(replica(torch.randn(2, 8)).any()))
        model(torch.randn(2, 8)).sum().backward()

    owners = gemm_owners(recorded(tmp_path, model, step))
    assert wrong == [False] * 3
    assert owners[("aten::addmm", "0", "forward")] == 2  # also the replica's


def test_the_backward_pass_runs_none_of_our_code(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
    frames: set[str] = set()

    def step() -> None:
        loss = model(torch.randn(2, 8, requires_grad=True)).sum()
        node, nodes = loss.grad_fn, []
        while node is not None:
            nodes.append(node)
            node = next((inner for inner, _ in node.next_functions if inner is not None), None)
        assert all(not node.metadata for node in nodes)
        for node in nodes[:-1]:
            node.register_hook(lambda *_: frames.update(_files()))
        loss.backward()

    recorded(tmp_path, model, step)
    assert frames and not any(Path(file).parts[-2:] == ("capture", "ranges.py") for file in frames)


def _files() -> set[str]:
    return {frame.filename for frame in traceback.extract_stack()}


def test_what_compiles_first_in_the_window_does_not_compile_again_after_it(tmp_path: Path) -> None:
    """Dynamo guards on forward hooks: those that go would cost a recompilation."""
    from torch._dynamo.utils import counters

    def graphs(captured: bool) -> tuple[dict[str, int], list[float]]:
        torch._dynamo.reset()
        counters.clear()
        torch.manual_seed(3)
        model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
        losses: list[float] = []

        @torch.compile(backend="eager", fullgraph=True)
        def compiled(x: torch.Tensor) -> torch.Tensor:
            return model(x).square().mean()  # type: ignore[no-any-return]

        def step() -> None:
            late = len(losses) >= 1  # the window opens behind the first step
            x = torch.randn(2, 8)
            loss = compiled(x) if late else model(x).square().mean()
            loss.backward()
            losses.append(loss.item())

        if captured:
            recorded(tmp_path, model, step, steps=5)
        else:
            for _ in range(5):
                step()
        return dict(counters["stats"]), losses

    assert graphs(True) == graphs(False)


def test_two_forwards_before_one_backward(tmp_path: Path) -> None:
    model = Stack()

    def step() -> None:
        (
            model(torch.randn(4, 8, requires_grad=True)).sum()
            + model(torch.randn(4, 8, requires_grad=True)).sum()
        ).backward()

    assert gemm_owners(recorded(tmp_path, model, step)) == FORWARD + FORWARD + BACKWARD + BACKWARD


def test_a_graph_kept_for_a_second_pass_has_one_range_each(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(8, 8))

    def step() -> None:
        loss = model(torch.randn(4, 8, requires_grad=True)).sum()
        loss.backward(retain_graph=True)
        loss.backward()

    trace = recorded(tmp_path, model, step)
    assert gemm_owners(trace)[("aten::mm", "0", "backward")] == 4
    for event, around in spans(trace):
        if event["name"] == "aten::mm":
            assert sum(outer["name"] == "0" for outer in around) == 1


def hooked(model: nn.Module) -> Any:
    """What a window could leave behind on the modules, the engine or the optimizers."""
    from torch.optim import optimizer

    return (
        [(len(m._forward_hooks), len(m._forward_pre_hooks), set(m.__dict__)) for m in model.modules()],
        torch.autograd._engine_run_backward,  # type: ignore[attr-defined]
        torch.amp.GradScaler.step,
        len(optimizer._global_optimizer_post_hooks),
        len(nn_module._global_parameter_registration_hooks),
        len(nn_module._global_module_registration_hooks),
        nn_module._has_any_global_hook(),
    )


def test_nothing_is_left_after_the_window(tmp_path: Path) -> None:
    model = Stack()
    before = hooked(model)
    recorded(tmp_path, model, train(model))
    assert hooked(model) == before


def test_gradients_are_the_same_bit_for_bit(tmp_path: Path) -> None:
    def gradients(captured: bool) -> list[torch.Tensor]:
        torch.manual_seed(3)
        model = Stack()
        step = train(model)
        if captured:
            recorded(tmp_path, model, step)
        else:
            for _ in range(3):
                step()
        return [parameter.grad for parameter in model.parameters() if parameter.grad is not None]

    for ours, plain in zip(gradients(True), gradients(False), strict=True):
        assert torch.equal(ours, plain)
        assert ours.stride() == plain.stride()


def test_several_models_are_told_apart(tmp_path: Path) -> None:
    class Critic(Mlp):
        pass

    models = [Mlp(), Mlp(), Critic()]
    optimizer = torch.optim.SGD([p for m in models for p in m.parameters()], lr=0.1)
    with tracelens.capture(*models, out=tmp_path, wait=1, warmup=0, active=1) as capture:
        for _ in range(3):
            sum(m(torch.randn(2, 8)).sum() for m in models).backward()
            optimizer.step()
            capture.step()
    names = {owner for _, owner, _ in gemm_owners(load(tmp_path / "rank0.json.gz"))}
    assert names == {f"{name}.{part}" for name in ("Mlp", "Mlp_2", "Critic") for part in ("up", "down")}


def test_no_warning_of_ours(tmp_path: Path) -> None:
    model = Stack()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        recorded(tmp_path, model, train(model))
    assert [str(w.message) for w in caught if "tracelens" in str(w.filename)] == []
