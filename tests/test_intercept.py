"""Replacing `forward` and putting it back: the model must not notice."""

import copy
import functools
import gc
import inspect
import io
import pickle
import threading
import types
import weakref

import pytest
import torch

from faststeal import steal_forward
from faststeal.intercept import Interception, install, restore


class Add(torch.nn.Module):
    def __init__(self, amount=1.0):
        super().__init__()
        self.amount = torch.nn.Parameter(torch.tensor(amount))

    def forward(self, x: torch.Tensor, *, times: int = 1) -> torch.Tensor:
        """Add the amount."""
        return x + self.amount * times


class Twice(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first = Add(1.0)
        self.second = Add(2.0)

    def forward(self, x):
        return self.second(self.first(x))


class Calls:
    """A recorder that keeps what it is told."""

    def __init__(self):
        self.begun, self.ended, self.raised = [], [], []

    def begin(self, site, args, kwargs):
        self.begun.append((site.module, args, kwargs))
        return site

    def end(self, call, result):
        self.ended.append(result)

    def failed(self, call, error):
        self.raised.append(str(error))


class Stolen:
    """Context in which the calls of some modules are recorded."""

    def __init__(self, *modules):
        self.calls = Calls()
        self.sites = [Interception(module) for module in modules]

    def __enter__(self):
        install(self.sites, self.calls)
        return self.calls

    def __exit__(self, *exc):
        self.replaced = restore(self.sites)


X = torch.tensor([1.0, 2.0])


def test_calls_are_told_and_dict_is_restored():
    module = Add()
    before = dict(module.__dict__)
    with Stolen(module) as calls:
        out = module(X, times=2)
        direct = module.forward(X)
    assert torch.equal(out, X + 2)
    assert torch.equal(direct, X + 1)
    (_, args, kwargs), (_, direct_args, _) = calls.begun
    assert args[0] is X
    assert direct_args[0] is X
    assert kwargs == {"times": 2}
    assert calls.ended[0] is out
    assert module.__dict__ == before
    assert list(module.__dict__) == list(before)
    module(X)
    assert len(calls.begun) == 2


def test_an_instance_forward_comes_back_as_the_very_object():
    module = Add()
    own = functools.partial(Add.forward, module)
    module.forward = own
    with Stolen(module) as calls:
        assert torch.equal(module(X), X + 1)
    assert module.__dict__["forward"] is own
    assert len(calls.ended) == 1


def test_looks_like_the_original():
    module = Add()
    signature, bare = inspect.signature(module.forward), module.forward
    with Stolen(module):
        forward = module.forward
        assert isinstance(forward, types.MethodType)
        assert forward.__self__ is module
        assert inspect.signature(forward) == signature
        assert next(iter(inspect.signature(forward.__func__).parameters)) == "self"
        for name in ("__name__", "__qualname__", "__doc__", "__module__", "__annotations__"):
            assert getattr(forward, name) == getattr(bare, name)
        assert not hasattr(forward, "__wrapped__")
        assert inspect.signature(forward).bind(X, times=2)


def test_a_parameter_may_be_called_self():
    module = Add()
    module.forward = lambda self, x: x
    with Stolen(module) as calls:
        assert str(inspect.signature(module.forward)) == "(self, x)"
        assert module.forward(self=1, x=2) == 2
    assert calls.begun[0][2] == {"self": 1, "x": 2}


def test_bound_once_more():
    # What accelerate does with a forward that it takes for a function.
    module = Add()
    with Stolen(module) as calls:
        module.forward = types.MethodType(module.forward, module)
        assert torch.equal(module(X), X + 1)
    assert len(calls.begun[0][1]) == 1


def test_replaced_meanwhile_is_left_and_reported():
    module = Add()
    stolen = Stolen(module)
    theirs = functools.partial(torch.neg)
    with stolen as calls:
        ours = module.forward
        module.forward = theirs
    assert module.__dict__["forward"] is theirs
    assert [site.module for site in stolen.replaced] == [module]
    # A reference that is left over is harmless.
    assert torch.equal(ours(X), X + 1)
    assert calls.begun == []


def test_removed_meanwhile_is_no_news():
    module = Add()
    stolen = Stolen(module)
    with stolen:
        del module.forward
    assert stolen.replaced == []
    assert "forward" not in module.__dict__


@pytest.mark.parametrize("order", ["lifo", "fifo", "middle"])
@pytest.mark.parametrize("instance", [False, True])
def test_nested_in_any_order(order, instance):
    module = Add()
    own = functools.partial(Add.forward, module)
    if instance:
        module.forward = own
    stolen = [Stolen(module) for _ in range(3)]
    calls = [s.__enter__() for s in stolen]
    assert torch.equal(module(X), X + 1)
    assert [len(c.ended) for c in calls] == [1, 1, 1]
    sequence = {"lifo": [2, 1, 0], "fifo": [0, 1, 2], "middle": [1, 0, 2]}[order]
    expected = [1, 1, 1]
    active = {0, 1, 2}
    for i in sequence:
        stolen[i].__exit__()
        assert stolen[i].replaced == []
        active.discard(i)
        assert torch.equal(module(X), X + 1)
        for j in active:
            expected[j] += 1
        assert [len(c.ended) for c in calls] == expected
    assert module.__dict__.get("forward") is (own if instance else None)


def test_foreign_wrapper_between_two_captures():
    module = Add()
    outer, inner = Stolen(module), Stolen(module)
    outer_calls = outer.__enter__()
    ours = module.forward
    module.forward = lambda x: -ours(x)
    theirs = module.forward
    inner_calls = inner.__enter__()
    assert torch.equal(module(X), -(X + 1))
    outer.__exit__()
    assert [site.module for site in outer.replaced] == [module]
    inner.__exit__()
    assert inner.replaced == []
    assert module.__dict__["forward"] is theirs
    assert len(outer_calls.ended) == len(inner_calls.ended) == 1
    assert torch.equal(module(X), -(X + 1))


def test_exception_passes_unchanged_and_nothing_is_kept():
    class Boom(torch.nn.Module):
        def forward(self, x):
            local = torch.ones(3)
            seen.append(weakref.ref(local))
            raise error

    seen, error = [], ValueError("boom")
    module = Boom()
    with Stolen(module) as calls:
        with pytest.raises(ValueError, match="boom") as info:
            module(X)
        assert info.value is error
        assert error.__context__ is None
        assert error.__cause__ is None
        assert calls.raised == ["boom"]
        assert seen[0]() is not None
        del info
        error.__traceback__ = None
        gc.collect()
        assert seen[0]() is None


def test_deepcopy_has_its_own_weights_and_no_capture():
    module = Twice()
    with Stolen(module, module.first) as calls:
        twin = copy.deepcopy(module)
        with torch.no_grad():
            twin.first.amount.fill_(10.0)
        assert torch.equal(twin(X), X + 12)
        assert calls.begun == []
        assert torch.equal(module(X), X + 3)
    assert len(calls.ended) == 2
    assert torch.equal(twin(X), X + 12)


def test_deepcopy_of_an_instance_forward():
    module = Add()
    module.forward = functools.partial(Add.forward, module)
    with Stolen(module) as calls:
        twin = copy.deepcopy(module)
        with torch.no_grad():
            twin.amount.fill_(10.0)
        assert torch.equal(twin(X), X + 10)
    assert calls.begun == []


@pytest.mark.parametrize("hooked", [False, True])
def test_shallow_copy_and_replica_run_their_own(hooked):
    module = Twice()
    if hooked:
        module.register_forward_hook(lambda *_: None)
    with Stolen(module) as calls:
        for twin in (copy.copy(module), module._replicate_for_data_parallel()):
            twin._modules = dict(module._modules, first=Add(10.0))
            assert torch.equal(twin(X), X + 12)
            assert calls.begun == []
        assert torch.equal(module(X), X + 3)
    assert len(calls.ended) == 1
    assert torch.equal(twin(X), X + 12)


@pytest.mark.parametrize("way", ["pickle", "torch.save"])
def test_pickle(way):
    module = Twice()
    with Stolen(module, module.second) as calls:
        if way == "pickle":
            twin = pickle.loads(pickle.dumps(module))  # noqa: S301
        else:
            buffer = io.BytesIO()
            torch.save(module, buffer)
            buffer.seek(0)
            twin = torch.load(buffer, weights_only=False)
        assert torch.equal(twin(X), X + 3)
        assert calls.begun == []
        assert list(module.state_dict()) == ["first.amount", "second.amount"]


def test_hooks_stay_outside():
    module = Add()
    module.register_forward_pre_hook(lambda _, args: (args[0] * 10,))
    module.register_forward_hook(lambda _, __, out: -out)
    with Stolen(module) as calls:
        out = module(X)
    assert torch.equal(calls.begun[0][1][0], X * 10)
    assert torch.equal(calls.ended[0], X * 10 + 1)
    assert torch.equal(out, -(X * 10 + 1))


def test_recursion():
    class Down(torch.nn.Module):
        def forward(self, n):
            return 0 if n == 0 else 1 + self(n - 1)

    module = Down()
    with Stolen(module) as calls:
        assert module(3) == 3
    assert [args[0] for _, args, _ in calls.begun] == [3, 2, 1, 0]
    assert calls.ended == [0, 1, 2, 3]


def test_other_threads_are_seen():
    module = Add()
    with Stolen(module) as calls:
        threads = [threading.Thread(target=module, args=(X,)) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(calls.ended) == 4


def test_recorder_is_not_kept_alive_by_a_leftover():
    module = Add()
    stolen = Stolen(module)
    with stolen as calls:
        leftover = module.forward
    gone = weakref.ref(calls)
    del calls, stolen
    gc.collect()
    assert gone() is None
    assert torch.equal(leftover(X), X + 1)


# Tracing


@pytest.fixture
def dynamo():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.mark.parametrize("strict", [True, False])
def test_export(strict, dynamo):
    module = Twice()
    bare = torch.export.export(module, (X,), strict=strict)
    with Stolen(module, module.first, module.second) as calls:
        stolen = torch.export.export(module, (X,), strict=strict)
        assert calls.begun == []
    names = [[node.name for node in program.graph.nodes] for program in (bare, stolen)]
    assert names[0] == names[1]
    assert torch.equal(stolen.module()(X), X + 3)


def test_compile_inside(dynamo):
    module = Twice()
    before = torch.compile(module, fullgraph=True, backend="eager")
    assert torch.equal(before(X), X + 3)
    stolen = Stolen(module, module.first, module.second)
    with stolen as calls:
        inside = torch.compile(module, fullgraph=True, backend="eager")
        assert torch.equal(inside(X), X + 3)
        assert torch.equal(before(X), X + 3)
        assert calls.begun == []
        assert [site.traced for site in stolen.sites] == [True, True, True]
    assert torch.equal(before(X), X + 3)
    assert torch.equal(inside(X), X + 3)


def test_compiled_module_at_its_boundary(dynamo):
    module = torch.compile(Twice(), backend="eager")
    own = module.__dict__["forward"]
    with Stolen(module) as calls:
        assert torch.equal(module(X), X + 3)
    assert len(calls.ended) == 1
    assert module.__dict__["forward"] is own


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_jit_trace_and_script_module():
    module = Twice()
    with Stolen(module) as calls:
        traced = torch.jit.trace(module, (X,), check_trace=False)
        assert calls.begun == []
    assert torch.equal(traced(X), X + 3)
    with Stolen(module), pytest.raises(Exception, match="script the model before, or after"):
        torch.jit.script(module)
    scripted = torch.jit.script(torch.nn.ReLU())
    own = scripted.__dict__.get("forward")
    with Stolen(scripted) as calls:
        assert torch.equal(scripted(X), X)
    assert len(calls.ended) == 1
    assert scripted.__dict__.get("forward") is own
    assert torch.equal(scripted(X), X)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_loaded_script_module(tmp_path):
    torch.jit.script(torch.nn.ReLU()).save(tmp_path / "relu.pt")
    module = torch.jit.load(tmp_path / "relu.pt")
    before = set(module.__dict__)
    with Stolen(module) as calls:
        assert torch.equal(module(X), X)
    assert len(calls.ended) == 1
    assert set(module.__dict__) == before


def test_signature_follows_changed_defaults() -> None:
    class Model(torch.nn.Module):
        def forward(self, x: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
            return x * scale

    model = Model()
    for default in (1.0, 2.0):
        Model.forward.__defaults__ = (default,)
        with steal_forward(model, fprint=lambda *_, **__: ""):
            assert inspect.signature(model.forward).parameters["scale"].default == default
