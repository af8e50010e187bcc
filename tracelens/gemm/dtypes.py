"""Names of element types: as the profiler writes them, as this tool writes them, and their sizes."""

from __future__ import annotations

#: Kineto writes the C++ type (caffe2::TypeMeta::name) of a tensor's elements.
_BY_CPP_NAME = {
    "float": "fp32",
    "double": "fp64",
    "c10::Half": "fp16",
    "c10::BFloat16": "bf16",
    "c10::Float8_e4m3fn": "fp8",
    "c10::Float8_e5m2": "fp8",
    "c10::Float8_e4m3fnuz": "fp8",
    "c10::Float8_e5m2fnuz": "fp8",
    "c10::Float4_e2m1fn_x2": "fp4",
    "signed char": "int8",
    "unsigned char": "uint8",
    "int": "int32",
    "long int": "int64",
    "long": "int64",
}
#: c10::ScalarType as a number, the way a ScalarType argument stands in Concrete Inputs
#: (c10/core/ScalarType.h; "15" seen for bf16 and "6" for fp32 on aten::_scaled_mm).
_BY_SCALAR_TYPE = {
    "0": "uint8", "1": "int8", "3": "int32", "5": "fp16", "6": "fp32", "7": "fp64", "15": "bf16",
    "23": "fp8", "24": "fp8", "25": "fp8", "26": "fp8",
}  # fmt: skip
_BYTES = {
    "fp64": 8.0, "int64": 8.0, "fp32": 4.0, "tf32": 4.0, "int32": 4.0, "fp16": 2.0, "bf16": 2.0,
    "fp8": 1.0, "fp8-block": 1.0, "int8": 1.0, "uint8": 1.0, "fp4": 0.5, "nvfp4": 0.5,
}  # fmt: skip


def dtype_of_cpp(name: object) -> str | None:
    """Our name of a C++ element type, or None for scalars, lists, complex and unknown types.

    >>> dtype_of_cpp("c10::BFloat16"), dtype_of_cpp("Scalar")
    ('bf16', None)
    """
    return _BY_CPP_NAME.get(name) if isinstance(name, str) else None


def dtype_of_scalar_type(text: object) -> str | None:
    """Our name of a c10::ScalarType written as an integer, or None.

    >>> dtype_of_scalar_type("15"), dtype_of_scalar_type("")
    ('bf16', None)
    """
    return _BY_SCALAR_TYPE.get(text) if isinstance(text, str) else None


def bytes_per_element(dtype: str | None) -> float | None:
    """Size of one element in bytes (fp4: half a byte, without the scales of its blocks), or None."""
    return _BYTES.get(dtype) if dtype is not None else None
