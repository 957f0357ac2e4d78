"""Instances come back as their classes, or as a container that says what they were."""

import collections
import copy
import dataclasses
import enum
import json
import pickle
import subprocess
import sys
import threading
import types
import typing

import pytest
import torch
from torch.nn.utils.rnn import pack_sequence

from faststeal.tree import StoredDict, StoredList, StoredTuple, flatten, unflatten

T = torch.arange(3.0)


def stored(obj):
    flat = flatten(obj)
    assert len(flat.paths) == len(flat.tensors) == len(set(flat.paths))
    return unflatten(flat.tree, flat.tensors)


@dataclasses.dataclass(frozen=True)
class Frozen:
    a: object


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
    assert back.x is back[0]
    with pytest.raises(AttributeError, match="'y'"):
        back.y  # noqa: B018
    for again in (copy.copy(back), copy.deepcopy(back), pickle.loads(pickle.dumps(back))):  # noqa: S301
        assert type(again) is StoredTuple
        assert (again.fields, again.class_name) == (("x",), back.class_name)
        assert torch.equal(again.x, T)
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
        for cls in (Frozen, Frozen):
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
        check=False,
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
    assert back.get_seq_length() == cache.get_seq_length()
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
