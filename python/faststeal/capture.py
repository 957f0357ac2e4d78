"""Capture what goes into modules and what comes out, while the model runs as it always does.

Inputs are written before a forward runs and outputs after it, so nothing that happens later can
reach them, and nothing is kept: no copy, no reference, no graph.
"""

import logging
import os
import threading
import warnings
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Any, Literal, TypeAlias

import torch

from faststeal._core import Writer
from faststeal.describe import string_type
from faststeal.dump import AnyKey  # noqa: TC001 - annotations are for users too
from faststeal.intercept import Interception, install, renew_lock, restore
from faststeal.losses import FaststealWarning, Losses
from faststeal.provenance import destination, provenance
from faststeal.recording import Recording
from faststeal.targets import Target, expand
from faststeal.trace import Trace, printer_options

__all__ = ["Capture", "FaststealWarning", "is_stealing", "steal_append", "steal_forward"]

_logger = logging.getLogger("faststeal")

# Captures that are running, in order of entry. Replaced as a whole, so that reading needs no lock.
_running: tuple["Capture", ...] = ()
_running_lock = threading.Lock()

OnError: TypeAlias = Literal["warn", "raise"]


def steal_forward(  # noqa: PLR0913, PLR0917 - the signature is what users know
    model: torch.nn.Module
    | tuple[str, torch.nn.Module]
    | list[torch.nn.Module | tuple[str, torch.nn.Module]],
    fprint: Callable[..., object] = string_type,
    dump_file: str | os.PathLike[str] | None = None,
    dump_drop: Collection[str] | None = None,
    submodules: bool = False,
    verbose: int = 0,
    storage_limit: int | None = 2**27,
    save_as_external_data: bool = False,
    *,
    total_limit: int | None = None,
    on_error: OnError = "warn",
    notes: Mapping[str, Any] | None = None,
    **kwargs: Any,
) -> "Capture":
    """Capture the inputs and outputs of modules while a block of code runs.

    The model computes what it computes without a capture, and is found afterwards as it was
    before, whatever happens inside. `torch.jit.script` cannot compile a model while it is
    captured, since what runs is no longer the source that it reads; code traced by
    `torch.compile`, `torch.export` or `torch.jit.trace` runs unrecorded.

    Args:
        model: A module, a `(name, module)` pair, or a list of either. Leading blanks of a name
            indent its lines of the trace and are not part of it. Names may repeat: calls are
            numbered per name, in order of entry.
        fprint: Turns objects into the text of the trace. Called with `with_shape=` and
            `with_min_max=` where it takes them.
        dump_file: The file to write; its directory must exist. With several ranks of
            `torch.distributed`, each writes `<stem>.rank<r><suffix>`.
        dump_drop: Names of keyword arguments that are left out of what is stored of inputs.
        submodules: Capture all modules below as well, by their qualified names. The root is `""`,
            or the name that was given, which then precedes the others.
        verbose: Print the trace even if there is a file. Without a file it is printed anyway.
        storage_limit: Most bytes of one stored object, all its tensors together; what has more is
            kept as shapes, dtypes and statistics. None for no limit.
        save_as_external_data: Put the bytes of tensors into `<dump_file>.data`.
        total_limit: Most bytes of all that is stored together. None for no limit.
        on_error: `"warn"`: what could not be stored is logged, and told by one warning at the end.
            `"raise"`: the error goes to the model's caller. What a limit skips, and an object that
            is described, are no errors.
        notes: Anything JSON can hold, kept in the file's provenance.
        **kwargs: For `fprint`, all of them.

    Returns:
        A context manager; `with … as capture` gives the `Capture`, of use after the end as well.

    Raises:
        TypeError: A wrong type, or a keyword that `fprint` does not take.
        ValueError: A limit below zero, an unknown `on_error`, or notes that JSON cannot hold.
        OSError: The file cannot be created (on entry).

    Example:
        >>> with steal_forward(("model", model), submodules=True, dump_file="run.onnx"):
        ...     model(x)
    """
    if on_error not in {"warn", "raise"}:
        raise ValueError(f"on_error must be 'warn' or 'raise', not {on_error!r}")
    drop = _checked_names(dump_drop)
    options = printer_options(fprint, kwargs)
    targets = expand(model, submodules)
    _check_limit("storage_limit", storage_limit)
    _check_limit("total_limit", total_limit)
    output: tuple[Path, Callable[[], Writer]] | None = None
    if dump_file is not None:
        path, text = destination(dump_file), provenance(notes)

        def open_writer() -> Writer:
            return Writer(
                str(path),
                text,
                storage_limit=storage_limit,
                total_limit=total_limit,
                external=bool(save_as_external_data),
            )

        output = path, open_writer
    trace = Trace(fprint, options) if verbose or output is None else None
    return Capture(targets, output, trace, drop, raising=on_error == "raise")


def steal_append(name: str, obj: object) -> None:
    """Store an object among what a running capture stores, as it is at this moment.

    May be called from anywhere. It goes to the innermost capture that this thread entered, else to
    the newest of all; does nothing where there is none.

    Args:
        name: Its key, as it is: `dump[name]`, with no call and no kind. A second object of the same
            name becomes `name_1`, and so on; a name that is taken so already is passed over.
        obj: Anything that a module may take or return.

    Raises:
        TypeError: `name` is no text.
    """
    _check_text(name)
    if torch.compiler.is_compiling() or not _running:
        return
    running, thread = _running, threading.get_ident()
    mine = [capture for capture in running if capture.entered_by(thread)]
    for capture in (mine or running)[-1:]:
        capture.append(name, obj)


def is_stealing() -> bool:
    """Whether a capture is running, in any thread. Always false while a graph is traced."""
    return not torch.compiler.is_compiling() and bool(_running)


class Capture:
    """A capture: the context manager that `steal_forward` makes, and what it found.

    Attributes:
        path: The file; None where nothing is stored.
        skipped: Why a limit left out the values of a record, by key; of the first 10,000 such
            records, as are the two that follow (`Dump.skipped` has them all).
        lost: Why a record is missing, by key.
        described: Objects of a record that are described in place of their values, by key: texts.
    """

    def __init__(
        self,
        targets: list[Target],
        output: tuple[Path, Callable[[], Writer]] | None,
        trace: Trace | None,
        drop: frozenset[str],
        *,
        raising: bool,
    ) -> None:
        self._targets = targets
        self.path: Path | None = output[0] if output else None
        self._open: Callable[[], Writer] | None = output[1] if output else None
        self._trace = trace
        self._drop = drop
        self._raising = raising
        self._losses = Losses()
        self.skipped: Mapping[AnyKey, str] = MappingProxyType(self._losses.skipped)
        self.lost: Mapping[AnyKey, str] = MappingProxyType(self._losses.lost)
        self.described: Mapping[AnyKey, list[str]] = MappingProxyType(self._losses.described)
        self._writer: Writer | None = None
        self._recording: Recording | None = None
        self._sites: list[Interception] = []
        self._forked = False
        self._thread = 0

    # What it found

    @property
    def calls(self) -> int:
        """Calls so far, those that raised included; of a module under two names, each is two."""
        return 0 if self._recording is None else self._recording.calls

    @property
    def records(self) -> int:
        """Records that are stored with their values."""
        return 0 if self._writer is None else self._writer.records

    @property
    def bytes_seen(self) -> int:
        """Bytes of all tensors that were offered, before limits and deduplication."""
        return 0 if self._writer is None else self._writer.bytes_seen

    @property
    def bytes_written(self) -> int:
        """Bytes of tensors that went to the file and its external data."""
        return 0 if self._writer is None else self._writer.bytes_written

    @property
    def running(self) -> bool:
        """Whether it is between entry and exit."""
        return self in _running

    def __repr__(self) -> str:
        where = "without a file" if self.path is None else repr(str(self.path))
        state = "running" if self.running else "done" if self._recording else "not entered"
        skipped, lost = self._losses.skipped.total, self._losses.lost.total
        more = [f"{skipped} skipped"] if skipped else []
        more += [f"{lost} lost"] if lost else []
        return (
            f"<Capture {where}, {state}: {', '.join([f'{self.records} records', *more])} "
            f"of {self.calls} calls, {self.bytes_seen} bytes seen, {self.bytes_written} written>"
        )

    # Life

    def __enter__(self) -> "Capture":  # noqa: PYI034 - Self needs Python 3.11
        global _running  # noqa: PLW0603 - to be found from anywhere, in any thread
        if self._recording is not None:
            raise RuntimeError("a capture can be entered only once")
        # All that can fail comes before anything is changed, and the file last: it takes the
        # place of an older one.
        self._sites = [Interception(target.module, target) for target in self._targets]
        self._writer = self._open() if self._open is not None else None
        self._recording = Recording(
            self._writer, self._trace, self._drop, self._losses, raising=self._raising
        )
        self._thread = threading.get_ident()
        with _running_lock:
            _running = (*_running, self)
        install(self._sites, self._recording)
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        global _running  # noqa: PLW0603
        with _running_lock:
            _running = tuple(capture for capture in _running if capture is not self)
        replaced = restore(self._sites)
        if not self._forked:  # else the file and the messages belong to the parent
            self._remark(replaced)
        self._targets, self._sites = [], []  # the models are not ours to keep
        if not self._forked:
            self._finish(failing=exc is not None)

    def append(self, name: str, obj: object) -> None:
        """Store an object, as `steal_append` does, in this very capture."""
        _check_text(name)
        if self._recording is not None and self.running and not torch.compiler.is_compiling():
            self._recording.append(name, obj)

    def entered_by(self, thread: int) -> bool:
        """Whether the thread with this identifier entered it."""
        return self._thread == thread

    def forget(self) -> None:
        """In a forked child: the file belongs to the parent. The forwards are put back at exit."""
        self._forked = True
        for site in self._sites:
            site.recorder = None

    def _remark(self, replaced: list[Interception]) -> None:
        """What there is to say of the modules."""
        replicated = [site for site in self._sites if site.replicated]
        traced = [site for site in self._sites if site.traced]
        # Whoever exports a model that also runs here has what they came for.
        exported = [] if self.calls else [site for site in self._sites if site.exported]
        way_out = "torch.compiler.set_stance('force_eager') runs the model without its graphs"
        for sites, text in (
            (replaced, "had a forward put in place by someone else, which is left so"),
            (replicated, "had replicas, whose calls are not recorded"),
            (
                exported,
                "were only exported or traced, which records nothing: run the model here too",
            ),
            (traced, f"ran inside a compiled graph, where calls are not recorded ({way_out})"),
        ):
            if sites:
                more = f" and {len(sites) - 1} more" if len(sites) > 1 else ""
                self._losses.remark(f"{sites[0].data.names[0].text!r}{more} {text}")

    def _finish(self, *, failing: bool) -> None:
        """Close the file; one warning of all that was not stored."""
        recording, writer = self._recording, self._writer
        if recording is not None and writer is not None:
            try:
                try:
                    recording.finishing(writer.records)
                finally:
                    writer.close()
                recording.finished()
            except Exception as error:
                if self._raising and not failing:
                    raise
                self._losses.remark(f"the file is not complete: {type(error).__name__}: {error}")
        self._tell(failing=failing)

    def _tell(self, *, failing: bool) -> None:
        """One warning of all that was not stored."""
        message = self._losses.message()
        if not message:
            return
        try:
            warnings.warn(f"{self._label()}: {message}", FaststealWarning, stacklevel=4)
        except FaststealWarning:
            # Warnings are errors here; the exception that is on its way is the one to see.
            if not failing:
                raise
            _logger.warning("%s: %s", self._label(), message)

    def _label(self) -> str:
        return "steal_forward" if self.path is None else f"steal_forward to {str(self.path)!r}"


def _check_text(name: object) -> None:
    if not isinstance(name, str):
        raise TypeError(f"name must be str, not {type(name).__name__}")


def _check_limit(name: str, limit: int | None) -> None:
    if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int)):
        raise TypeError(f"{name} must be an int (bytes) or None, not {type(limit).__name__}")
    if limit is not None and limit < 0:
        raise ValueError(f"{name} must not be negative, got {limit}")


def _checked_names(names: Collection[str] | None) -> frozenset[str]:
    if names is None:
        return frozenset()
    if isinstance(names, str) or not all(isinstance(name, str) for name in names):
        raise TypeError("dump_drop must be a set of names of keyword arguments")
    return frozenset(names)


def _after_fork() -> None:
    """In a forked child: the locks may be held by threads that are not there."""
    global _running, _running_lock
    for capture in _running:
        capture.forget()
    _running, _running_lock = (), threading.Lock()
    renew_lock()


os.register_at_fork(after_in_child=_after_fork)
