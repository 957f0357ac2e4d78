"""Objects out of the names that onnx-diagnostic gives to the outputs of its files.

A name is the path of a value in the nested object, `___` between its levels:

```
name   = { level "___" } kind
level  = ("tuple_" | "list_") number ["."]        "." after the last item
       | "dict" ["."] "_" key                     "." for the last item
       | ("tuple." | "list." | "dict.")           an empty container, "empty" follows
       | ("DynamicCache" | "StaticCache") ["."] ("_key_cache" | "_value_cache")
key    = text | "((" text { "," text } "))"       the latter for a tuple
kind   = "tensor" | "array" | "bool" | "int" | "float" | "empty"
```

None has no name there. What was lost with it is put back where that is certain: an item between two
others, and one after the last, which then has no dot.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

import numpy as np
import torch
from torch import Tensor

from faststeal._core import FormatError
from faststeal.classes import StoredDict

__all__ = ["Output", "as_array", "restore_legacy"]

Output: TypeAlias = Tensor | Sequence[Tensor] | Sequence[bytes]

_KINDS: Final = frozenset({"tensor", "array", "bool", "int", "float", "empty"})
_SEPARATOR: Final = "___"
# Numbers come from a file: they must not make a list of any length.
_MOST_ABSENT: Final = 100_000


def restore_legacy(
    outputs: Iterable[tuple[str, Output]],
    sep: str = _SEPARATOR,
    device: torch.device | str | None = None,
) -> Any:
    """Put an object together from the outputs of a model.

    Args:
        outputs: Names and values: tensors, sequences of tensors, or strings.
        sep: What stands between two levels of a name.
        device: Where tensors go; by default they stay. Arrays are never moved.

    Returns:
        The object that the names tell of. Where they follow no grammar, a dict of the values by
        name, in which `x___keys` and `x___values` are one dict `x`.

    Raises:
        FormatError: The names contradict each other.
    """
    named = list(outputs)
    pattern = _pattern(sep)
    paths = [_split(name, pattern) for name, _ in named]
    root = _Node()
    for path, (name, value) in zip(paths, named, strict=True):
        if path is None or (not path.levels and len(paths) > 1):
            return _by_name(named, sep, device)
        root.add(name, path, value)
    return root.build(device) if named else {}


# Names


@dataclass(frozen=True, slots=True)
class _Level:
    """One container that a value lies in, and where.

    Attributes:
        container: `"tuple"`, `"list"`, `"dict"`, or the name of a cache.
        place: Number, key as text, name of a part; None in an empty container.
        last: Whether it is marked as the last item.
    """

    container: str
    place: int | str | None
    last: bool


@dataclass(frozen=True, slots=True)
class _Path:
    levels: tuple[_Level, ...]
    kind: str


_MOST_LEVELS = 100  # as deep as an object is taken apart


def _pattern(sep: str) -> re.Pattern[str]:
    end = re.escape(sep)
    return re.compile(
        rf"(?P<empty>tuple|list|dict)\.{end}(?=empty\Z)"
        # As many digits as 64 bits hold: a number of any length takes long to read.
        rf"|(?P<sequence>tuple|list)_(?P<index>[0-9]{{1,18}})(?P<last>\.?){end}"
        # A tuple of keys may hold the separator.
        rf"|dict(?P<last_key>\.?)_(?P<key>\(\(.*?\)\)(?={end})|.*?){end}"
        rf"|(?P<cache>DynamicCache|StaticCache)(?P<last_part>\.?)_(?P<part>\w+?_cache){end}",
        re.DOTALL,
    )


def _split(name: str, pattern: re.Pattern[str]) -> _Path | None:
    """Read a name; None if it does not follow the grammar."""
    levels: list[_Level] = []
    at = 0
    while name[at:] not in _KINDS:
        found = pattern.match(name, at)
        if found is None or len(levels) == _MOST_LEVELS:
            return None
        levels.append(_level(found))
        at = found.end()
    return _Path(tuple(levels), name[at:])


def _level(found: re.Match[str]) -> _Level:
    if found["empty"]:
        return _Level(found["empty"], None, last=True)
    if found["sequence"]:
        return _Level(found["sequence"], int(found["index"]), bool(found["last"]))
    if found["cache"]:
        return _Level(found["cache"], found["part"], bool(found["last_part"]))
    return _Level("dict", found["key"], bool(found["last_key"]))


# Objects


@dataclass(slots=True)
class _Leaf:
    name: str
    kind: str
    value: Output

    def build(self, device: torch.device | str | None) -> Any:
        value = self.value
        if self.kind == "tensor":
            return _moved(value, device)
        if self.kind == "array":
            return as_array(value)
        if self.kind == "empty":
            return None
        if not isinstance(value, Tensor) or value.numel() != 1:
            raise FormatError(f"output {self.name!r}: expected one {self.kind}")
        return {"bool": bool, "int": int, "float": float}[self.kind](value.item())


@dataclass(slots=True)
class _Node:
    """A container, or the place of a value that is none yet.

    Attributes:
        container: As in `_Level`; empty while nothing was added.
        items: By place, in order.
        ended: Whether an item was marked as the last.
    """

    container: str = ""
    items: dict[int | str | None, "_Node | _Leaf"] = field(default_factory=dict)
    ended: bool = False

    def add(self, name: str, path: _Path, value: Output) -> None:
        """Put a value at its place, with the containers that it lies in."""
        if not path.levels:
            self.container = "leaf"
            self.items[None] = _Leaf(name, path.kind, value)
            return
        node = self
        for level in path.levels[:-1]:
            node = node.enter(name, level)
        node.end(name, path.levels[-1], _Leaf(name, path.kind, value))

    def enter(self, name: str, level: _Level) -> "_Node":
        """The container at a place in this one."""
        self.open(name, level)
        node = self.items.setdefault(level.place, _Node())
        if not isinstance(node, _Node):
            raise FormatError(f"output {name!r}: a value stands where it has a container")
        return node

    def end(self, name: str, level: _Level, leaf: _Leaf) -> None:
        """Put a value into this container."""
        self.open(name, level)
        if level.place in self.items:
            raise FormatError(f"output {name!r}: there is something else at its place")
        self.items[level.place] = leaf

    def open(self, name: str, level: _Level) -> None:
        if self.container not in {"", level.container}:
            raise FormatError(
                f"output {name!r}: expected a {self.container}, found a {level.container}"
            )
        self.container = level.container
        self.ended |= level.last

    def build(self, device: torch.device | str | None) -> Any:
        """Make the object."""
        if self.container in {"tuple", "list"}:
            items = self.sequence(device)
            return tuple(items) if self.container == "tuple" else items
        values = {place: item.build(device) for place, item in self.items.items()}
        if self.container == "leaf":
            return values[None]
        values.pop(None, None)  # an empty container
        if self.container == "dict":
            return {_key(str(text)): value for text, value in values.items()}
        return _cache(self.container, values)

    def sequence(self, device: torch.device | str | None) -> list[Any]:
        if None in self.items:
            return []
        numbers = [place for place in self.items if isinstance(place, int)]
        last = max(numbers)
        if last > len(numbers) + _MOST_ABSENT:
            raise FormatError(f"item {last} of a {self.container} of {len(numbers)} items")
        items: list[Any] = [None] * (last + (1 if self.ended else 2))
        for place in numbers:
            items[place] = self.items[place].build(device)
        return items


def _key(text: str) -> Any:
    """The key that a text stands for: numbers and booleans look like themselves."""
    if text.startswith("((") and text.endswith("))"):
        return tuple(_plain_key(part) for part in text[2:-2].split(","))
    return _plain_key(text)


def _plain_key(text: str) -> int | bool | str:
    try:
        return int(text)
    except ValueError:
        return text == "True" if text in {"True", "False"} else text


def _cache(name: str, parts: dict[Any, Any]) -> Any:
    """A cache of transformers; its parts, where that is not installed or too different."""
    try:
        pairs = list(zip(parts["key_cache"] or [], parts["value_cache"] or [], strict=True))
        from transformers import cache_utils

        return (
            _static(cache_utils, pairs) if name == "StaticCache" else _dynamic(cache_utils, pairs)
        )
    except (ImportError, AttributeError, LookupError, RuntimeError, TypeError, ValueError):
        return StoredDict(f"transformers.cache_utils:{name}", parts.items())


def _dynamic(cache_utils: Any, pairs: list[tuple[Tensor, Tensor]]) -> Any:
    cache = cache_utils.DynamicCache()
    for i, (keys, values) in enumerate(pairs):
        cache.update(keys, values, i)
    return cache


def _static(cache_utils: Any, pairs: list[tuple[Tensor, Tensor]]) -> Any:
    # The class makes its layers from the configuration of a model, which the file does not have.
    layers = []
    for keys, values in pairs:
        layer = cache_utils.StaticLayer(max_cache_len=keys.shape[2])
        layer.lazy_initialization(keys, values)
        layer.keys, layer.values = keys, values
        layers.append(layer)
    cache = cache_utils.StaticCache.__new__(cache_utils.StaticCache)
    cache_utils.Cache.__init__(cache, layers=layers)
    return cache


# Values


def _by_name(
    named: list[tuple[str, Output]], sep: str, device: torch.device | str | None
) -> dict[str, Any]:
    found = dict(named)
    restored: dict[str, Any] = {}
    for name, value in named:
        whole, _, part = name.rpartition(sep)
        if part in {"keys", "values"} and {f"{whole}{sep}keys", f"{whole}{sep}values"} <= set(
            found
        ):
            if part == "values":
                continue
            keys = as_array(value).tolist()
            values = _moved(found[f"{whole}{sep}values"], device)
            restored[whole] = dict(zip(keys, values, strict=True))
        else:
            restored[name] = _moved(value, device)
    return restored


def _moved(value: Output, device: torch.device | str | None) -> Any:
    if isinstance(value, Tensor):
        return value if device is None else value.to(device)
    if any(isinstance(item, bytes) for item in value):
        return as_array(value)
    return [_moved(item, device) for item in value if isinstance(item, Tensor)]


def as_array(value: Output) -> np.ndarray:
    """A value as a numpy array of the same element type; text is decoded.

    Raises:
        ImportError: The element type is one of ml_dtypes, which is not installed.
    """
    if not isinstance(value, Tensor):
        texts = [item.decode() for item in value if isinstance(item, bytes)]
        return np.array(texts, dtype=np.str_)
    array: np.ndarray
    try:
        array = value.numpy()
    except TypeError:
        import ml_dtypes

        name = str(value.dtype).removeprefix("torch.")
        flat = value.contiguous().reshape(-1).view(torch.uint8).numpy()
        array = flat.view(getattr(ml_dtypes, name)).reshape(tuple(value.shape))
    return array
