"""Copies that share nothing, sizes in bytes, and classes that neither has heard of."""

import collections
import dataclasses
import threading
import types
from typing import NamedTuple

import numpy as np
import pytest
import torch

from faststeal.copying import torch_deepcopy, torch_tensor_size


class Pair(NamedTuple):
    a: object
    b: object


@dataclasses.dataclass(frozen=True, slots=True)
class Frozen:
    x: object


@dataclasses.dataclass
class Point:
    x: object


class Items(list):
    pass


class Named(dict):
    pass


class Space(types.SimpleNamespace):
    pass


class Words(tuple):  # noqa: SLOT001 - it has attributes
    pass


def tensor():
    return torch.arange(6.0).reshape(2, 3)


# Making one, and getting the tensor out of it.
HOLDERS = [
    (tensor, lambda x: x),
    (lambda: (tensor(), 1), lambda x: x[0]),
    (lambda: [None, tensor()], lambda x: x[1]),
    (lambda: {"a": {"b": tensor()}}, lambda x: x["a"]["b"]),
    (lambda: {tensor()}, lambda x: next(iter(x))),
    (lambda: frozenset([tensor()]), lambda x: next(iter(x))),
    (lambda: Pair(tensor(), 1), lambda x: x.a),
    (lambda: Words([tensor()]), lambda x: x[0]),
    (lambda: Items([tensor()]), lambda x: x[0]),
    (lambda: Named(a=tensor()), lambda x: x["a"]),
    (lambda: collections.OrderedDict(a=tensor()), lambda x: x["a"]),
    (lambda: collections.defaultdict(list, a=tensor()), lambda x: x["a"]),
    (lambda: collections.deque([tensor()], 3), lambda x: x[0]),
    (lambda: Point(tensor()), lambda x: x.x),
    (lambda: Frozen(tensor()), lambda x: x.x),
    (lambda: types.SimpleNamespace(x=[tensor()]), lambda x: x.x[0]),
    (lambda: Space(x=[tensor()]), lambda x: x.x[0]),
    (lambda: collections.UserDict(a=tensor()), lambda x: x["a"]),
    (lambda: torch.max(tensor(), dim=0), lambda x: x.values),
    (lambda: torch.nn.utils.rnn.pack_sequence([tensor()]), lambda x: x.data),
]


@pytest.mark.parametrize(("make", "get"), HOLDERS, ids=lambda _: "")
def test_copies_share_nothing(make, get):
    original = make()
    copied = torch_deepcopy(original)
    assert type(copied) is type(original)
    assert torch.equal(get(copied), get(original))
    before = get(original).clone()
    get(copied).fill_(-1)
    assert torch.equal(get(original), before)
    assert get(copied).min() == -1


@pytest.mark.parametrize(("make", "get"), HOLDERS, ids=lambda _: "")
def test_sizes(make, get):
    assert torch_tensor_size(make()) >= get(make()).numel() * 4


def test_attributes_of_containers():
    for original in (Items([1]), Named(a=1), Words([1])):
        original.extra = tensor()
        copied = torch_deepcopy(original)
        assert copied == original
        assert torch.equal(copied.extra, original.extra)
        assert copied.extra is not original.extra
    limited = torch_deepcopy(collections.deque([tensor()], 3))
    assert limited.maxlen == 3
    default = torch_deepcopy(collections.defaultdict(list))
    assert default["missing"] == []


def test_what_is_shared_stays_shared():
    x = tensor()
    copied = torch_deepcopy([x, {"x": x}, (x,)])
    assert copied[0] is copied[1]["x"] is copied[2][0]
    cycle = [x]
    cycle.append(cycle)
    copied = torch_deepcopy(cycle)
    assert copied[1] is copied
    assert copied[0] is not x
    point = Point(x)
    point.self = point
    copied = torch_deepcopy(point)
    assert copied.self is copied


ATOMS = [
    *(None, True, 3, 2.5, 1j, "text", b"bytes", slice(1, 2), range(3), ..., int, len),
    *(torch.float16, torch.device("cpu"), torch.strided, torch.preserve_format, torch.Size([2])),
    *(np.float32(1.5), np.int64(3), Pair(1, "a"), frozenset([1])),
]


@pytest.mark.parametrize("atom", ATOMS, ids=repr)
def test_values_without_tensors(atom):
    copied = torch_deepcopy(atom)
    assert copied == atom
    assert type(copied) is type(atom)
    assert torch_tensor_size(atom) == 0


class Stubborn:
    def __copy__(self):
        raise RuntimeError

    def __getattr__(self, name):
        raise RuntimeError(name)


class Liar:
    def __copy__(self):
        return 3


class Holder:
    __nocopy__ = True

    def __init__(self):
        self.x = tensor()


@pytest.mark.parametrize(
    "make",
    [
        *(lambda: torch.nn.Linear(2, 2), torch.Generator, threading.Lock, Stubborn, Liar, Holder),
        *(lambda: (i for i in range(3)), lambda: lambda: 0, lambda: open(__file__)),  # noqa: PTH123, SIM115
    ],
)
def test_what_is_not_copied(make):
    original = make()
    assert torch_deepcopy(original) is original
    assert torch_deepcopy({"a": [original]})["a"][0] is original
    assert torch_tensor_size([original]) in {0, 24}
    if hasattr(type(original), "close"):
        original.close()


def test_generators_are_not_consumed():
    numbers = (i for i in range(3))
    torch_deepcopy([numbers])
    torch_tensor_size([numbers])
    assert list(numbers) == [0, 1, 2]


@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor")
@pytest.mark.filterwarnings("ignore:Sparse:UserWarning")
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_tensors_of_every_kind():
    x = tensor()
    for original, size in [
        (x.to(torch.float8_e4m3fn), 6),
        (x.to(torch.bfloat16), 12),
        (x.to(torch.complex64), 48),
        (x.to(torch.uint16), 12),
        (x.to_sparse(), 5 * 4 + 2 * 5 * 8),
        (x.to_sparse_csr(), 5 * 4 + 5 * 8 + 3 * 8),
        (x.to_sparse_csc(), 5 * 4 + 5 * 8 + 4 * 8),
        (torch.quantize_per_tensor(x, 1.0, 0, torch.qint8), 6),
        (torch.empty(2, 3, device="meta"), 24),
        (torch.nn.Parameter(x), 24),
        (torch.nested.nested_tensor([x, x]), 48),
        (torch.nested.nested_tensor([x, x], layout=torch.jagged), 48),
        (x.expand(2, 2, 3), 48),
        (torch.empty(0), 0),
    ]:
        copied = torch_deepcopy(original)
        assert copied is not original
        assert copied.dtype == original.dtype
        assert copied.layout == original.layout
        assert torch_tensor_size(original) == size


def test_arrays():
    array = np.arange(3.0)
    copied = torch_deepcopy({"a": array})["a"]
    copied[0] = 7
    assert array[0] == 0
    assert torch_tensor_size([array, array]) == 48
    objects = np.array([[1], None], dtype=object)
    copied = torch_deepcopy(objects)
    copied[0].append(2)
    assert objects[0] == [1]


def test_history_is_kept():
    x = torch.ones(2, requires_grad=True)
    torch_deepcopy([x * 2])[0].sum().backward()
    assert x.grad.tolist() == [2.0, 2.0]


def test_a_tensor_that_occurs_twice_counts_twice():
    x = tensor()
    assert torch_tensor_size((x, [x])) == 48
    cycle = [x]
    cycle.append(cycle)
    assert torch_tensor_size(cycle) == 24


# transformers


def test_caches():
    cache_utils = pytest.importorskip("transformers.cache_utils")
    from transformers import Gemma2Config

    config = Gemma2Config(
        hidden_size=8, num_attention_heads=2, num_key_value_heads=2, num_hidden_layers=2
    )
    dynamic = cache_utils.DynamicCache(config=config)
    static = cache_utils.StaticCache(config, max_cache_len=5)
    for cache in (dynamic, static):
        cache.update(torch.ones(1, 2, 3, 4), torch.zeros(1, 2, 3, 4), 0)
    both = cache_utils.EncoderDecoderCache(dynamic, cache_utils.DynamicCache())
    for cache, layers in [
        (dynamic, lambda c: c.layers),
        (static, lambda c: c.layers),
        (both, lambda c: c.self_attention_cache.layers),
    ]:
        copied = torch_deepcopy(cache)
        assert type(copied) is type(cache)
        assert [type(x) for x in layers(copied)] == [type(x) for x in layers(cache)]
        before, after = layers(cache)[0], layers(copied)[0]
        assert torch.equal(after.keys, before.keys)
        assert after.keys.data_ptr() != before.keys.data_ptr()
        assert torch_tensor_size(cache) >= 2 * before.keys.nbytes
    empty = torch_deepcopy(cache_utils.DynamicCache())
    assert type(empty) is cache_utils.DynamicCache
    assert torch_tensor_size(empty) == 0


def test_outputs_of_models():
    modeling_outputs = pytest.importorskip("transformers.modeling_outputs")
    output = modeling_outputs.BaseModelOutput(last_hidden_state=tensor())
    copied = torch_deepcopy(output)
    assert type(copied) is type(output)
    assert list(copied) == ["last_hidden_state"]
    assert copied["last_hidden_state"] is copied.last_hidden_state
    assert copied.last_hidden_state is not output.last_hidden_state
    assert copied.attentions is None
    assert torch_tensor_size(output) == 24


def test_sizes_of_onnx_diagnostic():
    theirs = pytest.importorskip("onnx_diagnostic.helpers.torch_helper").torch_tensor_size
    for obj in (None, 1, "a", tensor(), (tensor(), [tensor()]), {"a": tensor(), "b": 2}):
        assert torch_tensor_size(obj) == theirs(obj)
