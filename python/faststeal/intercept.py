"""Replace the `forward` of a module, and put back what was there.

The attribute that is set on the instance is a *bound method*: it pickles, deep copies are bound to
the copy, and `torch.export` finds the code it looks for. It carries the signature of what it
replaces but no `__wrapped__`, since other libraries follow that one to strip what they take for
their own wrapper. Nothing else is left on the module.
"""

import functools
import inspect
import sys
import threading
import weakref
from collections.abc import Callable, Iterable
from types import CodeType, FunctionType, MethodType
from typing import Any, Final, Protocol, TypeAlias

import torch

__all__ = ["Interception", "Recorder", "install", "restore"]

_MARK: Final = "_faststeal"
_ABSENT: Final = object()
_lock = threading.RLock()

# What calls `forward` in `module(...)`: the method itself or, where there are hooks, a function
# inside of it.
_CALL: Final[CodeType] = torch.nn.Module._call_impl.__code__  # noqa: SLF001
_CALL_HOOKED: Final = next(
    (c for c in _CALL.co_consts if isinstance(c, CodeType) and c.co_name == "inner"), _CALL
)


class Recorder(Protocol):
    """What is told of the calls of an intercepted module."""

    def begin(
        self, site: "Interception", args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> object | None:
        """Before the forward runs. `None` means: leave this call alone."""

    def end(self, call: Any, result: object) -> None:
        """After the forward returned; `call` is what `begin` returned."""

    def failed(self, call: Any, error: BaseException) -> None:
        """After the forward raised. The error goes on to the caller in any case."""


class Interception:
    """The replaced `forward` of one module, on behalf of one recorder.

    Args:
        module: Whose forward is to be replaced. Nothing happens before `install`.
        data: Whatever the recorder wants to find again with each call.

    Attributes:
        recorder: Told of each call. None before `install` and after `restore`: calls pass through.
        original: What ran before, and still runs.
        saved: What the module's `__dict__` held, if anything.
        bound: What takes its place.
        traced: Whether the forward became part of a compiled graph, where nobody is told of calls.
        exported: Whether `torch.export` or `torch.jit.trace` went through it, likewise.
        replicated: Whether replicas of the module (of DataParallel) were called, likewise.
    """

    __slots__ = (
        "bound",
        "data",
        "exported",
        "module",
        "original",
        "recorder",
        "replicated",
        "saved",
        "traced",
    )

    def __init__(self, module: torch.nn.Module, data: Any = None) -> None:
        self.module = module
        self.data = data
        self.recorder: Recorder | None = None
        self.traced = False
        self.exported = False
        self.replicated = False
        self.take()

    def take(self) -> None:
        """Look at what is to be replaced, and prepare the replacement."""
        namespace = self.module.__dict__
        self.saved: object = namespace.get("forward", _ABSENT)
        self.original: Callable[..., Any] = self.module.forward
        if self.saved is _ABSENT:
            namespace.pop("forward", None)  # a scripted module keeps what was looked up
        self.bound = MethodType(_replacement(self), self.module)


def install(sites: Iterable[Interception], recorder: Recorder) -> None:
    """Replace the forward of each site, and tell `recorder` of its calls from now on."""
    with _lock:
        for site in sites:
            namespace = site.module.__dict__
            if namespace.get("forward", _ABSENT) is not site.saved:
                site.take()  # another thread was faster
            site.recorder = recorder
            namespace["forward"] = site.bound


def restore(sites: Iterable[Interception]) -> list[Interception]:
    """Put back what was there; calls pass through from now on.

    Captures may end in any order: what is put back is never the replacement of one that is over.

    Returns:
        The sites whose forward someone else replaced meanwhile; theirs is left in place.
    """
    with _lock:
        return [site for site in sites if not _put_back(site)]


def renew_lock() -> None:
    """In a forked child: another thread of the parent may have held the lock for ever."""
    global _lock  # noqa: PLW0603
    _lock = threading.RLock()


def _put_back(site: Interception) -> bool:
    site.recorder = None
    namespace = site.module.__dict__
    current = namespace.get("forward", _ABSENT)
    saved = _resolve(site.saved)
    if current is site.bound:
        if saved is _ABSENT:
            del namespace["forward"]
        else:
            namespace["forward"] = saved
        return True
    if current is saved:
        return True
    # A capture that began later is still on top, and resolves ours when it ends.
    while (above := _site_of(current)) is not None:
        current = above.saved
        if current is site.bound:
            return True
    return False


def _resolve(saved: object) -> object:
    """What `saved` stands for, once the captures that are over are taken away."""
    while (site := _site_of(saved)) is not None and site.recorder is None:
        saved = site.saved
    return saved


def _site_of(forward: object) -> Interception | None:
    """The interception that `forward` is the replacement of."""
    if isinstance(forward, MethodType):
        site = getattr(forward.__func__, _MARK, None)
        if isinstance(site, Interception) and site.bound is forward:
            return site
    return None


def _replacement(site: Interception) -> FunctionType:  # noqa: C901 - three closures in one
    module, original = site.module, site.original
    is_compiling: Callable[[], bool] = torch.compiler.is_compiling
    is_tracing: Callable[[], bool] = torch.jit.is_tracing  # type: ignore[attr-defined]
    frame_at = sys._getframe  # noqa: SLF001

    def note() -> None:
        if torch.compiler.is_exporting():
            site.exported = True
        else:
            site.traced = True

    # What `torch.compiler.assume_constant_result` does, which would import the whole compiler:
    # the function runs while the graph is traced, and leaves nothing in it.
    note._dynamo_marked_constant = True  # type: ignore[attr-defined]  # noqa: SLF001

    def unrecorded(self: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if args and args[0] is self:
            args = args[1:]
        if self is module:
            return original(*args, **kwargs)
        return _own_forward(site, self)(*args, **kwargs)

    def forward(self: torch.nn.Module, /, *args: Any, **kwargs: Any) -> Any:
        # torch.jit.script cannot compile a captured forward: script the model before, or after.
        # While any other graph is traced, this must be nothing but the call.
        if is_compiling():
            note()
            return unrecorded(self, args, kwargs)
        frame = frame_at(1)
        if frame.f_code is _CALL or frame.f_code is _CALL_HOOKED:
            # A replica or a shallow copy has this very method, bound to what it was made from.
            if frame.f_locals["self"] is not self:
                self = _called(site, self, frame.f_locals["self"])
        elif is_tracing():  # while tracing, a module is not called from there
            site.exported = True
            return unrecorded(self, args, kwargs)
        recorder = site.recorder
        if recorder is None or self is not module:
            return unrecorded(self, args, kwargs)
        if args and args[0] is self:
            # Someone took the bound method for a function, and bound it once more.
            args = args[1:]
        call = recorder.begin(site, args, kwargs)
        if call is None:
            return original(*args, **kwargs)
        try:
            result = original(*args, **kwargs)
        except BaseException as error:
            recorder.failed(call, error)
            raise
        recorder.end(call, result)
        return result

    _dress(forward, original)
    setattr(forward, _MARK, site)
    return forward  # type: ignore[return-value]


def _called(site: Interception, bound_to: torch.nn.Module, caller: object) -> torch.nn.Module:
    """Which module was called: `caller` if it has the method by a copy of our `__dict__`."""
    if isinstance(caller, torch.nn.Module) and caller.__dict__.get("forward") is site.bound:
        site.replicated = site.replicated or getattr(caller, "_is_replica", False)
        return caller
    return bound_to


def _own_forward(site: Interception, module: torch.nn.Module) -> Callable[..., Any]:
    """The original forward as it is for a copy of the module."""
    original = site.original
    if isinstance(original, MethodType) and original.__self__ is site.module:
        return MethodType(original.__func__, module)
    if isinstance(original, functools.partial):
        args = [module if a is site.module else a for a in original.args]
        return functools.partial(original.func, *args, **original.keywords)
    return original


def _dress(function: Callable[..., Any], original: Callable[..., Any]) -> None:
    """Make `function`, once bound, look like `original`."""
    for name in ("__module__", "__name__", "__qualname__", "__doc__"):
        value = getattr(original, name, None)
        if value is not None or name == "__doc__":
            setattr(function, name, value)
    try:
        function.__annotations__ = dict(original.__annotations__)
    except (AttributeError, NameError, TypeError):  # none, or names that are not defined (yet)
        function.__annotations__ = {}
    signature = _unbound_signature(original)
    if signature is not None:
        function.__signature__ = signature  # type: ignore[attr-defined]


_Seen: TypeAlias = tuple[object, object, object, inspect.Signature]
_signatures: "weakref.WeakKeyDictionary[FunctionType, _Seen]" = weakref.WeakKeyDictionary()


def _unbound_signature(original: Callable[..., Any]) -> inspect.Signature | None:
    """The signature of `original` with a first parameter for the module; None if it has none.

    Modules of a class share theirs: looking at it costs more than all else that entering does.
    """
    plain = original.__func__ if isinstance(original, MethodType) else None
    if not isinstance(plain, FunctionType) or plain.__dict__:
        return _with_module(original)
    parts = plain.__code__, plain.__defaults__, plain.__kwdefaults__
    seen = _signatures.get(plain)
    if seen is not None and all(a is b for a, b in zip(seen, parts, strict=False)):
        return seen[3]
    signature = _with_module(original)
    if signature is not None:
        _signatures[plain] = (*parts, signature)
    return signature


def _with_module(original: Callable[..., Any]) -> inspect.Signature | None:
    try:
        signature = inspect.signature(original)
    except (TypeError, ValueError):  # compiled or scripted: it has none to keep
        return None
    names = set(signature.parameters)
    first = next(n for n in ("self", "_self", "__self") if n not in names)
    bound = inspect.Parameter(first, inspect.Parameter.POSITIONAL_ONLY)
    return signature.replace(parameters=[bound, *signature.parameters.values()])
