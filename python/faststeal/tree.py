"""Nested objects as text and tensors."""

from __future__ import annotations

import enum
import functools
import re
from json.encoder import encode_basestring_ascii as quote
from typing import TYPE_CHECKING, Any, NamedTuple

from torch import Tensor
from torch.nn import Parameter

from .classes import Opaque, StoredDict, StoredList, StoredTuple, class_name, get_state
from .objects import EXACT, SCALARS, describe, writer_of
from .rebuild import unflatten
from .tensors import EXACT_TENSORS, decompose

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

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

# Deeper than any output of a model, shallow enough for the readers of JSON and for the stack.
_MAX_DEPTH = 100
# Below this depth an object with shared parts may unfold into very many.
_DEEP = 16
_MAX_DEEP = 100_000
_PART = 200


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

_MAX_NAMES = 10_000


class _Nodes(dict[int, str]):
    """The node of the n-th tensor; the first ones are at hand."""

    def __missing__(self, n: int) -> str:
        return f'{{"tensor":{n}}}'


_NODES = _Nodes()
for _n in range(256):
    _NODES[_n] = _NODES[_n]
_CALLS = [
    (
        f'{{"tuple":[{{"tuple":[{",".join(_NODES[i] for i in range(n))}]}},{{"dict":[]}}]}}',
        [f"args.{i}" for i in range(n)],
    )
    for n in range(16)
]


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
    if (cls is Tensor or cls is Parameter) and not careful:
        return _flat(('{"tensor":0}', [""], [obj], None, []))
    walker = Walker(careful)
    try:
        tree = walker.write("", obj, 0)
    except Exception:  # noqa: BLE001 - whatever the object does, the user's model goes on
        return _lost(obj)
    return walker.flat(tree)


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
    if not kwargs and not careful and len(args) < len(_CALLS):
        for arg in args:
            cls = type(arg)
            if cls is not Tensor and cls is not Parameter:
                break
        else:
            tree, paths = _CALLS[len(args)]
            return _flat((tree, paths[:], list(args), None, []))
    walker = Walker(careful)
    try:
        first = ",".join(walker.items(args, "args", 0))
        second = walker.pairs(kwargs.items(), "kwargs", 0)
    except Exception:  # noqa: BLE001 - whatever the object does, the user's model goes on
        return _lost((args, kwargs))
    return walker.flat(f'{{"tuple":[{{"tuple":[{first}]}},{{"dict":[{second}]}}]}}')


def _lost(obj: object) -> Flat:
    walker = Walker(careful=False)
    return walker.flat(walker.opaque("", type(obj), f"<{class_name(type(obj))}, not readable>"))


class Walker:
    """One walk through an object; takes tensors, paths and notes as it goes."""

    # Counted and noted during the walk; on the class, since most walks change none of them.
    objects = 0
    deep = 0
    risky = False

    def __init__(self, careful: bool) -> None:
        self.careful = careful
        self.tensors: list[Tensor] = []
        self.paths: list[str] = []
        self.notes: list[str] = []
        self.leaves: dict[int, str] = {}
        self.active: set[int] = set()

    def flat(self, tree: str) -> Flat:
        """End the walk."""
        if self.risky:
            self.paths = _unique(self.paths)
        leaves = None
        if self.leaves:
            leaves = [self.leaves.get(i, "") for i in range(len(self.tensors))]
        return _flat((tree, self.paths, self.tensors, leaves, self.notes))

    def write(self, path: str, obj: Any, depth: int) -> str:
        """Write any object, return its node."""
        cls = type(obj)
        if cls in EXACT_TENSORS:
            if self.careful:
                return self.examine(path, obj, depth)
            return self.tensor(path, obj)
        scalar = SCALARS.get(cls)
        if scalar is not None:
            return scalar(obj)
        return self.container(path, obj, depth)

    value = write

    def container(self, path: str, obj: Any, depth: int) -> str:
        """Write an object that may hold others."""
        cls = type(obj)
        marker = id(obj)
        if marker in self.active:
            return self.opaque(path, cls, "a cycle")
        if depth > _DEEP:
            self.deep += 1
            if depth > _MAX_DEPTH or self.deep > _MAX_DEEP:
                return self.opaque(path, cls, "too deep")
        self.active.add(marker)
        try:
            if cls is tuple:
                return f'{{"tuple":[{",".join(self.items(obj, path, depth))}]}}'
            if cls is dict:
                return f'{{"dict":[{self.pairs(list(obj.items()), path, depth)}]}}'
            if cls is list:
                return f"[{','.join(self.items(obj, path, depth))}]"
            return self.other(path, obj, depth)
        finally:
            self.active.discard(marker)

    def other(self, path: str, obj: object, depth: int) -> str:
        """Write an object that is no plain container; what fails is described instead."""
        cls = type(obj)
        mark = self.mark()
        self.risky = True  # an attribute and an item may have one name
        try:
            return (EXACT.get(cls) or writer_of(cls))(self, obj, path, depth)
        except Exception:  # noqa: BLE001 - whatever the object does, the user's model goes on
            self.rewind(mark)
            return self.opaque(path, cls, f"<{class_name(cls)}, not readable>")

    def items(self, items: Iterable[Any], path: str, depth: int) -> list[str]:
        """Write the items of a sequence, return their nodes."""
        nodes: list[str] = []
        add = nodes.append
        prefix = path + "." if path else ""
        tensors, paths, careful, scalars = self.tensors, self.paths, self.careful, SCALARS
        for i, item in enumerate(items):
            cls = type(item)
            if cls is Tensor or cls is Parameter:
                if careful:
                    add(self.examine(f"{prefix}{i}", item, depth))
                else:
                    add(_NODES[len(tensors)])
                    tensors.append(item)
                    paths.append(f"{prefix}{i}")
            elif cls in scalars:
                add(scalars[cls](item))
            else:
                add(self.container(f"{prefix}{i}", item, depth + 1))
        return nodes

    def pairs(self, pairs: Iterable[tuple[Any, Any]], path: str, depth: int) -> str:
        """Write keys (or names) and values, return the text between the brackets."""
        nodes: list[str] = []
        add = nodes.append
        prefix = path + "." if path else ""
        tensors, paths, careful, scalars = self.tensors, self.paths, self.careful, SCALARS
        for key, item in pairs:
            if type(key) is str and key in _names:
                head, part = _names[key]
            else:
                head, part = self.key(key, path, depth)
            cls = type(item)
            if cls is Tensor or cls is Parameter:
                if careful:
                    add(f"{head}{self.examine(prefix + part, item, depth)}]")
                else:
                    add(f"{head}{_NODES[len(tensors)]}]")
                    tensors.append(item)
                    paths.append(prefix + part)
            elif cls in scalars:
                add(f"{head}{scalars[cls](item)}]")
            else:
                add(f"{head}{self.container(prefix + part, item, depth + 1)}]")
        return ",".join(nodes)

    def key(self, key: object, path: str, depth: int) -> tuple[str, str]:
        """Return the text before the value, `'["key",'`, and the key's part of a path."""
        if type(key) is str:
            part = _part(key)
            found = f"[{quote(key)},", part
            if _SAFE.fullmatch(key):
                if len(_names) > _MAX_NAMES:
                    _names.clear()
                _names[key] = found
            else:
                self.risky = True
            return found
        self.risky = True
        part = _part(_key_text(key))
        return f"[{self.write(self.join(path, part), key, depth + 1)},", part

    @staticmethod
    def join(path: str, part: str) -> str:
        """Return the path of a part."""
        return f"{path}.{part}" if path else part

    def tensor(self, path: str, tensor: Tensor, leaf: str = "") -> str:
        """Take a tensor, return its node."""
        n = len(self.tensors)
        self.tensors.append(tensor)
        self.paths.append(path)
        if leaf:
            self.leaves[n] = leaf
        return _NODES[n]

    def examine(self, path: str, tensor: Tensor, depth: int) -> str:
        """Take a tensor of exact type in its parts."""
        mark = self.mark()
        try:
            return decompose(tensor, self, path, depth)
        except Exception:  # noqa: BLE001 - whatever the object does, the user's model goes on
            self.rewind(mark)
            return self.opaque(path, type(tensor), "<a tensor, not readable>")

    def opaque(self, path: str, cls: type, text: str) -> str:
        """Describe what cannot be stored, return its node."""
        name = class_name(cls)
        self.notes.append(f"{path or 'the object'}: {name}")
        return f'{{"opaque":{{"class":{quote(name)},"repr":{quote(text)}}}}}'

    def mark(self) -> tuple[int, int]:
        """Return a point to come back to."""
        return len(self.tensors), len(self.notes)

    def holds_tensors_since(self, mark: tuple[int, int]) -> bool:
        """Whether tensors were taken since then."""
        return len(self.tensors) > mark[0]

    def has_notes_since(self, mark: tuple[int, int]) -> bool:
        """Whether something could not be stored since then."""
        return len(self.notes) > mark[1]

    def rewind(self, mark: tuple[int, int]) -> None:
        """Forget what was taken since then."""
        tensors, notes = mark
        for n in range(tensors, len(self.tensors)):
            self.leaves.pop(n, None)
        del self.tensors[tensors:], self.paths[tensors:], self.notes[notes:]


# Keys whose part of a path clashes with no other → what `Walker.key` returns.
_names: dict[str, tuple[str, str]] = {}
_SAFE = re.compile(r"[A-Za-z0-9_]{1,100}")


def _part(key: str) -> str:
    """Return a key as a part of a path."""
    if _SAFE.fullmatch(key):
        return key
    text = key.encode("utf-8", "backslashreplace").decode()
    text = "".join(c if c >= " " and c not in "/\x7f" else f"%{ord(c):02X}" for c in text)
    return text[:_PART]


def _key_text(key: object) -> str:
    cls = type(key)
    if cls is tuple and all(type(item) in SCALARS for item in key):  # type: ignore[attr-defined]
        return repr(key)
    if issubclass(cls, enum.Enum):
        return f"{cls.__name__}.{dict(get_state(key)).get('_name_')}"
    return str(key) if cls in SCALARS else describe(key)


def _unique(paths: list[str]) -> list[str]:
    if len(set(paths)) == len(paths):
        return paths
    taken = set(paths)
    seen: set[str] = set()
    unique = []
    for path in paths:
        name, n = path, 1
        while name in seen or (n > 1 and name in taken):
            name, n = f"{path}_{n}", n + 1
        seen.add(name)
        unique.append(name)
    return unique
