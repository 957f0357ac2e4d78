"""Whatever an object does, it is written or described, and nothing is asked of it."""

import datetime as dt
import functools
import threading
import weakref

import pytest
import torch
from torch.utils import _pytree

from faststeal.tree import Opaque, StoredList, flatten, unflatten

T = torch.arange(3.0)


def stored(obj):
    flat = flatten(obj)
    assert len(flat.paths) == len(flat.tensors) == len(set(flat.paths))
    return unflatten(flat.tree, flat.tensors)


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


class Unhashable(type):
    """Its classes cannot be looked up, nor named."""

    __hash__ = None

    def __eq__(cls, other):
        raise RuntimeError

    def __getattribute__(cls, name):
        raise RuntimeError


class Nameless(metaclass=Unhashable):
    pass


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
    dt.date(2020, 1, 2),
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


def test_a_class_that_raises_at_every_question():
    for value in (Nameless(), [T, Nameless()], {"a": T, "b": Nameless()}, {Nameless(): T}):
        flat = flatten(value)
        assert flat.notes
        assert len(flat.tensors) == len(flat.paths) == (not isinstance(value, Nameless))
        unflatten(flat.tree, flat.tensors)


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


def test_symbolic_numbers_are_described():
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    env = ShapeEnv()
    size = env.create_unbacked_symint()
    flat = flatten([size, size > 3, torch.Size([2])])
    back = unflatten(flat.tree, [])
    assert back[0].class_name == "torch:SymInt"
    assert back[1].class_name == "torch:SymBool"
