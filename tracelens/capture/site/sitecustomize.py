"""Python imports this at start because ``tracelens capture`` put its folder first on PYTHONPATH.

It steps aside (the folder leaves sys.path), runs the sitecustomize that would have run without it, and
arms the capture of this process. It is not part of the package: it is found by its place.
"""

import importlib.machinery
import importlib.util
import os
import sys


def _chain(here: str) -> None:
    """Run the environment's own sitecustomize, as Python would have done."""
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", sys.path)
    if spec is None or spec.loader is None or os.path.realpath(os.path.dirname(spec.origin or "")) == here:
        return
    module = importlib.util.module_from_spec(spec)
    sys.modules["sitecustomize"] = module
    spec.loader.exec_module(module)


def _arm(here: str) -> None:
    """Load tracelens from where this file lies, whatever else this Python has installed."""
    if not os.environ.get("TRACELENS_CAPTURE"):
        return
    home = os.path.dirname(os.path.dirname(here))
    if "tracelens" not in sys.modules:
        spec = importlib.util.spec_from_file_location(
            "tracelens", os.path.join(home, "__init__.py"), submodule_search_locations=[home]
        )
        if spec is None or spec.loader is None:
            raise ImportError("there is no tracelens in " + home)
        module = importlib.util.module_from_spec(spec)
        sys.modules["tracelens"] = module
        spec.loader.exec_module(module)
    from tracelens.capture.children import boot

    boot()


_here = os.path.realpath(os.path.dirname(__file__))
sys.path[:] = [entry for entry in sys.path if os.path.realpath(entry or ".") != _here]
try:
    _arm(_here)
except Exception as error:  # a training run never fails because of us
    sys.stderr.write("tracelens: this process is not captured: %r\n" % (error,))
_chain(_here)
