"""Read a dump: a mapping from keys to the objects that were captured.

Opening touches headers only. A record is read when it is asked for, and its tensors are views of
the memory map.
"""

import difflib
import json
import os
import re
from collections.abc import Callable, ItemsView, Iterator, Mapping, ValuesView
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Any, Literal, NamedTuple, TypeAlias

import torch

from faststeal._core import FormatError, Reader
from faststeal.placing import placed, usable
from faststeal.rebuild import compiled, unflatten

__all__ = ["Dump", "Key", "Leaf", "Skipped", "load"]

Mode: TypeAlias = Literal["private", "readonly", "pread"]


class Key(NamedTuple):
    """Name of a record: equal to the plain tuple, and printed as one.

    Attributes:
        name: Of the module, as given to `steal_forward`; `""` for the root.
        iteration: Number of the call, from 0.
        kind: `"I"` inputs `(args, kwargs)`, `"O"` output, `"E"` text of what was raised.
    """

    name: str
    iteration: int
    kind: str

    def __repr__(self) -> str:
        return tuple.__repr__(self)


AnyKey: TypeAlias = Key | str
_NUMBER = re.compile("[0-9]{1,20}").fullmatch
_AT_A_TIME = 256  # records that are read in one call, if they are views of the file
_Given: TypeAlias = tuple[str, int, str] | str


@dataclass(frozen=True, slots=True)
class Leaf:
    """A tensor whose values were left out.

    Attributes:
        name: Of its value in the file: the record's key and the path in the object.
        dtype: As torch names it, without `torch.`.
        shape: In elements.
        stats: Statistics by name, where there are any.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    stats: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Skipped:
    """A record whose values a limit left out.

    Attributes:
        reason: Which limit, and by how much.
        leaves: Its tensors, in order.
    """

    reason: str
    leaves: tuple[Leaf, ...]


def load(
    path: str | os.PathLike[str] | bytes,
    *,
    mode: Mode = "private",
    device: torch.device | str | int | None = None,
) -> "Dump":
    """Open a dump; nothing is read until it is asked for.

    Args:
        path: File written by `steal_forward` (complete, killed, or still being written), a copy
            of it that another tool saved again, a file of onnx-diagnostic, or the bytes of one.
        mode: `"private"`: tensors are views of the file; writing to one stays in memory, though
            two keys that share bytes share the view. `"readonly"`: the same, but writing to one
            crashes the process. `"pread"`: tensors are read into memory of their own, for network
            files and files that may change.
        device: Where tensors go; by default they stay on the CPU.

    Raises:
        FormatError: Not a dump, or a damaged one; says where.
        OSError: The file cannot be opened; the exact subclass.
        ValueError: There is no such device here.
    """
    source = path if isinstance(path, bytes) else os.fspath(path)
    if not isinstance(source, str | bytes):
        raise TypeError(f"path must be str, bytes or PathLike, not {type(path).__name__}")
    device = None if device is None else usable(device)
    reader = Reader(source, mode)
    if reader.native:
        return Dump(reader, source, mode, device)
    return _Foreign(reader, source, mode, device)


class Dump(Mapping[AnyKey, Any]):
    """What was captured, in the order of execution. Made by `load`.

    Keys are `Key(name, iteration, kind)`, or the plain text that was given to `steal_append`.
    Where a key is asked for, the text `"name/iteration/kind"` (of the root: `"./0/I"`) stands for
    the tuple as well. A record that a limit left out is no key: it stands in `skipped`.
    """

    def __init__(
        self, reader: Reader, source: str | bytes, mode: Mode, device: torch.device | None
    ) -> None:
        self._reader = reader
        self._source = source
        self._mode: Mode = mode
        self._device = device
        self._closed = False
        self._left_out = reader.skipped() if reader.native else []
        self._key_list: list[AnyKey] | None = None
        self._skipped: _SkippedRecords | None = None

    # Mapping

    def __getitem__(self, key: _Given) -> Any:
        index = self._find(key)
        if index < 0 or self._left_out[index]:
            raise self._missing(key)
        return self._restored(*self._reader.record(index))

    def __contains__(self, key: object) -> bool:
        index = self._find(key)
        return index >= 0 and not self._left_out[index]

    def __iter__(self) -> Iterator[AnyKey]:
        left_out = self._left_out
        return (key for key, out in zip(self._all_keys(), left_out, strict=True) if not out)

    def __len__(self) -> int:
        return len(self._left_out) - sum(self._left_out)

    def items(self) -> ItemsView[AnyKey, Any]:
        """Keys and objects, read some at a time as one goes along: the quickest way to all."""
        return _Items(self)

    def values(self) -> ValuesView[Any]:
        """Objects, read some at a time as one goes along."""
        return _Values(self)

    def _read_all(self) -> Iterator[tuple[AnyKey, Any]]:
        self._check_open()
        there = [i for i, out in enumerate(self._left_out) if not out]
        if self._device is not None:
            keys = self._all_keys()
            yield from ((keys[i], self._restored(*self._reader.record(i))) for i in there)
            return
        start = 0
        while start < len(there):
            found = self._reader.records(there[start : start + _AT_A_TIME], Key, compiled)
            start += len(found)
            yield from found

    def _restored(self, tree: str, tensors: list[torch.Tensor]) -> Any:
        if self._device is not None:
            tensors = placed(tree, tensors, self._device)
        return unflatten(tree, tensors)

    # A mapping compares its values, which tensors do not do with one answer.
    __eq__ = object.__eq__
    __hash__ = object.__hash__

    # What else is known

    @property
    def path(self) -> Path | None:
        """The file; None where bytes were given."""
        return None if isinstance(self._source, bytes) else Path(self._source)

    @property
    def complete(self) -> bool:
        """Whether the capture was closed: false while it runs, and after a kill."""
        return self._reader.complete

    @property
    def provenance(self) -> dict[str, Any]:
        """Versions, time, rank, command line and the user's notes, as they were when captured."""
        return dict(json.loads(self._reader.provenance))

    @property
    def skipped(self) -> Mapping[AnyKey, Skipped]:
        """Records whose values a limit left out: shapes, dtypes, statistics and the reason."""
        if self._skipped is None:
            keys = self._all_keys()
            left_out = {i: keys[i] for i, out in enumerate(self._left_out) if out}
            self._skipped = _SkippedRecords(left_out, self._find, self._read_skipped)
        return self._skipped

    def info(self, key: _Given) -> dict[str, Any]:
        """All that is known of a record but its values, also of a skipped one.

        Members: `class` of the module, `training`, `grad`, `thread`, `parent` (`name/iteration` of
        the call it happened in), `leaves` (a list: name, dtype, shape, device, …), `tree`, …

        Raises:
            KeyError: There is no such record.
        """
        index = self._find(key)
        if index < 0:
            raise self._missing(key)
        return dict(json.loads(self._reader.info(index)))

    def find(self, key: _Given) -> AnyKey:
        """The key of a record as iterating gives it, also of a skipped one.

        Raises:
            KeyError: There is no such record; tells what there is instead.
        """
        index = self._find(key)
        if index < 0:
            raise self._missing(key)
        return self._all_keys()[index]

    def names(self) -> list[str]:
        """Names of modules, in the order of their first record, skipped ones included."""
        return list(dict.fromkeys(key.name for key in self._all_keys() if isinstance(key, Key)))

    def calls(self, name: str) -> list[int]:
        """Numbers of the calls of a module of which there is a record, in order."""
        keys = (key for key in self._all_keys() if isinstance(key, Key))
        return list(dict.fromkeys(key.iteration for key in keys if key.name == name))

    def verify(self) -> list[str]:
        """Check what opening leaves out: checksums, duplicates, index. One line per problem."""
        return self._reader.verify()

    # Life

    @property
    def closed(self) -> bool:
        """Whether further reads are refused."""
        return self._closed

    def close(self) -> None:
        """Refuse further reads. Tensors that were handed out stay valid."""
        self._closed = True
        self._reader.close()

    def __enter__(self) -> "Dump":  # noqa: PYI034 - Self needs Python 3.11
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def __reduce__(self) -> tuple[Any, ...]:
        if isinstance(self._source, bytes):
            raise TypeError("a dump that was loaded from bytes cannot be pickled")
        return _reopen, (str(Path(self._source).absolute()), self._mode, self._device)

    def __repr__(self) -> str:
        if self._closed:
            return f"<Dump {self._label()}: closed>"
        skipped = sum(self._left_out)
        parts = [f"{len(self)} records", f"{skipped} skipped" if skipped else ""]
        parts.append("" if self.complete else "incomplete")
        return f"<Dump {self._label()}: {', '.join(filter(None, parts))}>"

    # Inside

    def _label(self) -> str:
        return "of bytes" if isinstance(self._source, bytes) else repr(self._source)

    def _check_open(self) -> None:
        if self._closed:
            raise ValueError(f"the dump {self._label()} is closed")

    def _find(self, key: object) -> int:
        """Number of a record, -1 where there is none."""
        self._check_open()
        if isinstance(key, str):
            index = self._find_record(key, 0, "A")
            named = _spelled(key) if index < 0 else ()
            return next((i for k in named if (i := self._find_record(*k)) >= 0), index)
        if isinstance(key, tuple) and len(key) == 3:
            return self._find_record(*key)
        return -1

    def _find_record(self, name: Any, iteration: Any, kind: Any) -> int:
        try:
            try:
                return self._reader.find(name, iteration, kind)
            except UnicodeEncodeError:  # as it was written, then
                return self._reader.find(_encodable(name), iteration, _encodable(kind))
        except (TypeError, AttributeError, OverflowError):  # not what a key is made of
            return -1

    def _all_keys(self) -> list[AnyKey]:
        """Keys of all records, skipped ones included."""
        self._check_open()
        if self._key_list is None:
            self._key_list = list(map(_named, self._reader.keys()))
        return self._key_list

    def _read_skipped(self, index: int) -> Skipped:
        info = json.loads(self._reader.info(index))
        leaves = tuple(
            Leaf(
                leaf.get("name", ""),
                leaf.get("dtype", ""),
                tuple(leaf.get("shape", ())),
                MappingProxyType(leaf.get("stats") or {}),
            )
            for leaf in info.get("leaves", ())
        )
        return Skipped(str(info.get("skipped", "")), leaves)

    def _missing(self, key: object) -> KeyError:
        """The error for a key that is not there: why, or what is there instead."""
        index = self._find(key)
        if 0 <= index < len(self._left_out):
            return KeyError(
                f"{key!r} was skipped: {self._read_skipped(index).reason}; "
                f"shapes and statistics are in .skipped[{key!r}]"
            )
        there = f"no record {key!r} in {self._label()}"
        parts = (_spelled(key) or (key,))[-1] if isinstance(key, str) else key
        name = parts[0] if isinstance(parts, tuple) and len(parts) == 3 else parts
        same = [k for k in self._all_keys() if (k.name if isinstance(k, Key) else k) == name]
        if same:
            listed = ", ".join(map(repr, same[:6])) + (", …" if len(same) > 6 else "")
            return KeyError(f"{there}; of this name there is {listed}")
        names = [k.name if isinstance(k, Key) else k for k in self._all_keys()]
        near = difflib.get_close_matches(str(name), list(dict.fromkeys(names)), 3, 0.4)
        if near:
            return KeyError(f"{there}; the nearest names are {', '.join(map(repr, near))}")
        return KeyError(f"{there}, which has {len(names)} records")


class _Items(ItemsView[AnyKey, Any]):
    def __init__(self, dump: Dump) -> None:
        super().__init__(dump)
        self._dump = dump

    def __iter__(self) -> Iterator[tuple[AnyKey, Any]]:
        return self._dump._read_all()  # noqa: SLF001 - of this module


class _Values(ValuesView[Any]):
    def __init__(self, dump: Dump) -> None:
        super().__init__(dump)
        self._dump = dump

    def __iter__(self) -> Iterator[Any]:
        return (value for _, value in self._dump._read_all())  # noqa: SLF001 - of this module


class _SkippedRecords(Mapping[AnyKey, Skipped]):
    """Details of skipped records, read when asked for."""

    def __init__(
        self,
        keys: dict[int, AnyKey],
        find: Callable[[object], int],
        read: Callable[[int], Skipped],
    ) -> None:
        self._keys = keys
        self._find = find
        self._read = read

    def __getitem__(self, key: _Given) -> Skipped:
        index = self._find(key)
        if index not in self._keys:
            raise KeyError(key)
        return self._read(index)

    def __iter__(self) -> Iterator[AnyKey]:
        return iter(self._keys.values())

    def __len__(self) -> int:
        return len(self._keys)

    def __repr__(self) -> str:
        return f"<{len(self)} skipped records: {', '.join(map(repr, self))}>"


class _Foreign(Dump):
    """A file of onnx-diagnostic, restored as far as its format tells."""

    def __init__(
        self, reader: Reader, source: str | bytes, mode: Mode, device: torch.device | None
    ) -> None:
        super().__init__(reader, source, mode, device)
        outputs = reader.outputs()
        from faststeal.legacy import restore_legacy

        try:
            restored = restore_legacy(outputs, device=device)
        except FormatError as error:
            raise FormatError(f"{self._label()}: {error}") from error
        if not isinstance(restored, dict):
            raise FormatError(
                f"{self._label()} is not a dump: it holds one {type(restored).__name__}, "
                "where a mapping from names to objects was expected"
            )
        self._values: dict[Any, Any] = {_as_key(k): v for k, v in restored.items()}
        self._key_list = list(self._values)
        self._positions: dict[object, int] = {key: i for i, key in enumerate(self._values)}
        self._left_out = [False] * len(self._values)

    def _read_all(self) -> Iterator[tuple[AnyKey, Any]]:
        return ((key, self[key]) for key in self._values)

    def __getitem__(self, key: Any) -> Any:
        index = self._find(key)
        if index < 0:
            raise self._missing(key)
        return self._values[self._all_keys()[index]]

    @property
    def provenance(self) -> dict[str, Any]:
        """Such a file tells nothing of where it comes from."""
        return {}

    def info(self, key: Any) -> dict[str, Any]:
        """Such a file tells nothing but the values."""
        if self._find(key) < 0:
            raise self._missing(key)
        return {}

    def _find(self, key: object) -> int:
        self._check_open()
        named = _spelled(key) if isinstance(key, str) else ()
        try:
            return next((self._positions[k] for k in (key, *named) if k in self._positions), -1)
        except TypeError:  # not hashable: no key
            return -1

    def _missing(self, key: object) -> KeyError:
        return KeyError(f"no record {key!r} in {self._label()}")


def _named(key: tuple[str, int, str]) -> AnyKey:
    """A record's key as its user gave it."""
    return key[0] if key[2] == "A" else tuple.__new__(Key, key)


def _spelled(text: str) -> tuple[tuple[str, int, str], ...]:
    """What `name/iteration/kind` may stand for, the likeliest first: `./0/I` is the root's."""
    path, _, kind = text.rpartition("/")
    name, slash, number = path.rpartition("/")
    if not (slash and _NUMBER(number) and kind in {"I", "O", "E"}):
        return ()
    names = (name, "") if name == "." else (name,)
    return tuple((name, int(number), kind) for name in names)


def _encodable(text: str) -> str:
    """Text as it can stand in a file, lone surrogates spelled out."""
    return text.encode("utf-8", "backslashreplace").decode()


def _as_key(key: object) -> object:
    """A key of the incumbent as one of ours, where it is one."""
    if isinstance(key, tuple) and len(key) == 3:
        name, iteration, kind = key
        if isinstance(name, str) and isinstance(iteration, int) and kind in {"I", "O"}:
            return Key(name, iteration, kind)
    return key


def _reopen(path: str, mode: Mode, device: torch.device | None) -> Dump:
    return load(path, mode=mode, device=device)
