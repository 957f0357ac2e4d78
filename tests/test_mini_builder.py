"""Models made by hand: their layout, element types, and what other readers make of them."""

import numpy as np
import pytest
import torch

from faststeal.compat import (
    MiniOnnxBuilder,
    create_input_tensors_from_onnx_model,
    proto_from_array,
)

onnx = pytest.importorskip("onnx")

F = torch.tensor([[0.5, 1.5], [2.5, 3.5]])


def evaluate(model):
    from onnx.reference import ReferenceEvaluator

    onnx.checker.check_model(model, full_check=True)
    evaluator = ReferenceEvaluator(model)
    return dict(zip(evaluator.output_names, evaluator.run(None, {}), strict=True))


def infer(model):
    onnxruntime = pytest.importorskip("onnxruntime")
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, {}), strict=True))


# proto_from_array


@pytest.mark.parametrize(
    ("dtype", "code"),
    [
        (torch.float32, onnx.TensorProto.FLOAT),
        (torch.bfloat16, onnx.TensorProto.BFLOAT16),
        (torch.bool, onnx.TensorProto.BOOL),
        (torch.uint16, onnx.TensorProto.UINT16),
        (torch.complex64, onnx.TensorProto.COMPLEX64),
        (torch.float8_e4m3fn, onnx.TensorProto.FLOAT8E4M3FN),
    ],
    ids=str,
)
def test_element_types(dtype, code):
    proto = proto_from_array(F.to(dtype), name="x")
    assert (proto.name, proto.data_type, list(proto.dims)) == ("x", code, [2, 2])
    assert proto.raw_data == F.to(dtype).view(torch.uint8).numpy().tobytes()


def test_layout_in_memory_does_not_matter():
    expected = onnx.numpy_helper.to_array(proto_from_array(F.t().contiguous()))
    for tensor in (F.t(), F.t().requires_grad_(), torch.nn.Parameter(F.t())):
        assert onnx.numpy_helper.to_array(proto_from_array(tensor)).tolist() == expected.tolist()
    conjugate = torch.tensor([1 + 2j]).conj()
    assert onnx.numpy_helper.to_array(proto_from_array(conjugate)).tolist() == [1 - 2j]
    assert proto_from_array(torch.tensor(3.5)).dims == []
    assert proto_from_array(torch.empty(0, 2)).raw_data == b""
    assert proto_from_array(F).name == ""


def test_two_elements_a_byte():
    packed = torch.tensor([[0x21, 0x43]], dtype=torch.uint8).view(torch.float4_e2m1fn_x2)
    proto = proto_from_array(packed)
    assert (list(proto.dims), proto.raw_data) == ([1, 4], b"\x21\x43")


@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor")
@pytest.mark.filterwarnings("ignore:Sparse:UserWarning")
def test_what_is_no_dense_tensor():
    with pytest.raises(TypeError, match="expected a tensor, not NoneType"):
        proto_from_array(None)
    with pytest.raises(NotImplementedError, match="x is sparse_coo, expected a dense one"):
        proto_from_array(F.to_sparse(), name="x")
    with pytest.raises(NotImplementedError, match="the tensor is sparse_csr"):
        proto_from_array(F.to_sparse_csr())
    with pytest.raises(NotImplementedError, match="the tensor is quantized"):
        proto_from_array(torch.quantize_per_tensor(F, 1.0, 0, torch.qint8))
    with pytest.raises(NotImplementedError, match=r"ONNX has no element type for torch\.bits8"):
        proto_from_array(torch.zeros(2, dtype=torch.uint8).view(torch.bits8))


# The builder


def test_layout():
    builder = MiniOnnxBuilder()
    builder.append_output_initializer("x", F)
    builder.append_output_sequence("s", [F, F.numpy()])
    model = builder.to_onnx()
    assert (model.graph.name, model.ir_version) == ("mini_model", 10)
    assert [(opset.domain, opset.version) for opset in model.opset_import] == [("", 18)]
    assert [each.name for each in model.graph.initializer] == ["t_x", "seq_s_0", "seq_s_1"]
    assert [node.op_type for node in model.graph.node] == ["Identity", "SequenceConstruct"]
    assert [each.name for each in model.graph.output] == ["x", "s"]
    found = evaluate(model)
    assert found["x"].tolist() == F.tolist()
    assert [part.tolist() for part in found["s"]] == [F.tolist()] * 2
    other = MiniOnnxBuilder(target_opset=21, ir_version=9).to_onnx()
    assert (other.opset_import[0].version, other.ir_version) == (21, 9)


def test_dict():
    builder = MiniOnnxBuilder(sep="__")
    builder.append_output_dict("d", {"é": F, "b": F.numpy()})
    builder.append_output_dict("none", {})
    model = builder.to_onnx()
    found = evaluate(model)
    assert list(found) == ["d__keys", "d__values", "none__keys", "none__values"]
    assert list(found["d__keys"]) == ["é", "b"]
    assert infer(model)["d__keys"].tolist() == ["é", "b"]
    restored = create_input_tensors_from_onnx_model(model, sep="__")
    assert list(restored["d"]) == ["é", "b"]
    assert restored["none"] == {}


def test_sequences():
    builder = MiniOnnxBuilder()
    builder.append_output_sequence("empty", [])
    builder.append_output_sequence("ints", [np.array([6, 7])])
    for found in (evaluate(builder.to_onnx()), infer(builder.to_onnx())):
        assert found["empty"] == []
        assert [part.tolist() for part in found["ints"]] == [[6, 7]]
    with pytest.raises(TypeError, match="item 1 of 'nested' is a list, expected a tensor"):
        builder.append_output_sequence("nested", [F, [F]])


@pytest.mark.parametrize(
    "name",
    [
        *("float32", "float64", "float16", "int8", "int16", "int32", "int64", "bool"),
        *("uint8", "uint16", "uint32", "uint64", "complex64", "complex128"),
    ],
)
def test_arrays(name):
    array = np.array([[1, 0], [2, 3]]).astype(name)
    builder = MiniOnnxBuilder()
    builder.append_output_initializer("x", array)
    builder.append_output_initializer("big_endian", array.astype(array.dtype.newbyteorder(">")))
    for found in evaluate(builder.to_onnx()).values():
        assert found.dtype == array.dtype
        assert found.tolist() == array.tolist()


@pytest.mark.parametrize(
    ("name", "opset"),
    [
        ("bfloat16", 18),
        ("float8_e4m3fn", 19),
        ("float8_e4m3fnuz", 19),
        ("float8_e5m2", 19),
        ("float8_e5m2fnuz", 19),
        ("int4", 21),
        ("uint4", 21),
        ("float4_e2m1fn", 23),
    ],
)
def test_arrays_of_ml_dtypes(name, opset):
    ml_dtypes = pytest.importorskip("ml_dtypes")
    array = np.array([1, 2, 4], dtype=getattr(ml_dtypes, name))
    builder = MiniOnnxBuilder(target_opset=opset)
    builder.append_output_initializer("x", array)
    builder.append_output_initializer("even", array[:2])
    found = evaluate(builder.to_onnx())
    assert found["x"].dtype == array.dtype
    assert found["x"].tolist() == array.tolist()
    assert found["even"].tolist() == array[:2].tolist()


def test_negative_numbers_of_four_bits():
    ml_dtypes = pytest.importorskip("ml_dtypes")
    builder = MiniOnnxBuilder(target_opset=21)
    builder.append_output_initializer("x", np.array([-8, 7, -1], dtype=ml_dtypes.int4))
    model = builder.to_onnx()
    assert model.graph.initializer[0].raw_data == b"\x78\x0f"
    for engine in ("ExtendedReferenceEvaluator", "onnx"):
        [found] = create_input_tensors_from_onnx_model(model, engine=engine).values()
        assert found.dtype == torch.int8
        assert found.tolist() == [-8, 7, -1]


def test_text():
    builder = MiniOnnxBuilder()
    builder.append_output_initializer("x", np.array([["a", "é"]]))
    builder.append_output_initializer("y", np.array([b"a", "é"], dtype=object))
    for found in (evaluate(builder.to_onnx()), infer(builder.to_onnx())):
        assert found["x"].shape == (1, 2)
        assert found["x"].ravel().tolist() == found["y"].tolist() == ["a", "é"]


def test_a_proto_of_the_caller():
    builder = MiniOnnxBuilder()
    builder.append_output_initializer("x", F)
    builder.initializers_dict["t_x"] = proto_from_array(F + 1, name="t_x")
    assert evaluate(builder.to_onnx())["x"].tolist() == (F + 1).tolist()


def test_names_twice():
    builder = MiniOnnxBuilder()
    builder.append_output_initializer("x", F)
    with pytest.raises(ValueError, match="there is an initializer 't_x' already"):
        builder.append_output_initializer("x", F)
    assert len(builder.outputs) == 1


# Random numbers


def large(dtype, offset):
    generator = torch.Generator().manual_seed(0)
    return (torch.rand(100, 100, generator=generator, dtype=torch.float64) + offset).to(dtype)


@pytest.mark.parametrize("run", [evaluate, infer])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16])
def test_random_numbers(run, dtype):
    builder = MiniOnnxBuilder()
    builder.append_output_initializer("normal", large(dtype, -0.5), randomize=True)
    builder.append_output_initializer("uniform", large(dtype, 3), randomize=True)
    builder.append_output_initializer("array", large(dtype, 3).numpy(), randomize=True)
    model = builder.to_onnx()
    assert not model.graph.initializer
    found = run(model)
    for name, values in found.items():
        assert values.shape == (100, 100), name
        assert values.dtype == large(dtype, 0).numpy().dtype
    assert abs(found["normal"].astype(float).mean()) < 0.02
    assert 0.25 < found["normal"].astype(float).std() < 0.33
    for name in ("uniform", "array"):
        assert 3 <= found[name].min() < found[name].max() <= 4


def test_what_is_not_random():
    builder = MiniOnnxBuilder()
    values = {"ints": torch.arange(3), "none": torch.empty(0), "inf": torch.tensor([0.0, -np.inf])}
    for name, tensor in values.items():
        builder.append_output_initializer(name, tensor, randomize=True)
    found = evaluate(builder.to_onnx())
    assert {name: array.tolist() for name, array in found.items()} == {
        name: tensor.tolist() for name, tensor in values.items()
    }
