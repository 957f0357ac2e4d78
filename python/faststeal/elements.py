"""Element types by their ONNX codes, and the range of values of a tensor or an array, as text.

Nothing is imported for it: the codes of `onnx.TensorProto` are few and never change.
"""

from collections.abc import Iterable
from typing import Any, Final

import numpy as np
import torch

__all__ = ["array_range", "element_code", "sizes", "tensor_range", "torch_dtype"]

# In the order of onnx.TensorProto, from 1.
_ELEMENT_TYPES: Final = (
    "float32 uint8 int8 uint16 int16 int32 int64 str bool float16 float64 uint32 uint64 complex64 "
    "complex128 bfloat16 float8_e4m3fn float8_e4m3fnuz float8_e5m2 float8_e5m2fnuz uint4 int4 "
    "float4_e2m1fn float8_e8m0fnu uint2 int2"
)
_NAMES: Final = dict(enumerate(_ELEMENT_TYPES.split(), 1))
_CODES: Final = {name: str(code) for code, name in _NAMES.items()}
_ALIASES: Final = {
    "float4_e2m1fn_x2": "float4_e2m1fn",
    "object": "str",
    # What symbolic tensors of other frameworks have.
    "FLOAT": "float32",
    "FLOAT16": "float16",
    "BFLOAT16": "bfloat16",
    "INT32": "int32",
    "INT64": "int64",
}


class _Codes(dict[Any, str]):
    """Element type, or class of numpy's scalar → its code, or its name where ONNX has none."""

    def __missing__(self, dtype: Any) -> str:
        name = dtype.__name__.rstrip("_") if isinstance(dtype, type) else str(dtype)
        name = name.removeprefix("torch.")
        return self.setdefault(dtype, _CODES.get(_ALIASES.get(name, name), name))


element_code: Final = _Codes().__getitem__


def torch_dtype(code: int) -> torch.dtype | None:
    """Element type of torch for a code; None where it has none to compute or to load with."""
    name = _NAMES.get(code, "")
    name = {"float4_e2m1fn": "float4_e2m1fn_x2"}.get(name, name)
    found = getattr(torch, name, None)
    # torch can name integers of few bits, and do nothing with them.
    hollow = name.endswith(("int4", "int2"))
    return found if isinstance(found, torch.dtype) and not hollow else None


def sizes(t: torch.Tensor) -> Iterable[object]:
    """Sizes of a tensor; `"?"` where a nested one has several."""
    try:
        return t.shape
    except RuntimeError:
        pass

    def size(axis: int) -> int | str:
        try:
            return t.size(axis)
        except RuntimeError:
            return "?"

    return [size(axis) for axis in range(t.dim())]


def tensor_range(t: torch.Tensor) -> str:
    """Smallest and greatest element and mean of a tensor, or its only element.

    Raises:
        RuntimeError, TypeError: Its element type or layout has no arithmetic, or it has no values.
    """
    if t.dim() == 0:
        return f"={t.item()}"
    if t.numel() == 0:
        return "[empty]"
    if t.dtype in {torch.uint16, torch.uint32, torch.uint64}:
        return array_range(t.cpu().numpy())
    if t.is_quantized:
        t = t.dequantize()
    elif t.is_floating_point() and t.itemsize == 1:
        t = t.to(torch.float32)
    elif t.is_complex():
        return _complex_range(t)
    # As torch has it, one NaN makes all of them NaN.
    nans = int(t.isnan().sum())
    suffix = f"N{nans}nans" if nans else ""
    return f"[{t.min().item()},{t.max().item()}:A{t.to(torch.float64).mean().item()}{suffix}]"


def _complex_range(t: torch.Tensor) -> str:
    missing = t.isnan()
    nans = int(missing.sum())
    if not nans:
        t = t.abs()
        return f"[{t.min().item()},{t.max().item()}:A{t.mean().item()}]"
    t = t[~missing].abs()
    if t.numel() == 0:
        return f"[N{nans}nans]"
    return f"[{t.min().item()},{t.max().item()}:A{t.mean().item()}N{nans}nans]"


def array_range(a: np.ndarray) -> str:
    """Smallest and greatest element and mean of an array, NaNs left out, or its only element.

    Raises:
        TypeError: Its element type has no arithmetic.
    """
    if a.ndim == 0:
        return f"={a}"
    if a.size == 0:
        return "[empty]"
    missing = np.isnan(a)
    nans = int(missing.sum())
    if nans:
        a = a[~missing]
        if a.size == 0:
            return f"[N{nans}nans]"
    with np.errstate(all="ignore"):
        mean = a.real.astype(np.float64).mean()
    suffix = f"N{nans}nans" if nans else ""
    return f"[{a.min()},{a.max()}:A{mean}{suffix}]"
