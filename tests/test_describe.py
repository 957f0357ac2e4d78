"""The grammar of `string_type`: exact texts, which onnx-diagnostic gives too."""

import argparse
import collections
import dataclasses
import enum
import subprocess
import sys
import types
from typing import NamedTuple

import numpy as np
import pytest
import torch
from torch.utils import _pytree

import faststeal
from faststeal.classes import Opaque, StoredDict
from faststeal.describe import string_type

F = torch.tensor([[0.5, 1.5, 2.5], [3.5, 4.5, 5.5]])
I = torch.arange(4)  # noqa: E741
NAN = torch.tensor([1.0, float("nan"), 3.0])
A = np.array([1.5, 2.5], dtype=np.float32)


class Pair(NamedTuple):
    a: object
    b: object


@dataclasses.dataclass
class Point:
    x: object
    y: object = None


class Color(enum.IntEnum):
    RED = 1


TEXTS = [
    # scalars
    (None, {}, "None"),
    (True, {}, "bool"),
    (3, {}, "int"),
    (3.5, {}, "float"),
    (np.float64(3.5), {}, "float"),
    (Color.RED, {}, "int"),
    ("text", {}, "str"),
    ("text", {"with_min_max": True}, "str"),
    (slice(1, 2), {}, "slice"),
    (True, {"with_min_max": True}, "bool=True"),
    (3, {"with_min_max": True}, "int=3"),
    (3.5, {"with_min_max": True}, "float=3.5"),
    # tensors and arrays
    (F, {}, "T1r2"),
    (F, {"with_shape": True}, "T1s2x3"),
    (F, {"with_device": True}, "CT1r2"),
    (F, {"with_shape": True, "with_device": True}, "CT1s2x3"),
    (F, {"with_min_max": True}, "T1r2[0.5,5.5:A3.0]"),
    (F, {"with_shape": True, "with_min_max": True}, "T1s2x3[0.5,5.5:A3.0]"),
    (I, {"with_min_max": True}, "T7r1[0,3:A1.5]"),
    (I > 1, {"with_min_max": True}, "T9r1[False,True:A0.5]"),
    (torch.tensor(3.5), {}, "T1r0"),
    (torch.tensor(3.5), {"with_shape": True}, "T1s"),
    (torch.tensor(3.5), {"with_shape": True, "with_min_max": True}, "T1s=3.5"),
    (torch.empty(0, 2), {"with_shape": True, "with_min_max": True}, "T1s0x2[empty]"),
    (NAN, {"with_min_max": True}, "T1r1[nan,nan:AnanN1nans]"),
    (torch.tensor([3 + 4j, 0j]), {"with_min_max": True}, "T14r1[0.0,5.0:A2.5]"),
    (torch.tensor(1 + 2j), {"with_min_max": True}, "T14r0=(1+2j)"),
    (torch.nn.Parameter(F), {"with_shape": True}, "T1s2x3"),
    (torch.ones(2, device="meta"), {"with_shape": True, "with_device": True}, "CT1s2"),
    (A, {}, "A1r1"),
    (A, {"with_shape": True}, "A1s2"),
    (A, {"with_device": True}, "A1r1"),
    (A, {"with_shape": True, "with_min_max": True}, "A1s2[1.5,2.5:A2.0]"),
    (np.array(3.5), {"with_shape": True, "with_min_max": True}, "A11s=3.5"),
    (np.empty((0, 2)), {"with_shape": True, "with_min_max": True}, "A11s0x2[empty]"),
    (NAN.numpy(), {"with_min_max": True}, "A1r1[1.0,3.0:A2.0N1nans]"),
    (NAN.numpy()[1:2], {"with_min_max": True}, "A1r1[N1nans]"),
    (np.array(["a"]), {}, "A8r1"),
    # sequences
    ((), {}, "()"),
    ((1,), {}, "(int,)"),
    ((1, "a"), {}, "(int,str)"),
    ((F,) * 19, {}, f"({','.join(['T1r2'] * 19)})"),
    ((F,) * 20, {"with_shape": True}, "#20(T1s2x3,...)"),
    ((F,) * 3, {"limit": 3}, "#3(T1r2,...)"),
    (tuple(range(25)), {"with_min_max": True}, "#25(int=0,...)[0,24:A[12.0]]"),
    (Pair(1, F), {}, "(int,T1r2)"),
    (F.shape, {}, "(int,int)"),
    (torch.max(F, dim=0), {}, "(T1r1,T7r1)"),
    ([], {}, "#0[]"),
    ([1], {}, "#1[int]"),
    ([F, (A, None)], {"with_shape": True}, "#2[T1s2x3,(A1s2,None)]"),
    ([1] * 20, {}, "#20[int,...]"),
    (list(range(25)), {"with_min_max": True}, "#25[int=0,...][0,24:12.0]"),
    ([True] * 20, {"with_min_max": True}, "#20[bool=True,...][True,True:1.0]"),
    ([0, None] * 10, {"with_min_max": True}, "#20[int=0,...]"),
    (set(), {}, "{}"),
    ({1}, {}, "{int}"),
    ({1}, {"with_min_max": True}, "{int=1}"),
    (set(range(12)), {}, "{...}"),
    (set(range(12)), {"with_shape": True}, "{...}#12"),
    (set(range(12)), {"with_min_max": True}, "{...}#12[0,11:A5.5]"),
    # mappings
    ({}, {}, "{}"),
    ({"a": 1, "b": F}, {"with_shape": True}, "dict(a:int,b:T1s2x3)"),
    ({0: F, 1: 2}, {}, "{0:T1r2,1:int}"),
    ({0: F, "a": 2}, {}, "dict(0:T1r2,a:int)"),
    ({("a", 0): F}, {}, "dict(('a', 0):T1r2)"),
    ({0: "batch", 1: torch.export.Dim("n")}, {}, "{0:DYN(batch),1:Dim(n)}"),
    (collections.OrderedDict(a=F, b=[F]), {}, "OrderedDict[serialized](#2[T1r2,#1[T1r2]])"),
    (collections.defaultdict(list, a=F), {}, "defaultdict[serialized](#1[T1r2])"),
    (collections.deque([F]), {}, "deque[serialized](#1[T1r2])"),
    (Point(F), {"with_shape": True}, "Point(x:T1s2x3)"),
    (Point(1, Point(None, 2)), {}, "Point(x:int,y:Point(y:int))"),
    (Point(None), {}, "Point"),
    # torch
    (torch.export.Dim.DYNAMIC, {}, "DYNAMIC"),
    (torch.export.Dim.AUTO, {}, "AUTO"),
    (torch.export.Dim("n"), {}, "Dim(n)"),
    (2 * torch.export.Dim("n"), {}, "DerivedDim"),
    (torch.nn.Linear(1, 1), {}, "Linear(...)"),
    (torch.float16, {}, "dtype(torch.float16)"),
    (torch.device("cpu"), {}, "device(cpu)"),
    (torch.strided, {}, "layout(torch.strided)"),
    (torch.preserve_format, {}, "memory_format(torch.preserve_format)"),
    (_pytree.MappingKey("a"), {}, "MappingKey(key:str)"),
]


def case_id(value):
    return f"{type(value).__name__}" if not isinstance(value, dict | str) else repr(value)[:40]


@pytest.mark.parametrize(("obj", "options", "text"), TEXTS, ids=case_id)
def test_text(obj, options, text):
    assert string_type(obj, **options) == text
    assert string_type(obj, **options, ignore=True, verbose=3) == text


@pytest.fixture(scope="module")
def theirs():
    return pytest.importorskip("onnx_diagnostic.helpers").string_type


@pytest.mark.parametrize(("obj", "options", "text"), TEXTS, ids=case_id)
def test_text_of_onnx_diagnostic(theirs, obj, options, text):
    assert theirs(obj, **options) == text


# `str` has no torch type.
CODES = dict(
    enumerate(
        [
            *("float32", "uint8", "int8", "uint16", "int16", "int32", "int64", None, "bool"),
            *("float16", "float64", "uint32", "uint64", "complex64", "complex128", "bfloat16"),
            *("float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz"),
            *("uint4", "int4", "float4_e2m1fn_x2", "float8_e8m0fnu", "uint2", "int2"),
        ],
        1,
    )
)


@pytest.mark.parametrize(("code", "name"), [item for item in CODES.items() if item[1]])
def test_element_types(code, name):
    tensor = torch.empty(2, dtype=getattr(torch, name))
    assert string_type(tensor, with_shape=True) == f"T{code}s2"


def dtypes():
    # torch makes no tensors of numbers of the last two.
    hollow = {torch.quint4x2, torch.quint2x4}
    return [t for t in vars(torch).values() if isinstance(t, torch.dtype) and t not in hollow]


def is_quantized(dtype):
    return str(dtype).startswith(("torch.q", "torch.quint"))


@pytest.mark.parametrize("dtype", dtypes(), ids=str)
@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor")
def test_every_element_type_has_a_text(dtype):
    if is_quantized(dtype):
        tensor = torch.quantize_per_tensor(torch.ones(2), 1.0, 0, dtype)
    else:
        tensor = torch.zeros(2, dtype=torch.uint8).repeat(dtype.itemsize).view(dtype)
    for empty_or_not in (tensor, tensor[:0], tensor[0]):
        for with_min_max in (False, True):
            text = string_type(empty_or_not, with_shape=True, with_min_max=with_min_max)
            assert text.startswith("T")


@pytest.mark.parametrize(
    ("tensor", "text"),
    [
        (torch.tensor([1, 60000], dtype=torch.uint16), "T4r1[1,60000:A30000.5]"),
        (torch.tensor([2**63 + 2**62], dtype=torch.uint64), f"T13r1[{3 * 2**62},{3 * 2**62}:A"),
        (torch.tensor([1.0, 2.0]).to(torch.float8_e5m2), "T19r1[1.0,2.0:A1.5]"),
        (torch.tensor([1.0, 2.0]).to(torch.bfloat16), "T16r1[1.0,2.0:A1.5]"),
        (torch.tensor([3 + 4j, complex("nan")]), "T14r1[5.0,5.0:A5.0N1nans]"),
        (torch.tensor([complex("nan")]), "T14r1[N1nans]"),
        (torch.nn.Parameter(torch.tensor(3.5)), "T1r0=3.5"),
        (F.to_sparse(), "T1r2"),
        (torch.ones(2, device="meta"), "T1r1"),
    ],
    ids=case_id,
)
def test_ranges_that_onnx_diagnostic_does_not_tell(tensor, text):
    assert string_type(tensor, with_min_max=True).startswith(text)


@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor")
def test_quantized_and_nested():
    quantized = torch.quantize_per_tensor(torch.tensor([1.0, 3.0]), 1.0, 0, torch.qint8)
    assert string_type(quantized, with_min_max=True) == "Tqint8r1[1.0,3.0:A2.0]"
    jagged = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged)
    assert string_type(jagged, with_shape=True).startswith("T1s2xj")


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_ragged():
    nested = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])
    assert string_type(nested, with_shape=True) == "T1s2x?"
    assert string_type(nested) == "T1r2"


def test_arrays_that_onnx_diagnostic_does_not_tell():
    assert string_type(np.array([1.5], dtype=">f4"), with_shape=True) == "A1s1"
    assert string_type(np.array(["a", "b"]), with_min_max=True) == "A8r1"
    assert string_type(np.array([1], dtype="datetime64[s]")) == "Adatetime64r1"
    assert string_type(np.zeros(2, dtype=[("x", int)]), with_min_max=True) == "Avoidr1"
    ml_dtypes = pytest.importorskip("ml_dtypes")
    assert string_type(np.array([1, -2], ml_dtypes.int4), with_min_max=True) == "A22r1[-2,1:A-0.5]"
    # numpy has no order of complex numbers but the lexical one.
    assert string_type(np.array([3 + 4j, 1j]), with_min_max=True) == "A15r1[1j,(3+4j):A1.5]"


def test_values_do_not_meet_autograd():
    x = torch.ones(2, requires_grad=True)
    assert string_type(x * 2, with_min_max=True) == "T1r1[2.0,2.0:A2.0]"
    with torch.inference_mode():
        assert string_type(torch.ones(2), with_min_max=True) == "T1r1[1.0,1.0:A1.0]"


class Watched(torch.Tensor):
    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        raise RuntimeError(func)


class Functions(torch.overrides.TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        raise RuntimeError(func)


class Operators(torch.utils._python_dispatch.TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        raise RuntimeError(func)


def test_code_of_the_user_does_not_see_it():
    options = {"with_shape": True, "with_min_max": True}
    watched = F.as_subclass(Watched)
    with Functions(), Operators():
        for tensor in (F, watched):
            assert string_type(tensor, **options) == "T1s2x3[0.5,5.5:A3.0]"


def test_fake_tensors_and_symbolic_sizes():
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    with FakeTensorMode(shape_env=ShapeEnv()) as mode:
        fake = mode.from_tensor(torch.ones(3, 2), static_shapes=False)
        assert string_type(torch.ones(2, 3), with_shape=True, with_min_max=True) == "F1s2x3"
        assert string_type(fake, with_shape=True, with_device=True) == f"CF1s{fake.shape[0]}x2" or (
            string_type(fake, with_shape=True).startswith("F1ss")
        )
        assert string_type(fake.shape[0] + 1) in {"SymInt", "int"}


def test_children_that_are_no_tensors():
    # There: `#0[]` for each of them.
    nested = collections.OrderedDict(a=1, b=None, c=(F, 2), d={"k": F})
    assert string_type(nested) == "OrderedDict[serialized](#4[int,None,#2[T1r2,int],#1[T1r2]])"


def test_tree_spec():
    spec = _pytree.tree_flatten({"a": [F, 2]})[1]
    assert string_type(spec) == "TreeSpec(dict,['a'],[TreeSpec(list,None,[*, *])])"


def test_graphs():
    graph = torch.fx.symbolic_trace(torch.nn.Linear(1, 1)).graph
    assert string_type(list(graph.nodes)) == "#4[%input,%weight,%bias,%linear]" or (
        string_type(next(iter(graph.nodes))) == "%input"
    )
    seen = []

    class Watching(torch.nn.Module):
        def forward(self, x):
            seen.append(string_type(x))
            return x

    torch.fx.symbolic_trace(Watching())
    assert seen == ["Proxy(x)"]


def test_onnx_and_onnxruntime():
    onnx = pytest.importorskip("onnx")
    assert string_type(onnx.helper.make_tensor_value_info("x", 10, [2])) == "OT10"
    onnxruntime = pytest.importorskip("onnxruntime")
    value = onnxruntime.OrtValue.ortvalue_from_numpy(np.ones((2, 3), np.float32))
    assert string_type(value) == "OV1r2"
    assert string_type(value, with_shape=True, with_device=True) == "COV1s2x3"
    assert string_type(value, with_min_max=True) == "OV(NO-NUMPY:FIXIT)"


# transformers


@pytest.fixture(scope="module")
def caches():
    return pytest.importorskip("transformers.cache_utils")


def config(caches, kind="Llama"):
    import transformers

    sizes = {"hidden_size": 8, "num_attention_heads": 2, "num_key_value_heads": 2}
    return getattr(transformers, f"{kind}Config")(num_hidden_layers=2, **sizes)


def filled(cache, length=3):
    cache.update(torch.ones(1, 2, length, 4), torch.ones(1, 2, length, 4) * 2, 0)
    return cache


def test_caches(caches, theirs):
    cache = filled(caches.DynamicCache())
    both = caches.EncoderDecoderCache(cache, caches.DynamicCache())
    static = filled(caches.StaticCache(config(caches), max_cache_len=5))
    dynamic = "DynamicCache(key_cache=#1[T1s1x2x3x4], value_cache=#1[T1s1x2x3x4])"
    empty = "DynamicCache(key_cache=#0[], value_cache=#0[])"
    expected = [
        (caches.DynamicCache(), empty),
        (cache, dynamic),
        (static, "StaticCache(key_cache=#1[T1s1x2x5x4], value_cache=#1[T1s1x2x5x4])"),
        (
            both,
            f"EncoderDecoderCache(self_attention_cache={dynamic}, cross_attention_cache={empty})",
        ),
        (cache.layers[0], "DynamicLayer(keys=T1s1x2x3x4, values=T1s1x2x3x4)"),
        (static.layers[0], "StaticLayer(keys=#1[T1s2x5x4], values=#1[T1s2x5x4])"),
    ]
    for obj, text in expected:
        assert string_type(obj, with_shape=True) == text
        assert theirs(obj, with_shape=True) == text
        for option in ("with_min_max", "with_device"):
            assert string_type([obj], **{option: True}) == theirs([obj], **{option: True})


def test_layers_of_several_kinds(caches):
    cache = caches.DynamicCache(config=config(caches, "Gemma2"))
    assert string_type(cache) == (
        "DynamicCache(DynamicSlidingWindowLayer(None, None), DynamicLayer(None, None))"
    )
    cache.update(torch.ones(1, 2, 3, 4), torch.ones(1, 2, 3, 8), 0)
    # There: the keys twice.
    assert string_type(cache, with_shape=True).startswith(
        "DynamicCache(DynamicSlidingWindowLayer(T1s1x2x3x4, T1s1x2x3x8), "
    )
    text = "DynamicSlidingWindowLayer(keys=T1s1x2x3x4, values=T1s1x2x3x8)"
    assert string_type(cache.layers[0], with_shape=True) == text
    linear = caches.LinearAttentionLayer()
    cache.layers[0] = linear
    linear.update_conv_state(torch.ones(1, 2, 4))
    assert string_type(cache, with_shape=True) == (
        "DynamicCache(LinearAttentionLayer({0:T1s1x2x4}, {0:None}), DynamicLayer(None, None))"
    )


def test_layers_that_are_empty(caches):
    layer = caches.StaticCache(config(caches), max_cache_len=5).layers[0]
    assert string_type(layer) == "StaticLayer(keys=None, values=None)"


def test_other_objects_of_transformers(caches, theirs):
    import transformers
    from transformers.modeling_outputs import BaseModelOutput

    for obj, text in [
        (BaseModelOutput(last_hidden_state=F), "BaseModelOutput(last_hidden_state:T1s2x3)"),
        (transformers.BatchEncoding({"ids": I}), "BatchEncoding(data=dict(ids:T7s4))"),
        (transformers.BatchFeature({"ids": I}), "BatchFeature(data=dict(ids:T7s4))"),
    ]:
        assert string_type(obj, with_shape=True) == text == theirs(obj, with_shape=True)
    assert string_type(config(caches)) == theirs(config(caches))


class Cache:
    pass


def test_classes_known_by_name():
    mamba = type("MambaCache", (), {"conv_states": F, "ssm_states": [F]})()
    assert string_type(mamba) == "MambaCache(conv_states=T1r2, ssm_states=#1[T1r2])"
    old = type("HybridCache", (), {"key_cache": [F], "value_cache": [A]})()
    assert string_type(old) == "HybridCache(key_cache=#1[T1r2], value_cache=#1[A1r1])"
    pairs = type("KeyValuesWrapper", (list,), {})([F])
    assert string_type(pairs) == "#1[T1r2]"
    chat = type("Chat", (), {"messages": ["a"]})()
    assert string_type(chat) == "Chat(#1[str])"
    assert string_type(chat, ignore=True) == "Chat(...)"
    assert string_type(type("InferenceSession", (), {})()) == "InferenceSession(...)"
    base = type("PreTrainedConfig", (), {"to_diff_dict": lambda _: {"a": [1, 2]}})
    own = type("OwnConfig", (base,), {})()
    assert string_type(own) == "OwnConfig(**{'a':[1,2]})"
    assert string_type(own, ignore=True) == "OwnConfig(...)"


def test_what_a_dump_puts_in_the_place_of_objects():
    stored = StoredDict("package.module:Outer.Name", [("a", F), ("b", 1)])
    assert string_type(stored) == "Name(a:T1r2,b:int)"
    assert string_type(Opaque("package.module:Name", "<text>")) == "Name(...)"


# What is not known


UNKNOWN = [
    (1j, "complex"),
    (b"", "bytes"),
    (frozenset(), "frozenset"),
    (np.float32(1), "float32"),
    (range(3), "range"),
    (object(), "object"),
    (int, "type"),
    (print, "builtin_function_or_method"),
    (collections.Counter("a"), "Counter"),
    (types.SimpleNamespace(a=1), "SimpleNamespace"),
    (argparse.Namespace(), "Namespace"),
    (torch.Generator(), "Generator"),
    (Cache(), "Cache"),
]


@pytest.mark.parametrize(("obj", "name"), UNKNOWN, ids=case_id)
def test_unknown(theirs, obj, name):
    with pytest.raises(TypeError, match=rf"no description for objects of class .*{name}; ignore="):
        string_type([obj])
    with pytest.raises(AssertionError):
        theirs([obj])
    text = f"dict(a:#1[{name}(...)])"
    assert string_type({"a": [obj]}, ignore=True) == text == theirs({"a": [obj]}, ignore=True)


def hostile():
    class Meta(type):
        __name__ = property(lambda _: 1 / 0)

        def __hash__(cls):
            raise ValueError

    class Hostile(metaclass=Meta):
        def __getattribute__(self, name):
            raise RuntimeError(name)

    return Hostile()


class HostileKey:
    def __hash__(self):
        return 1

    def __str__(self):
        raise RuntimeError

    __repr__ = __str__


class HostileList(list):
    def __len__(self):
        raise RuntimeError


@dataclasses.dataclass
class HostileFields:
    a: int = 1

    def __getattribute__(self, name):
        raise RuntimeError(name)


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (hostile, "Hostile(...)"),
        (lambda: {HostileKey(): 1}, "dict(...)"),
        (HostileList, "HostileList(...)"),
        (HostileFields, "HostileFields(...)"),
        (type("DynamicCache", (), {"layers": 3}), "DynamicCache(...)"),
        (type("OrtValue", (), {}), "OrtValue(...)"),
        (type("Node", (), {}), "Node(...)"),
        (type("StaticLayer", (), {}), "StaticLayer(...)"),
    ],
)
def test_nothing_is_raised_where_that_is_asked_for(make, text):
    for options in ({}, {"with_min_max": True}, {"with_shape": True, "with_device": True}):
        assert string_type(make(), ignore=True, **options) == text
        assert string_type((1, make()), ignore=True, **options).endswith(f",{text})")


def test_cycles():
    cycle = [1]
    cycle.append(cycle)
    twice = {"a": cycle}
    twice["b"] = twice
    assert string_type(cycle, ignore=True) == "list(...)"
    assert string_type(twice, ignore=True) == "dict(...)"
    with pytest.raises(RecursionError):
        string_type(cycle)


def test_empty_sequences_are_shorter_than_any_limit():
    assert string_type([(), []], limit=0) == "#2[(),...]"


def test_registering_a_class_later_is_noticed():
    class Late:
        def __init__(self, x):
            self.x = x

    assert string_type(Late(F), ignore=True) == "Late(...)"
    _pytree.register_pytree_node(Late, lambda late: ([late.x], None), lambda xs, _: Late(*xs))
    try:
        assert string_type(Late(F)) == "Late[serialized](#1[T1r2])"
    finally:
        _pytree._deregister_pytree_node(Late)


def test_it_is_the_public_one():
    assert faststeal.string_type is string_type


def test_nothing_is_imported():
    code = (
        "import sys, torch, numpy, faststeal\n"
        "before = set(sys.modules)\n"
        "x = torch.ones(2)\n"
        "objects = [x, x.numpy(), [x], {'a': x}, {0: 'a'}, torch.nn.Linear(1, 1), object()]\n"
        "for options in ({}, {'with_shape': True}, {'with_min_max': True}):\n"
        "    faststeal.string_type(objects, ignore=True, **options)\n"
        "print(*set(sys.modules) - before)"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    new = set(found.stdout.split())
    assert not {name for name in new if not name.startswith(("torch", "numpy"))}
