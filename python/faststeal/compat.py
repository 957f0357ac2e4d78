"""The names of onnx-diagnostic that this package takes the place of, with their signatures.

Code that was written for onnx-diagnostic changes the import, and nothing else.
"""

import json
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import torch

from faststeal._core import FormatError, NotPlainError, Reader, Writer
from faststeal.capture import is_stealing, steal_append, steal_forward
from faststeal.copying import torch_deepcopy, torch_tensor_size
from faststeal.describe import string_type
from faststeal.dummy import dummy_llm
from faststeal.dump import Key
from faststeal.legacy import restore_legacy
from faststeal.placing import placed
from faststeal.tree import Flat, flatten, unflatten

if TYPE_CHECKING:
    import onnx

    from faststeal.mini_builder import MiniOnnxBuilder, proto_from_array

__all__ = [
    "MiniOnnxBuilder",
    "create_input_tensors_from_onnx_model",
    "create_onnx_model_from_input_tensors",
    "dummy_llm",
    "is_stealing",
    "proto_from_array",
    "steal_append",
    "steal_forward",
    "string_type",
    "torch_deepcopy",
    "torch_tensor_size",
]

_LATE: Final = frozenset({"MiniOnnxBuilder", "proto_from_array"})
_NAME: Final = "inputs"
_ENGINES: Final = ("ExtendedReferenceEvaluator", "onnx", "onnxruntime")


def __getattr__(name: str) -> Any:
    # These need the onnx package, which takes longer to import than all of this one.
    if name in _LATE:
        from faststeal import mini_builder

        return getattr(mini_builder, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def create_onnx_model_from_input_tensors(
    inputs: Any,
    switch_low_high: bool | None = None,  # noqa: ARG001 - as in onnx-diagnostic, where it does nothing
    randomize: bool = False,
    sep: str = "___",  # noqa: ARG001 - names are paths here, and need no separator to be read
) -> "onnx.ModelProto":
    """Make a model of any object, which `create_input_tensors_from_onnx_model` gives back.

    The model has the layout of a dump with one object, `"inputs"`: its outputs are the tensors,
    `inputs/args.0`, and everything else stands in its metadata.

    Args:
        inputs: Anything that a dump can hold.
        switch_low_high: Has no effect.
        randomize: Whether tensors of floating point are replaced by nodes that make random numbers
            of the same range, to save space.
        sep: Has no effect.

    Returns:
        The model, in memory. Beyond 2 GB it cannot be serialized, but with external data.

    Raises:
        TypeError: The object holds something that cannot be stored; says where.
    """
    import onnx

    provenance = json.dumps({"object": _NAME, "randomized": randomize})
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "inputs.onnx")
        flat = _write(path, provenance, inputs)
        model = onnx.load(path)
    model.doc_string = string_type(inputs, with_shape=True, ignore=True)
    if randomize:
        _randomize(model, flat)
    return model


def _write(path: str, provenance: str, obj: object) -> Flat:
    """Write a dump that holds one object."""
    writer = Writer(path, provenance)
    try:
        flat = flatten(obj)
        try:
            _write_record(writer, flat)
        except NotPlainError:
            flat = flatten(obj, careful=True)
            _write_record(writer, flat)
    finally:
        writer.close()
    if flat.notes:
        raise TypeError(f"this cannot be stored: {'; '.join(flat.notes)}")
    return flat


def _write_record(writer: Writer, flat: Flat) -> None:
    tree, paths, tensors, leaves, _ = flat
    writer.write(f"{_NAME}/0/A", _NAME, tree, paths, tensors, "", leaves)


def _randomize(model: "onnx.ModelProto", flat: Flat) -> None:
    """Replace constants by nodes that make numbers like them."""
    from faststeal.mini_builder import random_nodes

    tensors = {
        f"{_NAME}/{path}" if path else _NAME: tensor
        for path, tensor in zip(flat.paths, flat.tensors, strict=True)
    }
    nodes = []
    for seed, node in enumerate(model.graph.node):
        [name] = node.output
        made = random_nodes(name, tensors[name], seed) if name in tensors else None
        nodes += made or [node]
    # A Constant that told the shape of another value may have no use any more.
    used = {name for node in nodes for name in node.input} | {o.name for o in model.graph.output}
    kept = [
        type(node).FromString(node.SerializeToString()) for node in nodes if used & {*node.output}
    ]
    del model.graph.node[:]
    model.graph.node.extend(kept)


def create_input_tensors_from_onnx_model(
    proto: "str | os.PathLike[str] | onnx.ModelProto",
    device: torch.device | str = "cpu",
    engine: str = "ExtendedReferenceEvaluator",
    sep: str = "___",
) -> Any:
    """Restore what is in a dump, or in a model that `create_onnx_model_from_input_tensors` made.

    Args:
        proto: A dump, a model of one object, a file of onnx-diagnostic's, or any other model whose
            outputs are constants; path or model.
        device: Where tensors go. Arrays stay what they are.
        engine: `"ExtendedReferenceEvaluator"` reads the file itself and needs no engine (but for
            random numbers, which onnx's reference implementation makes). `"onnx"` and
            `"onnxruntime"` run the model, and all of it is in memory then.
        sep: What stands between two levels of a name, in files of onnx-diagnostic's.

    Returns:
        For a dump a dict of its objects, by `Key`, or by the name given to `steal_append`; for a
        model of one object that object; for any other model a dict of outputs by name.

    Raises:
        ValueError: There is no such engine.
        FormatError: The file cannot be read.
        OSError: The file cannot be opened; the exact subclass.
    """
    if engine not in _ENGINES:
        raise ValueError(f"engine must be one of {', '.join(map(repr, _ENGINES))}, not {engine!r}")
    source = os.fspath(proto) if isinstance(proto, str | os.PathLike) else proto
    reader = Reader(source if isinstance(source, str) else source.SerializeToString())
    place = torch.device(device)
    if reader.native:
        return _restore_dump(reader, source, engine, place)
    return restore_legacy(_outputs(reader, source, engine), sep, place)


def _restore_dump(
    reader: Reader, source: "str | onnx.ModelProto", engine: str, device: torch.device
) -> Any:
    provenance = json.loads(reader.provenance)
    if engine != _ENGINES[0] or provenance.get("randomized"):
        read = _computed(reader, source, engine)
    else:
        read = reader.record
    restored: dict[Any, Any] = {}
    for i, (key, left_out) in enumerate(zip(reader.keys(), reader.skipped(), strict=True)):
        if not left_out:
            tree, tensors = read(i)
            value = unflatten(tree, placed(tree, tensors, device))
            restored[key[0] if key[2] == "A" else Key(*key)] = value
    return restored[_NAME] if provenance.get("object") == _NAME else restored


def _computed(
    reader: Reader, source: "str | onnx.ModelProto", engine: str
) -> Callable[[int], tuple[str, list[torch.Tensor]]]:
    """As `Reader.record`, but with tensors that an engine computed."""
    from faststeal.engines import run_model

    engine = "onnx" if engine == _ENGINES[0] else engine
    values = dict(run_model(source, engine))
    part = 0

    def read(index: int) -> tuple[str, list[torch.Tensor]]:
        nonlocal part
        info = json.loads(reader.info(index))
        names = [leaf["name"] for leaf in info["leaves"]]
        while isinstance(source, str) and not values.keys() >= set(names):
            part += 1  # a dump that grows too large goes on in a file of this name
            path = Path(source)
            path = path.with_name(f"{path.stem}.{part}{path.suffix}")
            values.update(run_model(str(path), engine))
        tensors = [value for value in map(values.get, names) if isinstance(value, torch.Tensor)]
        return json.dumps(info["tree"], separators=(",", ":")), tensors

    return read


def _outputs(reader: Reader, source: "str | onnx.ModelProto", engine: str) -> Any:
    from faststeal.engines import run_model

    if engine != _ENGINES[0]:
        return run_model(source, engine)
    try:
        return reader.outputs()
    except FormatError:
        return run_model(source, "onnx")  # random numbers, perhaps
