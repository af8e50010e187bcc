"""What attribution says: why a kernel has no component, what communication serves, what a trace lacks."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Literal

from tracelens.numbers import integers, listed, pct

#: What a message is exactly as large as.
SizeClass = Literal["weight", "activation", "both", "neither", "unknown"]
#: What older versions of PyTorch do not write, or write in another format.
Older = Literal["format", "strides", "sequences", "collectives"]
#: Title, effect and remedy of something that a trace lacks.
Lacking = tuple[str, str, str]

#: Why a kernel has no component, and what to do about it.
REASONS = {
    "no launch": (
        "launched before the recording began: its launch is not in the file",
        "synchronize before the first recorded step, behind a warm-up (schedule(wait=1, warmup=1, active=2))",
    ),
    "several processes": (
        "several processes of the file count their launches alike: which of them launched it is not known",
        "analyze the file of each process by itself",
    ),
    "graph": (
        "part of a CUDA graph: all its kernels hang from one launch",
        "record one step without CUDA graphs beside it",
    ),
    "compiled": (
        "inside a torch.compile graph: no module names reach the kernels",
        "record one eager step (torch.compiler.disable or TORCH_COMPILE_DISABLE=1)",
    ),
    "backward": (
        "a backward kernel that no forward operator is tied to",
        "record with shapes, and with the forward of the same step inside the window",
    ),
    "no names": (
        "no module or named range encloses the operator",
        "record with with_stack=True, or label modules with record_function",
    ),
    "no operator": (
        "the launch stands in no operator: a library of its own called CUDA",
        "label the call with record_function",
    ),
    "no operators": (
        "the file has no operators that a launch could stand in",
        "record with activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]",
    ),
    "ambiguous": (
        "its shape and its place fit more than one part of the layer",
        "record with module names (with_stack=True, or record_function around the parts)",
    ),
    "unknown module": (
        "no module or range around the kernel says which part of the model it is",
        "label it with record_function, named after its part (attention, mlp, rotary, ...)",
    ),
    "redistributed": (
        "DTensor lays out what a collective gathered: no part of the model",
        "shard along dimension 0 (Shard(0)): what is gathered along another is copied once more",
    ),
}

DEEP_EP = "a kernel of DeepEP, which serves experts alone"
NO_LAUNCH = "its launch is not in the file"
FSDP_FORWARD = "inside a range of FSDP in the forward"
FSDP_OPEN = "inside a range of FSDP: gather or scatter is not said"
FSDP_OTHER = "inside a range of FSDP, and no collective of its scheme"
FSDP_RANGE = "inside a range that FSDP opens"
LAYS_OUT = "lays out data for a collective, which one is not said"
GRADIENT_HOOK = "launched by the hook of AccumulateGrad"
TENSOR_FUNCTION = "inside an autograd function of tensor parallelism"
IN_EXPERTS = "inside a mixture of experts"
BETWEEN_MODULES = "sent between modules, not inside one"
AN_ACTIVATION = "as large as an activation of a linear layer"
A_GRADIENT = "as large as a weight's gradient"
A_WEIGHT = "as large as a weight, before its use"
A_BARRIER = "a barrier: ranks wait for each other"
NO_EXPERTS = "no mixture of experts is named around it"
PIPELINE_OR_RING = "a pipeline or ring attention: no module names tell which is around it"
IN_DDP = "inside DistributedDataParallel.forward: buffers or module inputs"


def named_group(name: str | None) -> str:
    """Of communication whose process group says what it serves."""
    return f"its process group is called {name}"


def in_optimizer(what: str | int) -> str:
    """Of a collective, or of so many values, that the optimizer sends."""
    return f"{what if isinstance(what, str) else _values(what)} inside the optimizer's step"


def outside_model(elements: int) -> str:
    """Of so many values that no layer sends."""
    return f"{_values(elements)} outside the model"


def _values(elements: int) -> str:
    return "one value" if elements == 1 else f"{elements} values"


def size_does_not_tell(backward_of: str, phase: str, size: SizeClass | None) -> str:
    """Of a message that nothing but its size could explain; ``size`` is None where that is not known."""
    where = f"inside {backward_of}" if backward_of else f"in phase {phase}"
    if size is None:
        return f"{where}, and the trace has no message size"
    if size == "unknown":
        return f"{where}, and no GEMM has a shape to compare its size with"
    if size == "both":
        return f"{where}; a weight and an activation are as large"
    if size != "neither":
        one = "an activation" if size == "activation" else "a weight"
        return f"{where}, as large as {one}, which says nothing of its purpose there"
    return f"{where}, and as large as no weight or activation of a linear layer"


_CURRENT = "record with a current PyTorch"
_OLDER: dict[Older, str] = {
    "format": "the format is that of 2021",
    "strides": "operators have no strides, so layouts and leading dimensions are not known",
    "sequences": "no sequence numbers tie the backward to the forward",
    "collectives": "collectives have no {}",
}

NO_SHAPES: Lacking = (
    "No shapes of operator inputs",
    "no GEMM has an M, N, K, FLOPs or an alignment, and no model dimension is known",
    "record with record_shapes=True",
)
NO_STEPS: Lacking = (
    "No step is marked",
    "the whole trace counts as one step, with what came before and after the loop in it",
    "call prof.step() at the end of each iteration",
)
NO_BATCHES: Lacking = (
    "No batch of the server is marked",
    NO_STEPS[1],
    "profile through start_profile of a current vLLM or SGLang, which marks each batch",
)
ONE_STEP: Lacking = (
    "Only one step",
    "how much step times differ is not known",
    "record several: schedule(wait=1, warmup=1, active=3)",
)
ONE_RANGE: Lacking = (*ONE_STEP[:2], "record several of them in one profile")
NO_DEVICE: Lacking = (
    "The GPU is not named",
    "without its SMs and peaks there is no MFU, no share of peak and no wave count",
    "name it: tracelens analyze TRACE --gpu NAME",
)
CUT_OFF: Lacking = (
    "The file is cut off",
    "every figure is of the part that could be read",
    "let export_chrome_trace return before the process ends, and copy the whole file",
)
DAMAGED: Lacking = (
    "The file is damaged",
    "every figure is of the part that could be read",
    "export or copy the file again",
)
NO_RANK: Lacking = (
    "The rank is not named",
    "ranks of a job cannot be told apart",
    "start the profiler after torch.distributed.init_process_group",
)


def gpu_only(*, launches: bool) -> Lacking:
    """Of a trace without operators; does it have their launches?"""
    return (
        "No operators" if launches else "No CPU events",
        "nothing ties a kernel to its operator, shape, module, phase or step: kernel names alone speak",
        REASONS["no operators"][1],
    )


def other_devices(device: int, others: Sequence[int], share: float, *, little: bool) -> Lacking:
    """Of a trace of several GPUs, analyzed for one; the ``others`` have a ``share`` of its GPU time, a
    ``little`` of which is a stray, and no part of the work."""
    named = f"GPU{'s' if len(others) > 1 else ''} {integers(others)}"
    return (
        "Several GPUs in one file",
        f"every figure is of GPU {device}: {pct(share)} of the file's GPU time, on {named}, is in none",
        f"torch.cuda.set_device({device}) before anything else: then nothing strays to another GPU"
        if little
        else f"tracelens analyze --device {others[0]}, or one file per rank",
    )


def shared_gpu(count: int) -> Lacking:
    """Of a file of processes that share a GPU."""
    return (
        f"{count} processes ran on this GPU",
        "every figure is of all of them together: steps, idle time and layers are of no model",
        "analyze the file of each process for itself",
    )


def no_modules(share: float, lost: float, *, little: bool, compiled: bool) -> Lacking:
    """Of a ``share`` of GPU time without a module; ``lost`` of it, a ``little`` or more, has no component."""
    return (
        "torch.compile hides module names" if compiled else "No module names",
        _untold(share, lost, little, "has no module", "operators, shapes and order tell"),
        REASONS["compiled" if compiled else "no names"][1],
    )


def in_graph(share: float, lost: float, *, little: bool) -> Lacking:
    """The same of kernels that CUDA graphs launch."""
    effect = _untold(share, lost, little, "belongs to no step or module", "order alone tells")
    return (
        "Kernels inside a CUDA graph",
        f"all of its kernels hang from one launch; {effect}",
        REASONS["graph"][1],
    )


def launched_before(share: float, lost: float, *, little: bool) -> Lacking:
    """The same of kernels whose launch is not in the trace."""
    return (
        "Kernels launched before the recording began",
        _untold(share, lost, little, "belongs to no step or module", "order alone tells"),
        REASONS["no launch"][1],
    )


def _untold(share: float, lost: float, little: bool, lacks: str, tells: str) -> str:
    """Say what share lacks something, as the figure beside it, and what part of it has no component."""
    if f"{share:.1%}" == f"{lost:.1%}":
        return _no_component(share)
    said = f"{share:.1%} of the file's GPU time {lacks}"
    if little:
        return f"{said}: {tells} {'the component of nearly all of it' if lost else 'its component'}"
    return f"{said}; {lost:.1%} has no component either, {tells} that of the rest"


def _no_component(share: float) -> str:
    return f"{share:.1%} of the file's GPU time has no component"


def no_component(reason: str, share: float) -> Lacking:
    """Of kernels without a component; ``reason`` is a key of REASONS."""
    why, remedy = REASONS[reason]
    return why[:1].upper() + why[1:], _no_component(share), remedy


def odd_step(step: int, times: float) -> Lacking:
    """Of a step ``times`` as long as the median one."""
    return (
        "A step is not like the others",
        f"{_long_step(step, times)}, and it is not the first: no warm-up",
        "record more steps: schedule(wait=5, warmup=2, active=10), and look at what runs in it",
    )


def _long_step(step: int, times: float) -> str:
    return f"step {step} takes {times:.1f} times as long as the median step"


def _allocating(frac: float, calls: int) -> str:
    return f"cudaMalloc and cudaFree take {frac:.0%} of the steps ({calls:,} calls)"


def warm_up(
    *, compiles: bool, long_step: tuple[int, float] | None, allocates: tuple[float, int] | None
) -> Lacking:
    """Of steps before the long run; ``allocates``: share of the steps' time, and calls."""
    seen = ["torch.compile compiles"] if compiles else []
    if long_step is not None:
        seen.append(_long_step(*long_step))
    if allocates is not None:
        seen.append(_allocating(*allocates))
    return (
        "The trace holds a warm-up",
        f"{'; '.join(seen)}: the steps are not those of the long run",
        "begin later: schedule(wait=5, warmup=2, active=3)",
    )


def memory_anew(frac: float, calls: int) -> Lacking:
    """Of cached memory that goes back to the GPU within the steps; warm-up alone frees none."""
    return (
        "Memory is freed and allocated anew within the steps",
        _allocating(frac, calls),
        (
            "use less memory, or set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True; leave"
            " torch.cuda.empty_cache() out of the steps"
        ),
    )


def synchronizations(per_step: float) -> Lacking:
    """Of waits for the whole device."""
    count = f"{per_step:.0f} device-wide synchronizations a step"
    return (
        "The CPU waits for the GPU within the steps",
        f"{count}: the CPU cannot run ahead, and the GPU idles meanwhile",
        "leave torch.cuda.synchronize() out of the recorded steps",
    )


def profiler_overhead(idle_frac: float, flags: Sequence[str]) -> Lacking:
    """Of a profiler that records more than kernels and operators."""
    because = f"the GPU is idle {idle_frac:.0%} of its time, partly because of the profiler's own work"
    return (
        "The profiler slows the CPU",
        f"{because}: step and idle times are longer than without it",
        f"for step times record without {' and '.join(flags)}",
    )


def older_pytorch(seen: Collection[Older], of_collectives: Sequence[str] = ()) -> Lacking:
    """Of what a current PyTorch writes without being asked."""
    lost = listed([*of_collectives]).replace(" and ", " or ")
    return "Recorded with an older PyTorch", "; ".join(_OLDER[one].format(lost) for one in seen), _CURRENT


def dropped_events(missing: int, launches: int) -> Lacking:
    """Of launches whose kernel is not in the trace."""
    return (
        "GPU events are missing",
        f"{missing:,} of {launches:,} kernel launches have no kernel in the file: GPU times are too short",
        "call torch.cuda.synchronize() before the last prof.step(), and record fewer steps",
    )


def clock_skew(kernels: int, most_us: float) -> Lacking:
    """Of kernels that begin before their launch."""
    early = f"{kernels:,} kernels begin before their launch, one by {most_us:,.0f} µs"
    return (
        "The clocks of CPU and GPU disagree",
        f"{early}: step borders are off by as much",
        f"{_CURRENT} (pytorch/kineto#917 puts both on one clock)",
    )
