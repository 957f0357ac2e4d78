"""The names of onnx-diagnostic: models of any object, dumps read by any engine, the small LLM."""

import collections
import dataclasses
import inspect
import subprocess
import sys

import numpy as np
import pytest
import torch

import faststeal
from faststeal import compat
from faststeal.compat import (
    create_input_tensors_from_onnx_model,
    create_onnx_model_from_input_tensors,
    dummy_llm,
)
from faststeal.engines import run_model

onnx = pytest.importorskip("onnx")

F = torch.tensor([[0.5, 1.5, 2.5], [3.5, 4.5, 5.5]])
I = torch.arange(3)  # noqa: E741
ENGINES = ["ExtendedReferenceEvaluator", "onnx", "onnxruntime"]


@pytest.fixture(params=ENGINES)
def engine(request):
    if request.param == "onnxruntime":
        pytest.importorskip("onnxruntime")
    return request.param


@dataclasses.dataclass
class Point:
    x: object
    y: object = None


def bits(tensor):
    return tensor.contiguous().reshape(-1).view(torch.uint8).tolist()


def parts(obj):
    """What an object consists of: parts to compare one by one, or what can be compared."""
    if isinstance(obj, torch.Tensor):
        return [], (obj.dtype, obj.shape, bits(obj))
    if isinstance(obj, np.ndarray):
        return [], (np.ndarray, obj.dtype, obj.shape, obj.tobytes())
    if isinstance(obj, dict):
        return list(obj.values()), (type(obj), list(map(repr, obj)))
    if isinstance(obj, tuple | list):
        return list(obj), type(obj)
    if dataclasses.is_dataclass(obj):
        return [getattr(obj, field.name) for field in dataclasses.fields(obj)], type(obj)
    return [], (type(obj), obj)


def same(a, b):
    (of_a, a), (of_b, b) = parts(a), parts(b)
    return a == b and len(of_a) == len(of_b) and all(map(same, of_a, of_b))


# Models of objects


OBJECTS = [
    *(F, I, torch.tensor(3.5), torch.empty(0, 2), F.t(), F.to(torch.bfloat16)),
    *(None, True, 3, 2.5, "text", b"bytes", 2**70, 1 + 2j, torch.float16, torch.device("cpu")),
    *((), [], {}, set(), (None,), [None, F], (F, None), {"a": None}, {"mask": None, "x": F}),
    *({1, 2}, frozenset(["a"]), slice(1, None), F.shape, range(3), ...),
    {"a": F, 1: I, ("b", 0): [F], None: 1, 2.5: 2, False: 3, "x___y": 4, "a,b": 5},
    {("model", 0, "I"): ((F,), {"mask": None}), ("model", 0, "O"): (F, None)},
    {"1": 1, "True": 2, "((a))": 3},
    collections.OrderedDict(a=F),
    Point(F, Point(None)),
    *(np.arange(3), np.array(2.5), np.array(["a"]), np.float32(1.5)),
    ([F, F], {"same": F, "reshaped": F.reshape(3, 2)}),
]


@pytest.mark.parametrize("obj", OBJECTS, ids=lambda obj: type(obj).__name__)
def test_round_trip(obj, engine):
    model = create_onnx_model_from_input_tensors(obj)
    assert isinstance(model, onnx.ModelProto)
    assert same(create_input_tensors_from_onnx_model(model, engine=engine), obj)


@pytest.mark.parametrize(
    "name",
    [
        *("bool", "uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64"),
        *("float16", "bfloat16", "float32", "float64", "complex64", "complex128"),
        *("float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz"),
        *("float8_e8m0fnu", "float4_e2m1fn_x2"),
    ],
)
def test_element_types(name, engine):
    dtype = getattr(torch, name)
    raw = torch.arange(6 * dtype.itemsize, dtype=torch.uint8).reshape(2, -1)
    tensor = (raw % 2).to(torch.bool) if dtype is torch.bool else raw.view(dtype)
    model = create_onnx_model_from_input_tensors({"x": tensor, "alone": [tensor[0]]})
    onnx.checker.check_model(model, full_check=True)
    found = create_input_tensors_from_onnx_model(model, engine=engine)
    assert same(found, {"x": tensor, "alone": [tensor[0]]})


@pytest.mark.parametrize("name", ["bfloat16", "float8_e5m2", "int4", "uint2"])
def test_arrays_of_ml_dtypes(name, engine):
    ml_dtypes = pytest.importorskip("ml_dtypes")
    array = np.array([[1], [0]], dtype=getattr(ml_dtypes, name))
    model = create_onnx_model_from_input_tensors(array)
    assert same(create_input_tensors_from_onnx_model(model, engine=engine), array)


@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor")
@pytest.mark.filterwarnings("ignore:Sparse:UserWarning")
def test_tensors_in_parts(engine):
    sparse, quantized = F.to_sparse(), torch.quantize_per_tensor(F, 0.5, 1, torch.qint8)
    obj = {"sparse": sparse, "quantized": quantized, "conj": torch.tensor([1 + 2j]).conj()}
    model = create_onnx_model_from_input_tensors(obj)
    found = create_input_tensors_from_onnx_model(model, engine=engine)
    assert torch.equal(found["sparse"].to_dense(), F)
    assert torch.equal(found["quantized"].int_repr(), quantized.int_repr())
    assert found["quantized"].q_scale() == 0.5
    assert found["conj"].tolist() == [1 - 2j]


def test_caches(engine):
    cache_utils = pytest.importorskip("transformers.cache_utils")
    from transformers import Gemma2Config

    sizes = {"hidden_size": 8, "num_attention_heads": 2, "num_key_value_heads": 2}
    config = Gemma2Config(num_hidden_layers=2, **sizes)
    dynamic = cache_utils.DynamicCache(config=config)
    static = cache_utils.StaticCache(config, max_cache_len=5)
    for cache in (dynamic, static):
        cache.update(torch.rand(1, 2, 3, 4), torch.rand(1, 2, 3, 4), 0)
    both = cache_utils.EncoderDecoderCache(dynamic, cache_utils.DynamicCache())
    obj = [dynamic, static, both, F]
    found = create_input_tensors_from_onnx_model(
        create_onnx_model_from_input_tensors(obj), engine=engine
    )
    assert list(map(type, found)) == list(map(type, obj))
    for a, b in [(found[0], dynamic), (found[1], static), (found[2].self_attention_cache, dynamic)]:
        assert list(map(type, a.layers)) == list(map(type, b.layers))
        assert same([a.layers[0].keys, a.layers[0].values], [b.layers[0].keys, b.layers[0].values])
        assert a.layers[1].keys is None


def test_layout():
    model = create_onnx_model_from_input_tensors({"a": F, "b": [I, None], "c": F})
    assert [output.name for output in model.graph.output] == [
        *("faststeal_format", "inputs/a", "inputs/b.0", "inputs/c"),
    ]
    assert [node.op_type for node in model.graph.node] == ["Constant"] * 3 + ["Identity"]
    assert not model.graph.initializer
    assert model.doc_string == "dict(a:T1s2x3,b:#2[T7s3,None],c:T1s2x3)"
    # A user of it alone, in any runtime.
    from onnx.reference import ReferenceEvaluator

    [found] = ReferenceEvaluator(model).run(["inputs/c"], {})
    assert found.tolist() == F.tolist()


def test_it_is_a_dump_too(tmp_path):
    onnx.save(create_onnx_model_from_input_tensors((F, None)), tmp_path / "model.onnx")
    with faststeal.load(tmp_path / "model.onnx") as dump:
        assert list(dump) == ["inputs"]
        assert same(dump["inputs"], (F, None))
    for path in (tmp_path / "model.onnx", str(tmp_path / "model.onnx")):
        assert same(create_input_tensors_from_onnx_model(path), (F, None))


def test_arguments_without_effect():
    model = create_onnx_model_from_input_tensors({"a_b": F}, switch_low_high=True, sep="_")
    assert same(create_input_tensors_from_onnx_model(model, sep="#"), {"a_b": F})


def test_what_cannot_be_stored():
    with pytest.raises(TypeError, match=r"this cannot be stored: a\.0: .*function"):
        create_onnx_model_from_input_tensors({"a": [lambda: 0]})


def test_device(engine):
    objects = np.array([F, None], dtype=object)
    model = create_onnx_model_from_input_tensors([F, np.arange(2), {"x": F}, objects, None])
    found = create_input_tensors_from_onnx_model(model, device="meta", engine=engine)
    for tensor in (found[0], found[2]["x"]):
        assert tensor.device.type == "meta"
        assert tensor.shape == F.shape
    assert found[1].tolist() == [0, 1]
    assert same(found[3][0], F)


# Random numbers


def test_randomize(engine):
    large = torch.rand(100, 100, generator=torch.Generator().manual_seed(0))
    obj = {
        "normal": large - 0.5,
        "uniform": [large + 3, (large + 3).reshape(-1)],
        "half": large.to(torch.float16),
        "bfloat16": large.to(torch.bfloat16) - 0.5,
        "again": large - 0.5,
        "ints": I,
        "masked": torch.tensor([0.0, -torch.inf]),
        "none": None,
    }
    model = create_onnx_model_from_input_tensors(obj, randomize=True)
    onnx.checker.check_model(model)
    assert len(model.SerializeToString()) < 5000
    found = create_input_tensors_from_onnx_model(model, engine=engine)
    described = faststeal.string_type(found, with_shape=True)
    assert described == faststeal.string_type(obj, with_shape=True)
    assert same([found["ints"], found["masked"]], [I, obj["masked"]])
    assert not torch.equal(found["normal"], obj["normal"])
    for name in ("normal", "bfloat16"):
        assert abs(float(found[name].double().mean())) < 0.02
        assert 0.25 < float(found[name].double().std()) < 0.33
    assert 3 <= found["uniform"][0].min() < found["uniform"][1].max() <= 4


# Dumps


def steal(path, **options):
    torch.manual_seed(0)
    model, inputs = dummy_llm()
    modules = [("model", model), ("", model.decoder), ("a___b,c", model.decoder.norm_1)]
    with faststeal.steal_forward(modules, dump_file=path, **options):
        model(*inputs)
        faststeal.steal_append("extra", {"x": F, "none": None})
        faststeal.steal_append("extra", 3)
    return model, inputs


def test_dump(tmp_path, engine):
    path = tmp_path / "llm.onnx"
    model, inputs = steal(path)
    restored = create_input_tensors_from_onnx_model(str(path), engine=engine)
    assert type(restored) is dict
    assert list(restored) == [
        *(("model", 0, "I"), ("", 0, "I"), ("a___b,c", 0, "I"), ("a___b,c", 0, "O")),
        *(("", 0, "O"), ("model", 0, "O"), "extra", "extra_1"),
    ]
    assert str(next(iter(restored))) == "('model', 0, 'I')"
    assert restored[next(iter(restored))] is restored["model", 0, "I"]
    assert same(restored["model", 0, "I"], (inputs, {}))
    assert torch.equal(restored["model", 0, "O"], model(*inputs))
    assert same(restored["extra"], {"x": F, "none": None})
    assert restored["extra_1"] == 3
    with faststeal.load(path) as dump:
        assert list(dump) == list(restored)
        assert all(same(dump[key], value) for key, value in restored.items())


def test_dump_with_external_data(tmp_path, engine):
    path = tmp_path / "llm.onnx"
    model, inputs = steal(path, save_as_external_data=True)
    restored = create_input_tensors_from_onnx_model(path, engine=engine)
    assert torch.equal(restored["model", 0, "O"], model(*inputs))


def test_dump_with_a_record_that_was_left_out(tmp_path, engine):
    path = tmp_path / "llm.onnx"
    with pytest.warns(UserWarning, match="storage limit"):
        steal(path, storage_limit=1000)
    restored = create_input_tensors_from_onnx_model(path, engine=engine)
    assert list(restored) == [("model", 0, "I"), "extra", "extra_1"]


def test_dump_in_several_files(tmp_path, engine):
    from faststeal._core import Reader, Writer

    path = tmp_path / "parts.onnx"
    writer = Writer(str(path), "{}", part_limit=200_000)
    tensors = [torch.full((10_000,), float(i)) for i in range(20)]
    for i, tensor in enumerate(tensors):
        writer.write(f"m/{i}/O", f"m/{i}/O", '{"tensor":0}', [""], [tensor], "")
    writer.close()
    assert (tmp_path / "parts.1.onnx").exists()
    assert len(Reader(str(path))) == 20
    restored = create_input_tensors_from_onnx_model(path, engine=engine)
    assert same(list(restored.values()), tensors)


def test_a_killed_dump(tmp_path, engine):
    path = tmp_path / "killed.onnx"
    code = (
        "import faststeal, os, torch\n"
        f"with faststeal.steal_forward(torch.nn.ReLU(), dump_file={str(path)!r}):\n"
        "    faststeal.steal_append('x', torch.ones(3))\n"
        "    os._exit(1)"
    )
    subprocess.run([sys.executable, "-c", code], check=False)
    restored = create_input_tensors_from_onnx_model(path, engine=engine)
    assert same(restored, {"x": torch.ones(3)})


def test_what_is_no_dump(tmp_path):
    path = tmp_path / "text.onnx"
    path.write_text("no model")
    with pytest.raises(faststeal.FormatError, match=r"text\.onnx"):
        create_input_tensors_from_onnx_model(path)
    with pytest.raises(FileNotFoundError, match=r"absent\.onnx"):
        create_input_tensors_from_onnx_model(str(tmp_path / "absent.onnx"))
    with pytest.raises(ValueError, match=r"engine must be one of 'Extended.*', not 'tensorrt'"):
        create_input_tensors_from_onnx_model(path, engine="tensorrt")
    with pytest.raises(ValueError, match="engine must be 'onnx' or 'onnxruntime', not 'x'"):
        run_model(str(path), "x")


def test_any_model_of_constants(engine):
    helper = onnx.helper
    graph = helper.make_graph(
        [
            helper.make_node("Constant", [], ["a"], value=onnx.numpy_helper.from_array(F.numpy())),
            helper.make_node("Identity", ["a"], ["b"]),
        ],
        "any",
        [],
        [helper.make_tensor_value_info(name, 1, [2, 3]) for name in ("a", "b")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    assert same(create_input_tensors_from_onnx_model(model, engine=engine), {"a": F, "b": F})


def test_engines_give_memory_of_their_own(engine, tmp_path):
    onnx.save(create_onnx_model_from_input_tensors([F]), tmp_path / "model.onnx")
    before = (tmp_path / "model.onnx").read_bytes()
    [found] = create_input_tensors_from_onnx_model(tmp_path / "model.onnx", engine=engine)
    found.add_(1)
    assert torch.equal(found, F + 1)
    assert (tmp_path / "model.onnx").read_bytes() == before


# The small LLM


def test_dummy_llm():
    model, inputs = dummy_llm()
    assert faststeal.string_type(inputs, with_shape=True) == "(T7s1x30,)"
    assert faststeal.string_type(model(*inputs), with_shape=True) == "T1s1x30x16"
    assert [f"{name}: {type(module).__name__}" for name, module in model.named_modules()] == [
        ": LLM",
        "embedding: Embedding",
        "embedding.embedding: Embedding",
        "embedding.pe: Embedding",
        "decoder: DecoderLayer",
        "decoder.attention: MultiAttentionBlock",
        "decoder.attention.attention: ModuleList",
        "decoder.attention.attention.0: AttentionBlock",
        "decoder.attention.attention.0.query: Linear",
        "decoder.attention.attention.0.key: Linear",
        "decoder.attention.attention.0.value: Linear",
        "decoder.attention.attention.1: AttentionBlock",
        "decoder.attention.attention.1.query: Linear",
        "decoder.attention.attention.1.key: Linear",
        "decoder.attention.attention.1.value: Linear",
        "decoder.attention.linear: Linear",
        "decoder.feed_forward: FeedForward",
        "decoder.feed_forward.linear_1: Linear",
        "decoder.feed_forward.relu: ReLU",
        "decoder.feed_forward.linear_2: Linear",
        "decoder.norm_1: LayerNorm",
        "decoder.norm_2: LayerNorm",
    ]


@pytest.mark.parametrize(
    ("name", "argument", "inputs"),
    [
        (None, "input_ids", "(T7s2x30,)"),
        ("LLM", "input_ids", "(T7s2x30,)"),
        ("DecoderLayer", "x", "(T1s2x30x16,)"),
        ("MultiAttentionBlock", "x", "(T1s2x30x16,)"),
        ("AttentionBlock", "x", "(T1s2x30x16,)"),
    ],
)
def test_parts_of_the_llm(name, argument, inputs):
    model, args, shapes = dummy_llm(name, dynamic_shapes=True)
    assert type(model).__name__ == (name or "LLM")
    assert faststeal.string_type(args, with_shape=True) == inputs
    assert faststeal.string_type(shapes) == f"dict({argument}:{{0:Dim(batch),1:Dim(length)}})"
    assert model(**{argument: args[0]}).shape == (2, 30, 16)
    assert [(dim.min, dim.max) for dim in shapes[argument].values()] == [(1, 1024), (1, 255)]
    assert faststeal.string_type(dummy_llm(name)[1], with_shape=True) == inputs.replace(
        "2x", "1x", 1
    )


def test_no_such_part():
    with pytest.raises(NotImplementedError, match=r"cls_name must be None, 'LLM' .*, not 'Other'"):
        dummy_llm("Other")


def test_attention_sees_no_later_token():
    model, (ids,) = dummy_llm()
    other = ids.clone()
    other[0, 20:] += 1
    other %= 1024
    a, b = model(ids), model(other)
    assert torch.equal(a[:, :20], b[:, :20])
    assert not torch.allclose(a[:, 20:], b[:, 20:])


def test_the_same_llm_as_in_onnx_diagnostic():
    theirs = pytest.importorskip("onnx_diagnostic.helpers.torch_helper").dummy_llm
    torch.manual_seed(3)
    model, (ids,) = theirs()
    torch.manual_seed(3)
    ours, (our_ids,) = dummy_llm()
    assert torch.equal(our_ids, ids)
    state = model.state_dict()
    assert list(ours.state_dict()) == list(state)
    assert all(torch.equal(value, state[name]) for name, value in ours.state_dict().items())
    assert torch.equal(ours(ids), model(ids))


# The names


def signature(function):
    return [
        (parameter.name, parameter.default)
        for parameter in inspect.signature(function).parameters.values()
    ]


def test_signatures_of_onnx_diagnostic():
    torch_helper = pytest.importorskip("onnx_diagnostic.helpers.torch_helper")
    from onnx_diagnostic.helpers import mini_onnx_builder

    for name in ("dummy_llm", "torch_deepcopy", "torch_tensor_size", "is_stealing", "steal_append"):
        assert signature(getattr(compat, name)) == signature(getattr(torch_helper, name))
    for name in (
        *("create_onnx_model_from_input_tensors", "create_input_tensors_from_onnx_model"),
        *("MiniOnnxBuilder", "proto_from_array"),
    ):
        assert signature(getattr(compat, name)) == signature(getattr(mini_onnx_builder, name))
    assert signature(compat.string_type) == signature(torch_helper.string_type)
    ours = [name for name, _ in signature(compat.steal_forward)]
    theirs = [name for name, _ in signature(torch_helper.steal_forward)]
    assert ours[: len(theirs) - 1] == theirs[:-1]  # the last is **kwargs


def test_the_names_of_the_package():
    for name in ("steal_forward", "steal_append", "is_stealing", "string_type"):
        assert getattr(compat, name) is getattr(faststeal, name)
    assert {*compat.__all__} <= {*dir(compat), "MiniOnnxBuilder", "proto_from_array"}
    with pytest.raises(AttributeError, match=r"module 'faststeal\.compat' has no attribute 'x'"):
        compat.x  # noqa: B018


def test_onnx_is_imported_when_it_is_needed():
    code = (
        "import sys\n"
        "from faststeal.compat import dummy_llm, torch_deepcopy\n"
        "dummy_llm()\n"
        "assert not {'onnx', 'onnxruntime', 'transformers'} & set(sys.modules)\n"
        "from faststeal.compat import MiniOnnxBuilder\n"
        "assert 'onnx' in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
