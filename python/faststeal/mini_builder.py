"""Small ONNX models whose outputs are constants, built with the onnx package.

The layout is onnx-diagnostic's: an initializer `t_<name>` and an `Identity` for each output. Dumps
are not written this way, see `_core.Writer`; this is for models made by hand.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeAlias

import numpy as np
import onnx
import torch
from onnx import TensorProto

from faststeal.elements import element_code

__all__ = ["MiniOnnxBuilder", "element_type", "proto_from_array", "random_nodes"]

Values: TypeAlias = np.ndarray | torch.Tensor

_FLOATS: Final = frozenset(
    {TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.FLOAT16, TensorProto.BFLOAT16}
)
_PACKED: Final = {
    **dict.fromkeys([TensorProto.INT4, TensorProto.UINT4, 23], 4),  # 23: FLOAT4E2M1
    **dict.fromkeys([25, 26], 2),  # UINT2, INT2: newer than the oldest onnx that will do
}


def element_type(values: Values) -> int:
    """Number of the element type in `onnx.TensorProto.DataType`.

    Raises:
        NotImplementedError: ONNX has no such type.
    """
    dtype = values.dtype.type if isinstance(values, np.ndarray) else values.dtype
    code = element_code(dtype)
    if not code.isdecimal():
        raise NotImplementedError(f"ONNX has no element type for {values.dtype}")
    return int(code)


def _dims(values: Values) -> list[int]:
    dims = [int(size) for size in values.shape]
    if values.dtype == torch.float4_e2m1fn_x2:  # two elements in each
        dims[-1] *= 2
    return dims


def proto_from_array(
    arr: torch.Tensor,
    name: str | None = None,
    verbose: int = 0,  # noqa: ARG001 - taken for the callers of onnx-diagnostic's
) -> TensorProto:
    """Write a tensor as a `TensorProto`, its elements as `raw_data`.

    Args:
        arr: A dense tensor of any element type that ONNX has, on any device.
        name: Name of the tensor.
        verbose: Has no effect.

    Raises:
        TypeError: Not a tensor.
        NotImplementedError: A sparse or quantized tensor, or an element type that ONNX lacks.
    """
    if not isinstance(arr, torch.Tensor):
        raise TypeError(f"expected a tensor, not {type(arr).__name__}")
    if arr.layout is not torch.strided or arr.is_quantized:
        kind = "quantized" if arr.is_quantized else str(arr.layout).removeprefix("torch.")
        raise NotImplementedError(f"{name or 'the tensor'} is {kind}, expected a dense one")
    code = element_type(arr)
    plain = arr.detach().cpu().resolve_conj().resolve_neg().contiguous()
    raw = plain.reshape(-1).view(torch.uint8).numpy().tobytes()
    return TensorProto(name=name or "", dims=_dims(arr), data_type=code, raw_data=raw)


def _proto_from_numpy(array: np.ndarray, name: str) -> TensorProto:
    code = element_type(array)
    proto = TensorProto(name=name, dims=array.shape, data_type=code)
    if code == TensorProto.STRING:
        texts = [item if isinstance(item, bytes) else str(item).encode() for item in array.flat]
        proto.string_data.extend(texts)
    elif code in _PACKED:
        proto.raw_data = _pack(array, _PACKED[code])
    else:
        little = array.astype(array.dtype.newbyteorder("<"), copy=False)
        proto.raw_data = little.tobytes()
    return proto


def _pack(array: np.ndarray, bits: int) -> bytes:
    """Several elements in each byte, the first in the lowest bits."""
    each = 8 // bits
    codes = np.frombuffer(array.tobytes(), np.uint8) & (2**bits - 1)
    codes = np.append(codes, np.zeros(-len(codes) % each, np.uint8)).reshape(-1, each)
    shifts = np.arange(each, dtype=np.uint8) * bits
    return bytes(np.bitwise_or.reduce(codes << shifts, axis=1).astype(np.uint8))


def random_nodes(name: str, values: Values, seed: int = 0) -> list[onnx.NodeProto] | None:
    """Nodes that make random numbers like these: normal where both signs occur, else uniform.

    Returns:
        The nodes, the last of which has the output `name`; None where it cannot be done: no
        floating point, no element, no finite range.
    """
    code = element_type(values)
    if code not in _FLOATS or math.prod(values.shape) == 0:
        return None
    numbers = (
        torch.from_numpy(values.astype(np.float64)) if isinstance(values, np.ndarray) else values
    )
    numbers = numbers.detach().to(torch.float64)
    low, high = float(numbers.min()), float(numbers.max())
    if not (math.isfinite(low) and math.isfinite(high)):
        return None
    if low < 0 < high:
        kind = "RandomNormal"
        attributes: dict[str, Any] = {"mean": float(numbers.mean()), "scale": float(numbers.std())}
    else:
        kind, attributes = "RandomUniform", {"low": low, "high": high}
    attributes["seed"] = float(seed)
    shape = _dims(values)
    make_node = onnx.helper.make_node
    if code in {TensorProto.FLOAT, TensorProto.DOUBLE}:
        return [make_node(kind, [], [name], dtype=code, shape=shape, **attributes)]
    # onnxruntime makes numbers of these two types only.
    wide = f"{name}.float32"
    return [
        make_node(kind, [], [wide], dtype=TensorProto.FLOAT, shape=shape, **attributes),
        make_node("Cast", [wide], [name], to=code),
    ]


class MiniOnnxBuilder:
    """Builds a model without inputs, output by output.

    Args:
        target_opset: Version of the operators.
        ir_version: Version of the format.
        sep: What stands before `keys` and `values` in the names of a dict.
    """

    def __init__(self, target_opset: int = 18, ir_version: int = 10, sep: str = "___") -> None:
        self.initializers_dict: dict[str, Values] = {}
        self.inputs: list[onnx.ValueInfoProto] = []
        self.outputs: list[onnx.ValueInfoProto] = []
        self.nodes: list[onnx.NodeProto] = []
        self.opsets = {"": target_opset}
        self.ir_version = ir_version
        self.sep = sep

    def append_output_initializer(self, name: str, tensor: Values, randomize: bool = False) -> None:
        """Add a tensor or an array as the output `name`.

        Args:
            name: Of the output; the initializer is `t_<name>`.
            tensor: The values.
            randomize: Whether random numbers of the same range are made in place of floating point.

        Raises:
            ValueError: There is an output of that name.
        """
        output = onnx.helper.make_tensor_value_info(name, element_type(tensor), _dims(tensor))
        nodes = random_nodes(name, tensor) if randomize else None
        if nodes is None:
            self._add_initializer(f"t_{name}", tensor)
            nodes = [onnx.helper.make_node("Identity", [f"t_{name}"], [name])]
        self.nodes += nodes
        self.outputs.append(output)

    def append_output_sequence(self, name: str, tensors: Sequence[Values]) -> None:
        """Add tensors or arrays as one output that is a sequence.

        Args:
            name: Of the output; initializers are `seq_<name>_<i>`.
            tensors: The values, of one element type.

        Raises:
            TypeError: An item is neither: sequences cannot be nested.
            ValueError: There is an output of that name.
        """
        code: int = TensorProto.FLOAT
        if tensors:
            for i, values in enumerate(tensors):
                if not isinstance(values, np.ndarray | torch.Tensor):
                    raise TypeError(
                        f"item {i} of {name!r} is a {type(values).__name__}, expected a tensor"
                    )
            names = [f"seq_{name}_{i}" for i in range(len(tensors))]
            for initializer, values in zip(names, tensors, strict=True):
                self._add_initializer(initializer, values)
            self.nodes.append(onnx.helper.make_node("SequenceConstruct", names, [name]))
            code = element_type(tensors[0])
        else:
            self.nodes.append(onnx.helper.make_node("SequenceEmpty", [], [name], dtype=code))
        items = onnx.helper.make_tensor_type_proto(code, None)
        sequence = onnx.helper.make_sequence_type_proto(items)
        self.outputs.append(onnx.helper.make_value_info(name, sequence))

    def append_output_dict(self, name: str, tensors: Mapping[str, Values]) -> None:
        """Add a dict as two outputs: `<name>___keys`, text, and `<name>___values`, a sequence."""
        keys = np.array(list(tensors), dtype=np.str_)
        self.append_output_initializer(f"{name}{self.sep}keys", keys)
        self.append_output_sequence(f"{name}{self.sep}values", list(tensors.values()))

    def to_onnx(self) -> onnx.ModelProto:
        """Make the model."""
        graph = onnx.GraphProto(
            name="mini_model", node=self.nodes, input=self.inputs, output=self.outputs
        )
        for name, values in self.initializers_dict.items():
            graph.initializer.append(_proto(values, name))
        opsets = [onnx.helper.make_opsetid(*opset) for opset in self.opsets.items()]
        return onnx.ModelProto(graph=graph, opset_import=opsets, ir_version=self.ir_version)

    def _add_initializer(self, name: str, values: Values) -> None:
        if name in self.initializers_dict:
            raise ValueError(f"there is an initializer {name!r} already")
        self.initializers_dict[name] = values


def _proto(values: Any, name: str) -> TensorProto:
    if isinstance(values, TensorProto):  # callers may put their own
        return values
    if isinstance(values, np.ndarray):
        return _proto_from_numpy(values, name)
    return proto_from_array(values, name)
