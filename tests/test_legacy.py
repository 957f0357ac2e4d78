"""Objects out of the names that onnx-diagnostic gives: written by hand, and by onnx-diagnostic."""

import itertools
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import faststeal
from faststeal.classes import StoredDict
from faststeal.compat import create_input_tensors_from_onnx_model
from faststeal.describe import string_type
from faststeal.legacy import as_array, restore_legacy

F = torch.tensor([[0.5, 1.5], [2.5, 3.5]])
I = torch.arange(3)  # noqa: E741
EMPTY = torch.empty(0, dtype=torch.float64)


def restored(*names, sep="___"):
    """Restore values that are numbered in the order of the names."""
    return restore_legacy([(name, torch.tensor([i])) for i, name in enumerate(names)], sep)


def parts(obj):
    """What an object consists of: parts to compare one by one, or what can be compared."""
    if isinstance(obj, torch.Tensor):
        return [], (torch.Tensor, obj.dtype, obj.tolist())
    if isinstance(obj, np.ndarray):
        return [], (np.ndarray, obj.dtype, obj.tolist())
    if isinstance(obj, dict):
        return list(obj.values()), (dict, list(map(repr, obj)))  # a Key prints as a tuple
    if isinstance(obj, tuple | list):
        return list(obj), type(obj)
    if type(obj).__name__.endswith("Cache"):
        return [(layer.keys, layer.values) for layer in obj.layers], type(obj)
    return [], (type(obj), obj)


def same(a, b):
    (of_a, a), (of_b, b) = parts(a), parts(b)
    return a == b and len(of_a) == len(of_b) and all(map(same, of_a, of_b))


# The grammar


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["int"], 0),
        (["float"], 0.0),
        (["bool"], False),
        (["empty"], None),
        (["tuple_0.___int"], (0,)),
        (["tuple_0___int", "tuple_1.___int"], (0, 1)),
        (["list_0___int", "list_1.___bool"], [0, True]),
        (["tuple.___empty"], ()),
        (["list.___empty"], []),
        (["dict.___empty"], {}),
        (["dict_a___int", "dict._b___float"], {"a": 0, "b": 1.0}),
        (["tuple_0___tuple.___empty", "tuple_1.___dict._k___int"], ((), {"k": 1})),
        (["list_0.___list_0.___list_0.___int"], [[[0]]]),
        (
            ["dict_a___list_0___int", "dict_a___list_1.___int", "dict._b___int"],
            {"a": [0, 1], "b": 2},
        ),
        (["dict._a_b___int"], {"a_b": 0}),
        (["dict_.x___int", "dict._.y___int"], {".x": 0, ".y": 1}),
        (["dict_x.___int", "dict._y.___int"], {"x.": 0, "y.": 1}),
        (["dict_tuple_0___int", "dict._tensor___int"], {"tuple_0": 0, "tensor": 1}),
        (["dict._((m.d,0,I))___tuple_0.___int"], {("m.d", 0, "I"): (0,)}),
        (["dict_((,0,I))___int", "dict._((,0,O))___int"], {("", 0, "I"): 0, ("", 0, "O"): 1}),
        (["dict._((a,True,-3,x y))___int"], {("a", True, -3, "x y"): 0}),
        (["dict_12___int", "dict_False___int", "dict._012x___int"], {12: 0, False: 1, "012x": 2}),
        (["dict._(a)___int"], {"(a)": 0}),
        # The separator in a tuple of keys, which onnx-diagnostic writes and cannot read.
        (["dict._((my___module,0,I))___int"], {("my___module", 0, "I"): 0}),
    ],
)
def test_grammar(names, expected):
    found = restored(*names)
    assert found == expected
    assert same(found, expected)


def test_values():
    found = restore_legacy(
        [
            ("tuple_0___tensor", F),
            ("tuple_1___array", F.to(torch.float64)),
            ("tuple_2___array", [b"a", "é".encode()]),
            ("tuple_3___int", torch.tensor([2**40])),
            ("tuple_4___float", torch.tensor([0.1], dtype=torch.float64)),
            ("tuple_5.___bool", torch.tensor([True])),
        ]
    )
    assert same(found[:2], (F, F.to(torch.float64).numpy()))
    assert found[2].tolist() == ["a", "é"]
    assert same(found[3:], (2**40, 0.1, True))
    assert found[0] is F


def test_another_separator():
    assert restored("dict_a___b#int", "dict._c#tuple_0.#int", sep="#") == {"a___b": 0, "c": (1,)}
    assert restored("dict_a___int", "dict._b___int", sep="#") == {
        "dict_a___int": torch.tensor([0]),
        "dict._b___int": torch.tensor([1]),
    }


def test_device():
    found = restore_legacy([("tuple_0___tensor", F), ("tuple_1.___array", F)], device="meta")
    assert found[0].device.type == "meta"
    assert same(found[1], F.numpy())


# None, which has no name


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["tuple_0___int", "tuple_2.___int"], (0, None, 1)),
        (["tuple_1.___int"], (None, 0)),
        (["tuple_0___int"], (0, None)),
        (["list_1___int"], [None, 0, None]),
        (["dict_a___int"], {"a": 0}),
        (["dict._((m,0,O))___tuple_0___int"], {("m", 0, "O"): (0, None)}),
    ],
)
def test_what_none_left_behind(names, expected):
    assert same(restored(*names), expected)


# Caches


def test_dynamic_cache():
    cache_utils = pytest.importorskip("transformers.cache_utils")
    keys, values = torch.ones(1, 2, 3, 4), torch.zeros(1, 2, 3, 4)
    cache = restore_legacy(
        [
            ("DynamicCache_key_cache___list_0.___tensor", keys),
            ("DynamicCache._value_cache___list_0.___tensor", values),
        ]
    )
    assert type(cache) is cache_utils.DynamicCache
    [layer] = cache.layers
    assert type(layer) is cache_utils.DynamicLayer
    assert same((layer.keys, layer.values), (keys, values))
    empty = restored(
        "DynamicCache_key_cache___list.___empty", "DynamicCache._value_cache___list.___empty"
    )
    assert len(empty.layers) == 0


def test_static_cache():
    cache_utils = pytest.importorskip("transformers.cache_utils")
    keys, values = torch.ones(1, 2, 9, 4), torch.zeros(1, 2, 9, 4)
    [cache] = restore_legacy(
        [
            ("list_0.___StaticCache_key_cache___list_0.___tensor", keys),
            ("list_0.___StaticCache._value_cache___list_0.___tensor", values),
        ]
    )
    assert type(cache) is cache_utils.StaticCache
    [layer] = cache.layers
    assert layer.max_cache_len == 9
    assert same((layer.keys, layer.values), (keys, values))


@pytest.mark.parametrize("kind", ["DynamicCache", "StaticCache"])
def test_cache_that_cannot_be_made(kind, monkeypatch):
    names = [f"{kind}_key_cache___list_0.___int", f"{kind}._value_cache___list_0.___int"]
    expected = {"key_cache": [0], "value_cache": [1]}
    found = restored(*names)  # no tensors: no cache
    assert isinstance(found, StoredDict)
    assert found.class_name == f"transformers.cache_utils:{kind}"
    assert found == expected
    monkeypatch.setitem(sys.modules, "transformers", None)
    assert restored(*names) == expected


# Other models, and wrong ones


def test_names_that_tell_nothing():
    assert restore_legacy([]) == {}
    found = restore_legacy(
        [("x", F), ("list", [F, I]), ("text", [b"a"]), ("none", []), ("int", I), ("tensor", F)]
    )
    assert same(found["list"], [F, I])
    assert found["text"].tolist() == ["a"]
    assert found["none"] == []
    assert same(found["int"], I)
    assert list(found) == ["x", "list", "text", "none", "int", "tensor"]


def test_keys_and_values():
    found = restore_legacy(
        [("d___keys", [b"a", b"b"]), ("d___values", [F, I]), ("e___keys", F), ("f___values", I)]
    )
    assert same(found["d"], {"a": F, "b": I})
    assert list(found) == ["d", "e___keys", "f___values"]


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["tuple_0___int", "list_1.___int"], "expected a tuple, found a list"),
        (["dict_a___int", "dict_a___int"], "there is something else at its place"),
        (["dict_a___int", "dict._a___tuple_0.___int"], "a value stands where it has a container"),
        (["dict._a___tuple_0.___int", "dict_a___int"], "there is something else at its place"),
        (["list_999999999999.___int"], "item 999999999999 of a list of 1 items"),
    ],
)
def test_names_that_contradict_each_other(names, message):
    with pytest.raises(faststeal.FormatError, match=message):
        restored(*names)


def test_values_of_another_kind():
    for value in (I, [I], [b"1"]):
        with pytest.raises(faststeal.FormatError, match="output 'int': expected one int"):
            restore_legacy([("int", value)])


@pytest.mark.parametrize("name", ["bfloat16", "float8_e4m3fn", "float8_e5m2fnuz", "float8_e8m0fnu"])
def test_arrays_of_ml_dtypes(name):
    ml_dtypes = pytest.importorskip("ml_dtypes")
    tensor = torch.tensor([[1.0, 2.0], [4.0, 0.5]]).to(getattr(torch, name))
    array = as_array(tensor)
    assert array.dtype == getattr(ml_dtypes, name)
    assert array.astype(np.float32).tolist() == [[1.0, 2.0], [4.0, 0.5]]
    assert as_array(tensor[0, 1]).shape == ()


# onnx-diagnostic's own files


@pytest.fixture(scope="module")
def theirs():
    return pytest.importorskip("onnx_diagnostic.helpers.mini_onnx_builder")


def objects():
    tensor_of = {f"t{i}": F.to(dtype) for i, dtype in enumerate([torch.float16, torch.int8])}
    deep = (F, {"a": [I, (F, {})], "b": ()}, [], [[F], [I.numpy()]], 3, 2.5, True)
    return [
        *(F, I.numpy(), 3, 2.5, False, [], {}, ()),
        *([F], (F,), {"k": F}, [F, I], {"a": F, "b": I.numpy()}, tensor_of),
        *([{}], {"a": {}}, ((),), [[[]]], {"a": [{}, ()], "b": {"c": []}}),
        *(deep, [deep, deep], {"x": deep, "y_z": [deep]}),
        {("m", 0, "I"): ((F, I), {}), ("m", 0, "O"): F, ("m.n", 1, "I"): ((), {"x": F, "y": 1})},
        {("", 0, "I"): ((), {"a": F}), ("", 0, "O"): (F, [I])},
    ]


@pytest.mark.parametrize("obj", objects(), ids=string_type)
def test_files_of_onnx_diagnostic(theirs, obj, tmp_path):
    import onnx

    model = theirs.create_onnx_model_from_input_tensors(obj)
    expected = theirs.create_input_tensors_from_onnx_model(model, engine="onnx")
    assert same(obj, expected)
    onnx.save(model, tmp_path / "theirs.onnx")
    for source in (model, tmp_path / "theirs.onnx", str(tmp_path / "theirs.onnx")):
        assert same(create_input_tensors_from_onnx_model(source), expected)
    for engine in ("onnx", "onnxruntime"):
        assert same(create_input_tensors_from_onnx_model(model, engine=engine), expected)
    if isinstance(obj, dict) and obj:
        with faststeal.load(tmp_path / "theirs.onnx") as dump:
            assert same(dict(dump), expected)


def test_external_data_of_onnx_diagnostic(theirs, tmp_path):
    import onnx

    obj = {("m", 0, "O"): torch.randn(64, 64), ("m", 1, "O"): (F, torch.randn(40, 40))}
    model = theirs.create_onnx_model_from_input_tensors(obj)
    onnx.save(model, tmp_path / "m.onnx", save_as_external_data=True, location="m.onnx.data")
    for engine in ("ExtendedReferenceEvaluator", "onnx", "onnxruntime"):
        assert same(create_input_tensors_from_onnx_model(tmp_path / "m.onnx", engine=engine), obj)


def test_separator_of_onnx_diagnostic(theirs):
    obj = {"a___b": (F, I), "c": 1}
    model = theirs.create_onnx_model_from_input_tensors(obj, sep="#")
    assert same(create_input_tensors_from_onnx_model(model, sep="#"), obj)


def test_caches_of_onnx_diagnostic(theirs):
    cache_utils = pytest.importorskip("transformers.cache_utils")
    cache = cache_utils.DynamicCache()
    for i in range(2):
        cache.update(torch.randn(1, 2, 3, 4), torch.randn(1, 2, 3, 4), i)
    for obj in (cache, (F, cache), {"past": cache, "x": F}):
        model = theirs.create_onnx_model_from_input_tensors(obj)
        expected = theirs.create_input_tensors_from_onnx_model(model, engine="onnx")
        assert same(create_input_tensors_from_onnx_model(model), expected)


@pytest.mark.parametrize("obj", [(F, None), [None, F], {"a": F, "b": (F, None)}], ids=string_type)
def test_none_breaks_their_reader_and_not_ours(theirs, obj):
    model = theirs.create_onnx_model_from_input_tensors(obj)
    assert same(create_input_tensors_from_onnx_model(model), obj)


def test_their_random_numbers(theirs):
    obj = {"a": F - 2, "b": F, "i": I}
    model = theirs.create_onnx_model_from_input_tensors(obj, randomize=True)
    for engine in ("ExtendedReferenceEvaluator", "onnx", "onnxruntime"):
        found = create_input_tensors_from_onnx_model(model, engine=engine)
        assert string_type(found, with_shape=True) == string_type(obj, with_shape=True)
        assert same(found["i"], I)
        assert found["b"].min() >= 0.5


def test_the_dump_that_onnx_diagnostic_ships(theirs):
    # A real one: `generate` of a model that reads images, two calls.
    file = (
        Path(theirs.__file__).parents[1]
        / "tasks/data/dummies_imagetext2text_generation_gemma3.onnx"
    )
    expected = theirs.create_input_tensors_from_onnx_model(str(file), engine="onnx")
    assert list(expected) == [("", 0, "I"), ("", 1, "I")]
    assert string_type(expected, with_shape=True) == (
        "dict(('', 0, 'I'):((),dict(cache_position:T7s281,input_ids:T7s1x281,"
        "token_type_ids:T7s1x281,use_cache:bool,return_dict:bool)),('', 1, 'I'):((),"
        "dict(cache_position:T7s1,input_ids:T7s1x1,token_type_ids:T7s1x1,"
        "use_cache:bool,return_dict:bool)))"
    )
    for engine in ("ExtendedReferenceEvaluator", "onnx", "onnxruntime"):
        assert same(create_input_tensors_from_onnx_model(file, engine=engine), expected)
    with faststeal.load(file) as dump:
        assert same(dict(dump), expected)
        assert all(isinstance(key, faststeal.Key) for key in dump)


def test_long_names_take_no_long_time():
    name = "dict_" + "(" * 20_000 + "___" * 20_000
    assert list(restored(name)) == [name]
    many = [f"dict_{i}___list_{j}___int" for i, j in itertools.product(range(100), range(100))]
    assert len(restored(*many)) == 100


@pytest.mark.parametrize("levels", [101, 5_000])
def test_names_deeper_than_any_object(levels):
    name = "tuple_0.___" * levels + "int"
    assert list(restore_legacy([(name, I)])) == [name]


def test_numbers_larger_than_any_object():
    name = f"list_{'9' * 5_000}.___int"
    assert list(restore_legacy([(name, I)])) == [name]
