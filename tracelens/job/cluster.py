"""Ranks beyond one machine: the same work on the workers of a Dask cluster."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import Executor
from contextlib import contextmanager

from tracelens.errors import InputError


@contextmanager
def dask_executor(address: str) -> Iterator[Executor]:
    """An executor over the cluster whose scheduler is there: ``tcp://host:8786``, or its scheduler file.

    Its workers need this package and see the traces under the same paths. A task that kills its workers is
    given up by Dask after a few; the other ranks go on.

    Raises:
        InputError: Dask is not installed, or no scheduler answers there.
    """
    try:
        from distributed import Client
    except ImportError:
        raise InputError('--dask needs pip install "tracelens-gpu[dask]"') from None
    place = {"scheduler_file": address} if os.path.isfile(address) else {"address": address}
    try:
        client = Client(**place, set_as_default=False)
    except (OSError, ValueError, TypeError) as error:
        why = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise InputError(f"no Dask scheduler at {address}: {why}; its log names its address") from None
    with client, client.get_executor() as executor:
        yield executor
