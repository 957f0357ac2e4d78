"""Sixty architectures and more of transformers: captured whole, left as they were.

A few run by default; all of them with
`python -m pytest tests/test_architectures.py -m "slow or not slow"`.
"""

import contextlib
import copy
import inspect
import types

import pytest
import torch

import faststeal as fs
from architectures import ARCHITECTURES, FAMILIES

CASES = [
    pytest.param(name, mode, marks=[] if each.fast else pytest.mark.slow, id=f"{name}-{mode}")
    for name, each in ARCHITECTURES.items()
    for mode in ("forward", "generate")
    if mode == "forward" or each.generate is not None
]

# Modules whose `forward` their parent calls directly, so that hooks do not see it.
CALLED_DIRECTLY = {"squeezebert": {"encoder.layers.0", "encoder.layers.1"}}


class Run:
    """One model, built anew, that runs in one way: whatever it does, a second one does as well."""

    def __init__(self, name, mode):
        self.architecture = ARCHITECTURES[name]
        self.mode = mode
        self.model, self.inputs, self.generate = self.architecture.build()

    def __call__(self, context=None):
        """Output, and the random state after it."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(1)
            with context or contextlib.nullcontext():
                if self.mode == "generate":
                    out = self.model.generate(**self.inputs, **self.generate)
                else:
                    out = self.model(**self.inputs, **self.architecture.options)
            return out, torch.get_rng_state()

    def attributes(self):
        return {name: dict(vars(module)) for name, module in self.model.named_modules()}


def changed(before, after):
    """Attributes that are not the object they were, or came, or went."""
    assert list(before) == list(after)
    return {
        (name, key)
        for name in before
        for key in before[name].keys() | after[name].keys()
        if before[name].get(key, ...) is not after[name].get(key, ...)
    }


def state(model):
    return {name: raw(tensor) for name, tensor in model.state_dict().items()}


def raw(tensor):
    flat = tensor.detach().contiguous().view(-1)
    return tensor.dtype, tensor.shape, flat.view(torch.uint8).numpy().tobytes()


class Recorder:
    """What `steal_forward` should see, by other means: torch's hooks, and copies of everything."""

    def __init__(self, model):
        self.calls = {}
        self.running = []
        self.seen = {}
        for name, module in model.named_modules(remove_duplicate=False):
            module.register_forward_pre_hook(self.before(name), with_kwargs=True)
            module.register_forward_hook(self.after(name), with_kwargs=True)

    def before(self, name):
        def hook(module, args, kwargs):
            number = self.calls.get(name, 0)
            self.calls[name] = number + 1
            self.running.append((name, number))
            self.seen[name, number, "I"] = copied((args, kwargs))

        return hook

    def after(self, name):
        def hook(module, args, kwargs, output):
            # A module of two names has two hooks before and two after, in the same order.
            number = next(n for key, n in reversed(self.running) if key == name)
            self.running.remove((name, number))
            self.seen[name, number, "O"] = copied(output)

        return hook


def copied(obj):
    """A deep copy, of tensors within a graph as well."""

    def clone(tensor, memo):
        return tensor.detach().clone()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.Tensor, "__deepcopy__", clone)
        patch.setattr(torch.nn.Parameter, "__deepcopy__", clone)
        return copy.deepcopy(obj)


def assert_same(got, expected, path="", seen=()):
    """The same classes, the same bits, all the way down, attributes included."""
    assert type(got) is type(expected), path
    if isinstance(expected, torch.Tensor):
        assert raw(got) == raw(expected), path
        return
    if id(expected) in seen:
        return
    seen = (*seen, id(expected))
    if isinstance(expected, dict):
        assert list(got) == list(expected), path
        for key in expected:
            assert_same(got[key], expected[key], f"{path}[{key!r}]", seen)
    elif isinstance(expected, list | tuple):
        assert len(got) == len(expected), path
        for i, pair in enumerate(zip(got, expected, strict=True)):
            assert_same(*pair, f"{path}[{i}]", seen)
    elif isinstance(expected, types.FunctionType | type):
        assert got is expected, path
    elif not hasattr(expected, "__dict__"):
        assert got == expected or (got != got and expected != expected), path  # noqa: PLR0124
    if hasattr(expected, "__dict__") and not isinstance(expected, types.FunctionType | type):
        assert_same(vars(got), vars(expected), f"{path}.", seen)


def test_the_table():
    assert len(ARCHITECTURES) >= 60
    assert len(FAMILIES) == 8
    assert {each.family for each in ARCHITECTURES.values() if each.fast} == set(FAMILIES)


@pytest.mark.parametrize(("name", "mode"), CASES)
def test_architecture(name, mode, tmp_path):
    path = tmp_path / "run.onnx"
    bare = Run(name, mode)
    before = bare.attributes()
    expected, random_state = bare()
    own_changes = changed(before, bare.attributes())

    run = Run(name, mode)
    attributes, weights = run.attributes(), state(run.model)
    signature = inspect.signature(run.model.forward)
    out, random_state_after = run(fs.steal_forward(run.model, submodules=True, dump_file=path))
    assert_same(out, expected)
    assert torch.equal(random_state_after, random_state)
    assert changed(attributes, run.attributes()) == own_changes
    assert inspect.signature(run.model.forward) == signature
    assert state(run.model) == weights

    recorded = Run(name, mode)
    recorder = Recorder(recorded.model)
    recorded()
    dump = fs.load(path)
    assert dump.complete
    unseen = set(dump) - set(recorder.seen)
    assert {key.name for key in unseen} == CALLED_DIRECTLY.get(name, set())
    assert set(recorder.seen) <= set(dump)
    for key, value in recorder.seen.items():
        assert_same(dump[key], value, repr(key))
    assert dump.verify() == []
