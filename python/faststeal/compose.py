"""Tensors from their parts: what `tensors.decompose` took apart, as the tree tells it.

A file is hostile until proven otherwise: sizes, offsets and indices are checked before any function
of torch that trusts them sees them. What does not fit raises; the caller says where.
"""

# ruff: noqa: SLF001 - quantized tensors are made by functions with an underscore only

from __future__ import annotations

import math
import warnings
from typing import TYPE_CHECKING

import torch

from .classes import Opaque, StoredDict, find_class, may_be_built, set_state

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import Tensor

__all__ = ["COMPOSERS", "find_dtype", "find_layout"]

_PACKED = {torch.quint4x2: 2, torch.quint2x4: 4}  # values to a byte


def _quietly(make: Callable[[], Tensor]) -> Tensor:
    # torch tells once that sparse, nested and quantized tensors are experimental: whoever captured
    # one knows, and under `-W error` loading must work as well.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return make()


def find_dtype(name: str) -> torch.dtype:
    """Return the element type of this name.

    Raises:
        ValueError: torch has none of that name.
    """
    dtype = vars(torch).get(name)
    if not isinstance(dtype, torch.dtype):
        raise ValueError(f"expected the name of a torch dtype, found {name!r}")  # noqa: TRY004
    return dtype


def find_layout(name: str) -> torch.layout:
    """Return the layout of this name.

    Raises:
        ValueError: torch has none of that name.
    """
    layout = vars(torch).get(name)
    if not isinstance(layout, torch.layout):
        raise ValueError(f"expected the name of a torch layout, found {name!r}")  # noqa: TRY004
    return layout


def _complex(parts: Tensor) -> Tensor:
    return torch.view_as_complex(parts)


def _raw(dtype: str, shape: Sequence[int], data: Tensor) -> Tensor:
    return data.view(find_dtype(dtype)).reshape(shape)


def _meta(dtype: str, shape: Sequence[int], strides: Sequence[int], device: str) -> Tensor:
    del device  # where the fake was said to be: nothing of it is there
    return torch.empty_strided(shape, strides, dtype=find_dtype(dtype), device="meta")


def _sparse(
    layout: str, size: Sequence[int], coalesced: bool, indices: Tensor, values: Tensor
) -> Tensor:
    del layout
    return _quietly(
        lambda: torch.sparse_coo_tensor(
            indices, values, tuple(size), check_invariants=True, is_coalesced=coalesced
        )
    )


def _compressed(
    layout: str, size: Sequence[int], compressed: Tensor, plain: Tensor, values: Tensor
) -> Tensor:
    return _quietly(
        lambda: torch.sparse_compressed_tensor(
            compressed,
            plain,
            values,
            tuple(size),
            layout=find_layout(layout),
            check_invariants=True,
        )
    )


def _quantized(
    dtype: str, shape: Sequence[int], ints: Tensor, scale: float, zero_point: int
) -> Tensor:
    def make() -> Tensor:
        target = find_dtype(dtype)
        if target not in _PACKED:
            return torch._make_per_tensor_quantized_tensor(ints, scale, zero_point)
        made = torch._empty_affine_quantized(
            shape, scale=scale, zero_point=zero_point, dtype=target
        )
        return _fill(made, ints)

    return _quietly(make)


def _quantized_channels(  # noqa: PLR0913, PLR0917 - the members of its node
    dtype: str, shape: Sequence[int], ints: Tensor, scales: Tensor, zero_points: Tensor, axis: int
) -> Tensor:
    def make() -> Tensor:
        target = find_dtype(dtype)
        channels = shape[axis]
        if scales.shape != (channels,) or zero_points.shape != (channels,):
            raise ValueError(f"expected {channels} scales and zero points, one for each channel")
        if target not in _PACKED:
            return torch._make_per_channel_quantized_tensor(ints, scales, zero_points, axis)
        made = torch._empty_per_channel_affine_quantized(
            shape, scales=scales, zero_points=zero_points, axis=axis, dtype=target
        )
        return _fill(made, ints)

    return _quietly(make)


def _fill(packed: Tensor, data: Tensor) -> Tensor:
    # Several values to a byte: there is no function that makes such a tensor from its bytes.
    size = math.ceil(packed.numel() / _PACKED[packed.dtype])
    if data.shape != (size,):
        raise ValueError(f"expected {size} bytes of {packed.dtype}, found {list(data.shape)}")
    memory = torch.empty(0, dtype=torch.uint8).set_(packed.untyped_storage())
    memory[:size].copy_(data)
    return packed


def _nested(values: list[Tensor]) -> Tensor:
    return _quietly(lambda: torch.nested.as_nested_tensor(values, layout=torch.strided))


def _jagged(  # noqa: PLR0913, PLR0917 - the members of its node
    values: Tensor,
    offsets: Tensor,
    dim: int,
    lengths: Tensor | None = None,
    min_seqlen: int | None = None,
    max_seqlen: int | None = None,
) -> Tensor:
    # Kernels trust the offsets: what does not lie inside the values is not let through.
    starts = offsets.tolist()
    ends = starts[1:] if lengths is None else map(int.__add__, starts, lengths.tolist())
    if not 1 <= dim < values.dim() + 1 or not all(
        0 <= start <= end <= values.shape[dim - 1] for start, end in zip(starts, ends, strict=False)
    ):
        raise ValueError("expected ascending offsets within the values of a jagged tensor")
    return torch.nested.nested_tensor_from_jagged(
        values, offsets, lengths, dim, min_seqlen=min_seqlen, max_seqlen=max_seqlen
    )


def _mkldnn(data: Tensor) -> Tensor:
    available: bool = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
    return data.to_mkldnn() if available else data


def _subclass(name: str, data: Tensor, fields: list[tuple[str, object]]) -> Tensor:
    cls = find_class(name)
    if (
        cls is None
        or not issubclass(cls, torch.Tensor)
        or issubclass(cls, torch.nn.Parameter)
        or cls.__torch_dispatch__ is not torch.Tensor.__torch_dispatch__
        or not may_be_built(cls)
    ):
        return data
    with torch._C.DisableTorchFunction():
        made = data.as_subclass(cls)
    set_state(made, fields)
    return made


def _parts(name: str, names: Sequence[str], values: list[object]) -> StoredDict:
    return StoredDict(name, zip(names, values, strict=True))


def _wrapper(  # noqa: PLR0913, PLR0917 - the members of its node
    name: str,
    names: Sequence[str],
    values: list[object],
    context: object,
    size: Sequence[int],
    strides: Sequence[int],
    dtype: str,
) -> object:
    described = [*names, "context", "size", "dtype"]
    parts = _parts(name, described, [*values, context, torch.Size(size), find_dtype(dtype)])
    cls = find_class(name)
    if cls is None or not issubclass(cls, torch.Tensor) or isinstance(context, Opaque):
        return parts
    inner = dict(zip(names, values, strict=True))
    try:
        return cls.__tensor_unflatten__(  # type: ignore[attr-defined]
            inner, context, torch.Size(size), tuple(strides)
        )
    except Exception:  # noqa: BLE001 - another version of the class: its parts are told instead
        return parts


# Tag of a node → what makes the tensor, and its members: "node" stands for any node, "nodes" for a
# list of them, "fields" for a list of name and node; an optional member ends in "?".
COMPOSERS: dict[str, tuple[Callable[..., object], dict[str, str]]] = {
    "complex_tensor": (_complex, {"parts": "node"}),
    "raw_tensor": (_raw, {"dtype": "str", "shape": "ints", "data": "node"}),
    "meta": (_meta, {"dtype": "str", "shape": "ints", "strides": "ints", "device": "str"}),
    "sparse": (
        _sparse,
        {"layout": "str", "size": "ints", "coalesced": "bool", "indices": "node", "values": "node"},
    ),
    "compressed": (
        _compressed,
        {"layout": "str", "size": "ints", "compressed": "node", "plain": "node", "values": "node"},
    ),
    "quantized": (
        _quantized,
        {"dtype": "str", "shape": "ints", "ints": "node", "scale": "node", "zero_point": "int"},
    ),
    "quantized_channels": (
        _quantized_channels,
        {
            "dtype": "str",
            "shape": "ints",
            "ints": "node",
            "scales": "node",
            "zero_points": "node",
            "axis": "int",
        },
    ),
    "nested": (_nested, {"values": "nodes"}),
    "jagged": (
        _jagged,
        {
            "values": "node",
            "offsets": "node",
            "lengths?": "node",
            "dim": "int",
            "min_seqlen?": "int",
            "max_seqlen?": "int",
        },
    ),
    "mkldnn": (_mkldnn, {"data": "node"}),
    "subclass": (_subclass, {"class": "str", "data": "node", "fields": "fields"}),
    "parts": (_parts, {"class": "str", "names": "strs", "values": "nodes"}),
    "wrapper": (
        _wrapper,
        {
            "class": "str",
            "names": "strs",
            "values": "nodes",
            "context": "node",
            "size": "ints",
            "strides": "ints",
            "dtype": "str",
        },
    ),
}
