"""`steal_forward`: what is recorded, and that nothing else changes."""

import contextlib
import copy
import errno
import gc
import inspect
import json
import logging
import os
import pickle
import subprocess
import sys
import textwrap
import threading
import warnings
import weakref

import pytest
import torch
from torch.overrides import TorchFunctionMode
from torch.utils.checkpoint import checkpoint

import faststeal as fs
from faststeal import capture as capture_module
from faststeal import losses as losses_module
from faststeal.capture import FaststealWarning


class Add(torch.nn.Module):
    def __init__(self, amount=1.0):
        super().__init__()
        self.amount = torch.nn.Parameter(torch.tensor(amount))

    def forward(self, x, mask=None):
        return x + self.amount


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first = Add(1.0)
        self.second = Add(2.0)

    def forward(self, x, y=None, **kwargs):
        return self.second(self.first(x)), y


X = torch.tensor([1.0, 2.0])


@pytest.fixture
def path(tmp_path):
    return tmp_path / "run.onnx"


@pytest.fixture(autouse=True)
def nothing_left():
    yield
    assert capture_module._running == ()
    assert not fs.is_stealing()


def steal(model, path, **kwargs):
    return fs.steal_forward(model, dump_file=path, **kwargs)


# Names


def test_inputs_and_outputs(path):
    model = Net()
    with steal(("model", model), path) as capture:
        out, y = model(X, y=None, flag=True)
    assert y is None
    dump = fs.load(path)
    assert list(dump) == [("model", 0, "I"), ("model", 0, "O")]
    args, kwargs = dump["model", 0, "I"]
    assert torch.equal(args[0], X)
    assert kwargs == {"y": None, "flag": True}
    assert torch.equal(dump["model", 0, "O"][0], out)
    assert dump.complete
    assert (capture.records, capture.calls, capture.path) == (2, 1, path)
    assert capture.bytes_seen == 16
    assert capture.bytes_written == 16
    assert "2 records of 1 calls" in repr(capture)
    assert capture.skipped == capture.lost == capture.described == {}


@pytest.mark.parametrize(
    ("given", "names"),
    [
        (lambda m: m, ["", "first", "second"]),
        (lambda m: ("model", m), ["model", "model.first", "model.second"]),
        (lambda m: ("  model", m), ["model", "model.first", "model.second"]),
        (lambda m: [("a", m), m], ["a", "", "a.first", "first", "a.second", "second"]),
        (lambda m: [("a", m.first), m.second], ["a", ""]),
    ],
)
def test_submodules(path, given, names):
    model = Net()
    with steal(given(model), path, submodules=True):
        model(X)
    dump = fs.load(path)
    assert dump.names() == names
    assert len(dump) == 2 * len(names)


def test_root_has_a_name_in_the_file(path):
    onnx = pytest.importorskip("onnx")
    model = Net()
    with steal(model, path, submodules=True):
        model(X)
    outputs = [output.name for output in onnx.load(path).graph.output]
    assert "./0/I/args.0" in outputs
    assert "first/0/O" in outputs


def test_names_never_share_value_names(path):
    one, two, three, four = Add(1.0), Add(2.0), Add(3.0), Add(4.0)
    with steal([one, (".", two), ("\ud800", three), ("\\ud800", four)], path):
        outs = [module(X) for module in (one, two, three, four)]
    dump = fs.load(path)
    assert dump.verify() == []
    assert torch.equal(dump["", 0, "O"], outs[0])
    assert torch.equal(dump[".", 0, "O"], outs[1])
    assert torch.equal(dump["\\ud800", 0, "O"], outs[3])
    (odd,) = set(dump.names()) - {"", ".", "\\ud800"}
    assert torch.equal(dump[odd, 0, "O"], outs[2])


def test_unnamed_modules_share_the_counter(path):
    model = Net()
    with steal([model.first, model.second], path):
        model(X)
        model(X)
    dump = fs.load(path)
    assert dump.names() == [""]
    assert dump.calls("") == [0, 1, 2, 3]
    assert [dump["", i, "O"][0].item() for i in range(4)] == [2.0, 4.0, 2.0, 4.0]


def test_a_module_under_two_names_and_listed_twice(path):
    module = Add()
    with steal([("a", module), ("b", module), ("a", module)], path) as capture:
        module(X)
        module(X)
    assert "forward" not in module.__dict__
    kinds = [(n, i, k) for i in (0, 1) for k in "IO" for n in "ab"]
    assert list(fs.load(path)) == kinds
    assert capture.calls == 4


def test_a_shared_submodule_is_recorded_under_each_name(path):
    model = Net()
    model.second = model.first
    with steal(("m", model), path, submodules=True):
        model(X)
    dump = fs.load(path)
    assert dump.names() == ["m", "m.first", "m.second"]
    assert dump.calls("m.first") == dump.calls("m.second") == [0, 1]


def test_recursion_has_numbers_of_its_own(path):
    class Down(torch.nn.Module):
        def forward(self, x, n):
            return x if n == 0 else self(x + 1, n - 1)

    model = Down()
    with steal(("down", model), path):
        model(X, 2)
    dump = fs.load(path)
    kinds = [(i, "I") for i in (0, 1, 2)] + [(i, "O") for i in (2, 1, 0)]
    assert list(dump) == [("down", i, kind) for i, kind in kinds]
    assert [dump["down", i, "I"][0][1] for i in range(3)] == [2, 1, 0]
    parents = [dump.info(("down", i, "I")).get("parent") for i in range(3)]
    assert parents == [None, "down/0", "down/1"]


# Nothing else changes


def test_same_bits_gradients_random_state_and_attributes(path):
    def run(stolen):
        torch.manual_seed(0)
        model = torch.nn.Sequential(
            torch.nn.Linear(8, 8), torch.nn.Dropout(0.5), torch.nn.GELU(), torch.nn.Linear(8, 2)
        )
        before = dict(model.__dict__), [dict(m.__dict__) for m in model.modules()]
        hooks = repr(model[0]._forward_hooks)
        context = steal(("m", model), path, submodules=True) if stolen else contextlib.nullcontext()
        with context:
            x = torch.randn(4, 8, requires_grad=True)
            out = model(x)
            out.square().sum().backward()
        assert (dict(model.__dict__), [dict(m.__dict__) for m in model.modules()]) == before
        assert repr(model[0]._forward_hooks) == hooks
        grads = [p.grad for p in model.parameters()]
        return [out.detach(), x.grad, *grads, torch.get_rng_state()], type(out.grad_fn)

    (bare, bare_fn), (stolen, stolen_fn) = run(stolen=False), run(stolen=True)
    assert bare_fn is stolen_fn
    for a, b in zip(bare, stolen, strict=True):
        assert torch.equal(a, b)


def test_results_are_the_very_objects(path):
    class Same(torch.nn.Module):
        def forward(self, x, cache):
            cache.append(x)
            return cache

    model, cache = Same(), []
    with steal(model, path):
        assert model(X, cache) is cache
        assert cache[0] is X
    dump = fs.load(path)
    assert dump["", 0, "I"][0][1] == []
    assert len(dump["", 0, "O"]) == 1


def test_moment_of_the_snapshot(path):
    class InPlace(torch.nn.Module):
        def forward(self, x):
            return x.mul_(2)

    model, x = InPlace(), X.clone()
    with steal(model, path):
        out = model(x)
        out.zero_()
    dump = fs.load(path)
    assert torch.equal(dump["", 0, "I"][0][0], X)
    assert torch.equal(dump["", 0, "O"], X * 2)


def test_nothing_is_kept_alive(path):
    model = Net()
    with steal(("m", model), path, submodules=True) as capture:
        x = torch.ones(3, requires_grad=True)
        out = model(x)[0]
        refs = [weakref.ref(x), weakref.ref(out)]
        del x, out
        assert [ref() for ref in refs] == [None] * 2
    ref = weakref.ref(model)
    del model
    gc.collect()
    assert ref() is None
    assert capture.calls == 3


def test_signature_pickle_deepcopy_state_dict(path):
    model = Net()
    signature, state = inspect.signature(model.forward), model.state_dict()
    with steal(model, path, submodules=True) as capture:
        assert inspect.signature(model.forward) == signature
        assert model.state_dict().keys() == state.keys()
        for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):  # noqa: S301
            with torch.no_grad():
                twin.first.amount.fill_(5.0)
            assert torch.equal(twin(X)[0], X + 7)
        assert capture.calls == 0


def test_generator_is_not_consumed(path):
    class Lazy(torch.nn.Module):
        def forward(self, items):
            yield from items

    model = Lazy()
    capture = steal(model, path)
    with pytest.warns(FaststealWarning, match="described"), capture:
        assert list(model(i for i in range(3))) == [0, 1, 2]
    assert set(capture.described) == {("", 0, "I"), ("", 0, "O")}
    assert ("", 0, "O") in fs.load(path)


def test_reasons_do_not_fill_the_memory(path, monkeypatch):
    monkeypatch.setattr(losses_module, "_KEPT", 3)
    model = Add()
    capture = steal(("m", model), path, storage_limit=7)
    told = pytest.warns(FaststealWarning, match=r"^steal_.*: 12 records skipped .* and 9 more")
    with told, capture:
        [model(X) for _ in range(6)]
    assert list(capture.skipped) == [("m", 0, "I"), ("m", 0, "O"), ("m", 1, "I")]
    assert "12 skipped" in repr(capture)
    assert len(fs.load(path).skipped) == 12


def test_the_users_modes_see_nothing(path):
    seen = []

    class Functions(TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            seen.append(func)
            return func(*args, **(kwargs or {}))

    model, z = Net(), torch.view_as_complex(torch.ones(2, 2)).conj()

    def calls():
        seen.clear()
        with Functions():
            model(X, y=[z, X.to(torch.uint8)])
        return list(seen)

    bare = calls()
    with steal(model, path, submodules=True):
        assert calls() == bare
    assert len(fs.load(path)) == 6


def test_append_to_this_very_capture(path, dynamo):
    with steal(Add(), path) as outer, steal(Add(), path.with_name("inner.onnx")):
        outer.append("x", X)
        with pytest.raises(TypeError, match="name must be str, not int"):
            outer.append(5, X)
    outer.append("late", X)
    assert list(fs.load(path)) == ["x"]


@pytest.mark.parametrize("number", [float("nan"), float("inf")])
def test_notes_are_json(path, number):
    with pytest.raises(ValueError, match="not JSON compliant"):
        steal(Add(), path, notes={"loss": number})


@pytest.mark.parametrize("name", ["#1.onnx", "*.onnx", "a\\b.onnx"])
def test_names_that_no_reader_takes_for_external_data(path, name):
    path = path.with_name(name)
    told = pytest.raises(OSError, match="expected a file name without a backslash")
    with told, steal(Add(), path):
        pass
    assert not path.exists()


def test_inference_mode_and_no_grad(path):
    model = Net()
    with steal(("m", model), path):
        with torch.inference_mode():
            model(X)
        with torch.no_grad():
            model.eval()(X)
    dump = fs.load(path)
    first, second = (dump.info(("m", i, "O")) for i in (0, 1))
    assert (first["inference"], first["grad"], first["training"]) == (True, False, True)
    assert "inference" not in second
    assert (second["grad"], second["training"]) == (False, False)


def test_checkpoint_recomputation_is_no_new_call(path):
    model = Net()
    x = X.clone().requires_grad_()
    with steal(("m", model.first), path) as capture:
        checkpoint(model.first, x, use_reentrant=False).sum().backward()
    assert capture.calls == 1
    assert len(fs.load(path)) == 2


# What records say


def test_info(path):
    model = Net()
    with steal(("m", model), path, submodules=True):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            model(X)
        model(X)
    dump = fs.load(path)
    info = dump.info(("m.first", 0, "O"))
    assert info["class"] == f"{__name__}:Add"
    assert info["parent"] == "m/0"
    assert info["thread"] == "MainThread"
    assert info["training"] is info["grad"] is True
    assert info["autocast"] == "bfloat16"
    assert "autocast" not in dump.info(("m.first", 1, "O"))
    assert "parent" not in dump.info(("m", 0, "I"))


def test_deterministic_flag(path):
    torch.use_deterministic_algorithms(True)
    try:
        with steal(Add(), path):
            pass
        model = Add()
        with steal(model, path):
            model(X)
    finally:
        torch.use_deterministic_algorithms(False)
    assert fs.load(path).info(("", 0, "I"))["deterministic"] is True


def test_provenance(path, monkeypatch):
    monkeypatch.setenv("RANK", "3")
    with steal(Add(), path, notes={"why": ["because", 1]}):
        pass
    told = fs.load(path).provenance
    assert told["torch"] == torch.__version__
    assert told["faststeal"] == fs.__version__
    assert told["rank"] == 3
    assert told["argv"] == sys.argv
    assert told["notes"] == {"why": ["because", 1]}
    assert told["time"].endswith("+00:00")


def test_ranks_write_files_of_their_own(tmp_path):
    script = """
        import sys, torch, torch.distributed as dist, faststeal as fs
        rank, folder = int(sys.argv[1]), sys.argv[2]
        store = dist.FileStore(folder + "/store", 2)
        dist.init_process_group("gloo", store=store, rank=rank, world_size=2)
        model = torch.nn.ReLU()
        with fs.steal_forward(model, dump_file=folder + "/run.onnx") as capture:
            model(torch.tensor([float(rank)]))
        assert capture.path.name == f"run.rank{rank}.onnx"
        dist.destroy_process_group()
    """
    command = [sys.executable, "-c", textwrap.dedent(script)]
    ranks = [subprocess.Popen([*command, str(rank), str(tmp_path)]) for rank in (0, 1)]
    assert [rank.wait(120) for rank in ranks] == [0, 0]
    for rank in (0, 1):
        dump = fs.load(tmp_path / f"run.rank{rank}.onnx")
        assert dump["", 0, "O"].item() == rank
        assert dump.provenance["rank"] == rank


# Failures of the model


def test_exception_is_recorded_and_passes_unchanged(path):
    class Boom(torch.nn.Module):
        def forward(self, x):
            raise error

    error = ValueError("boom")
    model = torch.nn.Sequential(Boom())
    with (
        pytest.raises(ValueError, match="boom") as info,
        steal(("m", model), path, submodules=True),
    ):
        model(X)
    assert info.value is error
    assert error.__context__ is None
    dump = fs.load(path)
    assert dump.complete
    assert list(dump) == [("m", 0, "I"), ("m.0", 0, "I"), ("m.0", 0, "E"), ("m", 0, "E")]
    assert dump["m.0", 0, "E"] == "ValueError: boom"
    with steal(("m", model), path) as capture:
        for _ in range(2):
            with pytest.raises(ValueError, match="boom"):
                model(X)
    assert fs.load(path).calls("m") == [0, 1]
    assert capture.calls == 2


def test_exception_with_a_broken_text(path):
    class OddError(Exception):
        def __str__(self):
            raise RuntimeError

    class Boom(torch.nn.Module):
        def forward(self, x):
            raise OddError

    model = Boom()
    with steal(model, path), pytest.raises(OddError):
        model(X)
    assert "OddError" in fs.load(path)["", 0, "E"]


def test_exception_keeps_no_frames(path):
    class Boom(torch.nn.Module):
        def forward(self, x):
            local = torch.ones(3)
            refs.append(weakref.ref(local))
            raise ValueError

    refs, model = [], Boom()
    with steal(model, path):
        with contextlib.suppress(ValueError):
            model(X)
        gc.collect()
        assert refs[0]() is None


def test_keyboard_interrupt_passes(path):
    class Stop(torch.nn.Module):
        def forward(self, x):
            raise KeyboardInterrupt

    model = Stop()
    with pytest.raises(KeyboardInterrupt), steal(model, path):
        model(X)
    assert fs.load(path)["", 0, "E"] == "KeyboardInterrupt"


# Failures of the capture


@pytest.fixture
def full_disk(monkeypatch):
    """The disk is full from the third record on, and free again for the fifth."""

    class Full:
        def __init__(self, *args, **kwargs):
            self.writer = real(*args, **kwargs)
            self.count = 0

        def write(self, *args):
            self.count += 1
            if self.count in {3, 4}:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "run.onnx")
            return self.writer.write(*args)

        def __getattr__(self, name):
            return getattr(self.writer, name)

    real = capture_module.Writer
    monkeypatch.setattr(capture_module, "Writer", Full)


def test_full_disk_costs_records_not_the_run(path, full_disk, caplog):
    model = Net()
    with (
        caplog.at_level(logging.WARNING, "faststeal"),
        pytest.warns(FaststealWarning, match="No space left") as told,
        steal(("m", model), path, submodules=True) as capture,
    ):
        assert torch.equal(model(X)[0], X + 3)
    assert list(capture.lost) == [("m.first", 0, "O"), ("m.second", 0, "I")]
    assert len(told) == 1
    assert told[0].filename == __file__
    assert len(caplog.records) == 1
    assert list(fs.load(path)) == [
        ("m", 0, "I"),
        ("m.first", 0, "I"),
        ("m.second", 0, "O"),
        ("m", 0, "O"),
    ]


def test_on_error_raise(path, full_disk):
    model = Net()
    context = steal(("m", model), path, submodules=True, on_error="raise")
    with pytest.raises(OSError, match="No space left") as info, context:
        model(X)
    assert info.value.errno == errno.ENOSPC
    assert "forward" not in model.__dict__


def test_warning_as_error_does_not_hide_the_exception(path, full_disk):
    model = Net()
    capture = steal(("m", model), path, submodules=True)

    def fail():
        model(X)
        raise ZeroDivisionError

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(ZeroDivisionError), capture:
            fail()
        assert capture.lost
        with pytest.raises(FaststealWarning), steal(model, path, submodules=True):
            model(X)
    assert "forward" not in model.first.__dict__


def test_our_own_bugs_do_not_reach_the_model(path, monkeypatch):
    def broken(*args, **kwargs):
        raise RuntimeError("a bug")

    monkeypatch.setattr("faststeal.recording.flatten", broken)
    model = Net()
    capture = steal(model, path)
    with pytest.warns(FaststealWarning, match="a bug"), capture:
        assert torch.equal(model(X)[0], X + 3)
    assert list(capture.lost) == [("", 0, "O")]


def test_fork(path):
    model = Net()
    with steal(("m", model), path) as capture:
        model(X)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the interpreter warns of forks with threads
            child = os.fork()
        if child == 0:
            ok = not fs.is_stealing()
            ok = ok and torch.equal(model(X)[0], X + 3)
            ok = ok and capture.calls == 1
            fs.steal_append("x", X)
            capture.__exit__(None, None, None)
            ok = ok and "forward" not in model.__dict__
            os._exit(0 if ok else 1)
        assert os.waitpid(child, 0)[1] == 0
        model(X)
    dump = fs.load(path)
    assert dump.complete
    assert len(dump) == 4


# Limits


def test_storage_limit(path):
    model = Net()
    model.second = torch.nn.Linear(2, 100)
    with (
        pytest.warns(FaststealWarning, match=r"2 records skipped.*'m', 0, 'O'"),
        steal(("m", model), path, submodules=True, storage_limit=8) as capture,
    ):
        model(X)
    dump = fs.load(path)
    assert set(capture.skipped) == {("m.second", 0, "O"), ("m", 0, "O")}
    assert set(dump.skipped) == set(capture.skipped)
    assert ("m", 0, "O") not in dump
    (leaf,) = dump.skipped["m.second", 0, "O"].leaves
    assert (leaf.dtype, leaf.shape) == ("float32", (100,))
    assert ("m.first", 0, "O") in dump  # as large as the limit
    assert capture.records == len(dump) == 4


def test_inputs_are_under_the_limit_too(path):
    model = Net()
    with (
        pytest.warns(FaststealWarning, match="limit"),
        steal(model, path, storage_limit=7) as capture,
    ):
        model(X)
    assert set(capture.skipped) == {("", 0, "I"), ("", 0, "O")}


def test_total_limit(path):
    model = Add()
    capture = steal(model, path, total_limit=64)
    with pytest.warns(FaststealWarning, match="limit"), capture:
        [model(X + i) for i in range(10)]
    assert capture.bytes_written <= 64
    assert capture.skipped
    assert capture.records + len(capture.skipped) == 20


# Arguments


@pytest.mark.parametrize(
    ("error", "kwargs"),
    [
        (TypeError, {"with_shapes": True}),
        (TypeError, {"fprint": repr, "with_shape": True}),
        (TypeError, {"fprint": "text"}),
        (TypeError, {"model": "model"}),
        (TypeError, {"model": ("name", "model")}),
        (TypeError, {"model": (1, Add())}),
        (TypeError, {"model": [Add(), None]}),
        (TypeError, {"dump_file": 3}),
        (TypeError, {"dump_drop": "mask"}),
        (TypeError, {"dump_drop": {1}}),
        (TypeError, {"storage_limit": 1.5}),
        (ValueError, {"storage_limit": -1}),
        (ValueError, {"total_limit": -1}),
        (ValueError, {"on_error": "ignore"}),
        (TypeError, {"notes": {"x": object()}}),
        (FileNotFoundError, {"dump_file": "missing/run.onnx"}),
        (OSError, {"dump_file": "."}),
    ],
)
def test_wrong_arguments_change_nothing(tmp_path, monkeypatch, error, kwargs):
    monkeypatch.chdir(tmp_path)
    model = Net()
    given = {"model": model, "dump_file": "run.onnx", "submodules": True, **kwargs}
    with pytest.raises(error), fs.steal_forward(**given):
        pytest.fail("must not be entered")
    assert "forward" not in model.__dict__
    assert list(tmp_path.iterdir()) == []
    with steal(model, tmp_path / "run.onnx") as capture:
        model(X)
    assert capture.calls == 1


def test_the_folder_that_is_missing_is_named(tmp_path):
    missing = tmp_path / "missing"
    with pytest.raises(FileNotFoundError) as caught, steal(Add(), missing / "run.onnx"):
        pytest.fail("must not be entered")
    assert caught.value.filename == str(missing)


def test_unknown_keyword_is_named():
    with pytest.raises(TypeError, match=r"'with_shapes'.*with_shape, with_min_max"):
        fs.steal_forward(Add(), with_shapes=True)


def test_a_capture_is_entered_once(path):
    context = steal(Add(), path)
    with context:
        pass
    with pytest.raises(RuntimeError, match="once"), context:
        pass


def test_two_captures_cannot_write_one_file(path):
    model = Net()
    with steal(model, path):
        with pytest.raises(BlockingIOError), steal(model, path):
            pass
        model(X)
    assert len(fs.load(path)) == 2


def test_dump_drop(path, capsys):
    model = Net()
    with steal(("m", model), path, dump_drop={"y", "z"}, verbose=1):
        model(X, y=X, w=1)
        fs.steal_append("yI", {"y": 2})
    dump = fs.load(path)
    assert dump["m", 0, "I"][1] == {"w": 1}
    assert dump["yI"] == {"y": 2}
    out = capsys.readouterr().out.splitlines()
    assert out[-4:] == [
        "-- gather stored 3 objects, size=0 Mb",
        "--- y",
        "-- dumps stored objects",
        "-- done dump stored objects",
    ]
    assert "kwargs=dict(y:T1s2,w:int)" in out[1]


def test_external_data(path):
    model = Net()
    with steal(model, path, save_as_external_data=True):
        model(X)
    assert path.with_name("run.onnx.data").exists()
    assert torch.equal(fs.load(path)["", 0, "I"][0][0], X)


# The trace


WALK_THROUGH = """\
+model -- stolen forward for class LLM -- iteration 0
  <- args=(T7s2x30,) --- kwargs={}
+model.decoder -- stolen forward for class DecoderLayer -- iteration 0
  <- args=(T1s2x30x16,) --- kwargs={}
+model.decoder.norm_1 -- stolen forward for class LayerNorm -- iteration 0
  <- args=(T1s2x30x16,) --- kwargs={}
  -> T1s2x30x16
-model.decoder.norm_1.
-- stores key=('model.decoder.norm_1', 0), size 3Kb -- T1s2x30x16
+model.decoder.attention -- stolen forward for class MultiAttentionBlock -- iteration 0
  <- args=(T1s2x30x16,) --- kwargs={}
  -> T1s2x30x16
-model.decoder.attention.
-- stores key=('model.decoder.attention', 0), size 3Kb -- T1s2x30x16
+model.decoder.norm_2 -- stolen forward for class LayerNorm -- iteration 0
  <- args=(T1s2x30x16,) --- kwargs={}
  -> T1s2x30x16
-model.decoder.norm_2.
-- stores key=('model.decoder.norm_2', 0), size 3Kb -- T1s2x30x16
+model.decoder.feed_forward -- stolen forward for class FeedForward -- iteration 0
  <- args=(T1s2x30x16,) --- kwargs={}
  -> T1s2x30x16
-model.decoder.feed_forward.
-- stores key=('model.decoder.feed_forward', 0), size 3Kb -- T1s2x30x16
  -> T1s2x30x16
-model.decoder.
-- stores key=('model.decoder', 0), size 3Kb -- T1s2x30x16
  -> T1s2x30x16
-model.
-- stores key=('model', 0), size 3Kb -- T1s2x30x16
-- gather stored 12 objects, size=0 Mb
-- dumps stored objects
-- done dump stored objects
"""

WALK_THROUGH_KEYS = """\
('model', 0, 'I') -- ((T7s2x30,),{})
('model.decoder', 0, 'I') -- ((T1s2x30x16,),{})
('model.decoder.norm_1', 0, 'I') -- ((T1s2x30x16,),{})
('model.decoder.norm_1', 0, 'O') -- T1s2x30x16
('model.decoder.attention', 0, 'I') -- ((T1s2x30x16,),{})
('model.decoder.attention', 0, 'O') -- T1s2x30x16
('model.decoder.norm_2', 0, 'I') -- ((T1s2x30x16,),{})
('model.decoder.norm_2', 0, 'O') -- T1s2x30x16
('model.decoder.feed_forward', 0, 'I') -- ((T1s2x30x16,),{})
('model.decoder.feed_forward', 0, 'O') -- T1s2x30x16
('model.decoder', 0, 'O') -- T1s2x30x16
('model', 0, 'O') -- T1s2x30x16
"""


def test_walk_through_to_the_character(path, capsys):
    from faststeal.compat import create_input_tensors_from_onnx_model, dummy_llm

    model, inputs, _ = dummy_llm(dynamic_shapes=True)
    with fs.steal_forward(
        [
            ("model", model),
            ("model.decoder", model.decoder),
            ("model.decoder.attention", model.decoder.attention),
            ("model.decoder.feed_forward", model.decoder.feed_forward),
            ("model.decoder.norm_1", model.decoder.norm_1),
            ("model.decoder.norm_2", model.decoder.norm_2),
        ],
        dump_file=str(path),
        verbose=1,
        storage_limit=2**28,
    ):
        model(*inputs)
    assert capsys.readouterr().out == WALK_THROUGH
    for loaded in (fs.load(path), create_input_tensors_from_onnx_model(str(path))):
        lines = [f"{k} -- {fs.string_type(v, with_shape=True)}\n" for k, v in loaded.items()]
        assert "".join(lines) == WALK_THROUGH_KEYS


def test_trace_without_a_file(capsys):
    model = Net()
    with fs.steal_forward([("root", model), ("  leaf", model.first)], with_min_max=True) as capture:
        model(X, y=None)
    assert capsys.readouterr().out.splitlines() == [
        "+root -- stolen forward for class Net -- iteration 0",
        "  <- args=(T1s2[1.0,2.0:A1.5],) --- kwargs=dict(y:None)",
        "    +leaf -- stolen forward for class Add -- iteration 0",
        "      <- args=(T1s2[1.0,2.0:A1.5],) --- kwargs={}",
        "      -> T1s2[2.0,3.0:A2.5]",
        "    -leaf.",
        "  -> (T1s2[4.0,5.0:A4.5],None)",
        "-root.",
    ]
    assert capture.path is None
    assert (capture.records, capture.bytes_seen, capture.calls) == (0, 0, 2)


def test_silent_with_a_file(path, capsys):
    model = Net()
    with steal(model, path):
        model(X)
        fs.steal_append("x", X)
    captured = capsys.readouterr()
    assert captured.out == captured.err == ""


def test_submodules_are_indented(capsys):
    model = Net()
    with fs.steal_forward(model, submodules=True):
        model(X)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("+ -- stolen forward for class Net")
    assert lines[2].startswith("  +first -- stolen")
    assert lines[-1] == "-."


def test_own_printer_and_its_options(capsys):
    def show(obj, with_min_max=None, *, colour="red"):
        return f"<{type(obj).__name__} {with_min_max} {colour}>"

    model = Add()
    with fs.steal_forward(model, show, colour="blue"):
        model(X)
    out = capsys.readouterr().out
    assert "args=<tuple False blue> --- kwargs=<dict False blue>" in out
    with fs.steal_forward(model, fprint=repr):
        model(X)
    assert "args=(tensor([1., 2.]),)" in capsys.readouterr().out


def test_printer_that_fails(capsys):
    def show(obj):
        raise RuntimeError("no")

    model = Add()
    with fs.steal_forward(model, fprint=show):
        assert torch.equal(model(X), X + 1)
    assert "-> Tensor(...)" in capsys.readouterr().out


def test_printer_that_calls_the_model():
    model = Add()

    def show(obj):
        return str(model(X))

    with fs.steal_forward(model, fprint=show) as capture:
        model(X)
    assert capture.calls == 1


def test_unprintable_types_do_not_break_the_model(capsys):
    class Odd:
        pass

    model = torch.nn.Identity()
    with fs.steal_forward(model):
        model(Odd())
    assert "Odd" in capsys.readouterr().out


def test_skipped_output_in_the_trace(path, capsys):
    model = Add()
    with pytest.warns(FaststealWarning), steal(("m", model), path, storage_limit=1, verbose=1):
        model(X)
    assert "-- skips key=('m', 0), size 0Kb -- T1s2" in capsys.readouterr().out


# steal_append


def test_append(path, capsys):
    class Inside(torch.nn.Module):
        def forward(self, x):
            y = x + 1
            fs.steal_append("sx", [y, None, "text"])
            y.zero_()
            return y

    model = Inside()
    assert not fs.is_stealing()
    fs.steal_append("outside", X)
    with steal(("m", model), path, verbose=1) as capture:
        assert fs.is_stealing()
        model(X)
        model(X)
        fs.steal_append("sx_1", 1)
        fs.steal_append("a/b", X)
        fs.steal_append("a%2Fb", X)
        fs.steal_append("", X)
        fs.steal_append("faststeal_format", X)
    dump = fs.load(path)
    expected = ["sx", "sx_1", "sx_1_1", "a/b", "a%2Fb", "", "faststeal_format"]
    assert [key for key in dump if isinstance(key, str)] == expected
    assert torch.equal(dump["sx"][0], X + 1)
    assert dump["sx"][1:] == [None, "text"]
    assert dump["sx_1_1"] == 1
    assert torch.equal(dump["a/b"], X)
    assert dump.info("sx")["parent"] == "m/0"
    assert dump.verify() == []
    out = capsys.readouterr().out
    assert "-- stolen 'sx': #3[T1s2,None,str]\n" in out
    assert "-- stolen 'sx' renamed in 'sx_1': #3[T1s2,None,str]\n" in out
    assert f"-- gather stored {capture.records} objects" in out
    with pytest.raises(TypeError, match="name"):
        fs.steal_append(1, X)


def test_append_goes_to_the_innermost_capture_of_the_thread(tmp_path):
    one, two = tmp_path / "1.onnx", tmp_path / "2.onnx"
    model = Add()
    with steal(model, one):
        with steal(model, two):
            fs.steal_append("x", 2)
            model(X)
        fs.steal_append("x", 1)
        ready, done = threading.Event(), threading.Event()

        def other():
            with steal(model, two):
                fs.steal_append("x", 3)
                ready.set()
                done.wait(60)

        thread = threading.Thread(target=other)
        thread.start()
        assert ready.wait(60)
        fs.steal_append("y", 1)
        stranger = threading.Thread(target=fs.steal_append, args=("z", 4))
        stranger.start()
        stranger.join()
        done.set()
        thread.join()
    first, second = fs.load(one), fs.load(two)
    assert (first["x"], first["y"]) == (1, 1)
    assert len(first) == 4
    assert (second["x"], second["z"]) == (3, 4)


# Threads, nesting


def test_threads(path):
    model = Net()

    def work():
        for _ in range(20):
            model(X)

    with steal(("m", model), path, submodules=True) as capture:
        threads = [threading.Thread(target=work, name=f"worker {i}") for i in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    dump = fs.load(path)
    assert capture.calls == 3 * 80
    assert dump.verify() == []
    for name in ("m", "m.first", "m.second"):
        assert sorted(dump.calls(name)) == list(range(80))
    for i in range(80):
        info = dump.info(("m.first", i, "I"))
        parent = dump.info(("m", int(info["parent"].removeprefix("m/")), "I"))
        assert info["thread"] == parent["thread"]
        assert info["thread"].startswith("worker")


def test_a_call_that_outlives_the_capture(path):
    inside, go = threading.Event(), threading.Event()

    class Slow(torch.nn.Module):
        def forward(self, x):
            inside.set()
            go.wait(60)
            return x

    model = Slow()
    thread = threading.Thread(target=model, args=(X,))
    with steal(model, path) as capture:
        thread.start()
        assert inside.wait(60)
    go.set()
    thread.join()
    assert list(fs.load(path)) == [("", 0, "I")]
    assert capture.lost == {}


def test_nested_captures_both_record(tmp_path):
    one, two = tmp_path / "1.onnx", tmp_path / "2.onnx"
    model = Net()
    with steal(("a", model), one, submodules=True):
        model(X)
        with steal(("b", model), two, submodules=True):
            model(X)
        model(X)
    assert fs.load(one).calls("a") == [0, 1, 2]
    assert fs.load(two).calls("b") == [0]
    assert "forward" not in model.__dict__


def test_captures_end_in_any_order(tmp_path):
    model = Net()
    first = steal(model, tmp_path / "1.onnx")
    second = steal(model, tmp_path / "2.onnx")
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    model(X)
    second.__exit__(None, None, None)
    model(X)
    assert "forward" not in model.__dict__
    assert (first.calls, second.calls) == (0, 1)


def test_replaced_meanwhile(path):
    model = Add()
    capture = steal(("m", model), path)
    with pytest.warns(FaststealWarning, match="'m' had a forward put in place"), capture:
        model.forward = torch.neg
    assert model.__dict__["forward"] is torch.neg


def test_replicas_are_told(path):
    model = Net()
    capture = steal(("m", model), path, submodules=True)
    with pytest.warns(FaststealWarning, match="'m' had replicas"), capture:
        assert torch.equal(model._replicate_for_data_parallel()(X)[0], X + 3)
    assert [key for key in fs.load(path) if key[0] == "m"] == []


# Graphs


@pytest.fixture
def dynamo():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def test_compiled_inside_is_told(path, dynamo):
    model = Net()
    capture = steal(("m", model), path, submodules=True)
    compiled = torch.compile(model, fullgraph=True, backend="eager")
    with pytest.warns(FaststealWarning, match="'m' and 2 more ran inside a compiled"), capture:
        assert torch.equal(compiled(X)[0], X + 3)
    assert capture.calls == 0


def test_compiled_module_is_captured_at_its_boundary(path, dynamo):
    model = torch.compile(Net(), backend="eager")
    with steal(("m", model), path):
        assert torch.equal(model(X)[0], X + 3)
    assert list(fs.load(path)) == [("m", 0, "I"), ("m", 0, "O")]


@pytest.mark.parametrize("strict", [True, False])
def test_export_inside(path, strict, dynamo, capsys):
    model = Net()
    with steal(("m", model), path, submodules=True):
        program = torch.export.export(model, (X,), strict=strict)
        fs.steal_append("x", X)
        model(X)
    assert torch.equal(program.module()(X)[0], X + 3)
    assert "x" in program.graph_signature.user_inputs
    assert len(fs.load(path)) == 7


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("how", ["strict", "not strict", "trace"])
def test_nothing_but_an_export_is_told(path, how, dynamo):
    model = torch.nn.Sequential(Add(1.0), Add(2.0))

    def export():
        if how == "trace":
            torch.jit.trace(model, (X,), check_trace=False)
        else:
            torch.export.export(model, (X,), strict=how == "strict")

    told = pytest.warns(FaststealWarning, match="'m' and 2 more were only exported or traced")
    with told, steal(("m", model), path, submodules=True):
        export()
    assert len(fs.load(path)) == 0


def test_append_is_nothing_in_a_graph(path, dynamo):
    class Inside(torch.nn.Module):
        def forward(self, x):
            if fs.is_stealing():
                x = x * 100
            fs.steal_append("h", x)
            return x + 1

    model = Inside()
    with steal(torch.nn.Identity(), path):
        compiled = torch.compile(model, fullgraph=True, backend="eager")
        assert torch.equal(compiled(X), X + 1)
        torch.export.export(model, (X,), strict=True)
        torch.export.export(model, (X,), strict=False)
    assert len(fs.load(path)) == 0


def test_provenance_is_json_of_an_object(path):
    with steal(Add(), path):
        pass
    assert isinstance(json.loads(fs.load(path)._reader.provenance), dict)
