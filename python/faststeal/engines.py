"""Run a model that has no inputs, with an engine of the user's choice."""

import ctypes
import math
from typing import Any, Final

import numpy as np
import onnx
import torch

from faststeal.elements import torch_dtype
from faststeal.legacy import Output

__all__ = ["run_model"]

_FLOAT4: Final = 23
# Element types that torch cannot load: its bits and the type that its numbers fit in.
_SMALL: Final = {
    21: (4, torch.uint8),
    22: (4, torch.int8),
    25: (2, torch.uint8),
    26: (2, torch.int8),
}


def run_model(source: str | onnx.ModelProto, engine: str) -> list[tuple[str, Output]]:
    """Compute all outputs of a model.

    Args:
        source: Path, or the model.
        engine: `"onnx"`, the reference implementation, or `"onnxruntime"`, on the CPU.

    Returns:
        Name and value of each output: a tensor in memory of its own, a list of them for a sequence,
        or a list of encoded text. Every element type that torch has comes back as that; integers of
        2 and 4 bits as (u)int8.

    Raises:
        ValueError: Another engine.
        ImportError: onnxruntime is not installed.
    """
    if engine == "onnx":
        return _run_reference(source)
    if engine == "onnxruntime":
        return _run_onnxruntime(source)
    raise ValueError(f"engine must be 'onnx' or 'onnxruntime', not {engine!r}")


def _run_reference(source: str | onnx.ModelProto) -> list[tuple[str, Output]]:
    from onnx.reference import ReferenceEvaluator

    model = source if isinstance(source, onnx.ModelProto) else onnx.load(source)
    values = ReferenceEvaluator(model).run(None, {})
    outputs = model.graph.output
    return [
        (output.name, _from_numpy(value, output.type))
        for output, value in zip(outputs, values, strict=True)
    ]


def _from_numpy(value: Any, kind: onnx.TypeProto) -> Output:
    if kind.HasField("sequence_type"):
        item = kind.sequence_type.elem_type
        return [_tensor_from_numpy(part, item.tensor_type.elem_type) for part in value]
    code = kind.tensor_type.elem_type
    if code == onnx.TensorProto.STRING:
        return _encoded(value)
    return _tensor_from_numpy(value, code)


def _tensor_from_numpy(value: np.ndarray, code: int) -> torch.Tensor:
    array = np.asarray(value)
    if code in _SMALL:
        wide = array.astype(str(_SMALL[code][1]).removeprefix("torch."))
        return torch.from_numpy(wide)
    if code == _FLOAT4:
        nibbles = np.frombuffer(array.tobytes(), np.uint8) & 15
        nibbles = np.append(nibbles, np.zeros(nibbles.size % 2, np.uint8))
        return _tensor(bytearray(nibbles[::2] | nibbles[1::2] << 4), code, array.shape)
    return _tensor(bytearray(array.tobytes()), code, array.shape)


def _run_onnxruntime(source: str | onnx.ModelProto) -> list[tuple[str, Output]]:
    import onnxruntime

    model = source.SerializeToString() if isinstance(source, onnx.ModelProto) else source
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    # numpy cannot hold every element type, values of the engine's own can.
    values = session.run_with_ort_values(names, {})
    return [
        (name, _from_ort(value) if value.is_tensor() else _sequence(session, name))
        for name, value in zip(names, values, strict=True)
    ]


def _sequence(session: Any, name: str) -> Output:
    [parts] = session.run([name], {})
    return [torch.from_numpy(np.array(part)) for part in parts]


def _from_ort(value: Any) -> Output:
    code = value.element_type()
    if code == onnx.TensorProto.STRING:
        return _encoded(value.numpy())
    size = value.tensor_size_in_bytes()
    data = bytearray(ctypes.string_at(value.data_ptr(), size) if size else b"")
    return _tensor(data, code, tuple(value.shape()))


def _tensor(data: bytearray, code: int, shape: tuple[int, ...]) -> torch.Tensor:
    """A tensor of packed elements."""
    if code in _SMALL:
        return _unpacked(data, code, shape)
    dtype = torch_dtype(code)
    if dtype is None:
        raise ValueError(f"torch has no element type for {code} of onnx.TensorProto.DataType")
    if code == _FLOAT4:  # two elements in each
        shape = (*shape[:-1], shape[-1] // 2) if shape and shape[-1] % 2 == 0 else (len(data),)
    if not data:
        return torch.empty(shape, dtype=dtype)
    return torch.frombuffer(data, dtype=torch.uint8).view(dtype).reshape(shape)


def _unpacked(data: bytearray, code: int, shape: tuple[int, ...]) -> torch.Tensor:
    bits, dtype = _SMALL[code]
    packed = torch.tensor(list(data), dtype=torch.uint8)
    parts = [packed >> shift & (2**bits - 1) for shift in range(0, 8, bits)]
    numbers = torch.stack(parts, dim=-1).reshape(-1)[: math.prod(shape)].to(dtype)
    if dtype is torch.int8:  # the highest bit is the sign
        numbers = numbers - (numbers >> (bits - 1) << bits)
    return numbers.reshape(shape)


def _encoded(value: Any) -> list[bytes]:
    return [
        item if isinstance(item, bytes) else str(item).encode() for item in np.asarray(value).flat
    ]
