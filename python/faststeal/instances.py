"""Instances of classes from what was stored of them, by kind; a plain container where that fails.

Each function takes the class's name and the members of its node, see `tree.py`.
"""

from __future__ import annotations

import collections
import enum
import types
from typing import TYPE_CHECKING, Any

import torch
from torch.utils import _pytree

from .classes import (
    Opaque,
    StoredDict,
    StoredList,
    StoredTuple,
    blank,
    class_name,
    find_class,
    set_state,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    Fields = Sequence[tuple[str, Any]]
    Pairs = Sequence[tuple[Any, Any]]

__all__ = ["KINDS", "as_key"]


def _build(name: str, build: Callable[[type], object], fallback: Callable[[], object]) -> object:
    """Build an instance of the class of that name, or fall back to a plain container."""
    cls = find_class(name)
    if cls is None:
        return fallback()
    try:
        return build(cls)
    except Exception:  # noqa: BLE001 - another version of the class, or one that is not rebuilt
        return fallback()


def _object(name: str, fields: Fields) -> object:
    def build(cls: type) -> object:
        made = blank(cls)
        set_state(made, fields)
        return made

    return _build(name, build, lambda: StoredDict(name, fields))


def _cache(name: str, fields: Fields) -> object:
    """A cache of transformers, or a layer of one, that works where its tensors now are."""
    state = dict(fields)
    if type(state.get("prefetch_stream")) is Opaque:
        # Offloading needs a stream, which cannot be stored; without it the cache works as well.
        del state["prefetch_stream"]
        state["offloading"] = False
    for key, value in fields:
        if type(value) is torch.device:
            place = _first_tensor(state)
            state[key] = value if place is None else place.device
    return _object(name, list(state.items()))


def _first_tensor(state: dict[str, Any]) -> torch.Tensor | None:
    for value in state.values():
        for inner in value.values() if type(value) is dict else (value,):
            if isinstance(inner, torch.Tensor):
                return inner
    return None


def _model_output(
    name: str,
    fields: Fields,
    items: Pairs | None = None,
    keys: list[str] | None = None,
) -> object:
    if keys is not None:
        state = dict(fields)
        items = [(key, state[key]) for key in keys]
    elif items is None:
        items = [(key, value) for key, value in fields if value is not None]

    def build(cls: type) -> object:
        if not hasattr(cls, "__dataclass_fields__"):
            raise TypeError(f"{name} is no dataclass")
        made = blank(cls, collections.OrderedDict)
        _fill_ordered(made, items)
        set_state(made, fields)
        return made

    return _build(name, build, lambda: StoredDict(name, fields))


def _mapping(name: str, items: Pairs, fields: Fields = ()) -> object:
    def build(cls: type) -> object:
        made = blank(cls)
        set_state(made, [("data", dict(items)), *fields])
        return made

    return _build(name, build, lambda: StoredDict(name, items))


def _sequence(name: str, items: list[object], fields: Fields = ()) -> object:
    def build(cls: type) -> object:
        made = blank(cls)
        set_state(made, [("data", items), *fields])
        return made

    return _build(name, build, lambda: StoredList(name, items))


def _items(name: str, items: Pairs) -> object:
    return StoredDict(name, items)


def _namedtuple(name: str, fields: Fields, state: Fields = ()) -> object:
    names, values = [key for key, _ in fields], [value for _, value in fields]

    def build(cls: type) -> object:
        if list(cls._fields) != names:  # type: ignore[attr-defined]
            raise TypeError(f"{name} has other fields now")
        made = blank(cls, tuple, values)
        set_state(made, state)
        return made

    return _build(name, build, lambda: StoredTuple(name, values, names))


def _structseq(name: str, fields: Fields, hidden: Fields = ()) -> object:
    values = tuple(value for _, value in fields)

    def build(cls: type) -> object:
        # The interpreter's own kind of class, and no class derived from it: its constructor is C.
        if (
            cls.__mro__[1:] != (tuple, object)
            or not hasattr(cls, "n_sequence_fields")
            or type(vars(cls).get("__new__")) is not types.BuiltinMethodType
        ):
            raise TypeError(f"{name} is no struct sequence")
        return cls(values, dict(hidden)) if hidden else cls(values)

    return _build(name, build, lambda: StoredTuple(name, values, [key for key, _ in fields]))


def _tuple(name: str, items: list[object], fields: Fields = ()) -> object:
    def build(cls: type) -> object:
        made = blank(cls, tuple, items)
        set_state(made, fields)
        return made

    return _build(name, build, lambda: StoredTuple(name, items))


def _frozenset(name: str, items: list[object], fields: Fields = ()) -> object:
    def build(cls: type) -> object:
        made = blank(cls, frozenset, items)
        set_state(made, fields)
        return made

    return _build(name, build, lambda: StoredList(name, items))


def _filled(base: Any, fill: Callable[[Any, Any], object], fallback: Any) -> Any:
    """Make the function of a kind that is made empty and then filled."""

    def make(name: str, items: list[Any], fields: Fields = ()) -> object:
        def build(cls: type) -> object:
            made = blank(cls, base)
            fill(made, items)
            set_state(made, fields)
            return made

        return _build(name, build, lambda: fallback(name, items))

    return make


def _fill_ordered(made: Any, items: Pairs) -> None:
    for key, value in items:
        collections.OrderedDict.__setitem__(made, key, value)


def _defaultdict(name: str, items: Pairs, fields: Fields = (), factory: object = None) -> object:
    def build(cls: type) -> object:
        made = blank(cls, collections.defaultdict)
        collections.defaultdict.__init__(  # type: ignore[call-overload]
            made, factory if type(factory) is type else None, items
        )
        set_state(made, fields)
        return made

    return _build(name, build, lambda: StoredDict(name, items))


def _deque(
    name: str, items: list[object], fields: Fields = (), maxlen: int | None = None
) -> object:
    def build(cls: type) -> object:
        made: Any = blank(cls, collections.deque)
        collections.deque.__init__(made, items, maxlen)
        set_state(made, fields)
        return made

    return _build(name, build, lambda: StoredList(name, items))


def _scalar(base: type) -> Any:
    def make(name: str, value: object, fields: Fields = ()) -> object:
        def build(cls: type) -> object:
            if type(value) is not base:
                raise TypeError(f"expected a {base.__name__} for {name}")
            made = blank(cls, base, value)
            set_state(made, fields)
            return made

        return _build(name, build, lambda: StoredDict(name, [("value", value), *fields]))

    return make


def _enum(name: str, member: str | None, value: object) -> object:
    def build(cls: type) -> object:
        if not issubclass(cls, enum.Enum):
            raise TypeError(f"{name} is no enum")
        found = cls._member_map_.get(member) if type(member) is str else None
        if found is None and issubclass(cls, enum.Flag) and type(value) is int:
            return cls(value)  # a combination of flags
        if found is None:
            raise TypeError(f"{name} has no member {member} now")
        return found

    return _build(name, build, lambda: StoredDict(name, [("name", member), ("value", value)]))


def _pytree_node(name: str, fields: Fields, context: object) -> object:
    def build(cls: type) -> object:
        return _pytree.SUPPORTED_NODES[cls].unflatten_fn([value for _, value in fields], context)

    described = [*fields, ("context", context)]
    if _holds_opaque(context):
        return StoredDict(name, described)
    return _build(name, build, lambda: StoredDict(name, described))


def _holds_opaque(value: object) -> bool:
    if type(value) in {list, tuple}:
        return any(map(_holds_opaque, value))  # type: ignore[call-overload]
    if type(value) is dict:
        return any(map(_holds_opaque, value.values()))
    return isinstance(value, Opaque | StoredDict | StoredList | StoredTuple)


def as_key(key: Any) -> Any:
    """Give a key back in a form that can be one, where its class could not be had.

    Raises:
        TypeError: It cannot have been a key.
    """
    try:
        hash(key)
    except Exception:
        if type(key) in {list, dict, set, bytearray}:
            raise
        if type(key) is tuple:
            return tuple(map(as_key, key))
        if type(key) is StoredDict:
            return StoredTuple(key.class_name, map(as_key, key.values()), map(str, key))
        if type(key) in {StoredList, StoredTuple}:
            return StoredTuple(key.class_name, map(as_key, key), getattr(key, "fields", ()))
        return Opaque(class_name(type(key)), "<a key that has no hash>")
    return key


_ITEMS = {"class": "str", "items": "nodes", "fields?": "fields"}
_PAIRS = {"class": "str", "items": "pairs", "fields?": "fields"}
_VALUE = {"class": "str", "value": "node", "fields?": "fields"}
_FIELDS = {"class": "str", "fields": "fields"}

# Kind of object → what makes it, and its members, as in `compose.COMPOSERS`.
KINDS: dict[str, tuple[Callable[..., object], dict[str, str]]] = {
    "object": (_object, _FIELDS),
    "dataclass": (_object, _FIELDS),
    "attrs": (_object, _FIELDS),
    "cache": (_cache, _FIELDS),
    "model_output": (_model_output, {**_FIELDS, "items?": "pairs", "keys?": "strs"}),
    "mapping": (_mapping, _PAIRS),
    "sequence": (_sequence, _ITEMS),
    "items": (_items, {"class": "str", "items": "pairs"}),
    "namedtuple": (_namedtuple, {**_FIELDS, "state?": "fields"}),
    "structseq": (_structseq, {**_FIELDS, "hidden?": "fields"}),
    "tuple": (_tuple, _ITEMS),
    "list": (_filled(list, list.extend, StoredList), _ITEMS),
    "set": (_filled(set, set.update, StoredList), _ITEMS),
    "frozenset": (_frozenset, _ITEMS),
    "deque": (_deque, {**_ITEMS, "maxlen?": "int"}),
    "dict": (_filled(dict, dict.update, StoredDict), _PAIRS),
    "counter": (_filled(dict, dict.update, StoredDict), _PAIRS),
    "ordered_dict": (_filled(collections.OrderedDict, _fill_ordered, StoredDict), _PAIRS),
    "defaultdict": (_defaultdict, {**_PAIRS, "factory?": "node"}),
    "int": (_scalar(int), _VALUE),
    "float": (_scalar(float), _VALUE),
    "complex": (_scalar(complex), _VALUE),
    "str": (_scalar(str), _VALUE),
    "bytes": (_scalar(bytes), _VALUE),
    "enum": (_enum, {"class": "str", "name": "node", "value": "node"}),
    "pytree": (_pytree_node, {**_FIELDS, "context": "node"}),
}
