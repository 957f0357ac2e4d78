"""Tensors in parts that the core can write.

The core reads dense tensors of ordinary element types that lie in CPU memory: `is_plain` says
which. `decompose` turns any other into plain ones and a node of the tree that tells how to put them
together, as `compose.py` does. The nodes are described with the grammar, in `tree.py`.

Nothing here touches the user's tensor or its autograd graph, and the modes that the user has active
(function modes, dispatch modes) do not see what is done here.
"""

# ruff: noqa: SLF001 - what a tensor is made of, torch tells through names with an underscore only

from __future__ import annotations

import contextlib
import json
from json.encoder import encode_basestring_ascii as quote
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch._C import _functorch
from torch.utils._python_dispatch import _disable_current_modes

from .classes import class_name, get_state

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from torch import Tensor

__all__ = [
    "EXACT_TENSORS",
    "PLAIN_DTYPES",
    "Sink",
    "decompose",
    "is_plain",
    "unseen",
]

EXACT_TENSORS = frozenset({torch.Tensor, torch.nn.Parameter})
PLAIN_DTYPES = frozenset(
    getattr(torch, name)
    for name in (
        *("bool", "uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64"),
        *("float16", "bfloat16", "float32", "float64", "float8_e4m3fn", "float8_e4m3fnuz"),
        *("float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu", "float4_e2m1fn_x2"),
    )
)
_COMPRESSED = {
    torch.sparse_csr: ("crow_indices", "col_indices"),
    torch.sparse_bsr: ("crow_indices", "col_indices"),
    torch.sparse_csc: ("ccol_indices", "row_indices"),
    torch.sparse_bsc: ("ccol_indices", "row_indices"),
}


class Sink(Protocol):
    """Where the parts of a tensor go; the walker of a tree is one."""

    def tensor(self, path: str, tensor: Tensor, leaf: str = "") -> str:
        """Take a plain tensor, return its node (JSON text)."""

    def value(self, path: str, obj: object, depth: int) -> str:
        """Take any other object, return its node (JSON text)."""

    def opaque(self, path: str, cls: type, text: str) -> str:
        """Take the description of what cannot be stored, return its node (JSON text)."""


def dtype_name(dtype: torch.dtype) -> str:
    """Return torch's name of an element type, without `torch.`."""
    return str(dtype).removeprefix("torch.")


def is_plain(tensor: Tensor) -> bool:
    """Whether the core can read the elements of a tensor as they lie in memory."""
    return (
        type(tensor) in EXACT_TENSORS
        and tensor.layout is torch.strided
        and tensor.dtype in PLAIN_DTYPES
        and tensor.device.type == "cpu"
        and not tensor.is_neg()
        and not tensor.is_nested
        and not _functorch.is_functorch_wrapped_tensor(tensor)
        and not torch._is_functional_tensor(tensor)
        and (tensor.data_ptr() != 0 or tensor.numel() == 0)
    )


@contextlib.contextmanager
def unseen() -> Iterator[None]:
    """Keep what is done within from the modes that the user has active."""
    with torch._C.DisableTorchFunction(), _disable_current_modes():
        yield


def decompose(tensor: Tensor, sink: Sink, path: str = "", depth: int = 0) -> str:
    """Hand the parts of a tensor to `sink` as plain tensors.

    Args:
        tensor: Any tensor. A plain one is handed over as it is.
        sink: Takes the parts.
        path: Path of the tensor in its object; parts add their own names.
        depth: How deep in the object the tensor lies.

    Returns:
        The tensor's node: JSON text.
    """
    with unseen():
        return _Parts(tensor, sink, depth).write(path, tensor)


class _Parts:
    """The parts of one tensor on their way to a sink."""

    def __init__(self, origin: Tensor, sink: Sink, depth: int) -> None:
        self.origin = origin
        self.sink = sink
        self.depth = depth

    def part(self, path: str, name: str, tensor: Tensor) -> str:
        """Write a tensor that is a part of another."""
        return self.write(f"{path}.{name}" if path else name, tensor)

    def write(self, path: str, t: Tensor) -> str:
        """Write the tensor or its parts."""
        if is_plain(t):
            return self.sink.tensor(path, t, self.leaf(t))
        if type(t) not in EXACT_TENSORS:
            return self.subclass(path, t)
        if t.device.type == "meta":
            return self.meta(path, t, "meta")
        if _functorch.is_functorch_wrapped_tensor(t) or torch._is_functional_tensor(t):
            return self.transformed(path, t)
        if t.layout is torch.strided and not (t.is_nested or t.is_quantized):
            return self.strided(path, t.detach())
        return self.layout(path, t.detach())

    def leaf(self, t: Tensor) -> str:
        """What the tensor that is written does not tell of the one that it stands for."""
        origin = self.origin
        if t is origin:
            return ""
        members = []
        if origin.device.type not in {"cpu", "meta"}:
            members.append(f'"device":{quote(str(origin.device))}')
        if origin.requires_grad and not t.requires_grad:
            members.append('"requires_grad":true')
        # A subclass may have its own idea of strides, and code that answers.
        if type(origin) in EXACT_TENSORS and origin.layout is torch.strided:
            strides = () if origin.is_nested or origin.is_contiguous() else origin.stride()
            if strides and t.stride() != strides:
                members.append(f'"strides":[{",".join(map(str, strides))}]')
        return ",".join(members)

    def strided(self, path: str, t: Tensor) -> str:
        if t.device.type != "cpu":
            t = t.to("cpu")
        if t._is_zerotensor():
            t = t.clone()
        if t.dtype.is_complex:
            parts = self.sink.tensor(path, _real_parts(t), self.leaf(t))
            return f'{{"complex_tensor":{{"parts":{parts}}}}}'
        if t.is_neg():
            t = t.resolve_neg()
        if t.data_ptr() == 0 and t.numel() > 0:
            return self.sink.opaque(path, type(t), f"{_describe(t)}: its memory was freed")
        if t.dtype in PLAIN_DTYPES:
            return self.sink.tensor(path, t, self.leaf(t))
        # An element type that torch can only hold. Viewing it as bytes asks for a dimension.
        shape = list(t.shape)
        flat = t.contiguous() if t.is_contiguous() else _copy_bytes(t)
        data = self.sink.tensor(path, flat.reshape(-1).view(torch.uint8), self.leaf(t))
        return (
            f'{{"raw_tensor":{{"dtype":"{dtype_name(t.dtype)}","shape":{_ints(shape)},'
            f'"data":{data}}}}}'
        )

    def layout(self, path: str, t: Tensor) -> str:
        if t.is_quantized:
            return self.quantized(path, t)
        if t.is_mkldnn:
            return f'{{"mkldnn":{{"data":{self.part(path, "data", t.to_dense())}}}}}'
        if t.layout is torch.sparse_coo:
            values = self.part(path, "values", t._values())
            return (
                f'{{"sparse":{{"layout":"sparse_coo","size":{_ints(t.shape)},'
                f'"coalesced":{json.dumps(t.is_coalesced())},'
                f'"indices":{self.part(path, "indices", t._indices())},"values":{values}}}}}'
            )
        if t.layout in _COMPRESSED:
            compressed, plain = _COMPRESSED[t.layout]
            first = self.part(path, compressed, getattr(t, compressed)())
            second = self.part(path, plain, getattr(t, plain)())
            values = self.part(path, "values", t.values())
            layout = str(t.layout).removeprefix("torch.")
            return (
                f'{{"compressed":{{"layout":"{layout}","size":{_ints(t.shape)},'
                f'"compressed":{first},"plain":{second},"values":{values}}}}}'
            )
        if t.is_nested:
            values = ",".join(self.part(path, str(i), v) for i, v in enumerate(t.unbind()))
            return f'{{"nested":{{"values":[{values}]}}}}'
        return self.sink.opaque(path, type(t), _describe(t))

    def quantized(self, path: str, t: Tensor) -> str:
        ints = self.part(path, "ints", t.int_repr())
        head = f'"dtype":"{dtype_name(t.dtype)}","shape":{_ints(t.shape)},"ints":{ints}'
        if t.qscheme() in {torch.per_tensor_affine, torch.per_tensor_symmetric}:
            scale = self.sink.value(path, t.q_scale(), self.depth + 1)
            return f'{{"quantized":{{{head},"scale":{scale},"zero_point":{t.q_zero_point()}}}}}'
        scales = self.part(path, "scales", t.q_per_channel_scales())
        zero_points = self.part(path, "zero_points", t.q_per_channel_zero_points())
        return (
            f'{{"quantized_channels":{{{head},"scales":{scales},"zero_points":{zero_points},'
            f'"axis":{t.q_per_channel_axis()}}}}}'
        )

    def meta(self, path: str, t: Tensor, kind: str) -> str:
        if t.layout is not torch.strided or not all(
            type(size) is int for size in (*t.shape, *t.stride())
        ):
            return self.sink.opaque(path, type(t), _describe(t))
        return (
            f'{{"meta":{{"dtype":"{dtype_name(t.dtype)}","shape":{_ints(t.shape)},'
            f'"strides":{_ints(t.stride())},"device":"{kind}"}}}}'
        )

    def transformed(self, path: str, t: Tensor) -> str:
        """Write what a transform (vmap, grad, functionalize) has wrapped."""
        if torch._is_functional_tensor(t):
            return self.write(path, torch._from_functional_tensor(t))
        inner = _functorch.get_unwrapped(t)
        if not _functorch.is_batchedtensor(t):
            return self.write(path, inner)
        value = self.part(path, "value", inner)
        dim = _functorch.maybe_get_bdim(t)
        return (
            '{"parts":{"class":"torch:BatchedTensor",'
            f'"names":["value","dim"],"values":[{value},{dim}]}}}}'
        )

    def subclass(self, path: str, t: Tensor) -> str:
        cls = type(t)
        for base in cls.__mro__:
            known = _SUBCLASSES.get(class_name(base))
            if known is not None:
                return known(self, path, t)
        if hasattr(cls, "__tensor_flatten__"):
            return self.wrapper(path, t)
        with torch._C._DisableTorchDispatch():
            # A wrapper that does not tell its parts has no memory; another is a tensor like any.
            held = t.device.type == "meta" or t.numel() == 0 or t.data_ptr() != 0
            plain = t.detach().as_subclass(torch.Tensor)
        if not held and t.layout is torch.strided:
            return self.sink.opaque(path, cls, _describe(t))
        data = self.write(path, plain)
        fields = ",".join(
            f"[{quote(name)},{self.sink.value(_join(path, name), value, self.depth + 1)}]"
            for name, value in get_state(t)
        )
        return (
            f'{{"subclass":{{"class":{quote(class_name(cls))},"data":{data},"fields":[{fields}]}}}}'
        )

    def fake(self, path: str, t: Any) -> str:
        return self.meta(path, t, str(t.device))

    def waiting(self, path: str, t: Any) -> str:
        return self.write(path, t.wait())

    def dtensor(self, path: str, t: Any) -> str:
        spec = t._spec
        local = self.part(path, "local", t._local_tensor)
        placements = ",".join(quote(str(placement)) for placement in spec.placements)
        return (
            f'{{"parts":{{"class":{quote(class_name(type(t)))},'
            '"names":["local","placements","mesh","shape"],'
            f'"values":[{local},[{placements}],{quote(str(spec.mesh))},'
            f'{{"size":{_ints(t.shape)}}}]}}}}'
        )

    def jagged(self, path: str, t: Any) -> str:
        lengths = (
            "" if t._lengths is None else f',"lengths":{self.part(path, "lengths", t._lengths)}'
        )
        known = "".join(
            f',"{name}":{value.shape[0]}'
            for name, value in t._metadata_cache.items()
            if name in {"min_seqlen", "max_seqlen"}
        )
        return (
            f'{{"jagged":{{"values":{self.part(path, "values", t._values)},'
            f'"offsets":{self.part(path, "offsets", t._offsets)}{lengths},'
            f'"dim":{t._ragged_idx}{known}}}}}'
        )

    def wrapper(self, path: str, t: Any) -> str:
        names, context = t.__tensor_flatten__()
        values = ",".join(self.part(path, name, getattr(t, name)) for name in names)
        size, strides = tuple(t.shape), tuple(t.stride())
        return (
            f'{{"wrapper":{{"class":{quote(class_name(type(t)))},'
            f'"names":[{",".join(quote(name) for name in names)}],"values":[{values}],'
            f'"context":{self.sink.value(_join(path, "context"), context, self.depth + 1)},'
            f'"size":{_ints(size)},"strides":{_ints(strides)},'
            f'"dtype":"{dtype_name(t.dtype)}"}}}}'
        )


# Classes of torch that have their own ways. Looked up by name: most are imported when used.
_SUBCLASSES = {
    "torch._subclasses.fake_tensor:FakeTensor": _Parts.fake,
    "torch.distributed._functional_collectives:AsyncCollectiveTensor": _Parts.waiting,
    "torch.distributed.tensor:DTensor": _Parts.dtensor,
    "torch.nested._internal.nested_tensor:NestedTensor": _Parts.jagged,
}


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _ints(values: Sequence[int]) -> str:
    return f"[{','.join(str(int(value)) for value in values)}]"


def _describe(t: Tensor) -> str:
    # No repr: it would read the elements.
    shape = ", ".join(str(size) for size in t.shape)
    return f"{dtype_name(t.dtype)}[{shape}] {str(t.layout).removeprefix('torch.')} on {t.device}"


def _real_parts(t: Tensor) -> Tensor:
    """Return real and imaginary parts in a last dimension of two, conjugation carried out."""
    if not (t.is_conj() or t.is_neg()):
        return torch.view_as_real(t)
    # Undone on the real view: complex32 has no arithmetic of its own.
    conjugated, negated = t.is_conj(), t.is_neg()
    if conjugated:
        t = t.conj()
    if negated:
        t = t._neg_view()
    parts = torch.view_as_real(t).clone()
    if negated:
        parts.neg_()
    if conjugated:
        parts[..., 1].neg_()
    return parts


def _copy_bytes(t: Tensor) -> Tensor:
    """Return a contiguous copy of a tensor whose element type torch cannot copy."""
    carrier = {1: torch.uint8, 2: torch.int16}[t.itemsize]
    flat = torch.empty(0, dtype=carrier).set_(
        t.untyped_storage(), t.storage_offset(), t.shape, t.stride()
    )
    return flat.contiguous()
