"""Deep copies and sizes of objects that hold tensors, whatever their classes."""

import collections
import copy
from collections.abc import Callable, Iterable
from typing import Any, Final

import numpy as np
import torch

from faststeal.classes import get_state, set_state

__all__ = ["torch_deepcopy", "torch_tensor_size"]


def torch_deepcopy(value: Any) -> Any:
    """Copy an object and every tensor in it.

    Tensors are cloned (where they are, their history with them), arrays copied, containers and
    other objects rebuilt with their classes; a tensor that occurs twice occurs twice in the copy.
    What cannot be copied, or should not be, is returned as it is: modules, functions, locks, files,
    and objects that have an attribute `__nocopy__`.
    """
    return _Copier().copy(value)


_ATOMS: Final = (
    *(type(None), bool, int, float, complex, str, bytes, type, torch.nn.Module, torch.Generator),
    *(torch.dtype, torch.device, torch.layout, torch.memory_format, torch.Size),
    *(torch.SymInt, torch.SymFloat, torch.SymBool),
)


class _Copier:
    """Remembers what was copied, so that what is shared stays shared."""

    def __init__(self) -> None:
        # The original is kept too: while it lives, nothing else has its id.
        self.done: dict[int, tuple[object, Any]] = {}

    def copy(self, value: Any) -> Any:
        if isinstance(value, _ATOMS):
            return value
        known = self.done.get(id(value))
        if known is not None:
            return known[1]
        try:
            if hasattr(value, "__nocopy__"):
                return value
            copied = self.copier(value)(self, value)
        except Exception:  # noqa: BLE001 - whatever the object does, the user's model goes on
            copied = value
        return self.remember(value, copied)

    @staticmethod
    def copier(value: object) -> "Callable[[_Copier, Any], Any]":
        for cls, copier in _COPIERS:
            if isinstance(value, cls):
                return copier
        return _Copier.plain_object

    def remember(self, value: object, copied: Any) -> Any:
        self.done[id(value)] = value, copied
        return copied

    def items(self, items: Iterable[Any]) -> list[Any]:
        return [self.copy(item) for item in items]

    def tensor(self, value: torch.Tensor) -> Any:
        return value.clone()

    def array(self, value: np.ndarray) -> Any:
        return copy.deepcopy(value) if value.dtype.hasobject else value.copy()

    def tuple(self, value: tuple[Any, ...]) -> Any:
        cls, items = type(value), self.items(value)
        if cls is tuple:
            return tuple(items)
        try:
            copied = tuple.__new__(cls, items)
        except TypeError:  # made in C, such as what torch.max returns
            return cls(items)
        return self.attributes(value, copied)

    def set(self, value: Any) -> Any:
        return self.attributes(value, type(value)(self.items(value)))

    def dict(self, value: dict[Any, Any]) -> Any:
        copied = self.shallow(value)
        for key, item in list(value.items()):
            dict.__setitem__(copied, key, self.copy(item))
        return self.attributes(value, copied)

    def sequence(self, value: Any) -> Any:
        copied = self.shallow(value)
        for i, item in enumerate(value):
            copied[i] = self.copy(item)
        return self.attributes(value, copied)

    def plain_object(self, value: Any) -> Any:
        return self.attributes(value, self.shallow(value))

    def shallow(self, value: Any) -> Any:
        """A new object with the old parts.

        Raises:
            TypeError: It is not copied: functions, say, are one of a kind.
        """
        copied = copy.copy(value)
        if copied is value or type(copied) is not type(value):
            raise TypeError(f"{type(value).__name__} has no copies")
        # Known before its parts: they may refer to it.
        return self.remember(value, copied)

    def attributes(self, value: object, copied: Any) -> Any:
        """Copy what a copy shares with its original."""
        state = get_state(value)
        if state:
            self.remember(value, copied)
            set_state(copied, [(name, self.copy(part)) for name, part in state])
        return copied


_COPIERS: Final[tuple[tuple[type, Callable[[_Copier, Any], Any]], ...]] = (
    (torch.Tensor, _Copier.tensor),
    (tuple, _Copier.tuple),
    (list, _Copier.sequence),
    (dict, _Copier.dict),
    (set, _Copier.set),
    (frozenset, _Copier.set),
    (collections.deque, _Copier.sequence),
    (np.ndarray, _Copier.array),
)


def torch_tensor_size(value: Any) -> int:
    """Bytes of all tensors and arrays in an object.

    A tensor that occurs twice counts twice. Modules count nothing: their weights are no values.
    """
    return _size(value, set())


def _size(value: Any, active: set[int]) -> int:
    if isinstance(value, torch.Tensor):
        return _tensor_size(value)
    if isinstance(value, np.ndarray):
        return value.nbytes
    if isinstance(value, _ATOMS) or id(value) in active:
        return 0
    active.add(id(value))
    try:
        return sum(_size(part, active) for part in _parts(value))
    finally:
        active.discard(id(value))


def _parts(value: Any) -> Iterable[Any]:
    if isinstance(value, dict):  # also those that show their items as attributes
        return list(value.values())
    if isinstance(value, tuple | list | set | frozenset | collections.deque):
        return list(value)
    return [part for _, part in get_state(value)]


def _tensor_size(value: torch.Tensor) -> int:
    parts: tuple[torch.Tensor, ...]
    if value.layout is torch.sparse_coo:
        value = value.detach()
        parts = value._indices(), value._values()  # noqa: SLF001 - for tensors not coalesced
    elif value.layout in {torch.sparse_csr, torch.sparse_bsr}:
        parts = value.crow_indices(), value.col_indices(), value.values()
    elif value.layout in {torch.sparse_csc, torch.sparse_bsc}:
        parts = value.ccol_indices(), value.row_indices(), value.values()
    else:
        parts = (value.values() if value.is_nested else value,)
    return sum(part.numel() * part.itemsize for part in parts)
