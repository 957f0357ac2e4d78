"""Objects go to text and tensors and come back as they were."""

import collections
import collections.abc
import dataclasses
import datetime
import enum
import functools
import gc
import json
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
from torch.utils import _pytree

from faststeal._core import FormatError
from faststeal.tree import (
    Opaque,
    StoredDict,
    StoredList,
    StoredTuple,
    flatten,
    flatten_call,
    unflatten,
)

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


def alike(a, b):
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


Pair = collections.namedtuple("Pair", "a b")


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


class Thing:
    """An ordinary class."""

    def __init__(self, a, **more):
        self.a = a
        self.__dict__.update(more)

    def __eq__(self, other):
        return type(self) is type(other) and alike(vars(self), vars(other))

    __hash__ = None


class MyDict(dict):
    pass


class MyList(list):
    pass


class MyTuple(tuple):
    pass


class MySet(set):
    pass


class MyFrozen(frozenset):
    pass


class MyStr(str):
    pass


class MyInt(int):
    pass


class MyFloat(float):
    pass


class MyBytes(bytes):
    pass


class MyComplex(complex):
    pass


class MyOrdered(collections.OrderedDict):
    pass


class MyDefault(collections.defaultdict):
    pass


class MyCounter(collections.Counter):
    pass


class MyDeque(collections.deque):
    pass


class MyUserDict(collections.UserDict):
    pass


class MyUserList(collections.UserList):
    pass


NESTED_CLASSES = [
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
VALUES = [
    *(
        None,
        True,
        False,
        0,
        1,
        -1,
        2**63,
        -(2**70),
        1.5,
        -0.0,
        1e300,
        5e-324,
        "",
        "a/b.c",
        "é\ud800",
    ),
    *(float("nan"), float("inf"), -float("inf"), 1 + 2j, complex(float("nan"), -0.0)),
    *(b"", b"\0\xff", bytearray(b"ab"), ..., NotImplemented, range(3), range(5, -2, -3)),
    *(10**5000, -(7**9000)),
    *(slice(None), slice(1, 2, 3), slice("a", None, (1,))),
    *((), [], {}, set(), frozenset(), [[]], ((),), {"a": {}}, [None], (None,), {"a": None}),
    *({1, 2.5, "x", None, (1, 2)}, frozenset({1}), {frozenset({1}): 3}),
    *(torch.Size([2, 3]), torch.Size([]), torch.float32, torch.int4, torch.device("cuda:1")),
    *(torch.device("cpu"), torch.strided, torch.sparse_csr, torch.channels_last),
    *(torch.per_tensor_affine, torch.preserve_format),
    *(collections.OrderedDict([("b", 1), ("a", 2)]), collections.Counter("aab")),
    *(collections.deque([1, 2]), collections.deque([1], maxlen=3), collections.deque(maxlen=0)),
    *(Color.RED, Color.TENSOR, Mode.READ, Mode.READ | Mode.WRITE, Mode(0), Level.LOW),
    *(pathlib.Path("a/b"), pathlib.PurePosixPath("/x")),
    *(int, dict, torch.Tensor, type(None), np.float32, np.ndarray, collections.OrderedDict),
    *(Point(1, 2), Point(T), Pair([T], (T,)), Frozen(1), FrozenSlots((1, T)), Slots(None, "b")),
    *(Attrs(1, 2), AttrsFrozen("a"), Thing(T, b=[T, {"c": None}]), Thing(None)),
    *(types.SimpleNamespace(), types.SimpleNamespace(a=1, keys=None)),
    *((T,), [T, T], {"a": T}, {"a": [T, (T, None)], "b": {"c": T}}, (None, T, None)),
    *NESTED_CLASSES,
]


@pytest.mark.parametrize("careful", [False, True])
@pytest.mark.parametrize("value", VALUES, ids=lambda v: type(v).__name__)
def test_values_come_back(value, careful):
    assert alike(stored(value, careful), value)
    assert alike(stored([value, {"k": value}], careful), [value, {"k": value}])


def test_state_of_subclasses_comes_back():
    for value in NESTED_CLASSES:
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
            env={**__import__("os").environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            check=True,
        ).stdout
        for seed in ("1", "2", "3")
    }
    assert len(texts) == 1


# Classes that cannot be had.


def test_a_class_that_cannot_be_imported():
    @dataclasses.dataclass
    class Local:
        a: object

    class LocalTuple(typing.NamedTuple):
        x: object

    class LocalList(list):
        pass

    class LocalEnum(enum.Enum):
        A = 1

    back = stored(Local(T))
    assert type(back) is StoredDict
    assert "Local" in back.class_name
    assert back == {"a": T}
    back = stored(LocalTuple(T))
    assert type(back) is StoredTuple
    assert (back[0], back.fields) == (T, ("x",))
    assert "LocalTuple" in back.class_name
    assert type(stored(LocalList([1]))) is StoredList
    assert stored(LocalEnum.A) == {"name": "A", "value": 1}
    again = stored(stored(Local(T)))
    assert type(again) is StoredDict
    assert again == {"a": T}
    assert "Local" in again.class_name
    assert "Local" in repr(again)


def test_a_class_that_appears_or_changes_between_two_loads():
    module = types.ModuleType("appears_later")
    flat = flatten(Frozen(T))
    tree = flat.tree.replace(json.dumps(f"{__name__}:Frozen"), '"appears_later:Frozen"')
    assert type(unflatten(tree, flat.tensors)) is StoredDict
    sys.modules["appears_later"] = module
    try:
        for cls in (Frozen, AttrsFrozen):
            module.Frozen = cls
            if cls is Frozen:
                assert type(unflatten(tree, flat.tensors)) is cls
        module.Frozen = typing.NamedTuple("Frozen", [("a", int)])
        assert type(unflatten(tree, flat.tensors)) is StoredDict
    finally:
        del sys.modules["appears_later"]


FRESH = """
import sys, torch
from faststeal.tree import unflatten
assert "transformers" not in sys.modules
for tree, count, expected in CASES:
    tensors = [torch.ones(1, 2, 3, 4) for _ in range(count)]
    back = unflatten(tree, tensors)
    name = f"{type(back).__module__}:{type(back).__qualname__}"
    assert name == expected, (name, expected)
"""


def fresh(values):
    cases = []
    for value in values:
        flat = flatten(value)
        name = f"{type(value).__module__}:{type(value).__qualname__}"
        cases.append((flat.tree, len(flat.tensors), name))
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", f"CASES = {cases!r}\n{FRESH}"],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr


def test_known_classes_come_back_in_a_fresh_process():
    transformers = pytest.importorskip("transformers")
    from transformers.modeling_outputs import BaseModelOutput
    from transformers.models.llama.modeling_llama import CausalLMOutputWithPast

    cache = transformers.DynamicCache()
    cache.update(torch.ones(1, 2, 3, 4), torch.ones(1, 2, 3, 4), 0)
    fresh(
        [
            torch.max(torch.eye(2), 0),
            pack_sequence([torch.ones(3)]),
            collections.OrderedDict(a=T),
            BaseModelOutput(last_hidden_state=T),
            CausalLMOutputWithPast(logits=T),
            cache,
            transformers.EncoderDecoderCache(cache, transformers.DynamicCache()),
            transformers.BatchEncoding({"a": T}),
            transformers.BatchFeature({"a": T}),
        ]
    )


def test_nothing_else_is_imported():
    code = """
import sys
from faststeal.tree import flatten, unflatten
import collections
flatten([1, object(), collections.UserDict(a=1)])
assert "transformers" not in sys.modules and "this" not in sys.modules
for name in ("this:a", "this:a.b", "transformers.commands.chat:Chat", "os:system", "antigravity:x"):
    for kind in ("object", "dataclass", "cache"):
        unflatten('{"object":{"class":"%s","kind":"%s","fields":[]}}' % (name, kind), [])
    unflatten('{"class":"%s"}' % name, [])
assert not {"transformers", "this", "antigravity"} & set(sys.modules)
"""
    subprocess.run([sys.executable, "-c", code], check=True)


# transformers.


def config(**more):
    from transformers import LlamaConfig

    return LlamaConfig(
        hidden_size=8,
        intermediate_size=8,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        vocab_size=11,
        **more,
    )


def states(n=3):
    return torch.randn(1, 2, n, 4), torch.randn(1, 2, n, 4)


def same_cache(a, b):
    assert type(a) is type(b)
    assert [type(layer) for layer in a.layers] == [type(layer) for layer in b.layers]
    for one, two in zip(a.layers, b.layers, strict=True):
        assert vars(one).keys() == vars(two).keys()
        for name, value in vars(one).items():
            other = vars(two)[name]
            assert other is value if isinstance(value, torch.Tensor) else other == value, name


def detached(cache):
    """The cache after a round trip whose tensors are copies, as from a file."""
    flat = flatten(cache, careful=True)
    assert flat.notes == []
    return unflatten(flat.tree, [t.clone() for t in flat.tensors])


def works_alike(cache, updates=2):
    back = detached(cache)
    same_cache(stored(cache), cache)
    for _ in range(updates):
        for i in range(2):
            new = states(1)
            expected = cache.update(*new, i)
            given = back.update(*new, i)
            assert all(torch.equal(x, y) for x, y in zip(expected, given, strict=True))
            assert back.get_seq_length(i) == cache.get_seq_length(i)
            assert back.get_mask_sizes(1, i) == cache.get_mask_sizes(1, i)
    return back


def test_dynamic_cache():
    from transformers import DynamicCache

    works_alike(DynamicCache())
    cache = DynamicCache()
    for i in range(2):
        cache.update(*states(), i)
    assert flatten(cache).paths == [f"layers.{i}.{n}" for i in range(2) for n in ("keys", "values")]
    works_alike(cache)
    works_alike(DynamicCache(config=config()))


def test_sliding_caches():
    from transformers import DynamicCache, StaticCache

    for kinds in (
        ["sliding_attention"] * 2,
        ["sliding_attention", "full_attention"],
        ["full_attention", "sliding_attention"],
    ):
        settings = config()
        settings.layer_types = kinds
        settings.sliding_window = 4
        for cache in (
            DynamicCache(config=settings),
            StaticCache(config=settings, max_cache_len=16),
        ):
            works_alike(cache)
            for i in range(2):
                cache.update(*states(5), i)
            back = works_alike(cache)
            windows = [getattr(layer, "sliding_window", None) for layer in back.layers]
            assert windows == [getattr(layer, "sliding_window", None) for layer in cache.layers]


def test_static_cache_moves_to_where_its_tensors_are():
    from transformers import StaticCache

    cache = StaticCache(config=config(), max_cache_len=8)
    for i in range(2):
        cache.update(*states(), i)
    for layer in cache.layers:
        layer.device = torch.device("cuda:3")  # as if it had been captured there
    back = detached(cache)
    assert back.layers[0].device == torch.device("cpu")
    assert back.layers[0].max_cache_len == 8
    back.update(*states(1), 0)
    assert back.get_seq_length(0) == 4


def test_linear_and_hybrid_layers():
    from transformers import DynamicCache
    from transformers.cache_utils import (
        Cache,
        DynamicLayer,
        LinearAttentionAndFullAttentionLayer,
        LinearAttentionLayer,
    )

    cache = Cache(
        layers=[LinearAttentionLayer(), LinearAttentionAndFullAttentionLayer(), DynamicLayer()]
    )
    cache.update_conv_state(torch.randn(1, 4, 3), 0)
    cache.update_recurrent_state(torch.randn(1, 4, 3), 0)
    cache.update(*states(), 1)
    back = detached(cache)
    new = torch.randn(1, 4, 1)
    assert torch.equal(back.update_conv_state(new, 0), cache.update_conv_state(new, 0))
    assert back.layers[0].has_previous_state == {0: True}
    assert back.get_seq_length() == 3
    assert type(back.layers[1]) is LinearAttentionAndFullAttentionLayer
    assert detached(DynamicCache()).layer_class_to_replicate is DynamicLayer


def test_encoder_decoder_cache():
    from transformers import DynamicCache, EncoderDecoderCache

    cross = DynamicCache()
    cross.update(*states(5), 0)
    cache = EncoderDecoderCache(DynamicCache(), cross)
    cache.self_attention_cache.update(*states(2), 0)
    back = detached(cache)
    assert back.is_updated == {0: True}
    assert back.get_seq_length() == 2
    assert back.cross_attention_cache.get_seq_length() == 5
    back.self_attention_cache.update(*states(1), 0)
    assert back.get_seq_length() == 3


def test_offloading_cache():
    from transformers import DynamicCache

    cache = DynamicCache()
    cache.update(*states(), 0)
    cache.offloading, cache.only_non_sliding = True, False
    cache.prefetch_stream = threading.Lock()  # what cannot be stored
    flat = flatten(cache)
    assert len(flat.notes) == 1
    back = unflatten(flat.tree, flat.tensors)
    assert back.offloading is False
    back.update(*states(), 0)
    assert back.get_seq_length() == 6


def test_model_outputs():
    from transformers.modeling_outputs import BaseModelOutputWithPast, CausalLMOutputWithPast

    value = CausalLMOutputWithPast(logits=T, hidden_states=(T, T))
    flat = flatten(value)
    assert flat.paths == ["logits", "hidden_states.0", "hidden_states.1"]
    back = unflatten(flat.tree, flat.tensors)
    assert type(back) is CausalLMOutputWithPast
    assert list(back.items()) == list(value.items())
    assert back.loss is None
    assert vars(back) == vars(value)
    assert back.to_tuple() == value.to_tuple()
    assert back[0] is T
    back.loss = T
    assert back["loss"] is T
    odd = BaseModelOutputWithPast(last_hidden_state=T)
    odd["hidden_states"] = None
    back = stored(odd)
    assert list(back.items()) == list(odd.items())


def test_batch_encodings_keep_what_is_no_data():
    from transformers import BatchEncoding, BatchFeature

    encoding = BatchEncoding({"input_ids": T, "lengths": [3]}, n_sequences=1)
    flat = flatten(encoding)
    assert flat.paths == ["input_ids"]
    back = unflatten(flat.tree, flat.tensors)
    assert type(back) is BatchEncoding
    assert dict(back) == dict(encoding)
    assert back.n_sequences == 1
    back = stored(BatchFeature({"pixel_values": T}))
    assert type(back) is BatchFeature
    assert back.pixel_values is T


# The pytree's registry.


class Registered:
    """Known to the pytree only; its attributes say something else."""

    __slots__ = ("__dict__", "left", "right")

    def __init__(self, left, right):
        self.left, self.right = left, right
        self.noise = threading.Lock()


_pytree.register_pytree_node(
    Registered,
    lambda r: ([r.left, r.right], {"way": "flat"}),
    lambda values, _: Registered(*values),
    serialized_type_name="faststeal.tests.Registered",
    flatten_with_keys_fn=lambda r: (
        [(_pytree.GetAttrKey("left"), r.left), (_pytree.GetAttrKey("right"), r.right)],
        {"way": "flat"},
    ),
)


def test_registered_classes():
    flat = flatten([Registered(T, None)])
    assert flat.paths == ["0.left"]
    assert flat.notes == []
    [back] = unflatten(flat.tree, flat.tensors)
    assert type(back) is Registered
    assert back.left is T
    assert back.right is None
    gone = flat.tree.replace("Registered", "Gone")
    assert unflatten(gone, flat.tensors)[0]["left"] is T


# What cannot be stored.


class Raises:
    """Every question to it is an error."""

    def __init__(self):
        object.__setattr__(self, "inner", T)

    def _no(self, *args):
        raise RuntimeError("no")

    __repr__ = __str__ = __len__ = __iter__ = __bool__ = __getattr__ = __setattr__ = _no
    __eq__ = __hash__ = __getitem__ = __reduce__ = __reduce_ex__ = __getstate__ = __dir__ = _no
    __class__ = property(_no)


class Lies:
    """Says that it is a tensor."""

    __class__ = torch.Tensor

    def __init__(self):
        self.x = 1


class NoDict:
    """Whose `__dict__` is a trap."""

    @property
    def __dict__(self):
        raise RuntimeError("no")


class Lazy:
    """Asking it changes it."""

    __slots__ = ("asked",)

    @property
    def value(self):
        self.asked = True
        return 1

    def __iter__(self):
        self.asked = True
        return iter(())


class BadRepr(BaseException):
    def __repr__(self):
        raise RuntimeError


class Meta(type):
    def __instancecheck__(cls, other):
        raise RuntimeError

    def __getattribute__(cls, name):
        if name in {"_fields", "__mro__"}:
            raise RuntimeError(name)
        return super().__getattribute__(name)


class Strange(metaclass=Meta):
    pass


class Cyclic:
    def __init__(self):
        self.me = self
        self.x = T


OPAQUE = [
    lambda: 3,
    len,
    [].append,
    T.sum,
    threading.Lock(),
    threading,
    iter([1]),
    (i for i in range(3)),
    map(str, [1]),
    open(__file__),  # noqa: SIM115, PTH123 - closed when the tests end
    torch.nn.Linear(2, 2),
    torch.nn.Linear(2, 2).forward,
    functools.partial(print, T),
    ValueError("x"),
    BadRepr(),
    torch.Generator(),
    {}.keys(),
    {"a": T}.values(),
    object(),
    datetime.date(2020, 1, 2),
    memoryview(b"x"),
    weakref.ref(threading.Thread()),
    NoDict(),
    Strange(),
]


@pytest.mark.parametrize("value", OPAQUE, ids=lambda v: type(v).__name__)
@pytest.mark.parametrize("careful", [False, True])
def test_what_cannot_be_stored_is_described(value, careful):
    flat = flatten([1, value, T], careful=careful)
    back = unflatten(flat.tree, flat.tensors)
    assert back[0] == 1
    assert back[2] is T
    if isinstance(back[1], Opaque):
        assert back[1].class_name == f"{type(value).__module__}:{type(value).__qualname__}"
        assert len(flat.notes) == 1
        assert flat.notes[0].startswith("1: ")
        assert len(back[1].text) < 300
        assert " at 0x" not in back[1].text
    else:
        assert type(value) in {object, NoDict, Strange}
    assert flatten(value).tree == flatten(value).tree


def test_opaque_values():
    back = stored([threading.Lock()])[0]
    assert back == Opaque("_thread:lock", back.text)
    assert back != Opaque("_thread:lock", "")
    assert back != 3
    assert len({back, Opaque(back.class_name, back.text)}) == 1
    assert "_thread:lock" in repr(back)
    flat = flatten([back])
    assert unflatten(flat.tree, []) == [back]
    assert flat.notes == []


def test_nothing_is_consumed_or_asked():
    generator = (i for i in range(3))
    lines = iter("abc")
    lazy = Lazy()
    flatten([generator, lines, lazy])
    assert list(generator) == [0, 1, 2]
    assert "".join(lines) == "abc"
    assert not hasattr(lazy, "asked")


def test_an_object_that_raises_at_every_question():
    value = Raises()
    flat = flatten({"a": value, "b": T})
    assert flat.paths == ["a.inner", "b"]
    back = unflatten(flat.tree, flat.tensors)
    assert type(back["a"]) is Raises
    assert object.__getattribute__(back["a"], "inner") is T
    flat = flatten(Lies())
    assert flat.tensors == []
    assert vars(unflatten(flat.tree, []))["x"] == 1
    flatten({value: 1} if False else [value, Lies()])


def test_a_key_that_raises():
    class Key:
        def __repr__(self):
            raise RuntimeError

    flat = flatten({Key(): T, Key(): T, len: T})
    assert len(set(flat.paths)) == 3
    unflatten(flat.tree, flat.tensors)


def test_a_sequence_that_lies_about_its_items():
    class Bad(list):
        def __iter__(self):
            raise RuntimeError

        def __len__(self):
            return 10**9

    class BadDict(dict):
        def items(self):
            raise RuntimeError

        keys = __iter__ = values = items

    assert type(stored(Bad([T]))) is StoredList
    assert stored(BadDict(a=T)) == {"a": T}


def test_a_whole_program_is_not_swallowed():
    class Node:
        pass

    root = Node()
    root.children = [Node() for _ in range(500)]
    flat = flatten([root, T])
    assert len(flat.notes) == 1
    assert len(flat.tree) < 300
    root.children[100].tensor = T
    assert len(flatten(root).paths) == 1
    wide = [Node() for _ in range(5000)]
    assert len(flatten(wide).notes) == 3000
    hidden = Node()
    hidden.model = torch.nn.Linear(100, 100)
    hidden.x = T
    flat = flatten(hidden)
    assert flat.paths == ["x"]
    assert len(flat.notes) == 1


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


def test_symbolic_numbers_are_described():
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    env = ShapeEnv()
    size = env.create_unbacked_symint()
    flat = flatten([size, size > 3, torch.Size([2])])
    back = unflatten(flat.tree, [])
    assert back[0].class_name == "torch:SymInt"
    assert back[1].class_name == "torch:SymBool"


# Loading.


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
    assert alike(unflatten(flat.tree, flat.tensors)[0][2], value[2])
    second = unflatten(flat.tree, flat.tensors)[0][0]
    assert second["a"] == [T]
    assert second["b"] == {1}
    assert second["c"] == bytearray(b"x")
    assert second["d"].a == [1]
    assert second["e"] == {}


def test_the_memory_of_trees_is_bounded():
    from faststeal import rebuild

    for i in range(rebuild._REMEMBERED + 50):
        assert unflatten(f"[{i}]", []) == [i]
    assert len(rebuild._compiled) <= rebuild._REMEMBERED


HOSTILE = [
    *("", "{", "nonsense", "NaN", "[Infinity]", "1e", '"\\ud8"', "[1,]", "\0", "9" * 5000),
    *("{}", '{"tensor":0,"tuple":[]}', '{"unknown":1}', '{"tensor":-1}', '{"tensor":true}'),
    *('{"tensor":"0"}', '{"tensor":1.0}', '{"tensor":null}', '{"tensor":99}', '{"tensor":1e30}'),
    *(f'{{"tensor":{1 << 80}}}', '[{"tensor":0},{"tensor":3}]', '{"tuple":3}', '{"tuple":null}'),
    *(
        '{"dict":{"a":1}}',
        '{"dict":[1]}',
        '{"dict":[[1]]}',
        '{"dict":[[1,2,3]]}',
        '{"dict":[[[],1]]}',
    ),
    *('{"dict":[[{"dict":[]},1]]}', '{"set":[[]]}', '{"set":3}', '{"frozenset":[{"dict":[]}]}'),
    *('{"float":"nano"}', '{"float":1}', '{"float":"1e5"}', '{"int":"zz"}', '{"int":3}'),
    *('{"complex":[1,2]}', '{"complex":[1.0]}', '{"complex":["a",1.0]}', '{"bytes":"*"}'),
    *(
        '{"bytes":3}',
        '{"bytearray":"*"}',
        '{"bytearray":[]}',
        '{"range":[1,2]}',
        '{"range":[1,2,0]}',
    ),
    *('{"range":["a",2,1]}', '{"range":null}', '{"slice":[1,2,3,4]}', '{"ellipsis":1}'),
    *('{"size":["a"]}', '{"size":[1.5]}', '{"size":3}', '{"dtype":"nn"}', '{"dtype":"Tensor"}'),
    *('{"dtype":3}', '{"device":"nowhere"}', '{"device":"cuda:x"}', '{"layout":"float32"}'),
    *(
        '{"memory_format":"strided"}',
        '{"qscheme":"x"}',
        '{"numpy_dtype":"O"}',
        '{"numpy_dtype":"q"}',
    ),
    *(
        '{"class":3}',
        '{"deque":[]}',
        '{"deque":{"items":[],"maxlen":-1}}',
        '{"deque":{"items":[]}}',
    ),
    *(f'{{"deque":{{"items":[],"maxlen":{10**30}}}}}', '{"deque":{"items":3,"maxlen":null}}'),
    *(
        '{"defaultdict":{"items":[]}}',
        '{"counter":[1]}',
        '{"ordered_dict":3}',
        '{"mapping_proxy":1}',
    ),
    *('{"opaque":{}}', '{"opaque":{"class":1,"repr":"x"}}', '{"opaque":[]}'),
    *('{"object":{}}', '{"object":3}', '{"object":{"class":"a:b","kind":"nope","fields":[]}}'),
    *(
        '{"object":{"class":"a:b","kind":"object"}}',
        '{"object":{"class":3,"kind":"object","fields":[]}}',
    ),
    '{"object":{"class":"a:b","kind":"object","fields":[[1,2]]}}',
    '{"object":{"class":"a:b","kind":"object","fields":[["a"]]}}',
    '{"object":{"class":"a:b","kind":"object","fields":[],"more":1}}',
    '{"object":{"class":"a:b","kind":["x"],"fields":[]}}',
    "[" * 100_000,
    "[" * 900 + "]" * 900,
    '{"tuple":[' * 400 + "]}" * 400,
    '{"dict":[[1,' * 300 + "1" + "]]}" * 300,
]


@pytest.mark.parametrize("tree", HOSTILE, ids=lambda tree: tree[:40])
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


tags = st.sampled_from(
    [
        "tensor",
        "tuple",
        "dict",
        "set",
        "float",
        "object",
        "class",
        "kind",
        "fields",
        "items",
        "size",
    ]
    + ["array", "sparse", "wrapper", "subclass", "opaque", "deque", "meta", "jagged", "scalar", "a"]
)
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
