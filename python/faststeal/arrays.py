"""numpy arrays and scalars as tensors and text, and back. The nodes are described in `tree.py`."""

from __future__ import annotations

import base64
import math
from json.encoder import encode_basestring_ascii as quote
from typing import TYPE_CHECKING

import numpy as np
import torch

from .classes import class_name, find_class
from .tensors import unseen

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from .tensors import Sink

__all__ = ["ARRAY_COMPOSERS", "decompose_array", "dtype_text", "scalar_node"]

# Element types that torch and numpy share, in the byte order of the machine.
_SHARED = frozenset(
    np.dtype(name)
    for name in (
        *("bool", "uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64"),
        *("float16", "float32", "float64", "complex64", "complex128"),
    )
)
# Those of ml_dtypes that torch has, with the numpy type that carries their bytes across.
_CARRIED = {
    "ml_dtypes:bfloat16": (np.int16, torch.bfloat16),
    "ml_dtypes:float8_e4m3fn": (np.uint8, torch.float8_e4m3fn),
    "ml_dtypes:float8_e4m3fnuz": (np.uint8, torch.float8_e4m3fnuz),
    "ml_dtypes:float8_e5m2": (np.uint8, torch.float8_e5m2),
    "ml_dtypes:float8_e5m2fnuz": (np.uint8, torch.float8_e5m2fnuz),
    "ml_dtypes:float8_e8m0fnu": (np.uint8, torch.float8_e8m0fnu),
}


def dtype_text(dtype: np.dtype) -> str | None:
    """Write an element type exactly; None for what is not written (objects, structures).

    Byte order is part of it: `"<f4"`, `">i2"`, `"<U5"`, `"<M8[ns]"`, `"ml_dtypes:bfloat16"`.
    """
    if dtype.hasobject or dtype.fields is not None or dtype.subdtype is not None:
        return None
    name = class_name(dtype.type)
    if name.startswith("ml_dtypes:"):
        return name
    return dtype.str if dtype.type is not np.void else None


def find_array_dtype(text: str) -> np.dtype:
    """Read what `dtype_text` wrote.

    Raises:
        ValueError: Something else, or ml_dtypes is not installed.
    """
    if text.startswith("ml_dtypes:"):
        cls = find_class(text)
        if cls is None:
            raise ValueError(f"expected ml_dtypes to be installed, for {text}")
        return np.dtype(cls)
    dtype = np.dtype(text)
    if dtype_text(dtype) != text:
        raise ValueError(f"expected the exact name of a numpy dtype, found {text!r}")
    return dtype


def decompose_array(array: np.ndarray, sink: Sink, path: str, depth: int) -> str:
    """Hand the elements of an array to `sink`, return its node (JSON text)."""
    if isinstance(array, np.ma.MaskedArray):
        data = decompose_array(
            np.asarray(array.data), sink, f"{path}.data" if path else "data", depth
        )
        mask = np.ma.getmaskarray(array)
        mask_node = decompose_array(mask, sink, f"{path}.mask" if path else "mask", depth)
        return f'{{"masked_array":{{"data":{data},"mask":{mask_node}}}}}'
    array = array.view(np.ndarray)
    dtype = array.dtype
    if dtype.kind == "O":
        items = ",".join(
            sink.value(f"{path}.{i}" if path else str(i), item, depth + 1)
            for i, item in enumerate(array.ravel().tolist())
        )
        return f'{{"object_array":{{"shape":{_shape(array)},"items":[{items}]}}}}'
    text = dtype_text(dtype)
    if text is None:
        return sink.opaque(path, type(array), f"{dtype} {array.shape}")
    with unseen():
        tensor = _to_tensor(array)
    node = sink.value(path, tensor, depth)
    if (dtype in _SHARED and dtype.isnative) or text in _CARRIED:
        return f'{{"array":{{"dtype":{quote(text)},"data":{node}}}}}'
    return f'{{"byte_array":{{"dtype":{quote(text)},"shape":{_shape(array)},"data":{node}}}}}'


def _shape(array: np.ndarray) -> str:
    return f"[{','.join(map(str, array.shape))}]"


def _to_tensor(array: np.ndarray) -> Tensor:
    """Return a tensor of the elements, sharing memory where both sides can describe it.

    Where torch has no such element type, it holds the bytes, in one dimension.
    """
    # torch refuses negative and odd strides, and warns of arrays that are read-only.
    if not array.flags.writeable or any(
        stride < 0 or stride % max(array.itemsize, 1) for stride in array.strides
    ):
        array = np.array(array, order="C")
    if array.dtype in _SHARED and array.dtype.isnative:
        return torch.from_numpy(array)
    if class_name(array.dtype.type) in _CARRIED:
        carrier, dtype = _CARRIED[class_name(array.dtype.type)]
        return torch.from_numpy(array.view(carrier)).view(dtype)
    if array.nbytes == 0:
        return torch.empty(0, dtype=torch.uint8)
    return torch.from_numpy(np.ascontiguousarray(array).reshape(-1).view(np.uint8))


def scalar_node(scalar: np.generic) -> str | None:
    """Write a numpy scalar bit for bit (JSON text); None for what is not written."""
    text = dtype_text(scalar.dtype)
    if text is None:
        return None
    # An empty string has no bytes, whatever numpy says.
    data = base64.b64encode(scalar.tobytes()[: scalar.dtype.itemsize]).decode()
    return f'{{"scalar":{{"dtype":{quote(text)},"bytes":"{data}"}}}}'


def _scalar(dtype: str, data: str) -> object:
    element = find_array_dtype(dtype)
    content = base64.b64decode(data, validate=True)
    if len(content) != element.itemsize:
        raise ValueError(f"expected {element.itemsize} bytes for a {dtype}, found {len(content)}")
    if not content:  # np.str_("") and np.bytes_(b"")
        return element.type()
    return np.frombuffer(content, dtype=element)[0]


def _array(dtype: str, data: Tensor) -> np.ndarray:
    element = find_array_dtype(dtype)
    if dtype in _CARRIED:
        return data.view(_BYTES[data.itemsize]).numpy().view(element)
    array = data.numpy()
    if array.dtype != element:
        raise ValueError(f"expected a tensor of {dtype}, found {array.dtype}")
    return array


def _byte_array(dtype: str, shape: list[int], data: Tensor) -> np.ndarray:
    element = find_array_dtype(dtype)
    if math.prod(shape) * element.itemsize != data.nbytes:
        raise ValueError(f"expected the bytes of {shape} elements of {dtype}, found {data.nbytes}")
    if element.itemsize == 0 or data.nbytes == 0:
        return np.zeros(shape, element)
    return data.numpy().view(element).reshape(shape)


def _object_array(shape: list[int], items: list[object]) -> np.ndarray:
    if math.prod(shape) != len(items) or min(shape, default=0) < 0:
        raise ValueError(f"expected {math.prod(shape)} items, found {len(items)}")
    array = np.empty(len(items), object)
    # One by one: numpy would make dimensions of items that are sequences.
    for i, item in enumerate(items):
        array[i] = item
    return array.reshape(shape)


def _masked_array(data: np.ndarray, mask: np.ndarray) -> np.ndarray:
    return np.ma.MaskedArray(data, mask)


_BYTES = {1: torch.uint8, 2: torch.int16}

# As `compose.COMPOSERS`.
ARRAY_COMPOSERS: dict[str, tuple[Callable[..., object], dict[str, str]]] = {
    "array": (_array, {"dtype": "str", "data": "node"}),
    "byte_array": (_byte_array, {"dtype": "str", "shape": "ints", "data": "node"}),
    "object_array": (_object_array, {"shape": "ints", "items": "nodes"}),
    "masked_array": (_masked_array, {"data": "node", "mask": "node"}),
    "scalar": (_scalar, {"dtype": "str", "bytes": "str"}),
}
