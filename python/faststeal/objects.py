"""How each kind of object is written: everything but tensors, plain scalars and plain containers.

A writer takes the walker, the object, its path and its depth, and returns the object's node (JSON
text, see `tree.py`). Which one serves a class is found once. None consumes an iterator, none calls
`__init__`, `__repr__`, `__iter__` or a property of a user's class.
"""

from __future__ import annotations

import base64
import collections
import collections.abc
import enum
import functools
import pathlib
import re
import types
from json.encoder import encode_basestring_ascii as quote
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
from torch.utils import _pytree

from .arrays import decompose_array, dtype_text, scalar_node
from .classes import Opaque, by_class, class_name, get_state, has_state
from .tensors import decompose

if TYPE_CHECKING:
    from collections.abc import Callable

    from .walk import Walker

    Writer = Callable[[Walker, Any, str, int], str]

__all__ = ["EXACT", "SCALARS", "describe", "writer_of"]

# Objects of users' classes in one object: beyond, they are described.
_MAX_OBJECTS = 2_000
# An object that holds more objects than this, and no tensor, is a configuration or a whole program.
_MAX_EMPTY = 100
_TEXT = 200
_HEAP_TYPE = 1 << 9  # set by a class statement


# Scalars: nodes that need neither path nor depth.


def _int(value: int) -> str:
    # Python refuses to print or read very long integers in base 10.
    if -(1 << 4096) < value < 1 << 4096:
        return int.__repr__(value)
    return f'{{"int":"{hex(value)}"}}'


def _float(value: float) -> str:
    text = float.__repr__(value)
    return text if text[-1] not in "fn" else f'{{"float":"{text}"}}'  # inf and nan


def _base64(value: bytes | bytearray) -> str:
    return base64.b64encode(value).decode()


SCALARS: dict[type, Callable[[Any], str]] = {
    type(None): lambda _: "null",
    bool: lambda value: "true" if value else "false",
    int: _int,
    float: _float,
    str: quote,
    complex: lambda value: f'{{"complex":[{_float(value.real)},{_float(value.imag)}]}}',
    bytes: lambda value: f'{{"bytes":"{_base64(value)}"}}',
    bytearray: lambda value: f'{{"bytearray":"{_base64(value)}"}}',
    type(...): lambda _: '{"ellipsis":null}',
    type(NotImplemented): lambda _: '{"not_implemented":null}',
    range: lambda value: f'{{"range":[{_int(value.start)},{_int(value.stop)},{_int(value.step)}]}}',
    torch.dtype: functools.lru_cache(maxsize=64)(
        lambda value: f'{{"dtype":"{str(value).removeprefix("torch.")}"}}'
    ),
    torch.device: functools.lru_cache(maxsize=64)(lambda value: f'{{"device":"{value}"}}'),
    torch.layout: lambda value: f'{{"layout":"{str(value).removeprefix("torch.")}"}}',
    torch.memory_format: lambda v: f'{{"memory_format":"{str(v).removeprefix("torch.")}"}}',
    torch.qscheme: lambda value: f'{{"qscheme":"{str(value).removeprefix("torch.")}"}}',
}


# Containers of the standard library, by exact type.


def _set(walker: Walker, obj: set[object] | frozenset[object], path: str, depth: int) -> str:
    # The order in a set of strings changes from one process to the next; the tree's text must not.
    nodes = sorted(walker.items(list(obj), path, depth))
    return f'{{"{type(obj).__name__}":[{",".join(nodes)}]}}'


def _deque(walker: Walker, obj: collections.deque[object], path: str, depth: int) -> str:
    nodes = ",".join(walker.items(list(obj), path, depth))
    length = "null" if obj.maxlen is None else obj.maxlen
    return f'{{"deque":{{"items":[{nodes}],"maxlen":{length}}}}}'


def _ordered_dict(
    walker: Walker, obj: collections.OrderedDict[object, object], path: str, depth: int
) -> str:
    return f'{{"ordered_dict":[{walker.pairs(list(obj.items()), path, depth)}]}}'


def _counter(walker: Walker, obj: collections.Counter[object], path: str, depth: int) -> str:
    return f'{{"counter":[{walker.pairs(list(obj.items()), path, depth)}]}}'


def _defaultdict(
    walker: Walker, obj: collections.defaultdict[object, object], path: str, depth: int
) -> str:
    where = walker.join(path, "default_factory")
    factory = walker.write(where, obj.default_factory, depth + 1)
    pairs = walker.pairs(list(obj.items()), path, depth)
    return f'{{"defaultdict":{{"factory":{factory},"items":[{pairs}]}}}}'


def _mapping_proxy(
    walker: Walker, obj: types.MappingProxyType[object, object], path: str, depth: int
) -> str:
    return f'{{"mapping_proxy":[{walker.pairs(list(obj.copy().items()), path, depth)}]}}'


def _slice(walker: Walker, obj: slice, path: str, depth: int) -> str:
    parts = [(name, getattr(obj, name)) for name in ("start", "stop", "step")]
    nodes = [walker.write(walker.join(path, name), value, depth + 1) for name, value in parts]
    return f'{{"slice":[{",".join(nodes)}]}}'


def _size(walker: Walker, obj: torch.Size, path: str, _depth: int) -> str:
    if all(type(size) is int for size in obj):
        return f'{{"size":[{",".join(map(str, obj))}]}}'
    return walker.opaque(path, torch.Size, f"torch.Size([{', '.join(map(str, obj))}])")


def _described_already(_walker: Walker, obj: Opaque, _path: str, _depth: int) -> str:
    return f'{{"opaque":{{"class":{quote(obj.class_name)},"repr":{quote(obj.text)}}}}}'


EXACT: dict[type, Writer] = {
    set: _set,
    frozenset: _set,
    collections.deque: _deque,
    collections.OrderedDict: _ordered_dict,
    collections.Counter: _counter,
    collections.defaultdict: _defaultdict,
    types.MappingProxyType: _mapping_proxy,
    slice: _slice,
    torch.Size: _size,
    Opaque: _described_already,
}


# Kinds of classes.


@by_class
def _quoted(cls: type) -> str:
    return quote(class_name(cls))


def _head(cls: type, kind: str) -> str:
    return f'{{"object":{{"class":{_quoted(cls)},"kind":"{kind}",'


def _state(walker: Walker, obj: object, path: str, depth: int, *, leave: str = "") -> str:
    state = get_state(obj)
    if leave:
        state = [(name, value) for name, value in state if name != leave]
    return walker.pairs(state, path, depth)


def _plus_state(walker: Walker, obj: object, path: str, depth: int, *, leave: str = "") -> str:
    fields = _state(walker, obj, path, depth, leave=leave)
    return f',"fields":[{fields}]' if fields else ""


def _enum(walker: Walker, obj: enum.Enum, path: str, depth: int) -> str:
    state = dict(get_state(obj))
    name = walker.write(path, state.get("_name_"), depth + 1)
    value = walker.write(path, state.get("_value_"), depth + 1)
    return f'{_head(type(obj), "enum")}"name":{name},"value":{value}}}}}'


def _namedtuple(walker: Walker, obj: tuple[object, ...], path: str, depth: int) -> str:
    names = cast("tuple[str, ...]", type(obj)._fields)  # type: ignore[attr-defined]
    elements = list(zip(names, tuple.__iter__(obj), strict=True))
    pairs = walker.pairs(elements, path, depth)
    state = _state(walker, obj, path, depth)
    rest = f',"state":[{state}]' if state else ""
    return f'{_head(type(obj), "namedtuple")}"fields":[{pairs}]{rest}}}}}'


def _structseq(walker: Walker, obj: tuple[object, ...], path: str, depth: int) -> str:
    # What lies beyond the sequence itself (a time's zone) is reached by name only.
    _, (visible, hidden) = cast(
        "tuple[object, tuple[tuple[object, ...], dict[str, object]]]", obj.__reduce__()
    )
    cls = type(obj)
    names = [
        name
        for name, member in vars(cls).items()
        if type(member) is types.MemberDescriptorType and name not in hidden
    ]
    if len(names) != len(visible):
        names = [str(i) for i in range(len(visible))]
    pairs = walker.pairs(list(zip(names, visible, strict=True)), path, depth)
    more = walker.pairs(list(hidden.items()), path, depth)
    rest = f',"hidden":[{more}]' if more else ""
    return f'{_head(cls, "structseq")}"fields":[{pairs}]{rest}}}}}'


def _sequence_of(base: type, kind: str) -> Writer:
    def write(walker: Walker, obj: Any, path: str, depth: int) -> str:
        nodes = walker.items(list(base.__iter__(obj)), path, depth)  # type: ignore[attr-defined]
        if kind in {"set", "frozenset"}:
            nodes.sort()
        rest = _plus_state(walker, obj, path, depth)
        if kind == "deque" and obj.maxlen is not None:
            rest += f',"maxlen":{obj.maxlen}'
        return f'{_head(type(obj), kind)}"items":[{",".join(nodes)}]{rest}}}}}'

    return write


def _dict_of(base: Any, kind: str) -> Writer:
    def write(walker: Walker, obj: Any, path: str, depth: int) -> str:
        pairs = walker.pairs(list(base.items(obj)), path, depth)
        rest = _plus_state(walker, obj, path, depth)
        if kind == "defaultdict":
            where = walker.join(path, "default_factory")
            rest += f',"factory":{walker.write(where, obj.default_factory, depth + 1)}'
        return f'{_head(type(obj), kind)}"items":[{pairs}]{rest}}}}}'

    return write


def _scalar_of(base: Any, kind: str) -> Writer:
    exact = {
        "str": str.__str__,
        "bytes": lambda obj: bytes.__getitem__(cast("bytes", obj), slice(None)),
    }.get(kind) or base.__pos__

    def write(walker: Walker, obj: Any, path: str, depth: int) -> str:
        node = SCALARS[base](exact(obj))
        rest = _plus_state(walker, obj, path, depth)
        return f'{_head(type(obj), kind)}"value":{node}{rest}}}}}'

    return write


def _model_output(walker: Walker, obj: Any, path: str, depth: int) -> str:
    # Its fields are attributes, and those that are not None are its items too.
    state = get_state(obj)
    items = list(collections.OrderedDict.items(obj))
    rest = ""
    if [name for name, value in state if value is not None] != [key for key, _ in items]:
        rest = f',"keys":[{",".join(walker.items([key for key, _ in items], path, depth))}]'
    attributes = dict(state)
    if any(attributes.get(key) is not value for key, value in items):
        where = walker.join(path, "items")
        rest = f',"items":[{walker.pairs(items, where, depth)}]'
    fields = walker.pairs(state, path, depth)
    return f'{_head(type(obj), "model_output")}"fields":[{fields}]{rest}}}}}'


def _user_container(walker: Walker, obj: Any, path: str, depth: int) -> str:
    """UserDict and UserList: what they wrap is their content, in the paths as well."""
    data = dict(get_state(obj))["data"]
    if type(data) is dict:
        content, kind = walker.pairs(list(data.items()), path, depth), "mapping"
    elif type(data) is list:
        content, kind = ",".join(walker.items(data, path, depth)), "sequence"
    else:
        return _object("object")(walker, obj, path, depth)
    rest = _plus_state(walker, obj, path, depth, leave="data")
    return f'{_head(type(obj), kind)}"items":[{content}]{rest}}}}}'


def _object(kind: str) -> Writer:
    def write(walker: Walker, obj: object, path: str, depth: int) -> str:
        fields = walker.pairs(get_state(obj), path, depth)
        return f'{_head(type(obj), kind)}"fields":[{fields}]}}}}'

    return write


def _any_object(walker: Walker, obj: object, path: str, depth: int) -> str:
    """An object of a class of no known kind: its attributes, if they are worth it."""
    cls = type(obj)
    if walker.objects >= _MAX_OBJECTS:
        return walker.opaque(path, cls, describe(obj))
    mark = walker.mark()
    walker.objects += 1
    before = walker.objects
    fields = _state(walker, obj, path, depth)
    if walker.holds_tensors_since(mark):
        return f'{_head(cls, "object")}"fields":[{fields}]}}}}'
    # Without tensors, it is worth its attributes only if it is nothing but them.
    builtin = any(
        not base.__flags__ & _HEAP_TYPE and base is not types.SimpleNamespace
        for base in cls.__mro__[:-1]
    )
    if builtin or walker.objects - before > _MAX_EMPTY:
        walker.rewind(mark)
        return walker.opaque(path, cls, describe(obj))
    if walker.has_notes_since(mark):
        return f'{_head(cls, "items")}"items":[{fields}]}}}}'
    return f'{_head(cls, "object")}"fields":[{fields}]}}}}'


def _pytree_node(walker: Walker, obj: object, path: str, depth: int) -> str:
    cls = type(obj)
    node = _pytree.SUPPORTED_NODES[cls]
    if node.flatten_with_keys_fn is not None:
        keyed, context = node.flatten_with_keys_fn(obj)
        children = [(_entry_name(key), child) for key, child in keyed]
    else:
        values, context = node.flatten_fn(obj)
        children = [(str(i), child) for i, child in enumerate(values)]
    fields = walker.pairs(children, path, depth)
    about = walker.write(walker.join(path, "context"), context, depth + 1)
    return f'{_head(cls, "pytree")}"fields":[{fields}],"context":{about}}}}}'


def _entry_name(key: object) -> str:
    for attribute in ("key", "idx", "name"):
        found = getattr(key, attribute, None)
        if found is not None:
            return str(found)
    return str(key)


def _mapping(walker: Walker, obj: Any, path: str, depth: int) -> str:
    """A mapping whose content is out of reach, so it is asked for its items."""
    pairs = walker.pairs([(key, obj[key]) for key in obj], path, depth)
    return f'{_head(type(obj), "items")}"items":[{pairs}]}}}}'


def _class(_walker: Walker, obj: type, _path: str, _depth: int) -> str:
    return f'{{"class":{quote(class_name(obj))}}}'


def _numpy_dtype(walker: Walker, obj: np.dtype[Any], path: str, _depth: int) -> str:
    text = dtype_text(obj)
    if text is None:
        return walker.opaque(path, np.dtype, str(obj))
    return f'{{"numpy_dtype":{quote(text)}}}'


def _numpy_scalar(walker: Walker, obj: np.generic, path: str, _depth: int) -> str:
    node = scalar_node(obj)
    return walker.opaque(path, type(obj), describe(obj)) if node is None else node


def _path(_walker: Walker, obj: pathlib.PurePath, _path: str, _depth: int) -> str:
    tag = "path" if isinstance(obj, pathlib.Path) else "pure_path"
    return f'{{"{tag}":{quote(str(obj))}}}'


def _opaque(walker: Walker, obj: object, path: str, _depth: int) -> str:
    return walker.opaque(path, type(obj), describe(obj))


def describe(obj: object) -> str:
    """Say what an object is, in a short text that is the same in every process.

    Its `repr` is asked for only where that is known to be cheap and to read no tensor.
    """
    cls = type(obj)
    if cls is types.MethodType:
        return f"<bound method {describe(cast('types.MethodType', obj).__func__)}>"
    if cls is functools.partial:
        return f"<partial of {describe(cast('functools.partial[object]', obj).func)}>"
    if cls not in _REPR and (cls in _NO_REPR or has_state(cls) or issubclass(cls, BaseException)):
        return f"<{class_name(cls)}>"
    try:
        text = repr(obj)
        # By the base class's slice: what repr returned may be of a class with its own.
        text = str.__getitem__(text, slice(0, 10 * _TEXT))
    except Exception as error:  # noqa: BLE001 - it is described all the same
        return f"<{class_name(cls)}, whose repr raises {type(error).__name__}>"
    text = re.sub(r" at 0x[0-9a-fA-F]+", "", text)
    return text if len(text) <= _TEXT else f"{text[:_TEXT]}…"


_REPR = frozenset({types.FunctionType, types.ModuleType})
_NO_REPR = frozenset({type({}.keys()), type({}.values()), type({}.items())})


# Which writer serves a class.

_UNKNOWN = frozenset({_any_object, _mapping, _opaque, _user_container})
_DESCRIBED = (
    torch.nn.Module,
    BaseException,
    types.ModuleType,
    types.FunctionType,
    types.MethodType,
    functools.partial,
)
_BASES: tuple[tuple[type, Writer], ...] = (
    (collections.OrderedDict, _dict_of(collections.OrderedDict, "ordered_dict")),
    (collections.defaultdict, _dict_of(collections.defaultdict, "defaultdict")),
    (collections.Counter, _dict_of(dict, "counter")),
    (dict, _dict_of(dict, "dict")),
    (list, _sequence_of(list, "list")),
    (tuple, _sequence_of(tuple, "tuple")),
    (set, _sequence_of(set, "set")),
    (frozenset, _sequence_of(frozenset, "frozenset")),
    (collections.deque, _sequence_of(collections.deque, "deque")),
    (int, _scalar_of(int, "int")),
    (float, _scalar_of(float, "float")),
    (complex, _scalar_of(complex, "complex")),
    (str, _scalar_of(str, "str")),
    (bytes, _scalar_of(bytes, "bytes")),
)


def _derived(*bases: type) -> Callable[[type], bool]:
    return lambda cls: issubclass(cls, bases)


def _marked(attribute: str) -> Callable[[type], bool]:
    return lambda cls: any(attribute in vars(base) for base in cls.__mro__)


def _is_cache(cls: type) -> bool:
    modules = {base.__module__ for base in cls.__mro__}
    return "transformers.cache_utils" in modules and not issubclass(cls, collections.UserDict)


def _is_model_output(cls: type) -> bool:
    names = {class_name(base) for base in cls.__mro__}
    return "transformers.utils.generic:ModelOutput" in names


def _is_namedtuple(cls: type) -> bool:
    names = getattr(cls, "_fields", None)
    return (
        issubclass(cls, tuple) and type(names) is tuple and all(type(name) is str for name in names)
    )


def _is_structseq(cls: type) -> bool:
    return cls.__mro__[1:] == (tuple, object) and hasattr(cls, "n_sequence_fields")


# In order: the first that holds decides.
_KINDS: tuple[tuple[Callable[[type], bool], Writer], ...] = (
    (_derived(torch.Tensor), lambda walker, obj, path, depth: decompose(obj, walker, path, depth)),
    (_derived(np.ndarray), lambda walker, obj, path, d: decompose_array(obj, walker, path, d)),
    (_derived(np.generic), _numpy_scalar),
    (_derived(np.dtype), _numpy_dtype),
    (_derived(enum.Enum), _enum),
    (_derived(type), _class),
    (_derived(pathlib.PurePath), _path),
    (_is_cache, _object("cache")),
    (_is_model_output, _model_output),
    (_is_namedtuple, _namedtuple),
    (_is_structseq, _structseq),
    *((_derived(base), writer) for base, writer in _BASES),
    (_derived(*_DESCRIBED), _opaque),
    (_marked("__dataclass_fields__"), _object("dataclass")),
    (_marked("__attrs_attrs__"), _object("attrs")),
    (_derived(collections.UserDict, collections.UserList), _user_container),
    (has_state, _any_object),
    (_derived(collections.abc.Mapping), _mapping),
)
_writers: dict[type, Writer] = {}


def writer_of(cls: type) -> Writer:
    """Return what writes objects of this class."""
    writer = _writers.get(cls)
    if writer is None:
        if len(_writers) > 1024:
            _writers.clear()
        writer = next((writer for is_kind, writer in _KINDS if is_kind(cls)), _opaque)
        _writers[cls] = writer
    # A class of no known kind may be registered at any time.
    if writer in _UNKNOWN and cls in _pytree.SUPPORTED_NODES:
        return _pytree_node
    return writer
