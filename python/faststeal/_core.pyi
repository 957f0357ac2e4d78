"""The compiled core: bytes and the file. Trees, classes and names belong to the Python side."""

from collections.abc import Callable, Sequence
from typing import Any, Literal, final

from torch import Tensor
from typing_extensions import Self

__all__ = [
    "FaststealError",
    "FormatError",
    "Make",
    "NotPlainError",
    "Reader",
    "Writer",
    "__version__",
    "repair",
]

__version__: str

class FaststealError(Exception):
    """Base class of every error that is this package's own."""

class FormatError(FaststealError, ValueError):
    """A file is not a dump: says which file, at which byte offset, and what was expected there."""

class NotPlainError(FaststealError, TypeError):
    """A tensor whose bytes cannot be read as they lie in memory.

    Sparse, quantized, on another device, conjugated, wrapped, … `args` is `(message, index)`: the
    caller decomposes the `index`-th tensor and calls again. Nothing was written.
    """

@final
class Writer:
    """One dump being written. Safe to use from several threads.

    Args:
        path: The file. Whatever is there is replaced by a new inode, never truncated.
        provenance: JSON object (text), stored with the format marker.
        storage_limit: The most logical bytes one record may have to be stored; `None` for no limit.
        total_limit: The most payload bytes the dump may have, external data included; `None` for
            no limit.
        external: Put the bytes of all tensors into `<path>.data`.
        sync: Make each record durable (`fdatasync`) before it is committed: survives a power loss.
        inline_limit: Payload bytes that go inside the file before external data begins; 1 GiB.
        part_limit: Size in bytes at which the dump rolls over to `<stem>.1<suffix>`.

    Raises:
        BlockingIOError: Another live capture is writing this file.
        OSError: The file cannot be created; the exact subclass, with the path.
    """

    def __new__(
        cls,
        path: str,
        provenance: str,
        *,
        storage_limit: int | None = None,
        total_limit: int | None = None,
        external: bool = False,
        sync: bool = False,
        inline_limit: int = ...,
        part_limit: int = ...,
    ) -> Self: ...
    def write(
        self,
        key: str,
        prefix: str,
        tree: str,
        paths: Sequence[str],
        tensors: Sequence[Tensor],
        info: str,
        leaves: Sequence[str] | None = None,
    ) -> str | None:
        """Append one record; when this returns, a kill no longer loses it.

        Args:
            key: Unique key of the record, `"<name>/<iteration>/<kind>"`.
            prefix: Unique name that the record's values begin with; a value is named `prefix` where
                its path is empty, else `prefix/path`.
            tree: JSON text of the nested object, in which tensors are numbered.
            paths: Path of each tensor, unique in the record, without `/`.
            tensors: The tensors, as many as paths. Their logical elements are written, row-major.
            info: JSON members, `"class":"Linear","training":true`, without braces; may be empty.
            leaves: JSON members of each leaf, `"device":"cuda:0"`, where the tensor given is not
                itself the leaf; by default device and requires_grad are read from the tensor.

        Returns:
            None if it was stored, else the reason why its values were left out (a limit); shape,
            dtype and statistics of each leaf are kept then.

        Raises:
            NotPlainError: See there.
            OSError: The record could not be written (disk full, …). It is lost, the file is valid.
            ValueError: The writer is closed, or `paths` and `tensors` differ in number.
        """

    def close(self) -> None:
        """Write the index, cut the file. Does nothing the second time, nor in a forked child."""

    @property
    def closed(self) -> bool: ...
    @property
    def records(self) -> int:
        """Records stored."""
    @property
    def skipped(self) -> int:
        """Records whose values were left out by a limit."""
    @property
    def bytes_seen(self) -> int:
        """Logical bytes of all tensors offered."""
    @property
    def bytes_written(self) -> int:
        """Payload bytes that went to the file and its external data."""

@final
class Reader:
    """A dump, mapped into memory. Touches headers only, until tensors are asked for.

    Reads dumps (also re-saved by other tools, or still being written) and, through `outputs`,
    models whose outputs are constants.

    Args:
        source: Path, or the bytes of a model.
        mode: `"private"`: tensors are views of a copy-on-write mapping. `"readonly"`: views of a
            read-only mapping: writing to one crashes. `"pread"`: tensors are read into memory of
            their own (network file systems, files that may change).

    Raises:
        FormatError: Not a dump, or a hostile one.
        OSError: The file cannot be opened; the exact subclass, with the path.
    """

    def __new__(
        cls, source: str | bytes, mode: Literal["private", "readonly", "pread"] = "private"
    ) -> Self: ...
    def __len__(self) -> int:
        """Number of records, skipped ones included."""
    @property
    def native(self) -> bool:
        """Whether this is a dump of faststeal; if not, only `outputs` is of use."""
    @property
    def complete(self) -> bool:
        """Whether the capture was closed: false while it runs, and after a kill."""
    @property
    def provenance(self) -> str:
        """JSON object (text) that was given to the writer; `"{}"` where there is none."""
    def keys(self) -> list[tuple[str, int, str]]:
        """`(name, iteration, kind)` of every record, in the order of writing."""
    def skipped(self) -> list[bool]:
        """Whether the values of each record were left out."""
    def find(self, name: str, iteration: int, kind: str) -> int:
        """Number of the record with this key, -1 if there is none."""
    def record(self, index: int) -> tuple[str, list[Tensor]]:
        """The tree (JSON text) of a record and its tensors, which share memory with the map."""
    def records(
        self,
        indices: Sequence[int],
        key_class: type[tuple[str, int, str]],
        compiled: Callable[[str], Make],
    ) -> list[tuple[Any, Any]]:
        """Key and object of `indices`, or of the first of them: of those before one that fails.

        Args:
            indices: Numbers of records.
            key_class: What a key becomes; the name alone is the key where the kind is `"A"`.
            compiled: Gives the function of tensors for a tree, whose objects are returned.
        """
    def info(self, index: int) -> str:
        """Everything known of a record but its values: JSON text, an object.

        Members: `n` (tensors stored), `tree`, `leaves` (a list of objects: name, dtype, shape,
        device, requires_grad, and, in a skipped record, `stats`), `skipped` (the reason) where it
        was, and whatever was given as `info`.
        """
    def outputs(self) -> list[tuple[str, Tensor | list[Tensor] | list[bytes]]]:
        """Every graph output that is constant, in order: tensor, sequence, or strings."""
    def verify(self) -> list[str]:
        """Check all that opening leaves out: checksums, duplicates, index. One line per problem."""
    def close(self) -> None:
        """Refuse further reads. Tensors that were handed out stay valid."""

@final
class Make:
    """A function of a record's tensors that makes an object, or a part of one.

    Where one takes others, these may be any function of the list of tensors.
    """

    @staticmethod
    def constant(value: object) -> Make:
        """Give the same immutable value each time."""
    @staticmethod
    def pick(index: int) -> Make:
        """Give one of the tensors."""
    @staticmethod
    def list(makes: Sequence[Callable[[Any], object]]) -> Make:
        """Make a list; constant it never is."""
    @staticmethod
    def tuple(makes: Sequence[Callable[[Any], object]]) -> Make:
        """Make a tuple, the same each time if all in it is."""
    @staticmethod
    def dict(keys: Sequence[object], makes: Sequence[Callable[[Any], object]]) -> Make:
        """Make a dict with these keys."""
    @staticmethod
    def record(count: int, make: Callable[[Any], object]) -> Make:
        """Make an object of at least `count` tensors.

        The function raises `FormatError` where there are fewer, or `make` raises an error.
        """

    @property
    def is_constant(self) -> bool: ...
    @property
    def value(self) -> Any:
        """The constant; `None` if it is not one."""
    def __call__(self, tensors: Sequence[Tensor]) -> Any: ...

def repair(path: str) -> list[str]:
    """Mend on disk what a kill left in `path`; returns what was done, a line each.

    Raises:
        BlockingIOError: A live capture is writing the file.
        FormatError: The file is damaged beyond what a kill can do.
    """
