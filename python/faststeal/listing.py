"""What can be said of the records of a dump: for the command line, which prints it."""

import ast
import contextlib
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils import _pytree

from faststeal._core import Reader
from faststeal.describe import string_type
from faststeal.dump import AnyKey, Dump, Key, load
from faststeal.tree import unflatten

__all__ = [
    "Record",
    "find_key",
    "one_line",
    "records",
    "size_text",
    "summary",
    "tensors_of",
    "value_text",
]


@dataclass(frozen=True, slots=True)
class Record:
    """One record, read.

    Attributes:
        key: As `Dump` has it.
        info: What is known of it but the values; empty for a file of another tool.
        value: The object; None where it was skipped.
        tensors: Its tensors, in order.
        size: Bytes of all its tensors.
        new: Those of them that no record before it has.
        same: The record that has all of them, where there is one.
    """

    key: AnyKey
    info: dict[str, Any]
    value: Any
    tensors: list[torch.Tensor]
    size: int
    new: int
    same: AnyKey | None

    @property
    def skipped(self) -> str | None:
        """Why the values were left out, if they were."""
        return self.info.get("skipped")

    @property
    def class_name(self) -> str:
        """Name of the module's class, without where it is defined."""
        return str(self.info.get("class", "")).rpartition(":")[2].rpartition(".")[2]


@dataclass(slots=True)
class _Seen:
    """Which bytes belong to which record.

    Shared bytes are recognised by their address. The tensors are held, so that no address is used
    twice: views of the file cost nothing, copies only exist where another tool moved the bytes.
    """

    owners: dict[tuple[int, int], AnyKey] = field(default_factory=dict)
    held: list[torch.Tensor] = field(default_factory=list)

    def add(self, key: AnyKey, tensors: list[torch.Tensor]) -> tuple[int, AnyKey | None]:
        """Bytes that are new with this record, and the one record that has all of them, if any."""
        new, owners = 0, set()
        for tensor in tensors:
            if tensor.nbytes == 0:
                continue
            where = tensor.data_ptr(), tensor.nbytes
            if where not in self.owners:
                self.owners[where] = key
                new += tensor.nbytes
                self.held.append(tensor)
            owners.add(self.owners[where])
        return new, owners.pop() if new == 0 and len(owners) == 1 else None


def records(path: str) -> Iterator[Record]:
    """Every record of a dump in the order of writing, skipped ones included.

    Raises:
        FormatError: Not a dump, or a damaged one.
        OSError: It cannot be read.
    """
    reader = Reader(path)
    seen = _Seen()
    if not reader.native:
        with load(path) as dump:
            for key, value in dump.items():
                leaves = _pytree.tree_leaves(value)
                tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
                yield _record(seen, key, {}, value, tensors)
        return
    left_out = reader.skipped()
    for i, (name, iteration, kind) in enumerate(reader.keys()):
        key = name if kind == "A" else Key(name, iteration, kind)
        info = json.loads(reader.info(i))
        if left_out[i]:
            size = sum(_leaf_size(leaf) for leaf in info.get("leaves", ()))
            yield Record(key, info, None, [], size, 0, None)
            continue
        tree, tensors = reader.record(i)
        yield _record(seen, key, info, unflatten(tree, tensors), tensors)


def tensors_of(path: str, key: AnyKey) -> list[torch.Tensor]:
    """The tensors of one record, in order; none for a file of another tool."""
    reader = Reader(path)
    if not reader.native:
        return []
    name, iteration, kind = key if isinstance(key, Key) else (key, 0, "A")
    return reader.record(reader.find(name, iteration, kind))[1]


def _record(
    seen: _Seen, key: AnyKey, info: dict[str, Any], value: object, tensors: list[torch.Tensor]
) -> Record:
    new, same = seen.add(key, tensors)
    return Record(key, info, value, tensors, sum(t.nbytes for t in tensors), new, same)


def _leaf_size(leaf: dict[str, Any]) -> int:
    dtype = getattr(torch, str(leaf.get("dtype")), None)
    if not isinstance(dtype, torch.dtype):
        return 0
    size: int = dtype.itemsize
    for n in leaf.get("shape", ()):
        size *= n
    return size


def value_text(record: Record) -> str:
    """The value in the words of `string_type`, or what is kept of it."""
    if record.skipped is not None:
        leaves = record.info.get("leaves", ())
        return ", ".join(f"{leaf.get('dtype')}{leaf.get('shape')}" for leaf in leaves)
    if isinstance(record.key, Key) and record.key.kind == "E":
        return str(record.value)
    return string_type(record.value, with_shape=True, ignore=True)


def summary(record: Record) -> dict[str, Any]:
    """A record for a program to read."""
    key = record.key
    return {
        "key": list(key) if isinstance(key, Key) else key,
        "class": record.info.get("class"),
        "value": value_text(record),
        "bytes": record.size,
        "stored_bytes": record.new,
        "same_as": list(record.same) if isinstance(record.same, Key) else record.same,
        "skipped": record.skipped,
        "leaves": record.info.get("leaves", []),
    }


def find_key(dump: Dump, text: str) -> AnyKey:
    """The key that a person means.

    Args:
        dump: Where to look.
        text: As a key is printed, `('model.decoder', 0, 'I')`, as its values are named in the
            file, `model.decoder/0/I` (the root: `./0/I`), or what `steal_append` was given.

    Raises:
        KeyError: There is none; names the nearest.
    """
    if text not in dump and text.startswith("("):
        with contextlib.suppress(ValueError, SyntaxError):  # a name with a parenthesis
            return dump.find(ast.literal_eval(text))
    return dump.find(text)


def size_text(size: int) -> str:
    """Bytes as people read them."""
    if size < 1024:
        return f"{size} B"
    value = float(size)
    for unit in ("KiB", "MiB", "GiB"):
        value /= 1024
        if value < 1024 or unit == "GiB":
            break
    return f"{value:.1f} {unit}"


def one_line(text: str) -> str:
    """Text of a file as it may go to a terminal: no control characters, no line ends."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)
