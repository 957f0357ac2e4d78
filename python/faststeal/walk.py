"""One walk through an object: its text, its tensors, their paths.

This file holds what every walk passes through, and it is written for speed: exact types first, text
made directly. What each other kind of object needs stands in `objects.py`.
"""

from __future__ import annotations

import enum
import re
from json.encoder import encode_basestring_ascii as quote
from typing import TYPE_CHECKING, Any, cast

from torch import Tensor
from torch.nn import Parameter

from .classes import class_name, get_state
from .objects import EXACT, SCALARS, describe, writer_of
from .tensors import decompose

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

__all__ = ["Walker", "safe_name", "unique"]

# Deeper than any output of a model, shallow enough for the readers of JSON and for the stack.
_MAX_DEPTH = 100
# Below this depth an object with shared parts may unfold into very many.
_DEEP = 16
_MAX_DEEP = 100_000
# Characters of a key that go into a path.
_PART = 200
_MAX_NAMES = 10_000


class _Nodes(dict[int, str]):
    """The node of the n-th tensor; the first ones are at hand."""

    def __missing__(self, n: int) -> str:
        return f'{{"tensor":{n}}}'


_NODES = _Nodes()
for _n in range(256):
    _NODES[_n] = _NODES[_n]


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

    def write(self, path: str, obj: Any, depth: int) -> str:
        """Write any object, return its node."""
        cls = type(obj)
        if cls is Tensor or cls is Parameter:
            if self.careful:
                return self.examine(path, obj, depth)
            return self.tensor(path, obj)
        scalar = _find_scalar(cls)
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
            return self.opaque(path, cls, f"<{safe_name(cls)}, not readable>")

    def items(self, items: Iterable[Any], path: str, depth: int) -> list[str]:
        """Write the items of a sequence, return their nodes."""
        nodes: list[str] = []
        add = nodes.append
        prefix = path + "." if path else ""
        tensors, paths, careful, find = self.tensors, self.paths, self.careful, SCALARS.get
        for i, item in enumerate(items):
            cls = type(item)
            if cls is Tensor or cls is Parameter:
                if careful:
                    add(self.examine(f"{prefix}{i}", item, depth))
                else:
                    add(_NODES[len(tensors)])
                    tensors.append(item)
                    paths.append(f"{prefix}{i}")
                continue
            try:
                scalar = find(cls)
            except Exception:  # noqa: BLE001 - a class may refuse its own hash
                scalar = None
            if scalar is not None:
                add(scalar(item))
            else:
                add(self.container(f"{prefix}{i}", item, depth + 1))
        return nodes

    def pairs(self, pairs: Iterable[tuple[Any, Any]], path: str, depth: int) -> str:
        """Write keys (or names) and values, return the text between the brackets."""
        nodes: list[str] = []
        add = nodes.append
        prefix = path + "." if path else ""
        tensors, paths, careful, find = self.tensors, self.paths, self.careful, SCALARS.get
        for key, item in pairs:
            known = _names.get(key) if type(key) is str else None
            head, part = known or self.key(key, path, depth)
            cls = type(item)
            if cls is Tensor or cls is Parameter:
                if careful:
                    add(f"{head}{self.examine(prefix + part, item, depth)}]")
                else:
                    add(f"{head}{_NODES[len(tensors)]}]")
                    tensors.append(item)
                    paths.append(prefix + part)
                continue
            try:
                scalar = find(cls)
            except Exception:  # noqa: BLE001 - as above
                scalar = None
            if scalar is not None:
                add(f"{head}{scalar(item)}]")
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
        name = safe_name(cls)
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


def safe_name(cls: type) -> str:
    """Return the class's name, whatever its metaclass does."""
    try:
        return class_name(cls)
    except Exception:  # noqa: BLE001 - a class may refuse its own hash, or its name
        return "?:?"


def _find_scalar(cls: type) -> Callable[[Any], str] | None:
    try:
        return SCALARS.get(cls)
    except Exception:  # noqa: BLE001 - a class may refuse its own hash
        return None


def _part(key: str) -> str:
    """Return a key as a part of a path."""
    if _SAFE.fullmatch(key):
        return key
    text = key.encode("utf-8", "backslashreplace").decode()
    text = "".join(c if c >= " " and c not in "/\x7f" else f"%{ord(c):02X}" for c in text)
    return text[:_PART]


def _key_text(key: object) -> str:
    cls = type(key)
    try:
        if cls is tuple or cls in SCALARS:
            return repr(key) if _is_printable(key) else cls.__name__
        if issubclass(cls, enum.Enum):
            return f"{cls.__name__}.{dict(get_state(key)).get('_name_')}"
        return describe(key)
    except Exception:  # noqa: BLE001 - a key of a class that refuses everything
        return "key"


def _is_printable(key: object) -> bool:
    cls = type(key)
    if cls is tuple:
        return all(map(_is_printable, cast("tuple[object, ...]", key)))
    return cls in SCALARS


def unique(paths: list[str]) -> list[str]:
    """Give a suffix to each path that occurred before."""
    if len(set(paths)) == len(paths):
        return paths
    taken = set(paths)
    seen: set[str] = set()
    renamed = []
    for path in paths:
        name, n = path, 1
        while name in seen or (n > 1 and name in taken):
            name, n = f"{path}_{n}", n + 1
        seen.add(name)
        renamed.append(name)
    return renamed
