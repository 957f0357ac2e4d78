"""Which modules a capture watches, and under which names."""

import itertools
import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Final

import torch

__all__ = ["Name", "Target", "expand"]

_DEPTH: Final = " "  # a leading blank of a name indents the trace by one level


@dataclass(slots=True)
class Name:
    """A name that records go by; modules that share it share its counter.

    Attributes:
        text: As keys have it.
        prefix: What value names begin with: the text, or `.` for the root.
        escaped: The text inside a JSON string, quotes not included.
        indent: What its lines of the trace begin with.
        count: Gives the number of the next call.
    """

    text: str
    prefix: str
    escaped: str
    indent: str
    count: Callable[[], int] = field(default_factory=lambda: itertools.count().__next__)


@dataclass(slots=True)
class Target:
    """A module to watch.

    Attributes:
        module: Appears in one target only.
        names: Every name it goes by.
        class_name: For the trace.
        path: Class as `module:qualified name`.
        modes: JSON members of its records, by the modes that hold when it is called.
    """

    module: torch.nn.Module
    names: list[Name]
    class_name: str
    path: str
    modes: dict[tuple[bool, bool, bool, bool], str] = field(default_factory=dict)


def expand(model: Any, submodules: bool) -> list[Target]:
    """The modules that `steal_forward(model, submodules=…)` means.

    Args:
        model: A module, `(name, module)`, or a list of either.
        submodules: Whether each of them stands for itself and all modules below it.

    Raises:
        TypeError: `model` is none of these.
    """
    labelled: list[tuple[str, torch.nn.Module]] = []
    for label, module in _pairs(model):
        labelled += _below(label, module) if submodules else [(label, module)]
    names = _names(label for label, _ in labelled)
    targets: dict[int, Target] = {}
    for label, module in labelled:
        target = targets.get(id(module))
        if target is None:
            cls = type(module)
            path = f"{cls.__module__}:{cls.__qualname__}"
            target = targets[id(module)] = Target(module, [], cls.__name__, path)
        name = names[label.lstrip()]
        if all(name is not known for known in target.names):
            target.names.append(name)
    return list(targets.values())


def _pairs(model: Any) -> list[tuple[str, torch.nn.Module]]:
    """Label and module of each entry, checked."""
    entries = model if isinstance(model, list) else [model]
    pairs = []
    for entry in entries:
        label, module = entry if isinstance(entry, tuple) and len(entry) == 2 else ("", entry)
        if not isinstance(label, str) or not isinstance(module, torch.nn.Module):
            found = f"({type(label).__name__}, {type(module).__name__})"
            raise TypeError(
                "model must be a torch.nn.Module, a (name, module) pair, or a list of either; "
                f"found {found if isinstance(entry, tuple) else type(entry).__name__}"
            )
        pairs.append((label, module))
    return pairs


def _below(label: str, module: torch.nn.Module) -> list[tuple[str, torch.nn.Module]]:
    """A module and all those below it, shared ones under each of their names."""
    text = label.lstrip()
    blanks = label[: len(label) - len(text)]
    labelled = []
    for path, child in module.named_modules(remove_duplicate=False):
        depth = path.count(".") + 1 if path else 0
        name = f"{text}.{path}" if text and path else text or path
        labelled.append((blanks + _DEPTH * depth + name, child))
    return labelled


def _names(labels: Iterable[str]) -> dict[str, Name]:
    """A `Name` for each distinct label, by its text without indentation."""
    indents: dict[str, str] = {}
    for label in labels:
        text = label.lstrip()
        indents.setdefault(text, "  " * (len(label) - len(text)))
    names: dict[str, Name] = {}
    taken: set[str] = set()
    # A name that need not change keeps its text, whatever the order.
    for text in sorted(indents, key=lambda text: not text or not text.isprintable()):
        # A lone surrogate cannot be written to a file.
        base = prefix = text.encode("utf-8", "backslashreplace").decode() or "."
        number = 0
        while prefix in taken:
            number += 1
            prefix = f"{base}_{number}"
        taken.add(prefix)
        key = prefix if text else text
        names[text] = Name(key, prefix, json.dumps(key)[1:-1], indents[text])
    return names
