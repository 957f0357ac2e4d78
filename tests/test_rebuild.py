"""Trees are read, hostile ones refused, and neither runs code."""

import dataclasses
import gc
import json
import subprocess
import threading
import types
import weakref

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from faststeal import rebuild
from faststeal._core import FormatError
from faststeal.tree import Opaque, StoredDict, StoredTuple, flatten, unflatten

T = torch.arange(3.0)


@dataclasses.dataclass
class Plain:
    a: object


class MyDict(dict):
    """A class of its own."""


def test_containers_are_new_at_each_call():
    value = [{"a": [T], "b": {1}, "c": bytearray(b"x"), "d": Plain([1]), "e": {}}, [T, T], (T, [])]
    flat = flatten((value,))
    first = unflatten(flat.tree, flat.tensors)
    first[0][0]["a"].append(1)
    first[0][0]["b"].add(2)
    first[0][0]["c"] += b"y"
    first[0][0]["d"].a.append(2)
    first[0][0]["e"]["x"] = 1
    first[0][1].append(3)
    first[0][2][1].append(4)
    assert unflatten(flat.tree, flat.tensors)[0][2] == value[2]
    second = unflatten(flat.tree, flat.tensors)[0][0]
    assert second["a"] == [T]
    assert second["b"] == {1}
    assert second["c"] == bytearray(b"x")
    assert second["d"].a == [1]
    assert second["e"] == {}


def test_the_memory_of_trees_is_bounded():
    for i in range(rebuild._REMEMBERED + 50):
        assert unflatten(f"[{i}]", []) == [i]
    assert len(rebuild._compiled) <= rebuild._REMEMBERED


HOSTILE = r"""
{
nonsense
NaN
[Infinity]
1e
"\ud8"
[1,]
{}
{"tensor":0,"tuple":[]}
{"unknown":1}
{"tensor":-1}
{"tensor":true}
{"tensor":"0"}
{"tensor":1.0}
{"tensor":null}
{"tensor":99}
{"tensor":1e30}
[{"tensor":0},{"tensor":3}]
{"tuple":3}
{"tuple":null}
{"dict":{"a":1}}
{"dict":[1]}
{"dict":[[1]]}
{"dict":[[1,2,3]]}
{"dict":[[[],1]]}
{"dict":[[{"dict":[]},1]]}
{"set":[[]]}
{"set":3}
{"frozenset":[{"dict":[]}]}
{"float":"nano"}
{"float":1}
{"float":"1e5"}
{"int":"zz"}
{"int":3}
{"complex":[1,2]}
{"complex":[1.0]}
{"complex":["a",1.0]}
{"bytes":"*"}
{"bytes":3}
{"bytearray":"*"}
{"bytearray":[]}
{"range":[1,2]}
{"range":[1,2,0]}
{"range":["a",2,1]}
{"range":null}
{"slice":[1,2,3,4]}
{"ellipsis":1}
{"size":["a"]}
{"size":[1.5]}
{"size":3}
{"dtype":"nn"}
{"dtype":"Tensor"}
{"dtype":3}
{"device":"nowhere"}
{"device":"cuda:x"}
{"layout":"float32"}
{"memory_format":"strided"}
{"qscheme":"x"}
{"numpy_dtype":"O"}
{"numpy_dtype":"q"}
{"class":3}
{"deque":[]}
{"deque":{"items":[],"maxlen":-1}}
{"deque":{"items":[]}}
{"deque":{"items":3,"maxlen":null}}
{"defaultdict":{"items":[]}}
{"counter":[1]}
{"ordered_dict":3}
{"mapping_proxy":1}
{"opaque":{}}
{"opaque":{"class":1,"repr":"x"}}
{"opaque":[]}
{"object":{}}
{"object":3}
{"object":{"class":"a:b","kind":"nope","fields":[]}}
{"object":{"class":"a:b","kind":"object"}}
{"object":{"class":3,"kind":"object","fields":[]}}
{"object":{"class":"a:b","kind":"object","fields":[[1,2]]}}
{"object":{"class":"a:b","kind":"object","fields":[["a"]]}}
{"object":{"class":"a:b","kind":"object","fields":[],"more":1}}
{"object":{"class":"a:b","kind":["x"],"fields":[]}}
""".strip().splitlines()
ODD = [
    *("", "\0", "9" * 5000, f'{{"tensor":{1 << 80}}}', "[" * 100_000, "[" * 900 + "]" * 900),
    f'{{"deque":{{"items":[],"maxlen":{10**30}}}}}',
    '{"tuple":[' * 400 + "]}" * 400,
    '{"dict":[[1,' * 300 + "1" + "]]}" * 300,
]


@pytest.mark.parametrize("tree", [*HOSTILE, *ODD], ids=lambda tree: tree[:40])
def test_hostile_trees(tree):
    with pytest.raises(FormatError, match="expected") as caught:
        unflatten(tree, [T, T])
    assert len(str(caught.value)) < 2000


def test_errors_say_where():
    with pytest.raises(FormatError, match=r"tree\.tuple\[1\]\.dict\[0\]\.set: expected a list"):
        unflatten('{"tuple":[1,{"dict":[["a",{"set":3}]]}]}', [])
    with pytest.raises(FormatError, match="a record of 8 tensors, found 1"):
        unflatten('{"tensor":7}', [T])


class Finalizer:
    ran = 0

    def __del__(self):
        Finalizer.ran += 1


class Setter:
    ran = 0

    def __new__(cls, *args):
        cls.ran += 1
        return super().__new__(cls)

    def __init__(self, *args):
        Setter.ran += 1

    def __setattr__(self, name, value):
        Setter.ran += 1

    def __setstate__(self, state):
        Setter.ran += 1

    @property
    def trap(self):
        return None

    @trap.setter
    def trap(self, value):
        Setter.ran += 1


class SetterDict(MyDict):
    def __setitem__(self, key, value):
        Setter.ran += 1

    def __init__(self, *args):
        Setter.ran += 1

    update = __setitem__


def test_the_file_runs_no_code():
    def build(cls, kind, body='"fields":[["trap",1]]'):
        name = f"{cls.__module__}:{cls.__qualname__}"
        return unflatten(f'{{"object":{{"class":"{name}","kind":"{kind}",{body}}}}}', [])

    for kind in ("object", "dataclass", "attrs", "cache"):
        build(Finalizer, kind)
        assert type(build(Setter, kind)) is Setter
    assert build(SetterDict, "dict", '"items":[["a",1]]') == {"a": 1}
    gc.collect()
    assert (Finalizer.ran, Setter.ran) == (0, 0)
    items = '"items":[["a",1]]'
    for cls in (
        subprocess.Popen,
        threading.Thread,
        type,
        types.ModuleType,
        ValueError,
        weakref.ref,
    ):
        assert type(build(cls, "object")) is StoredDict
        assert type(build(cls, "dict", items)) is StoredDict
    for name in ("subprocess:Popen", "builtins:eval", "os:system", f"{__name__}:Setter"):
        assert type(unflatten(f'{{"class":"{name}"}}', [])) is Opaque
    wrong = unflatten(
        '{"object":{"class":"builtins:int","kind":"namedtuple","fields":[["a",1]]}}', []
    )
    assert type(wrong) is StoredTuple
    for kind, body in (
        ("structseq", '"fields":[["a",1]]'),
        ("enum", '"name":"A","value":1'),
        ("pytree", '"fields":[],"context":null'),
        ("model_output", '"fields":[["a",1]]'),
        ("str", '"value":"a"'),
        ("int", '"value":"a"'),
    ):
        assert type(build(Setter, kind, body)) in {StoredDict, StoredTuple}


# fmt: off
tags = st.sampled_from([
    "tensor", "tuple", "dict", "set", "float", "object", "class", "kind", "fields", "items", "size",
    "array", "sparse", "wrapper", "subclass", "opaque", "deque", "meta", "jagged", "scalar", "a",
])
# fmt: on
junk = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.floats() | tags | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(tags, inner, max_size=3),
    max_leaves=12,
)


@settings(max_examples=500, deadline=None)
@given(junk)
def test_junk_is_refused_or_read(value):
    try:
        unflatten(json.dumps(value), [torch.ones(3), torch.ones(2, dtype=torch.int64)])
    except FormatError as error:
        assert "expected" in str(error)  # noqa: PT017
