"""Nested objects as text and tensors: `flatten` takes apart, `unflatten` puts together.

The text is JSON, without blanks, in ASCII. It is the `tree` of a record in the file. Everything but
the elements of tensors stands in it, exactly. A node is one of these:

Values:
    `null`, `true`, `false`, `1`, `1.5`, `"text"`: values of exactly these types of Python.
    `{"int":"0x.."}` an integer of more than 4096 bits; `{"float":"nan"|"inf"|"-inf"}`;
    `{"complex":[1.0,NODE]}` its two floats; `{"bytes":BASE64}`, `{"bytearray":BASE64}`;
    `{"range":[start,stop,step]}`, `{"slice":[NODE,NODE,NODE]}`, `{"ellipsis":null}`,
    `{"not_implemented":null}`, `{"path":"a/b"}`, `{"pure_path":"a/b"}` of `pathlib`;
    `{"dtype":"float32"}`, `{"device":"cuda:0"}`, `{"layout":"strided"}`, `{"size":[2,3]}`,
    `{"memory_format":"channels_last"}`, `{"qscheme":"per_tensor_affine"}` of torch;
    `{"numpy_dtype":"<f4"}`; `{"class":"module:Qualname"}` a class as a value.

Containers:
    `[NODE,..]` list, `{"tuple":[NODE,..]}`, `{"set":[NODE,..]}`, `{"frozenset":[NODE,..]}`;
    `{"dict":[[NODE,NODE],..]}` keys and values in order, a key being any node;
    `{"ordered_dict":[[NODE,NODE],..]}`, `{"counter":..}`, `{"mapping_proxy":..}` likewise;
    `{"defaultdict":{"factory":NODE,"items":[[NODE,NODE],..]}}`;
    `{"deque":{"items":[NODE,..],"maxlen":3|null}}`.

Tensors (where a NODE stands for a tensor, it may be any of these):
    `{"tensor":0}` the first tensor of the record, as it is.
    `{"complex_tensor":{"parts":NODE}}` real and imaginary parts in a last dimension of two.
    `{"raw_tensor":{"dtype":"int4","shape":[3],"data":NODE}}` bytes of an element type that torch
    can hold and not compute with.
    `{"sparse":{"layout":"sparse_coo","size":[2,3],"coalesced":true,"indices":NODE,"values":NODE}}`,
    `{"compressed":{"layout":"sparse_csr","size":[2,3],"compressed":NODE,"plain":NODE,
    "values":NODE}}` for CSR, CSC, BSR and BSC.
    `{"quantized":{"dtype":"qint8","shape":[2],"ints":NODE,"scale":0.5,"zero_point":3}}`,
    `{"quantized_channels":{"dtype":..,"shape":..,"ints":NODE,"scales":NODE,"zero_points":NODE,
    "axis":0}}`; `ints` are bytes where several values share one.
    `{"nested":{"values":[NODE,..]}}`, `{"jagged":{"values":NODE,"offsets":NODE,"lengths":NODE,
    "dim":1,"min_seqlen":1,"max_seqlen":4}}` (the last two and `lengths` may be absent).
    `{"mkldnn":{"data":NODE}}`.
    `{"meta":{"dtype":"float32","shape":[2],"strides":[1],"device":"meta"}}` a meta or fake tensor,
    its device being the one that it claimed; a meta tensor when loaded.
    `{"subclass":{"class":"module:Qualname","data":NODE,"fields":[["name",NODE],..]}}` a tensor of
    a derived class and its attributes. Parameters are plain tensors.
    `{"wrapper":{"class":..,"names":["a"],"values":[NODE],"context":NODE,"size":[2],"strides":[1],
    "dtype":"float32"}}` what the class's `__tensor_flatten__` tells.
    `{"parts":{"class":..,"names":["local",..],"values":[NODE,..]}}` what cannot be put together in
    another process (a DTensor: its local shard, placements, mesh and shape); a `StoredDict` when
    loaded.

Arrays of numpy:
    `{"array":{"dtype":"<f4","data":NODE}}` of a type that torch has, too;
    `{"byte_array":{"dtype":">f4","shape":[2],"data":NODE}}` of any other: big-endian, text,
    times, `"ml_dtypes:int4"`, its bytes in a tensor of `uint8`;
    `{"object_array":{"shape":[2],"items":[NODE,..]}}`, `{"masked_array":{"data":NODE,
    "mask":NODE}}`; `{"scalar":{"dtype":"<f4","bytes":BASE64}}` a scalar, bit for bit.

Objects: `{"object":{"class":"module:Qualname","kind":KIND,..}}` with, for each kind,
    `"fields":[["name",NODE],..]`, the attributes: `dataclass`, `attrs`, `object` (any other class),
    `cache` (transformers' caches and their layers), `model_output` (with `"keys":["name",..]` or
    `"items":[[NODE,NODE],..]` where its items are not just the fields that are not None),
    `namedtuple` (with `"state":[["name",NODE],..]` if it has other attributes), `structseq`
    (with `"hidden":..` for what only names reach), `pytree` (with `"context":NODE`: what the
    function registered in torch's pytree gave);
    `"items":[NODE,..]`: `tuple`, `list`, `set`, `frozenset`, `deque` (with `"maxlen":3`): classes
    derived from these, and `sequence`: from `UserList`; their other attributes in `"fields"`;
    `"items":[[NODE,NODE],..]`: `dict`, `ordered_dict`, `counter`, `defaultdict` (with
    `"factory":NODE`), `mapping` (`UserDict`); and `items`: an object of which nothing but this
    is known, a `StoredDict` when loaded;
    `"value":NODE`: `int`, `float`, `complex`, `str`, `bytes`: classes derived from these;
    `"name":NODE,"value":NODE`: `enum`.

What was not stored: `{"opaque":{"class":"module:Qualname","repr":"text"}}`: functions, modules,
locks, iterators, whatever lies in a cycle or too deep. An `Opaque` when loaded.

Objects that occur twice are written twice. Loading runs no code that the text could choose: see
`classes.py` for which classes come back as themselves, and what the others become.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from torch import Tensor
from torch.nn import Parameter

from .classes import Opaque, StoredDict, StoredList, StoredTuple
from .rebuild import unflatten
from .walk import Walker, safe_name, unique

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

__all__ = [
    "Flat",
    "Opaque",
    "StoredDict",
    "StoredList",
    "StoredTuple",
    "flatten",
    "flatten_call",
    "unflatten",
]


class Flat(NamedTuple):
    """A nested object taken apart.

    Attributes:
        tree: JSON text, in which tensors are numbered; the grammar stands in this module's text.
        paths: Path of each tensor, unique, without `/`; `""` for an object that is one tensor.
        tensors: The tensors. In the fast form those of exact type are given as they are.
        leaves: JSON members of each tensor that differ from what it tells itself (`""`: none);
            None where there are none at all.
        notes: A short text for each object that could not be stored: its path and class.
    """

    tree: str
    paths: list[str]
    tensors: list[Tensor]
    leaves: list[str] | None
    notes: list[str]


# As `Flat(...)` at half the price.
_flat = functools.partial(tuple.__new__, Flat)

# What the arguments of calls and the tuples that modules return look like → tree and paths: the
# same few come again and again.
_shapes: dict[tuple[object, ...], tuple[str, list[str]]] = {}
_MAX_SHAPES = 10_000
_MANY = 100


def _is_simple(values: Iterable[Any], shape: list[object], tensors: list[Tensor]) -> bool:
    """Add to `shape` what each value is; whether all are tensors, None, bools or tuples of them."""
    for value in values:
        cls = type(value)
        if cls is Tensor or cls is Parameter:
            shape.append(Tensor)
            tensors.append(value)
        elif value is None or value is True or value is False:
            shape.append(value)
        elif cls is tuple and len(shape) < _MANY:
            shape.append(tuple)
            if not _is_simple(value, shape, tensors):
                return False
            shape.append(...)
        else:
            return False
    return True


def _remember(shape: tuple[object, ...], flat: Flat) -> Flat:
    if len(shape) > _MANY:
        return flat
    if len(_shapes) >= _MAX_SHAPES:
        _shapes.clear()
    _shapes[shape] = flat.tree, flat.paths[:]
    return flat


def flatten(obj: object, *, careful: bool = False) -> Flat:
    """Take any object apart. Never raises, consumes nothing, runs no code of the object.

    Args:
        obj: Anything.
        careful: Examine every tensor, and hand over plain ones only: others in parts, on the CPU.
            The fast form takes tensors of exact type unseen; the core refuses what it cannot read,
            and the caller comes again with `careful=True`.

    Returns:
        The object's tree and tensors; paths begin at the object.
    """
    cls = type(obj)
    shape: list[object] = [tuple]
    if not careful:
        if cls is Tensor or cls is Parameter:
            return _flat(('{"tensor":0}', [""], [obj], None, []))
        tensors: list[Tensor] = []
        if cls is tuple and _is_simple(cast("tuple[object, ...]", obj), shape, tensors):
            known = _shapes.get(tuple(shape))
            if known is not None:
                return _flat((known[0], known[1][:], tensors, None, []))
            return _remember(tuple(shape), _walk(obj, careful=False))
    return _walk(obj, careful=careful)


def _walk(obj: object, *, careful: bool) -> Flat:
    walker = Walker(careful)
    try:
        tree = walker.write("", obj, 0)
    except Exception:  # noqa: BLE001 - whatever the object does, the user's model goes on
        return _lost(obj)
    return _end(walker, tree)


def flatten_call(
    args: tuple[object, ...], kwargs: Mapping[str, object], *, careful: bool = False
) -> Flat:
    """Take the arguments of a call apart: as `flatten((args, kwargs))`, with readable paths.

    Args:
        args: Positional arguments.
        kwargs: Keyword arguments.
        careful: See `flatten`.

    Returns:
        The tree of the tuple `(args, kwargs)`; paths begin with `args.` and `kwargs.`.
    """
    if careful:
        return _walk_call(args, kwargs, careful=True)
    tensors: list[Tensor] = []
    # The number of positional arguments, the names, then what each argument is.
    shape: list[object] = [len(args), *kwargs]
    if not _is_simple((*args, *kwargs.values()), shape, tensors):
        return _walk_call(args, kwargs, careful=False)
    known = _shapes.get(tuple(shape))
    if known is not None:
        return _flat((known[0], known[1][:], tensors, None, []))
    return _remember(tuple(shape), _walk_call(args, kwargs, careful=False))


def _walk_call(args: Sequence[object], kwargs: Mapping[str, object], *, careful: bool) -> Flat:
    walker = Walker(careful)
    try:
        first = ",".join(walker.items(args, "args", 0))
        second = walker.pairs(kwargs.items(), "kwargs", 0)
    except Exception:  # noqa: BLE001 - whatever the object does, the user's model goes on
        return _lost((args, kwargs))
    return _end(walker, f'{{"tuple":[{{"tuple":[{first}]}},{{"dict":[{second}]}}]}}')


def _lost(obj: object) -> Flat:
    walker = Walker(careful=False)
    cls = type(obj)
    return _end(walker, walker.opaque("", cls, f"<{safe_name(cls)}, not readable>"))


def _end(walker: Walker, tree: str) -> Flat:
    paths = unique(walker.paths) if walker.risky else walker.paths
    leaves = None
    if walker.leaves:
        leaves = [walker.leaves.get(n, "") for n in range(len(walker.tensors))]
    return _flat((tree, paths, walker.tensors, leaves, walker.notes))
