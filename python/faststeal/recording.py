"""What happens at each call of a captured module."""

import functools
import json
import threading
import traceback
from collections.abc import Callable
from typing import Any, Final, TypeAlias, TypeVar

import torch

from faststeal._core import NotPlainError, Writer
from faststeal.dump import AnyKey, Key
from faststeal.intercept import Interception
from faststeal.losses import Losses
from faststeal.targets import Name, Target
from faststeal.trace import Trace
from faststeal.tree import Flat, flatten, flatten_call

__all__ = ["Recording"]

_T = TypeVar("_T")

_TEXT_LIMIT: Final = 10_000  # characters of an exception that are kept

# The functions below the public ones, which are asked for every call: the first answers for all
# kinds of device at once. In a backward pass (of which the last one tells), a forward is computed
# once more.
_any_autocast: Callable[[], bool] = torch._C._is_any_autocast_enabled  # noqa: SLF001
_deterministic: Callable[[], bool] = torch._C._get_deterministic_algorithms  # noqa: SLF001
_graph_task: Callable[[], int] = torch._C._current_graph_task_id  # noqa: SLF001
_function_modes: Callable[[], int] = torch._C._len_torch_function_stack  # noqa: SLF001


def _unseen(function: Callable[..., _T], *args: Any) -> _T:
    """Call a function that the user's modes are to see nothing of."""
    with torch._C.DisableTorchFunction():  # noqa: SLF001
        return function(*args)


class _Thread:
    """What is known of one thread.

    Attributes:
        calls: Captured calls so far, each under each of its names.
        busy: Our own code runs; what it calls is not to be captured.
        info: JSON member that every record of this thread has.
        stack: The captured calls that are running, the outermost first.
    """

    __slots__ = ("busy", "calls", "info", "stack")

    def __init__(self) -> None:
        ident = threading.get_ident()
        # Not `current_thread()`, which registers threads that Python did not start.
        names = [thread.name for thread in threading.enumerate() if thread.ident == ident]
        self.info = '"thread":' + json.dumps(names[0] if names else str(ident))
        self.busy = False
        self.calls = 0
        self.stack: list[tuple[Name, int]] = []


class _PerThread(threading.local):
    def __init__(self, threads: list[_Thread]) -> None:
        self.state = _Thread()
        threads.append(self.state)


# One call that is being captured: its thread, its number under each name of the module, and the
# JSON members of its records. A plain tuple, since one is made for every call.
_Numbers: TypeAlias = list[tuple[Name, int]]
_Call: TypeAlias = tuple[_Thread, _Numbers, str]


class Recording:
    """Writes and prints the calls of the modules that it is the recorder of.

    Args:
        writer: Where records go; None to print only.
        trace: Prints; None for silence.
        drop: Names of keyword arguments that are not stored.
        losses: Told of what could not be stored.
        raising: Errors of storing go to the model's caller.
    """

    def __init__(
        self,
        writer: Writer | None,
        trace: Trace | None,
        drop: frozenset[str],
        losses: Losses,
        *,
        raising: bool,
    ) -> None:
        self._writer = writer
        self._trace = trace
        self._drop = drop
        self._losses = losses
        self._raising = raising
        self._threads: list[_Thread] = []
        self._here = _PerThread(self._threads)
        self._lock = threading.Lock()
        self._appended: dict[str, int] = {}  # names, and how often each was asked for
        self._prefixes = {"faststeal_format"}  # the file's own value
        self._traced_bytes = 0

    @property
    def calls(self) -> int:
        """Captured calls so far, each under each of its names."""
        return sum(thread.calls for thread in self._threads)

    # The three moments of a call

    def begin(
        self, site: Interception, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> _Call | None:
        """Number the call, and record its inputs."""
        thread = self._here.state
        if thread.busy or _graph_task() != -1:
            return None
        target: Target = site.data
        # Counting is atomic; a lock would cost as much as all the rest.
        numbers = [(name, name.count()) for name in target.names]
        thread.calls += len(numbers)
        thread.busy = True
        try:
            info = _info(target, thread)
            if self._trace is not None:
                self._trace_inputs(numbers, target, args, kwargs)
            if self._writer is not None:
                if self._drop and not self._drop.isdisjoint(kwargs):
                    kwargs = self._without_dropped(kwargs)
                self._store(self._writer, numbers, "I", info, flatten_call, args, kwargs)
        finally:
            thread.busy = False
        # Last, so that an error that is raised leaves no call behind.
        thread.stack.append(numbers[0])
        return thread, numbers, info

    def end(self, call: _Call, result: object) -> None:
        """Record the output."""
        thread, numbers, info = call
        thread.stack.pop()
        thread.busy = True
        try:
            if self._trace is not None:
                self._trace_output(numbers, result)
            if self._writer is not None:
                self._store(self._writer, numbers, "O", info, flatten, result)
        finally:
            thread.busy = False

    def failed(self, call: _Call, error: BaseException) -> None:
        """Record what was raised, as text: the exception itself would keep its frames alive."""
        thread, numbers, info = call
        thread.stack.pop()
        if self._writer is None:
            return
        thread.busy = True
        try:
            self._store(self._writer, numbers, "E", info, flatten, _exception_text(error))
        except Exception as failure:  # noqa: BLE001 - the model's exception is the one to see
            self._losses.remark(f"an exception was not recorded: {failure}")
        finally:
            thread.busy = False

    def append(self, name: str, obj: object) -> None:
        """Record an object under a name of its own."""
        thread = self._here.state
        if thread.busy:
            return
        unique = self._unique(name)
        thread.busy = True
        try:
            if self._trace is not None:
                self._guarded(self._trace.appended, name, unique.text, obj)
            if self._writer is not None:
                numbers = [(unique, 0)]
                self._store(self._writer, numbers, "A", _place(thread), flatten, obj)
        finally:
            thread.busy = False

    # Storing

    def _store(
        self,
        writer: Writer,
        numbers: _Numbers,
        kind: str,
        info: str,
        flatten_as: Callable[..., Flat],
        *objects: Any,
    ) -> None:
        """Write a record for each name; what goes wrong is raised or noted, as the user wishes."""
        flat: Flat | None = None
        # The core asks tensors for what DLPack does not tell.
        write = functools.partial(_unseen, writer.write) if _function_modes() else writer.write
        for name, number in numbers:
            text = name.text
            key = f"{text}/{number}/{kind}"
            prefix = name.prefix
            if kind != "A":
                prefix = key if prefix == text else f"{prefix}/{number}/{kind}"
            try:
                if flat is None:
                    flat = flatten_as(*objects)
                try:
                    reason = write(
                        key, prefix, flat.tree, flat.paths, flat.tensors, info, flat.leaves
                    )
                except NotPlainError:
                    flat = flatten_as(*objects, careful=True)
                    reason = write(
                        key, prefix, flat.tree, flat.paths, flat.tensors, info, flat.leaves
                    )
            except Exception as error:
                if writer.closed:
                    return  # the capture ended in another thread meanwhile
                if self._raising:
                    raise
                self._losses.lose(_key(name, number, kind), error)
                continue
            if reason is not None or flat.notes or self._trace is not None:
                self._account(_key(name, number, kind), flat, reason, objects[0])

    def _account(self, key: AnyKey, flat: Flat, reason: str | None, obj: object) -> None:
        """Take note of a record that was written, or skipped for a reason."""
        if reason is not None:
            self._losses.skip(key, reason)
        elif flat.notes:
            self._losses.describe(key, flat.notes)
        if self._trace is None:
            return
        size = sum(tensor.nbytes for tensor in flat.tensors)
        if reason is None:
            with self._lock:
                self._traced_bytes += size
        if isinstance(key, Key) and key.kind == "O":
            stored = reason is None
            self._guarded(self._trace.output, key.name, key.iteration, size, obj, stored)

    def _without_dropped(self, kwargs: dict[str, Any]) -> dict[str, Any]:
        if self._trace is not None:
            self._trace.dropped([name for name in kwargs if name in self._drop])
        return {name: value for name, value in kwargs.items() if name not in self._drop}

    def _unique(self, name: str) -> Name:
        """A name for an object that is appended: `name`, or `name_1` and so on."""
        base = text = name.encode("utf-8", "backslashreplace").decode()
        with self._lock:
            number = self._appended.get(base, 0)
            while text in self._appended:
                number += 1
                text = f"{base}_{number}"
            self._appended[base] = number
            self._appended.setdefault(text, 0)
            # Value names of calls have two slashes or more, these at most one: no clash with them.
            stem = prefix = text.replace("/", "%2F") or "."
            number = 0
            while prefix in self._prefixes:
                number += 1
                prefix = f"{stem}_{number}"
            self._prefixes.add(prefix)
        return Name(text, prefix, "", "")

    # Printing

    def _trace_inputs(
        self, numbers: _Numbers, target: Target, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        if self._trace is not None:
            for name, number in numbers:
                inputs = args, kwargs
                self._guarded(self._trace.entered, name, target.class_name, number, inputs)

    def _trace_output(self, numbers: _Numbers, result: object) -> None:
        if self._trace is not None:
            for name, _ in numbers:
                self._guarded(self._trace.left, name, result)

    def finishing(self, count: int) -> None:
        """The trace says that the file of `count` records is about to be closed."""
        if self._trace is not None:
            self._guarded(self._trace.gathered, count, self._traced_bytes)

    def finished(self) -> None:
        """The trace says that it is closed."""
        if self._trace is not None:
            self._guarded(self._trace.done)

    def _guarded(self, printer: Callable[..., None], *args: object) -> None:
        """Call `printer`; a pipe that is broken must not cost a record."""
        try:
            printer(*args)
        except Exception as error:
            if self._raising:
                raise
            self._losses.remark(f"the trace is not complete: {type(error).__name__}: {error}")


def _key(name: Name, number: int, kind: str) -> AnyKey:
    return name.text if kind == "A" else Key(name.text, number, kind)


def _info(target: Target, thread: _Thread) -> str:
    """JSON members of a call: what it is a call of, under which modes, and where."""
    modes = (
        target.module.training is True,
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
        _deterministic(),
    )
    text = target.modes.get(modes)
    if text is None:
        text = target.modes[modes] = _modes_text(target, *modes)
    return f"{text}{_autocast_text() if _any_autocast() else ''},{_place(thread)}"


def _place(thread: _Thread) -> str:
    if not thread.stack:
        return thread.info
    name, number = thread.stack[-1]
    return f'{thread.info},"parent":"{name.escaped}/{number}"'


# Of few classes, each with many modules.
_quoted = functools.lru_cache(maxsize=1000)(json.dumps)


def _modes_text(
    target: Target, training: bool, grad: bool, inference: bool, deterministic: bool
) -> str:
    text = f'"class":{_quoted(target.path)},"training":{"true" if training else "false"}'
    text += ',"grad":true' if grad else ',"grad":false'
    if inference:
        text += ',"inference":true'
    return text + (',"deterministic":true' if deterministic else "")


def _autocast_text() -> str:
    devices = [d for d in ("cpu", "cuda", "xpu", "mps") if torch.is_autocast_enabled(d)]
    dtypes = {str(torch.get_autocast_dtype(device)).removeprefix("torch.") for device in devices}
    return f',"autocast":{json.dumps(",".join(sorted(dtypes)))}'


def _exception_text(error: BaseException) -> str:
    """Type and message; whatever the exception's own code does."""
    try:
        text = "".join(traceback.format_exception_only(type(error), error)).strip()
    except Exception:  # noqa: BLE001 - a broken __str__
        text = type(error).__name__
    return text[:_TEXT_LIMIT]
