"""From the tree's text back to the object: a text is compiled once to functions, and remembered.

A text is checked while it is compiled: whatever it holds, the only code it can choose is that of
the tags below and of the classes that `classes.py` lets it name. The functions make every mutable
container anew at each call.
"""

from __future__ import annotations

import base64
import collections
import json
import pathlib
import types
from typing import TYPE_CHECKING, Any, NoReturn

import torch

from ._core import FormatError, Make
from .arrays import ARRAY_COMPOSERS, find_array_dtype
from .classes import Opaque, find_reference
from .compose import COMPOSERS, find_dtype, find_layout
from .instances import KINDS, as_key

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import Tensor

    Making = Callable[[Sequence[Tensor]], Any]

__all__ = ["compiled", "unflatten"]

# A writer stops at 100; some nodes nest by two.
_MAX_DEPTH = 250
_REMEMBERED = 2048
_LONG = 1 << 14  # characters; what is longer is not remembered


def unflatten(tree: str, tensors: Sequence[Tensor]) -> object:
    """Make the object that a tree describes.

    Args:
        tree: JSON text, as `flatten` writes it.
        tensors: The record's tensors; they become part of the object as they are.

    Returns:
        The object. Its containers are new at each call.

    Raises:
        FormatError: The text is no such tree, or does not fit the tensors.
    """
    return compiled(tree)(tensors)


_compiled: dict[str, Make] = {}


def compiled(tree: str) -> Make:
    """Return the function that makes of a record's tensors the object that a tree describes.

    Raises:
        FormatError: The text is no such tree. The function raises it where the tensors don't fit.
    """
    found = _compiled.get(tree)
    if found is not None:
        return found
    compiler = _Compiler()
    try:
        node = json.loads(tree, parse_constant=_no_constant)
        make = compiler.node(node, "tree", 0)
    except FormatError:
        raise
    except Exception as error:
        raise FormatError(f"tree: expected JSON text in the grammar of trees: {error}") from error
    found = Make.record(compiler.count, make)
    if len(tree) < _LONG:
        if len(_compiled) >= _REMEMBERED:
            _compiled.clear()
        _compiled[tree] = found
    return found


def _no_constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is not JSON")


def _refuse(where: str, expected: str, found: object) -> NoReturn:
    text = json.dumps(found)
    raise FormatError(f"{where}: expected {expected}, found {text[:80]}")


# Members whose name is another thing to Python.
_ARGUMENTS = {"class": "name", "bytes": "data", "name": "member"}


class _Compiler:
    """Compiles one tree; counts the tensors that it asks for."""

    def __init__(self) -> None:
        self.count = 0

    def node(self, node: object, where: str, depth: int) -> Making:
        """Compile any node."""
        if depth > _MAX_DEPTH:
            raise FormatError(f"{where[:200]}: expected at most {_MAX_DEPTH} levels")
        if node is None or type(node) in {bool, int, float, str}:
            return Make.constant(node)
        if type(node) is list:
            return Make.list(self.nodes(node, where, depth))
        if type(node) is not dict or len(node) != 1:
            _refuse(where, "a value, a list, or an object with one member, the tag", node)
        [(tag, body)] = node.items()
        where = f"{where}.{tag}"[:1000]
        reader: Callable[..., Making] | None = _TAGS.get(tag)
        if reader is not None:
            return reader(self, body, where, depth + 1)
        composer = COMPOSERS.get(tag) or ARRAY_COMPOSERS.get(tag)
        if composer is None:
            _refuse(where, "a tag of the grammar", tag)
        return self.composed(*composer, body, where, depth + 1)

    def nodes(self, nodes: object, where: str, depth: int) -> list[Making]:
        """Compile a list of nodes."""
        if type(nodes) is not list:
            _refuse(where, "a list of nodes", nodes)
        return [self.node(node, f"{where}[{i}]", depth + 1) for i, node in enumerate(nodes)]

    def pairs(self, pairs: object, where: str, depth: int) -> list[tuple[Making, Making]]:
        """Compile a list of keys and values."""
        if type(pairs) is not list:
            _refuse(where, "a list of [key, value]", pairs)
        compiled = []
        for i, pair in enumerate(pairs):
            at = f"{where}[{i}]"
            if type(pair) is not list or len(pair) != 2:
                _refuse(at, "[key, value]", pair)
            compiled.append((self.node(pair[0], at, depth + 1), self.node(pair[1], at, depth + 1)))
        return compiled

    def fields(self, fields: object, where: str, depth: int) -> Making:
        """Compile a list of names and values."""
        compiled = self.pairs(fields, where, depth)
        names = [_constant(key) for key, _ in compiled]
        if not all(type(name) is str for name in names):
            _refuse(where, "a list of [name, value]", fields)
        makes = [make for _, make in compiled]
        return lambda ts: [(n, make(ts)) for n, make in zip(names, makes, strict=True)]

    def composed(
        self,
        compose: Callable[..., object],
        members: dict[str, str],
        body: object,
        where: str,
        depth: int,
    ) -> Making:
        """Compile a node of tensors or arrays in parts."""
        if type(body) is not dict:
            _refuse(where, "an object", body)
        known = {name.rstrip("?"): kind for name, kind in members.items()}
        for name in body:
            if name not in known:
                _refuse(where, f"members of {', '.join(known)}", name)
        makes: list[tuple[str, Making]] = []
        for name, kind in members.items():
            key = name.rstrip("?")
            if key not in body:
                if key == name:
                    _refuse(where, f"a member {key!r}", sorted(body))
                continue
            at = f"{where}.{key}"
            argument = _ARGUMENTS.get(key, key)
            makes.append((argument, self.member(kind, body[key], at, depth)))
        return lambda ts: compose(**{name: make(ts) for name, make in makes})

    def member(self, kind: str, value: object, where: str, depth: int) -> Making:
        """Compile one member of such a node."""
        if kind == "node":
            return self.node(value, where, depth)
        if kind == "nodes":
            return Make.list(self.nodes(value, where, depth))
        if kind == "pairs":
            return _make_pairs(self.pairs(value, where, depth))
        if kind == "fields":
            return self.fields(value, where, depth)
        expected = {"str": str, "int": int, "bool": bool}
        if kind in expected:
            if type(value) is not expected[kind]:
                _refuse(where, f"a value of type {kind}", value)
            return Make.constant(value)
        item = {"ints": int, "strs": str}[kind]
        if type(value) is not list or not all(type(one) is item for one in value):
            _refuse(where, f"a list of {item.__name__}", value)
        return Make.constant(tuple(value))


# Containers.


def _constant(make: Making) -> Any:
    """Return the value that is made each time, None where it is not the same."""
    return make.value if type(make) is Make else None


def _make_pairs(pairs: list[tuple[Making, Making]]) -> Making:
    """Make a list of keys and values."""
    return lambda ts: [(as_key(key(ts)), make(ts)) for key, make in pairs]


def _make_dict(pairs: list[tuple[Making, Making]]) -> Making:
    if not all(type(key) is Make and key.is_constant for key, _ in pairs):
        return lambda ts: {as_key(key(ts)): make(ts) for key, make in pairs}
    keys = [_constant(key) for key, _ in pairs]
    dict.fromkeys(keys)  # refuses keys that cannot be hashed
    return Make.dict(keys, [make for _, make in pairs])


# Tags. Each reader takes the compiler, the tag's body, where it stands, and its depth.


def _tensor(compiler: _Compiler, body: Any, where: str, _depth: int) -> Making:
    if type(body) is not int or not 0 <= body < 1 << 31:
        _refuse(where, "the number of a tensor", body)
    compiler.count = max(compiler.count, body + 1)
    return Make.pick(body)


def _tuple(compiler: _Compiler, body: Any, where: str, depth: int) -> Making:
    return Make.tuple(compiler.nodes(body, where, depth))


def _dict(compiler: _Compiler, body: Any, where: str, depth: int) -> Making:
    return _make_dict(compiler.pairs(body, where, depth))


def _listed(wrap: Callable[[list[Any]], object]) -> Any:
    def read(compiler: _Compiler, body: object, where: str, depth: int) -> Making:
        make = Make.list(compiler.nodes(body, where, depth))
        return lambda ts: wrap(make(ts))

    return read


def _paired(wrap: Callable[[list[Any]], object]) -> Any:
    def read(compiler: _Compiler, body: object, where: str, depth: int) -> Making:
        make = _make_pairs(compiler.pairs(body, where, depth))
        return lambda ts: wrap(make(ts))

    return read


def _text(read: Callable[[str], object]) -> Any:
    """A value that is written as a string, immutable."""

    def reader(_compiler: _Compiler, body: object, where: str, _depth: int) -> Making:
        if type(body) is not str:
            _refuse(where, "a string", body)
        try:
            return Make.constant(read(body))
        except Exception as error:
            raise FormatError(f"{where}: expected another text, {error}") from error

    return reader


def _null(value: object) -> Any:
    def reader(_compiler: _Compiler, body: object, where: str, _depth: int) -> Making:
        if body is not None:
            _refuse(where, "null", body)
        return Make.constant(value)

    return reader


def _ints(read: Callable[[list[int]], object]) -> Any:
    def reader(compiler: _Compiler, body: object, where: str, depth: int) -> Making:
        values = [_constant(make) for make in compiler.nodes(body, where, depth)]
        if not all(type(value) is int for value in values):
            _refuse(where, "a list of int", body)
        try:
            return Make.constant(read(values))
        except Exception as error:
            raise FormatError(f"{where}: expected other numbers, {error}") from error

    return reader


def _range(parts: list[int]) -> range:
    start, stop, step = parts
    return range(start, stop, step)


def _slice(parts: list[Any]) -> slice:
    start, stop, step = parts
    return slice(start, stop, step)


def _float(text: str) -> float:
    if text not in {"nan", "inf", "-inf"}:
        raise ValueError(f"expected nan, inf or -inf, found {text[:20]!r}")
    return float(text)


def _big(text: str) -> int:
    return int(text, 16)


def _complex(parts: list[Any]) -> complex:
    real, imaginary = parts
    if type(real) is not float or type(imaginary) is not float:
        raise TypeError("expected two floats for a complex")
    return complex(real, imaginary)


def _bytes(text: str) -> bytes:
    return base64.b64decode(text, validate=True)


def _bytearray(compiler: _Compiler, body: Any, where: str, depth: int) -> Making:
    content = _constant(_text(_bytes)(compiler, body, where, depth))
    return lambda _: bytearray(content)


def _torch_name(kind: type) -> Callable[[str], object]:
    def read(name: str) -> object:
        value = vars(torch).get(name)
        if type(value) is not kind:
            raise ValueError(
                f"expected the name of a {kind.__name__} of torch, found {name[:40]!r}"
            )
        return value

    return read


def _class(name: str) -> object:
    return find_reference(name) or Opaque("builtins:type", name)


def _deque(compiler: _Compiler, body: Any, where: str, depth: int) -> Making:
    _members(body, where, {"items", "maxlen"})
    length = body["maxlen"]
    if length is not None and (type(length) is not int or not 0 <= length < 1 << 62):
        _refuse(where, "a length or null", length)
    make = Make.list(compiler.nodes(body["items"], where, depth))
    return lambda ts: collections.deque(make(ts), length)


def _defaultdict(compiler: _Compiler, body: Any, where: str, depth: int) -> Making:
    _members(body, where, {"factory", "items"})
    factory = compiler.node(body["factory"], where, depth)
    make = _make_pairs(compiler.pairs(body["items"], where, depth))
    return lambda ts: collections.defaultdict(_factory(factory(ts)), make(ts))


def _factory(value: object) -> Callable[[], object] | None:
    # One that was only described makes nothing.
    return value if type(value) is type else None


def _counter(pairs: list[tuple[object, int]]) -> object:
    counter: collections.Counter[object] = collections.Counter()
    dict.update(counter, pairs)
    return counter


def _opaque(_compiler: _Compiler, body: Any, where: str, _depth: int) -> Making:
    _members(body, where, {"class", "repr"})
    if type(body["class"]) is not str or type(body["repr"]) is not str:
        _refuse(where, "two strings", body)
    return Make.constant(Opaque(body["class"], body["repr"]))


def _object(compiler: _Compiler, body: Any, where: str, depth: int) -> Making:
    if type(body) is not dict or type(body.get("kind")) is not str:
        _refuse(where, "an object with a kind", body)
    known = KINDS.get(body["kind"])
    if known is None:
        _refuse(where, f"a kind among {', '.join(KINDS)}", body["kind"])
    rest = {name: value for name, value in body.items() if name != "kind"}
    return compiler.composed(*known, rest, where, depth)


def _members(body: object, where: str, names: set[str]) -> None:
    if type(body) is not dict or set(body) != names:
        _refuse(where, f"an object with members {', '.join(sorted(names))}", body)


_TAGS: dict[str, Any] = {
    "tensor": _tensor,
    "tuple": _tuple,
    "dict": _dict,
    "set": _listed(lambda items: set(map(as_key, items))),
    "frozenset": _listed(lambda items: frozenset(map(as_key, items))),
    "slice": _listed(_slice),
    "complex": _listed(_complex),
    "ordered_dict": _paired(collections.OrderedDict),
    "counter": _paired(_counter),
    "mapping_proxy": _paired(lambda pairs: types.MappingProxyType(dict(pairs))),
    "deque": _deque,
    "defaultdict": _defaultdict,
    "int": _text(_big),
    "float": _text(_float),
    "bytes": _text(_bytes),
    "bytearray": _bytearray,
    "range": _ints(_range),
    "size": _ints(torch.Size),
    "ellipsis": _null(...),
    "not_implemented": _null(NotImplemented),
    "dtype": _text(find_dtype),
    "device": _text(torch.device),
    "layout": _text(find_layout),
    "memory_format": _text(_torch_name(torch.memory_format)),
    "qscheme": _text(_torch_name(torch.qscheme)),
    "numpy_dtype": _text(find_array_dtype),
    "path": _text(pathlib.Path),
    "pure_path": _text(pathlib.PurePath),
    "class": _text(_class),
    "opaque": _opaque,
    "object": _object,
}
