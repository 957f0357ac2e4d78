"""One line of text for any object: types, element types, shapes, and what else is asked for.

The grammar is that of onnx-diagnostic's `string_type`, so that traces of both can be compared:
`T1s2x3` is a tensor of element type 1 (the integer of `onnx.TensorProto`) and shape (2, 3).

A description is made at each call of a traced module: nothing is imported here, classes of optional
packages are known by their names.
"""

import contextlib
import dataclasses
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, TypeAlias

import numpy as np
import torch
from torch._C import DisableTorchFunction
from torch.export.dynamic_shapes import _DerivedDim, _DimHint
from torch.utils import _pytree

from faststeal.classes import Opaque, StoredDict, by_class
from faststeal.elements import array_range, element_code, sizes, tensor_range
from faststeal.tensors import unseen

__all__ = ["string_type"]


def string_type(  # noqa: PLR0913, PLR0917 - the signature that callers know
    obj: Any,
    with_shape: bool = False,
    with_min_max: bool = False,
    with_device: bool = False,
    ignore: bool = False,
    limit: int = 20,
    verbose: int = 0,  # noqa: ARG001 - taken for the callers of onnx-diagnostic's, who trace it
) -> str:
    """Describe an object in one line.

    ```
    CT1s2x3[0.5,6.5:A3.5]
    |||  |   |   |   +-- mean
    |||  |   +---+------ smallest and greatest element     (with_min_max)
    |||  +-------------- shape; r2 is the rank             (with_shape)
    ||+----------------- element type, by onnx.TensorProto
    |+------------------ T tensor, A numpy array, F fake tensor
    +------------------- C cpu, G any other device         (with_device)
    ```

    Args:
        obj: Anything.
        with_shape: Shapes of tensors in place of their ranks.
        with_min_max: Values of numbers, and the range and mean of tensors.
        with_device: Where tensors are.
        ignore: Whether objects of which nothing is known become `ClassName(...)`. Nothing is raised
            then, whatever the object does.
        limit: Sequences of this length and more show their first item only.
        verbose: Has no effect.

    Raises:
        TypeError: Nothing is known of a class, and `ignore` is false.
    """
    printer = _Printer(with_shape, with_min_max, with_device, ignore, limit)
    try:
        with DisableTorchFunction():  # modes and subclasses of the user's see nothing of this
            return printer.text(obj)
    except RecursionError:
        if not ignore:
            raise
        return _unknown(printer, obj)


class _Printer:
    """What is asked for, and the way to the description of a part."""

    __slots__ = ("device", "ignore", "limit", "min_max", "shape")

    def __init__(self, shape: bool, min_max: bool, device: bool, ignore: bool, limit: int) -> None:
        self.shape = shape
        self.min_max = min_max
        self.device = device
        self.ignore = ignore
        self.limit = max(limit, 1)

    def text(self, obj: object) -> str:
        """Describe an object that may be a part of another."""
        try:
            cls = type(obj)
            known = _EXACT.get(cls) or _by_base(cls) or _by_name(cls, obj)
            return known(self, obj)
        except RecursionError:  # here it would be met again at each level
            raise
        except Exception:
            if not self.ignore:
                raise
            return _unknown(self, obj)

    def items(self, items: Iterable[object]) -> str:
        """Describe parts, one after the other."""
        return ",".join([self.text(item) for item in items])

    def pairs(self, pairs: Mapping[Any, Any]) -> str:
        """Describe names or keys, as they are, and values."""
        return ",".join([f"{key}:{self.text(value)}" for key, value in pairs.items()])

    def suffix(self, dtype: str, shape: Iterable[object]) -> str:
        """Write an element type, and a shape or rank."""
        if self.shape:
            return f"{dtype}s{'x'.join(map(str, shape))}"
        return f"{dtype}r{len(tuple(shape))}"


_Describer: TypeAlias = Callable[[_Printer, Any], str]

_class_name: Final[Callable[[type], str]] = type.__dict__["__name__"].__get__


def _unknown(_printer: _Printer, obj: object) -> str:
    return f"{_class_name(type(obj))}(...)"


def _refuse(printer: _Printer, obj: object) -> str:
    if printer.ignore:
        return _unknown(printer, obj)
    cls = type(obj)
    raise TypeError(
        f"no description for objects of class {cls.__module__}.{cls.__qualname__}; "
        f"ignore=True makes it {_class_name(cls)}(...)"
    )


# Scalars


def _fixed(text: str) -> _Describer:
    return lambda _printer, _obj: text


def _number(kind: str) -> _Describer:
    return lambda printer, obj: f"{kind}={obj}" if printer.min_max else kind


def _with_class(_printer: _Printer, obj: object) -> str:
    return f"{_class_name(type(obj))}({obj})"


# Containers


def _all_numbers(items: Iterable[object]) -> bool:
    return all(isinstance(item, int | float) for item in items)


def _mean(items: Iterable[float]) -> float:
    numbers = [float(item) for item in items]
    return sum(numbers) / len(numbers)


def _tuple(printer: _Printer, obj: tuple[Any, ...]) -> str:
    n = len(obj)
    if n == 1:
        return f"({printer.text(obj[0])},)"
    if n < printer.limit:
        return f"({printer.items(obj)})"
    first = f"#{n}({printer.text(obj[0])},...)"
    if printer.min_max and _all_numbers(obj):
        return f"{first}[{min(obj)},{max(obj)}:A[{_mean(obj)}]]"
    return first


def _list(printer: _Printer, obj: list[Any]) -> str:
    n = len(obj)
    if n < printer.limit:
        return f"#{n}[{printer.items(obj)}]"
    first = f"#{n}[{printer.text(obj[0])},...]"
    if printer.min_max and _all_numbers(obj):
        return f"{first}[{min(obj)},{max(obj)}:{_mean(obj)}]"
    return first


_LONG_SET: Final = 10


def _set(printer: _Printer, obj: set[Any]) -> str:
    n = len(obj)
    if n < _LONG_SET:
        return f"{{{printer.items(obj)}}}"
    if printer.min_max and _all_numbers(obj):
        return f"{{...}}#{n}[{min(obj)},{max(obj)}:A{_mean(obj)}]"
    return f"{{...}}#{n}" if printer.shape else "{...}"


def _dict(printer: _Printer, obj: dict[Any, Any]) -> str:
    if not obj:
        return "{}"
    if all(isinstance(key, int) for key in obj):
        if all(isinstance(value, str | torch.export.Dim | _DimHint) for value in obj.values()):
            return f"{{{_dynamic_shape(obj)}}}"
        return f"{{{printer.pairs(obj)}}}"
    return f"dict({printer.pairs(obj)})"


def _dynamic_shape(axes: dict[int, Any]) -> str:
    """Describe axes that `torch.export` is told to keep dynamic: numbers, and names or `Dim`."""
    plain = _Printer(False, False, False, False, 1)
    return ",".join(
        f"{axis}:{f'DYN({dim})' if isinstance(dim, str) else plain.text(dim)}"
        for axis, dim in axes.items()
    )


def _dataclass(printer: _Printer, obj: Any) -> str:
    values = {field.name: getattr(obj, field.name, None) for field in dataclasses.fields(obj)}
    given = {name: value for name, value in values.items() if value is not None}
    name = _class_name(type(obj))
    return f"{name}({printer.pairs(given)})" if given else name


def _stored_dict(printer: _Printer, obj: StoredDict) -> str:
    return f"{_short(obj.class_name)}({printer.pairs(obj)})"


def _opaque(_printer: _Printer, obj: Opaque) -> str:
    return f"{_short(obj.class_name)}(...)"


def _short(class_name: str) -> str:
    return class_name.rpartition(":")[2].rpartition(".")[2]


def _registered(printer: _Printer, obj: object) -> str:
    """Describe an object of a class that pytree can flatten."""
    return f"{_class_name(type(obj))}[serialized]({printer.text(_children(obj))})"


def _children(obj: Any) -> Any:
    """Nested lists of what pytree finds in an object."""
    if isinstance(obj, tuple | list):
        return [_children(item) for item in obj]
    node = _pytree.SUPPORTED_NODES.get(type(obj))
    return [_children(item) for item in node.flatten_fn(obj)[0]] if node else obj


# Tensors and arrays


def _tensor(printer: _Printer, obj: torch.Tensor, letter: str = "T") -> str:
    place = ("G" if obj.get_device() >= 0 else "C") if printer.device else ""
    text = f"{place}{letter}{printer.suffix(element_code(obj.dtype), sizes(obj))}"
    if printer.min_max:
        # Some element types and layouts have no arithmetic, some tensors no values.
        with contextlib.suppress(Exception), torch.no_grad(), unseen():
            return text + tensor_range(obj.detach())
    return text


def _fake_tensor(printer: _Printer, obj: torch.Tensor) -> str:
    text = _Printer(printer.shape, False, printer.device, printer.ignore, printer.limit)
    return _tensor(text, obj, "F")


def _symbolic_tensor(printer: _Printer, obj: Any) -> str:
    place = ("G" if obj.get_device() >= 0 else "C") if printer.device else ""
    return f"{place}ST{printer.suffix(element_code(obj.dtype), obj.shape)}"


def _array(printer: _Printer, obj: np.ndarray) -> str:
    text = f"A{printer.suffix(element_code(obj.dtype.type), obj.shape)}"
    if printer.min_max:
        # Text, dates, objects, structures.
        with contextlib.suppress(Exception):
            return text + array_range(obj)
    return text


def _ort_value(printer: _Printer, obj: Any) -> str:
    if not obj.has_value():
        return "OV(<novalue>)"
    if not obj.is_tensor():
        return "OV(NOTENSOR)"
    if printer.min_max:  # its values are not read
        return "OV(NO-NUMPY:FIXIT)"
    place = ("C" if obj.device_name().lower() == "cpu" else "G") if printer.device else ""
    return f"{place}OV{printer.suffix(str(obj.element_type()), obj.shape())}"


# Caches


def _states(obj: Any, name: str) -> list[object]:
    """Keys or values of each layer that has any."""
    if not hasattr(obj, "layers"):  # transformers before 4.54
        return list(getattr(obj, f"{name.removesuffix('s')}_cache"))
    found = [(getattr(layer, "keys", None), getattr(layer, "values", None)) for layer in obj.layers]
    at = 0 if name == "keys" else 1
    return [pair[at] for pair in found if pair[0] is not None and pair[1] is not None]


def _cache(printer: _Printer, obj: Any) -> str:
    keys, values = (printer.text(_states(obj, name)) for name in ("keys", "values"))
    return f"{_class_name(type(obj))}(key_cache={keys}, value_cache={values})"


def _dynamic_cache(printer: _Printer, obj: Any) -> str:
    layers = getattr(obj, "layers", ())
    if all(_class_name(type(layer)) == "DynamicLayer" for layer in layers):
        return _cache(printer, obj)
    return f"{_class_name(type(obj))}({', '.join(_layer(printer, layer) for layer in layers)})"


def _layer(printer: _Printer, layer: Any) -> str:
    # Layers of linear attention have the latter, dicts of states by number; some have all four.
    names = ("keys", "values", "conv_states", "recurrent_states")
    parts = [getattr(layer, name) for name in names if hasattr(layer, name)]
    return f"{_class_name(type(layer))}({', '.join(map(printer.text, parts))})"


def _parts(*names: str) -> _Describer:
    """Make the describer of a class that is told by its attributes."""

    def describe(printer: _Printer, obj: object) -> str:
        parts = [f"{name}={printer.text(getattr(obj, name))}" for name in names]
        return f"{_class_name(type(obj))}({', '.join(parts)})"

    return describe


def _static_layer(printer: _Printer, obj: Any) -> str:
    keys, values = (
        printer.text(None if state is None else list(state)) for state in (obj.keys, obj.values)
    )
    return f"{_class_name(type(obj))}(keys={keys}, values={values})"


def _key_values(printer: _Printer, obj: Any) -> str:
    return f"{_class_name(type(obj))}[{obj.cache_type}]{printer.text(list(obj))}"


# Classes of torch, onnx and others


def _dim_hint(_printer: _Printer, obj: object) -> str:
    if obj == torch.export.Dim.DYNAMIC:
        return "DYNAMIC"
    return "AUTO" if obj == torch.export.Dim.AUTO else str(obj)


def _dim(_printer: _Printer, obj: torch.export.Dim) -> str:
    return "DerivedDim" if isinstance(obj, _DerivedDim) else f"Dim({obj.__name__})"


def _tree_spec(_printer: _Printer, obj: object) -> str:
    return repr(obj).replace(" ", "").replace("\n", " ")


def _graph_node(printer: _Printer, obj: Any) -> str:
    return f"%{obj.target}" if hasattr(obj, "meta") else _refuse(printer, obj)


def _value_info(_printer: _Printer, obj: Any) -> str:
    return f"OT{obj.type.tensor_type.elem_type}"


def _virtual_tensor(_printer: _Printer, obj: Any) -> str:
    shape = tuple(size if isinstance(size, int) else str(size) for size in obj.shape)
    return f"{_class_name(type(obj))}(name={obj.name!r}, dtype={obj.dtype}, shape={shape})"


def _configuration(printer: _Printer, obj: Any) -> str:
    if printer.ignore:
        return _unknown(printer, obj)
    text = str(obj.to_diff_dict()).replace("\n", "").replace(" ", "")
    return f"{_class_name(type(obj))}(**{text})"


def _chat(printer: _Printer, obj: Any) -> str:
    return _unknown(printer, obj) if printer.ignore else f"Chat({printer.text(obj.messages)})"


def _results(printer: _Printer, obj: object) -> str:
    return f"{'' if printer.ignore else 'ultralytics.'}{_unknown(printer, obj)}"


def _as_text(printer: _Printer, obj: object) -> str:
    return _unknown(printer, obj) if printer.ignore else str(obj)


# Which class is described how

_EXACT: Final[dict[type, _Describer]] = {
    torch.Tensor: _tensor,
    torch.nn.Parameter: _tensor,
    tuple: _tuple,
    list: _list,
    dict: _dict,
    type(None): _fixed("None"),
    bool: _number("bool"),
    int: _number("int"),
    float: _number("float"),
    str: _fixed("str"),
    np.ndarray: _array,
    StoredDict: _stored_dict,
    Opaque: _opaque,
}
# The first that fits. A tuple is a tuple, whatever its class; a dict is not.
_BASES: Final[tuple[tuple[type, _Describer], ...]] = (
    (tuple, _tuple),
    (list, _list),
    (set, _set),
    (np.ndarray, _array),
    (torch.export.Dim, _dim),
    (torch.SymInt, _fixed("SymInt")),
    (torch.SymFloat, _fixed("SymFloat")),
    (_DimHint, _dim_hint),
    (bool, _number("bool")),
    (int, _number("int")),
    (float, _number("float")),
    (str, _fixed("str")),
    (slice, _fixed("slice")),
    (_pytree.TreeSpec, _tree_spec),
)
_LATER_BASES: Final[tuple[tuple[type, _Describer], ...]] = (
    (torch.Tensor, _tensor),
    (torch.nn.Module, _unknown),
    (torch.device, _with_class),
    (torch.dtype, _with_class),
    (torch.memory_format, _with_class),
    (torch.layout, _with_class),
    (torch.fx.Proxy, lambda _printer, obj: repr(obj)),
)
_NAMES: Final[dict[str, _Describer]] = {
    "FakeTensor": _fake_tensor,
    "OrtValue": _ort_value,
    "SymbolicTensor": _symbolic_tensor,
    "MambaCache": _parts("conv_states", "ssm_states"),
    "DynamicCache": _dynamic_cache,
    "SlidingWindowCache": _cache,
    "StaticCache": _cache,
    "HybridCache": _cache,
    "StaticLayer": _static_layer,
    "DynamicLayer": _parts("keys", "values"),
    "EncoderDecoderCache": _parts("self_attention_cache", "cross_attention_cache"),
    "KeyValuesWrapper": _key_values,
    "Node": _graph_node,
    "ValueInfoProto": _value_info,
    "BatchFeature": _parts("data"),
    "BatchEncoding": _parts("data"),
    "VirtualTensor": _virtual_tensor,
    "TorchModelContainer": _unknown,
    "InferenceSession": _unknown,
    "FakeTensorMode": _as_text,
    "FakeTensorContext": _unknown,
    "Chat": _chat,
    "Results": _results,
}
_CONFIGURATIONS: Final = frozenset({"PretrainedConfig", "PreTrainedConfig"})


@by_class
def _by_base(cls: type) -> _Describer | None:
    """Find what is known of a class by its bases, or its name; None if that does not settle it."""
    for base, known in _BASES:
        if issubclass(cls, base):
            return known
    if dataclasses.is_dataclass(cls):
        return _dataclass
    named = _NAMES.get(_class_name(cls))
    if named is not None:
        return named
    for base, known in _LATER_BASES:
        if issubclass(cls, base):
            return known
    return None


def _by_name(cls: type, obj: object) -> _Describer:
    """Find what is known of a class that may yet be registered with pytree."""
    if cls in _pytree.SUPPORTED_NODES:
        return _registered
    for base in cls.__mro__[1:]:
        if base.__module__ == "transformers.cache_utils" and base.__name__ in _NAMES:
            return _NAMES[base.__name__]
        if base.__name__ in _CONFIGURATIONS and hasattr(obj, "to_diff_dict"):
            return _configuration
    return _refuse
