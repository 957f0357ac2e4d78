"""Objects go to text and tensors and come back as they were."""

import collections
import dataclasses
import enum
import gc
import json
import os
import pathlib
import subprocess
import sys
import threading
import time
import types
import typing
import weakref

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.utils.rnn import PackedSequence, pack_sequence

from faststeal.tree import Opaque, StoredDict, flatten, flatten_call, unflatten

try:
    import attrs
except ImportError:  # it is nobody's dependency here
    attrs = None

T = torch.arange(3.0)


def stored(obj, careful=False):
    flat = flatten(obj, careful=careful)
    json.loads(flat.tree)
    assert flat.tree.isascii()
    assert len(flat.paths) == len(flat.tensors) == len(set(flat.paths))
    assert not any("/" in path for path in flat.paths)
    return unflatten(flat.tree, flat.tensors)


def alike(a, b):  # noqa: PLR0911
    """Equal, of the same class all the way down, with the same order and the same tensors."""
    if type(a) is not type(b):
        return False
    if isinstance(a, torch.Tensor):
        return a is b
    if isinstance(a, float):
        return repr(a) == repr(b)
    if isinstance(a, complex):
        return repr(a) == repr(b)
    if isinstance(a, dict):
        return len(a) == len(b) and all(
            alike(x, y) and alike(a[x], b[y]) for x, y in zip(a, b, strict=True)
        )
    if isinstance(a, list | tuple | collections.deque):
        return len(a) == len(b) and all(map(alike, a, b))
    return a == b


class Point(typing.NamedTuple):
    x: object
    y: object = None


Pair = collections.namedtuple("Pair", "a b")  # noqa: PYI024 - the old way works as well


class Tagged(Pair):
    """A namedtuple with an attribute."""


class Color(enum.Enum):
    RED = 1
    TENSOR = "t"


class Mode(enum.IntFlag):
    READ = 1
    WRITE = 2


class Level(enum.IntEnum):
    LOW = 1


@dataclasses.dataclass
class Plain:
    a: object
    b: object = None
    made: list = dataclasses.field(default_factory=list)

    def __post_init__(self):
        self.calls = getattr(self, "calls", 0) + 1


@dataclasses.dataclass(frozen=True)
class Frozen:
    a: object
    b: int = 3


@dataclasses.dataclass(slots=True)
class Slots:
    a: object
    b: object = None


@dataclasses.dataclass(frozen=True, slots=True)
class FrozenSlots:
    a: object


if attrs is None:
    Attrs, AttrsFrozen = Slots, Frozen
else:

    @attrs.define
    class Attrs:
        a: object
        b: object = None

    @attrs.frozen(slots=False)
    class AttrsFrozen:
        a: object


class Space(types.SimpleNamespace):
    pass


class Thing:
    """An ordinary class."""

    def __init__(self, a, **more):
        self.a = a
        self.__dict__.update(more)

    def __eq__(self, other):
        return type(self) is type(other) and alike(vars(self), vars(other))

    __hash__ = None


class Cyclic:
    def __init__(self):
        self.me = self
        self.x = T


# fmt: off
class MyDict(dict): ...
class MyList(list): ...
class MyTuple(tuple): ...  # noqa: SLOT001
class MySet(set): ...
class MyFrozen(frozenset): ...
class MyStr(str): ...  # noqa: SLOT000
class MyInt(int): ...
class MyFloat(float): ...
class MyBytes(bytes): ...
class MyComplex(complex): ...
class MyOrdered(collections.OrderedDict): ...
class MyDefault(collections.defaultdict): ...
class MyCounter(collections.Counter): ...
class MyDeque(collections.deque): ...
class MyUserDict(collections.UserDict): ...
class MyUserList(collections.UserList): ...
# fmt: on


DERIVED = [
    MyDict(a=T, b=[T]),
    MyList([T, None]),
    MyTuple((T, 1)),
    MySet({1, 2}),
    MyFrozen({1, "a"}),
    MyStr("a"),
    MyInt(3),
    MyFloat(-0.0),
    MyBytes(b"x\0"),
    MyComplex(1 + 2j),
    MyOrdered([("b", T), ("a", 1)]),
    MyDefault(list, {"a": T}),
    MyCounter("aab"),
    MyDeque([T, 2], 5),
    MyUserDict({"a": T, 1: 2}),
    MyUserList([T, 2]),
]
# fmt: off
VALUES = [
    None, True, False, 0, 1, -1, 2**63, -(2**70), 10**5000, -(7**9000), 1.5, -0.0, 1e300, 5e-324,
    float("nan"), float("inf"), -float("inf"), 1 + 2j, complex(float("nan"), -0.0),
    "", "a/b.c", "é\ud800", b"", b"\0\xff", bytearray(b"ab"), ..., NotImplemented,
    range(3), range(5, -2, -3), slice(None), slice(1, 2, 3), slice("a", None, (1,)),
    (), [], {}, set(), frozenset(), [[]], ((),), {"a": {}}, [None], (None,), {"a": None},
    {1, 2.5, "x", None, (1, 2)}, frozenset({1}), {frozenset({1}): 3},
    torch.Size([2, 3]), torch.Size([]), torch.float32, torch.int4, torch.device("cuda:1"),
    torch.device("cpu"), torch.strided, torch.sparse_csr, torch.channels_last,
    torch.per_tensor_affine, torch.preserve_format,
    collections.OrderedDict([("b", 1), ("a", 2)]), collections.Counter("aab"),
    collections.deque([1, 2]), collections.deque([1], maxlen=3), collections.deque(maxlen=0),
    Color.RED, Color.TENSOR, Mode.READ, Mode.READ | Mode.WRITE, Mode(0), Level.LOW,
    pathlib.Path("a/b"), pathlib.PurePosixPath("/x"),
    int, dict, torch.Tensor, type(None), np.float32, np.ndarray, collections.OrderedDict,
    Point(1, 2), Point(T), Pair([T], (T,)), Frozen(1), FrozenSlots((1, T)), Slots(None, "b"),
    Attrs(1, 2), AttrsFrozen("a"), Thing(T, b=[T, {"c": None}]), Thing(None),
    types.SimpleNamespace(), types.SimpleNamespace(a=1, keys=None), Space(a=T), Space(b=[1]),
    (T,), [T, T], {"a": T}, {"a": [T, (T, None)], "b": {"c": T}}, (None, T, None), (T, (T,), True),
    *DERIVED,
]
# fmt: on


@pytest.mark.parametrize("careful", [False, True])
@pytest.mark.parametrize("value", VALUES, ids=lambda v: type(v).__name__)
def test_values_come_back(value, careful):
    assert alike(stored(value, careful), value)
    assert alike(stored([value, {"k": value}], careful), [value, {"k": value}])


def test_state_of_subclasses_comes_back():
    for value in DERIVED:
        value.note = [T, "x"]
        back = stored(value)
        assert back.note[0] is T
        assert alike(back, value)
        del value.note
    assert stored(MyDefault(list, {"a": 1})).default_factory is list
    assert stored(MyDeque([1], 5)).maxlen == 5
    tagged = Tagged(T, 1)
    tagged.note = 3
    back = stored(tagged)
    assert (type(back), back.note, back.a) == (Tagged, 3, T)


@pytest.mark.parametrize(
    "pairs",
    [
        [(1, "int"), ("1", "str")],
        [(True, "bool"), ("True", "str")],
        [(1.0, "float"), ("1.0", "str")],
        [(None, 0), ("None", 1)],
        [((1, "a"), 0), ("(1, 'a')", 1), (("1", "a"), 2), ((1, ("a",)), 3)],
        [(float("inf"), 0), (-float("inf"), 1), (b"a", 2), (1j, 3), (torch.float32, 4)],
        [(Color.RED, 0), (frozenset({1}), 1), (torch.device("cpu"), 2), (Point(1, 2), 3)],
        [(Frozen(1), 0), (range(3), 1), (np.int64(3), 2), (int, 3)],
        [("a.b", 0), ("a", 1), ("", 2), ("a/b", 3), ("a%2Fb", 4), ("\ud800", 5), ("\n", 6)],
    ],
)
def test_keys_of_every_kind_are_distinct(pairs):
    tensors = [torch.full((1,), float(i)) for i in range(len(pairs))]
    value = dict(zip([key for key, _ in pairs], tensors, strict=True))
    flat = flatten(value)
    assert len(set(flat.paths)) == len(value)
    assert all(path.isprintable() or not path for path in flat.paths)
    back = unflatten(flat.tree, flat.tensors)
    assert list(map(type, back)) == list(map(type, value))
    assert list(back) == list(value)
    assert all(a is b for a, b in zip(back.values(), tensors, strict=True))


def test_paths():
    cases = [
        (T, [""]),
        ([T, (T, {"a": T})], ["0", "1.0", "1.1.a"]),
        ({"hidden_states": (T, T)}, ["hidden_states.0", "hidden_states.1"]),
        ({1: T, "1": T, (2, 3): T, None: T}, ["1", "1_1", "(2, 3)", "None"]),
        ({"a": {"b": T}, "a.b": T, "a.b_1": T}, ["a.b", "a.b_2", "a.b_1"]),
        ({"a/b": T}, ["a%2Fb"]),
        ({Color.RED: T}, ["Color.RED"]),
        (Point(T, [T]), ["x", "y.0"]),
        (Plain(T, made=[T]), ["a", "made.0"]),
        (MyUserDict(ids=T), ["ids"]),
        (torch.eye(3, dtype=torch.complex64), [""]),
        ([torch.eye(3).to_sparse()], ["0.values", "0.indices"]),
    ]
    for value, paths in cases:
        assert sorted(flatten(value, careful=True).paths) == sorted(paths)
    flat = flatten_call((T, [T]), {"mask": T, "x": {"y": T}})
    assert flat.paths == ["args.0", "args.1.0", "kwargs.mask", "kwargs.x.y"]
    assert len(flatten({"x" * 100_000: T}).paths[0]) < 1000


def test_calls():
    for args, kwargs in [
        ((), {}),
        ((T,), {}),
        ((T, torch.nn.Parameter(T)), {}),
        ((T,) * 40, {}),
        ((T, None, 3), {"a": T, "b": None, "c": [T]}),
        ((), {"a": T}),
    ]:
        flat = flatten_call(args, kwargs)
        back = unflatten(flat.tree, flat.tensors)
        assert alike(back, (args, kwargs))
        assert flat.tree == flatten((args, kwargs)).tree
        assert flat.leaves is None
        assert flat.notes == []
        careful = flatten_call(args, kwargs, careful=True)
        assert (careful.tree, careful.paths) == (flat.tree, flat.paths)


@pytest.mark.parametrize("kind", [Plain, Frozen, Slots, FrozenSlots, Attrs, AttrsFrozen])
def test_dataclasses_and_attrs(kind):
    value = kind([T, None])
    back = stored({"x": value})["x"]
    assert type(back) is kind
    assert back.a[0] is T
    if kind in {Frozen, FrozenSlots, AttrsFrozen}:
        with pytest.raises(AttributeError):
            back.a = 3


def test_init_does_not_run():
    value = Plain(1)
    value.extra = T
    back = stored(value)
    assert (back.calls, back.b, back.made) == (1, None, [])
    assert back.extra is T


def test_struct_sequences():
    value = torch.max(torch.eye(2), 0)
    flat = flatten(value)
    assert flat.paths == ["values", "indices"]
    back = unflatten(flat.tree, flat.tensors)
    assert type(back) is torch.return_types.max
    assert back.indices is value.indices
    assert type(stored(torch.linalg.eigh(torch.eye(2)))) is torch.return_types.linalg_eigh
    moment = time.localtime(0)
    back = stored(moment)
    assert back == moment
    assert back.tm_zone == moment.tm_zone


def test_packed_sequences():
    packed = pack_sequence([torch.ones(3), torch.ones(2)])
    flat = flatten(packed)
    assert flat.paths == ["data", "batch_sizes"]
    assert type(unflatten(flat.tree, flat.tensors)) is PackedSequence


def test_default_factories():
    assert stored(collections.defaultdict(int, a=1))["b"] == 0
    assert stored(collections.defaultdict(None)).default_factory is None
    value = collections.defaultdict(lambda: 3, a=T)
    flat = flatten(value)
    back = unflatten(flat.tree, flat.tensors)
    assert type(back) is collections.defaultdict
    assert back.default_factory is None
    assert back["a"] is T
    assert "lambda" in flat.tree
    assert flat.notes == ["default_factory: builtins:function"]


def test_proxies_and_other_mappings():
    back = stored(types.MappingProxyType({"a": T}))
    assert type(back) is types.MappingProxyType
    assert back["a"] is T

    class Reversed(collections.abc.Mapping):
        def __init__(self, content):
            self.content = content

        def __getitem__(self, key):
            raise AssertionError

        def __iter__(self):
            raise AssertionError

        def __len__(self):
            raise AssertionError

    flat = flatten(Reversed({"a": T}))
    assert flat.paths == ["content.a"]
    back = unflatten(flat.tree, flat.tensors)
    assert type(back) is StoredDict
    assert back["content"]["a"] is T


def test_sets_of_strings_give_the_same_text_in_every_process():
    code = "from faststeal.tree import flatten; print(flatten({'a', 'bc', 'def', 1}).tree)"
    texts = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(texts) == 1


def test_cycles_and_depth():
    ring = [T]
    ring.append(ring)
    back = stored(ring)
    assert back[0] is T
    assert back[1] == Opaque("builtins:list", "a cycle")
    mapping = {"t": T}
    mapping["again"] = (mapping, [mapping])
    assert stored(mapping)["again"][1] == [Opaque("builtins:dict", "a cycle")]
    back = stored(Cyclic())
    assert type(back) is Cyclic
    assert back.x is T
    assert type(back.me) is Opaque
    deep = T
    for _ in range(5000):
        deep = [deep]
    flat = flatten(deep)
    assert len(flat.notes) == 1
    unflatten(flat.tree, flat.tensors)
    chain = Thing(T)
    for _ in range(5000):
        chain = Thing(chain)
    flat = flatten(chain)
    unflatten(flat.tree, flat.tensors)
    shallow = T
    for _ in range(90):
        shallow = [shallow]
    assert flatten(shallow).notes == []
    objects = T
    for _ in range(90):
        objects = Frozen({"x": (objects,)}) if False else Frozen(objects)
    flat = flatten(objects)
    assert flat.notes == []
    unflatten(flat.tree, flat.tensors)


def test_shared_parts_do_not_explode():
    part = [1]
    for _ in range(60):
        part = [part, part]
    flat = flatten(part)
    assert flat.notes
    assert len(flat.tree) < 50_000_000


def test_near_the_end_of_the_stack():
    deep = T
    for _ in range(80):
        deep = [Thing(deep)]

    def down(n):
        return down(n - 1) if n else flatten(deep)

    limit = sys.getrecursionlimit()
    for n in range(limit - 220, limit - 60, 10):
        try:
            flat = down(n)
        except RecursionError:
            break
        unflatten(flat.tree, flat.tensors)


def test_nothing_is_kept_alive():
    thing = Thing(torch.ones(3))
    watch = weakref.ref(thing.a)
    flat = flatten([thing])
    back = unflatten(flat.tree, flat.tensors)
    del thing, flat, back
    gc.collect()
    assert watch() is None


def test_from_many_threads():
    errors = []

    def work(n):
        try:
            for i in range(200):
                value = {"a": [T, n], "b": (i % 7, {"c": T}), f"k{i % 50}": Plain(T)}
                back = stored(value)
                assert back["a"] == [T, n]
                assert back["b"][0] == i % 7
        except Exception as error:  # noqa: BLE001
            errors.append(error)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []


# Properties.

scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(st.characters(codec=None)),
    st.binary(),
    st.complex_numbers(),
    st.sampled_from([torch.float16, torch.device("cuda:0"), torch.Size([1]), Color.RED, ..., int]),
)
keys = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(),
        st.text(st.characters(codec=None)),
        st.floats(allow_nan=False),
        st.binary(),
    ),
    lambda inner: st.lists(inner, max_size=3).map(tuple),
    max_leaves=4,
)
trees = st.recursive(
    scalars | st.builds(lambda: torch.zeros(1)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.lists(inner, max_size=4).map(tuple),
        st.dictionaries(keys, inner, max_size=4),
        st.dictionaries(keys, inner, max_size=4).map(collections.OrderedDict),
        st.lists(inner, max_size=3).map(collections.deque),
        st.builds(Point, inner, inner),
        st.builds(Plain, inner, inner),
        st.builds(Frozen, inner),
        st.builds(Slots, inner, inner),
        st.builds(Attrs, inner),
        st.builds(Thing, inner),
        st.lists(inner, max_size=3).map(MyList),
        st.dictionaries(keys, inner, max_size=3).map(MyUserDict),
        st.frozensets(keys, max_size=3),
    ),
    max_leaves=20,
)


def deeply_alike(a, b):
    if type(a) is not type(b):
        return False
    if type(a) in {Plain, Slots, Frozen, Attrs, Thing, MyUserDict}:
        names = getattr(a, "__slots__", None) or vars(a)
        names = [name for name in names if not name.startswith("__")]
        return all(deeply_alike(getattr(a, n), getattr(b, n)) for n in names)
    if isinstance(a, list | tuple | collections.deque):
        return len(a) == len(b) and all(map(deeply_alike, a, b))
    if isinstance(a, dict):
        return len(a) == len(b) and all(
            alike(x, y) and deeply_alike(a[x], b[y]) for x, y in zip(a, b, strict=True)
        )
    return alike(a, b)


@settings(max_examples=300, deadline=None)
@given(trees, st.booleans())
def test_any_nesting_comes_back(value, careful):
    flat = flatten(value, careful=careful)
    assert len(set(flat.paths)) == len(flat.paths) == len(flat.tensors)
    for path in flat.paths:
        path.encode()
        assert "/" not in path
    assert flat.notes == []
    assert deeply_alike(unflatten(flat.tree, flat.tensors), value)
    assert flatten(value, careful=careful).tree == flat.tree
