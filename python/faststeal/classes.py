"""Classes by name, and objects taken apart and put together without running their code.

Taking apart reads slots and the instance's `__dict__` through the interpreter's own descriptors, so
that no property, `__getattr__` or `__iter__` of a user's class runs while the model does.

Putting together imports nothing that a file asks for, but the modules of a fixed list, and calls
neither `__new__` nor `__init__` of the class: a blank object gets its attributes back. What cannot
be had this way becomes a plain container (`StoredDict`, `StoredList`, `StoredTuple`) that says what
it was, or an `Opaque`, where the object was never more than described.
"""

from __future__ import annotations

import functools
import importlib
import re
import sys
import types
from typing import TYPE_CHECKING, TypeVar, cast

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from typing_extensions import Self

__all__ = [
    "Opaque",
    "StoredDict",
    "StoredList",
    "StoredTuple",
    "blank",
    "by_class",
    "class_name",
    "find_class",
    "find_reference",
    "get_state",
    "has_state",
    "may_be_built",
    "set_state",
]

# Modules that loading may import. All are torch's or transformers' own, and define classes only.
_ON_DEMAND = re.compile(
    r"ml_dtypes|torch\.(return_types|nn\.utils\.rnn|nn\.attention\.(flex_attention|bias))"
    r"|transformers\.(cache_utils|modeling_outputs|utils\.generic|tokenization_utils_base"
    r"|feature_extraction_utils|image_processing_base|image_processing_utils"
    r"|generation\.utils|models\.\w+\.modeling_\w+)"
)
# Classes that may come back as values (an attribute that says which layers to make): whoever holds
# such a value may call it, so the file must not be able to name just any class.
_REFERENCES = re.compile(
    r"builtins:(int|float|bool|str|bytes|complex|list|tuple|dict|set|frozenset|object|NoneType)"
    r"|collections:(OrderedDict|defaultdict|deque|Counter)"
    r"|torch:(Tensor|\w+Tensor|Size|dtype|device|layout)"
    r"|torch\.nn\.parameter:(Parameter|Buffer)"
    r"|numpy:(ndarray|generic|bool_?|u?int\d+|float\d+|complex\d+|str_|bytes_|(datetime|timedelta)64)"
    r"|ml_dtypes:\w+"
    r"|transformers\.(cache_utils|models\.\w+\.modeling_\w+):\w+Layer"
)
# Of the standard library, which is full of objects that own something (files, processes, locks),
# only what holds data is rebuilt as an object.
_STANDARD = frozenset(
    {
        "argparse:Namespace",
        "collections:UserDict",
        "collections:UserList",
        "collections:UserString",
        "types:SimpleNamespace",
    }
)
_NAME = re.compile(r"[\w.]+:\w+(\.\w+)*")


class Opaque:
    """Stands for an object that was described, not stored.

    Args:
        class_name: `"module:Qualname"` of its class.
        text: Its `repr`, of limited length, or what else could be said of it.
    """

    __slots__ = ("class_name", "text")

    def __init__(self, class_name: str, text: str) -> None:
        self.class_name = class_name
        self.text = text

    def __eq__(self, other: object) -> bool:
        if type(other) is not Opaque:
            return NotImplemented
        return (self.class_name, self.text) == (other.class_name, other.text)

    def __hash__(self) -> int:
        return hash((self.class_name, self.text))

    def __repr__(self) -> str:
        return f"Opaque({self.class_name!r}, {self.text!r})"


class StoredDict(dict[object, object]):
    """The content of an object whose class could not be had, by name or key.

    Args:
        class_name: `"module:Qualname"` of the class that it had.
        content: Pairs of name or key, and value.
    """

    def __init__(self, class_name: str, content: Iterable[tuple[object, object]] = ()) -> None:
        super().__init__(content)
        self.class_name = class_name

    def __repr__(self) -> str:
        return f"StoredDict({self.class_name!r}, {dict(self)!r})"


class StoredList(list[object]):
    """The items of a list, set or deque whose class could not be had; see `StoredDict`."""

    def __init__(self, class_name: str, content: Iterable[object] = ()) -> None:
        super().__init__(content)
        self.class_name = class_name

    def __repr__(self) -> str:
        return f"StoredList({self.class_name!r}, {list(self)!r})"


class StoredTuple(tuple[object, ...]):  # noqa: SLOT001 - it has attributes
    """The items of a tuple whose class could not be had.

    Where it was a NamedTuple, `fields` holds their names, and each is an attribute too.
    """

    class_name: str
    fields: tuple[str, ...]

    def __new__(  # noqa: D102 - see StoredDict
        cls, class_name: str, content: Iterable[object] = (), fields: Iterable[str] = ()
    ) -> Self:
        self = super().__new__(cls, content)
        self.class_name = class_name
        self.fields = tuple(fields)
        return self

    def __getnewargs__(self) -> tuple[str, tuple[object, ...], tuple[str, ...]]:
        return self.class_name, tuple(self), self.fields

    def __getattr__(self, name: str) -> object:
        fields = self.__dict__.get("fields", ())  # asked for before it is set by a copy
        if name in fields:
            return self[fields.index(name)]
        raise AttributeError(f"{self!r} has no attribute {name!r}", name=name, obj=self)

    def __repr__(self) -> str:
        return f"StoredTuple({self.class_name!r}, {tuple(self)!r})"


_T = TypeVar("_T")


def by_class(function: Callable[[type], _T]) -> Callable[[type], _T]:
    """Remember what a function says of each class."""
    return cast("Callable[[type], _T]", functools.lru_cache(maxsize=1024)(function))


@by_class
def class_name(cls: type) -> str:
    """Return `"module:Qualname"`."""
    module, name = cls.__module__, cls.__qualname__
    return f"{module if type(module) is str else '?'}:{name if type(name) is str else '?'}"


# Names that were found → module's name, module, the class's name in it, class.
_found: dict[str, tuple[str, types.ModuleType, str, type]] = {}


def find_class(name: str) -> type | None:
    """Find a class by its name; None if the rules of this module do not allow it.

    Looks into modules that are imported already, and imports those of the fixed list. A module's
    `__getattr__` is never asked.
    """
    known = _found.get(name)
    if known is not None:
        module_name, module, last, cls = known
        # A notebook defines its classes again and again: the class that is there now counts.
        current = sys.modules.get(module_name) is module and vars(module).get(last) is cls
        if current:
            return cls
    if not _NAME.fullmatch(name):
        return None
    module_name, _, qualname = name.partition(":")
    place = _find_module(module_name)
    found: object = place
    for part in qualname.split("."):
        if not isinstance(found, types.ModuleType | type):
            return None
        found = vars(found).get(part)
    if not isinstance(found, type):
        return None
    if "." not in qualname and len(_found) < 10_000:
        _found[name] = module_name, cast("types.ModuleType", place), qualname, found
    return found


def _find_module(name: str) -> types.ModuleType | None:
    module = sys.modules.get(name)
    if module is None and _ON_DEMAND.fullmatch(name):
        try:
            return importlib.import_module(name)
        except Exception:  # noqa: BLE001 - a companion that is absent or broken is no error of ours
            return None
    return module


def find_reference(name: str) -> type | None:
    """Find a class that may come back as a value."""
    if name == "builtins:NoneType":
        return type(None)
    return find_class(name) if _REFERENCES.fullmatch(name) else None


@by_class
def _slots(cls: type) -> dict[str, types.MemberDescriptorType]:
    slots: dict[str, types.MemberDescriptorType] = {}
    for base in cls.__mro__:
        if base.__flags__ & 1 << 9:  # made by a class statement, so the members are its slots
            for name, member in vars(base).items():
                if type(member) is types.MemberDescriptorType:
                    slots.setdefault(name, member)
    return slots


@by_class
def _dict_descriptor(
    cls: type,
) -> types.GetSetDescriptorType | types.MemberDescriptorType | None:
    for base in cls.__mro__:
        found = vars(base).get("__dict__")
        if type(found) is types.GetSetDescriptorType:
            return found
        # Its own is of the kind that slots are; nobody else's of that kind is to be trusted.
        if base is types.SimpleNamespace and type(found) is types.MemberDescriptorType:
            return found
    return None


def has_state(cls: type) -> bool:
    """Whether instances keep attributes where `get_state` finds them."""
    return bool(_slots(cls)) or _dict_descriptor(cls) is not None


def _instance_dict(obj: object) -> dict[str, object] | None:
    cls = type(obj)
    descriptor = _dict_descriptor(cls)
    if descriptor is None:
        return None
    found = descriptor.__get__(obj)
    return found if type(found) is dict else None


_UNSET = object()


def _read(member: types.MemberDescriptorType, obj: object) -> object:
    try:
        return member.__get__(obj)
    except AttributeError:  # a slot that was never filled
        return _UNSET


def get_state(obj: object) -> list[tuple[str, object]]:
    """Return names and values of an object's attributes, slots first, without running its code."""
    state: list[tuple[str, object]] = []
    cls = type(obj)
    for name, member in _slots(cls).items():
        value = _read(member, obj)
        if value is not _UNSET:
            state.append((name, value))
    attributes = _instance_dict(obj)
    if attributes:
        state += [(name, value) for name, value in list(attributes.items()) if type(name) is str]
    return state


def set_state(obj: object, state: Iterable[tuple[str, object]]) -> None:
    """Put attributes back, without running the object's code.

    Raises:
        TypeError: The class has no place for an attribute of that name.
    """
    cls = type(obj)
    slots = _slots(cls)
    attributes = _instance_dict(obj)
    if not slots and attributes is not None:
        attributes.update(state)
        return
    for name, value in state:
        if name in slots:
            slots[name].__set__(obj, value)
        elif attributes is not None:
            attributes[name] = value
        else:
            raise TypeError(f"{class_name(cls)} has no place for an attribute {name!r}")


@by_class
def may_be_built(cls: type) -> bool:
    """Whether the class has no finalizer."""
    # A finalizer would run on attributes that the file chose.
    return not any("__del__" in vars(base) for base in cls.__mro__)


@by_class
def _is_data(cls: type) -> bool:
    return may_be_built(cls) and not issubclass(cls, BaseException | types.ModuleType | type)


@by_class
def _is_standard(cls: type) -> bool:
    name = class_name(cls)
    top = name.partition(":")[0].partition(".")[0]
    return top in sys.stdlib_module_names and name not in _STANDARD


def blank(cls: type, base: type = object, *content: object) -> object:
    """Make an instance by `base.__new__`, so that no code of the class runs.

    Raises:
        TypeError: The class is not of the kind that is rebuilt, or not derived from `base`.
    """
    if not _is_data(cls) or (base is object and _is_standard(cls)):
        raise TypeError(f"{class_name(cls)} is not rebuilt")
    if issubclass(cls, types.SimpleNamespace):
        base = types.SimpleNamespace
    return cast("Callable[..., object]", base.__new__)(cls, *content)
