"""What of a trace goes out: no host, no user, no environment, no command line, no folders."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from tracelens.results.json import each_text

#: What Kineto and this package write of the recording, the devices and the ranks. Whatever else stands
#: beside the events came from somebody's ``add_metadata`` or is the path of the file (``traceName``).
_KEPT = frozenset(
    {
        "schemaVersion", "displayTimeUnit", "baseTimeNanoseconds", "deviceProperties", "computeProperties",
        "cupti_version", "cuda_runtime_version", "cuda_driver_version", "hip_runtime_version",
        "hip_driver_version", "record_shapes", "profile_memory", "with_stack", "with_flops", "with_modules",
        "distributedInfo", "torch_version", "pytorch_version", "tracelens",
    }
)  # fmt: skip
_INNER = {
    "distributedInfo": frozenset({"backend", "rank", "world_size", "pg_count", "pg_config", "nccl_version"})
}
_FOLDERS = re.compile(
    rb"""/(?:
    (?<="/)(?:[^"\\;()/]++/)++                      # a text that is a path: with spaces
    |(?<=[\s;,=:('\[<]/)/*+(?:[^"\\;,()/\s]++/)++   # a path or an address among other words
    )""",
    re.VERBOSE,
)
_ESCAPED_FOLDERS = re.compile(rb"""(?<=["\s;,=('])\\/(?:[^"\\;()/]++\\/)++""")
_DRIVE_FOLDERS = re.compile(rb"""(?<=["\s;,=('])[A-Za-z]:\\\\(?:[^"\\;()]++\\\\)++""")
_PACKAGES = re.compile(rb".*[-]packages(?:/|\\\\|\\/)", re.DOTALL)


def public(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """The part of a trace's metadata that says nothing of the machine's name, its user and its files."""
    found = {}
    for key, value in metadata.items():
        if key in _KEPT:
            inner = _INNER.get(key)
            if inner is not None:
                value = (
                    {name: one for name, one in value.items() if name in inner}
                    if isinstance(value, dict)
                    else {}
                )
            found[key] = each_text(value, _clean)
    return found


def without_folders(text: bytes) -> bytes:
    """JSON whose absolute paths are cut to the file, or to the place inside an installed package.

    >>> without_folders(b'{"name": "/home/me/run/train.py(7): step"}')
    b'{"name": "train.py(7): step"}'
    """
    text = _FOLDERS.sub(_inside_package, text)
    text = _ESCAPED_FOLDERS.sub(_inside_package, text) if b"\\/" in text else text
    return _DRIVE_FOLDERS.sub(_inside_package, text) if b":\\\\" in text else text


def _inside_package(found: re.Match[bytes]) -> bytes:
    package = _PACKAGES.match(found[0])
    return found[0][package.end() :] if package else b""


def _clean(text: str) -> str:
    return without_folders(b'"%b"' % text.encode("utf-8", "replace"))[1:-1].decode("utf-8", "replace")
