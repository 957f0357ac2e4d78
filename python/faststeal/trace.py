"""The trace: what was called with what, as lines on standard output.

The user asked for it (`verbose`, or no file to write to), so these lines are printed, not logged.
"""

import inspect
from collections.abc import Callable, Mapping
from typing import Any, Final

from faststeal.describe import string_type
from faststeal.targets import Name

__all__ = ["Trace", "printer_options"]

_POSITIONAL: Final = (
    inspect.Parameter.POSITIONAL_ONLY,
    inspect.Parameter.POSITIONAL_OR_KEYWORD,
    inspect.Parameter.VAR_POSITIONAL,
)
_KEYWORD: Final = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


def printer_options(fprint: Callable[..., object], options: Mapping[str, Any]) -> dict[str, Any]:
    """The keywords that `fprint` is called with, defaults included.

    Args:
        fprint: Called as `fprint(obj, with_shape=…, with_min_max=…, **options)`; a keyword that
            is ours alone is left out where it does not take it.
        options: What the user gave.

    Raises:
        TypeError: `fprint` cannot be called, or does not take one of the options.
    """
    if not callable(fprint):
        raise TypeError(f"fprint must be callable, not {type(fprint).__name__}")
    default = fprint is string_type
    ours: dict[str, Any] = {"with_shape": default, "with_min_max": False}
    if default:
        ours["ignore"] = True  # a type without a name must not break the model
    try:
        parameters = inspect.signature(fprint).parameters.values()
    except (TypeError, ValueError):  # a builtin that does not tell: believe the user
        return {**ours, **options}
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        return {**ours, **options}
    # The first positional parameter takes the object.
    first = next((p.name for p in parameters if p.kind in _POSITIONAL), None)
    names = [p.name for p in parameters if p.kind in _KEYWORD and p.name != first]
    name = getattr(fprint, "__name__", repr(fprint))
    for option in options:
        if option not in names:
            raise TypeError(
                f"steal_forward() got an unexpected keyword argument {option!r}; "
                f"fprint={name} takes {', '.join(names) or 'no keyword'}"
            )
    return {**{k: v for k, v in ours.items() if k in names}, **options}


class Trace:
    """Prints the steps of a capture.

    Args:
        fprint: Turns arguments and results into text.
        options: Keywords that it is called with, see `printer_options`.
    """

    def __init__(self, fprint: Callable[..., object], options: Mapping[str, Any]) -> None:
        self._fprint = fprint
        self._options = options
        self._dropped: list[str] = []

    def entered(
        self, name: Name, class_name: str, number: int, inputs: tuple[Any, dict[str, Any]]
    ) -> None:
        """A call begins, with `inputs` being `(args, kwargs)`."""
        what = f"stolen forward for class {class_name} -- iteration {number}"
        _say(f"{name.indent}+{name.text} -- {what}")
        args, kwargs = map(self._text, inputs)
        _say(f"{name.indent}  <- args={args} --- kwargs={kwargs}")

    def left(self, name: Name, result: object) -> None:
        """A call ends."""
        _say(f"{name.indent}  -> {self._text(result)}")
        _say(f"{name.indent}-{name.text}.")

    def output(self, name: str, iteration: int, size: int, result: object, stored: bool) -> None:
        """The output of a call, of `size` bytes, went to the file or did not."""
        verb = "stores" if stored else "skips"
        text = _shapes(result)
        _say(f"-- {verb} key={(name, iteration)!r}, size {size // 2**10}Kb -- {text}")

    def appended(self, name: str, unique: str, obj: object) -> None:
        """`steal_append` was called with `name`, and the object is kept as `unique`."""
        renamed = "" if unique == name else f" renamed in {unique!r}"
        _say(f"-- stolen {name!r}{renamed}: {_shapes(obj)}")

    def dropped(self, names: list[str]) -> None:
        """Arguments were left out of what is stored; told when the capture ends."""
        self._dropped += names

    def gathered(self, count: int, size: int) -> None:
        """The capture ends with `count` objects stored, of `size` bytes."""
        _say(f"-- gather stored {count} objects, size={size // 2**20} Mb")
        for name in self._dropped:
            _say(f"--- {name}")
        _say("-- dumps stored objects")

    def done(self) -> None:
        """The file is closed."""
        _say("-- done dump stored objects")

    def _text(self, obj: object) -> str:
        try:
            return str(self._fprint(obj, **self._options))
        except Exception as error:  # noqa: BLE001 - the user's printer must not break the model
            return f"{type(obj).__name__}(...)  # {type(error).__name__}: {error}"


def _shapes(obj: object) -> str:
    try:
        return string_type(obj, with_shape=True, ignore=True)
    except Exception as error:  # noqa: BLE001 - a line of the trace must not break the model
        return f"{type(obj).__name__}(...)  # {type(error).__name__}: {error}"


def _say(line: str) -> None:
    print(line)  # noqa: T201 - this is the trace
