"""What onnx-diagnostic gets wrong, one test each: ours is right.

The numbers are those of the list that the project keeps of the incumbent's defects.
"""

import ast
import gc
import inspect
import os
import subprocess
import sys
import threading
import warnings
import weakref
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import torch

import faststeal as fs
from faststeal.capture import FaststealWarning

X = torch.tensor([1.0, 2.0])


class Echo(torch.nn.Module):
    """Returns what `result` makes of its inputs."""

    def __init__(self, result=lambda *args, **kwargs: args[0]):
        super().__init__()
        self.result = result

    def forward(self, *args, **kwargs):
        return self.result(*args, **kwargs)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "run.onnx"


def captured(path, *args, result=lambda *a, **k: a[0], **kwargs):
    """Call a module once; its inputs and output as they come back from the file."""
    model = Echo(result)
    with fs.steal_forward(("m", model), dump_file=path):
        model(*args, **kwargs)
    dump = fs.load(path)
    return dump["m", 0, "I"], dump["m", 0, "O"]


def same(a, b):
    if isinstance(a, torch.Tensor):
        return torch.equal(a, b) and a.dtype == b.dtype
    if isinstance(a, (tuple, list)):
        return type(a) is type(b) and len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[k], b[k]) for k in a)
    return type(a) is type(b) and a == b


@pytest.mark.parametrize(
    "value",
    [
        (X, None),
        {"a": X, "b": None},
        (None, X, None),
        (X, None, X),
        None,
        [None],
        ((), [], {}, None),
    ],
)
def test_defect_01_none_comes_back(path, value):
    (args, kwargs), out = captured(path, value, mask=None)
    assert same(args[0], value)
    assert kwargs == {"mask": None}
    assert same(out, value)


def test_defect_02_any_leaf_and_never_an_exception(path, tmp_path):
    values = ["sdpa", {1, 2}, b"x", 1 + 2j, slice(1, 2), torch.float16, torch.device("cpu")]
    values += [frozenset({"a"}), range(3), ..., torch.Size([1, 2]), np.float32(1.5)]
    (args, kwargs), _ = captured(path, *values, impl="eager")
    assert list(args) == values
    assert kwargs == {"impl": "eager"}
    model = Echo()
    capture = fs.steal_forward(model, dump_file=path)
    with pytest.warns(FaststealWarning, match="described"), capture:
        model(object())  # nothing can store this one; the model does not notice
    assert "object" in repr(fs.load(path)["", 0, "I"])
    # A directory that is missing is told before the run, not after it.
    with (
        pytest.raises(FileNotFoundError),
        fs.steal_forward(model, dump_file=tmp_path / "no" / "run.onnx"),
    ):
        pytest.fail("the run must not begin")


def test_defect_03_nothing_is_overwritten(path):
    one, two = Echo(lambda x: x + 1), Echo(lambda x: x + 2)
    with fs.steal_forward([one, two, ("n", one), ("n", two)], dump_file=path):
        one(X)
        two(X)
    dump = fs.load(path)
    for name in ("", "n"):
        assert [dump[name, i, "O"][0].item() for i in (0, 1)] == [2.0, 3.0]

    class Down(torch.nn.Module):
        def forward(self, n):
            return n if n == 0 else self(n - 1)

    down = Down()
    with fs.steal_forward(("down", down), dump_file=path):
        down(3)
    assert len(fs.load(path)) == 8
    (args, _), _ = captured(path, {"1": X, 1: X + 1, ("1", 0): X + 2, (1, 0): X + 3})
    assert list(args[0]) == ["1", 1, ("1", 0), (1, 0)]


@pytest.mark.parametrize("name", ["a,b", "7", "True", "((a))", "a___b", "a/b", "é", "a b"])
def test_defect_04_names_come_back(path, name):
    model = Echo()
    with fs.steal_forward((name, model), dump_file=path):
        model({name: X, "True": 1, "7": 2, True: 3})
    dump = fs.load(path)
    assert list(dump) == [(name, 0, "I"), (name, 0, "O")]
    assert list(dump[name, 0, "O"]) == [name, *[k for k in ("True", "7", True) if k != name]]


def test_defect_05_limits_hold_for_all_and_are_told(path):
    model = Echo()

    def run(**limits):
        capture = fs.steal_forward(("m", model), dump_file=path, **limits)
        with capture:
            model(X)
        return capture

    with pytest.warns(FaststealWarning, match="limit"):
        capture = run(storage_limit=7)
    assert set(fs.load(path).skipped) == {("m", 0, "I"), ("m", 0, "O")}
    assert set(capture.skipped) == set(fs.load(path).skipped)
    assert run(storage_limit=8).records == 2  # a limit may be reached
    with pytest.warns(FaststealWarning, match="limit"):
        assert run(total_limit=4).bytes_written <= 4


def test_defect_06_external_data_is_replaced_where_it_is(tmp_path, monkeypatch):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    precious = elsewhere / "run.onnx.data"
    precious.write_text("precious")
    monkeypatch.chdir(elsewhere)
    path, model = tmp_path / "run.onnx", Echo()
    sizes = []
    for _ in range(2):
        with fs.steal_forward(model, dump_file=path, save_as_external_data=True):
            model(torch.arange(20_000, dtype=torch.float32))
        sizes.append(path.with_name("run.onnx.data").stat().st_size)
    assert precious.read_text() == "precious"
    assert sizes[0] == sizes[1] < 90_000
    assert fs.load(path)["", 0, "O"].numel() == 20_000


def test_defect_06_what_belongs_to_no_dump_is_left(tmp_path):
    path, data = tmp_path / "run.onnx", tmp_path / "run.onnx.data"
    data.write_text("precious")
    with fs.steal_forward(Echo(), dump_file=path):
        pass
    assert data.read_text() == "precious"
    data.unlink()
    (data / "in a folder").mkdir(parents=True)
    with fs.steal_forward(Echo(), dump_file=path):  # which replaces a dump
        pass
    assert fs.load(path).complete
    assert data.is_dir()


def test_defect_07_dump_drop_is_for_calls(path):
    model = Echo()
    with fs.steal_forward(("m", model), dump_file=path, dump_drop={"mask"}):
        model(X, mask=X)
        fs.steal_append("xI", {"mask": X})
        fs.steal_append("I", X)
    dump = fs.load(path)
    assert dump["m", 0, "I"][1] == {}
    assert torch.equal(dump["xI"]["mask"], X)
    assert torch.equal(dump["I"], X)


def test_defect_08_append_copies_and_keeps_nothing(path):
    x = X.clone()
    with fs.steal_forward([], dump_file=path):
        fs.steal_append("x", x)
        x.zero_()
    assert torch.equal(fs.load(path)["x"], X)
    ref = weakref.ref(x)
    with fs.steal_forward([]):
        fs.steal_append("x", x)
        del x
        gc.collect()
        assert ref() is None


def test_defect_09_a_bad_call_leaves_no_state(path):
    model = Echo()
    for wrong in (("m", 1), "model", [model, 3]):
        with pytest.raises(TypeError):
            fs.steal_forward(wrong, dump_file=path)
    assert not fs.is_stealing()
    assert "forward" not in model.__dict__
    with fs.steal_forward([model], submodules=True, dump_file=path) as capture:
        model(X)
    assert capture.calls == 1


def test_defect_10_a_module_listed_twice_is_restored(path):
    model = Echo()
    with fs.steal_forward([("a", model), ("b", model), model], dump_file=path) as capture:
        model(X)
    model(X)
    assert "forward" not in model.__dict__
    assert capture.calls == 3
    assert fs.load(path).names() == ["a", "b", ""]


def test_defect_11_no_attribute_stays(path):
    model = torch.nn.Linear(2, 2)
    before = dict(model.__dict__)
    with fs.steal_forward(model, dump_file=path):
        model(X)
    assert model.__dict__ == before


def test_defect_12_the_signature_stays_and_keywords_pass(path):
    class Takes(torch.nn.Module):
        def forward(self, x, _f=None, _prefix="", **kwargs):
            return _f, _prefix, kwargs

    model = Takes()
    signature = inspect.signature(model.forward)
    with fs.steal_forward(model, dump_file=path):
        assert inspect.signature(model.forward) == signature
        out = model(X, _f=1, _prefix="p", _c=2, _storage=3, site=4, args=5)
    assert out == (1, "p", {"_c": 2, "_storage": 3, "site": 4, "args": 5})
    assert fs.load(path)["", 0, "I"][1]["_f"] == 1


def test_defect_13_nested_and_in_threads(tmp_path):
    model = Echo()

    def work(name):
        with fs.steal_forward((name, model), dump_file=tmp_path / f"{name}.onnx"):
            barrier.wait(60)
            model(X)
            barrier.wait(60)

    barrier = threading.Barrier(2)
    threads = [threading.Thread(target=work, args=(name,)) for name in "ab"]
    with fs.steal_forward(("c", model), dump_file=tmp_path / "c.onnx"):
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert "forward" not in model.__dict__
    assert [len(fs.load(tmp_path / f"{name}.onnx")) for name in "abc"] == [4, 4, 4]


def test_defect_13_validation_without_asserts():
    for source in Path(fs.__file__).parent.glob("*.py"):
        tree = ast.parse(source.read_text())
        assert not any(isinstance(node, ast.Assert) for node in ast.walk(tree)), source


@pytest.mark.parametrize("strict", [True, False])
def test_defect_14_export_inside(path, strict):
    class Model(torch.nn.Module):
        def forward(self, input_ids):
            return input_ids + 1

    model = Model()
    torch._dynamo.reset()
    with fs.steal_forward(model, dump_file=path):
        program = torch.export.export(model, (X,), strict=strict)
        model(X)
    assert program.graph_signature.user_inputs == ("input_ids",)
    assert len(fs.load(path)) == 2


def test_defect_15_a_call_that_raises_has_its_number(path):
    def result(x):
        if x[0] == 0:
            raise ValueError("zero")
        return x

    model = Echo(result)
    with fs.steal_forward(("m", model), dump_file=path):
        with pytest.raises(ValueError, match="zero"):
            model(X * 0)
        model(X)
    dump = fs.load(path)
    assert list(dump) == [("m", 0, "I"), ("m", 0, "E"), ("m", 1, "I"), ("m", 1, "O")]
    assert dump["m", 0, "E"] == "ValueError: zero"


def test_defect_16_direct_forward_is_still_seen(path):
    model = Echo()
    with fs.steal_forward(("m", model), dump_file=path):
        model.forward(X)
    assert len(fs.load(path)) == 2


def test_defect_17_no_copy_no_graph_and_bytes_once(path):
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 64))
    with fs.steal_forward(("m", model), submodules=True, dump_file=path) as capture:
        x = torch.randn(64, 64, requires_grad=True)
        out = model(x)
        refs = [weakref.ref(x), weakref.ref(out)]
        del x, out
        assert [ref() for ref in refs] == [None, None]
    # Input, two intermediate results, output: each once, though they appear eight times.
    assert capture.bytes_seen == 8 * 64 * 64 * 4
    assert capture.bytes_written == 4 * 64 * 64 * 4


def test_defect_18_no_memory_at_exit(path):
    psutil = pytest.importorskip("psutil")
    process, model = psutil.Process(), Echo()
    x = torch.zeros(1 << 20)
    with fs.steal_forward(model, dump_file=path) as capture:
        for i in range(64):
            model(x.add_(1))
            if i == 8:
                before = process.memory_info().rss
    grown = process.memory_info().rss - before
    assert capture.bytes_written == 64 * x.nbytes
    assert grown < 32 << 20  # of 256 MiB


def test_defect_19_more_than_a_protobuf_holds(path, monkeypatch):
    from faststeal import _core
    from faststeal import capture as capture_module

    def small(*args, **kwargs):
        return _core.Writer(*args, **kwargs, inline_limit=1 << 16)

    # What happens at 1 GiB, at 64 KiB: the rest goes to external data.
    monkeypatch.setattr(capture_module, "Writer", small)
    model = Echo()
    with fs.steal_forward(("m", model), dump_file=path) as capture:
        for i in range(40):
            model(torch.full((1000,), float(i)))
    assert capture.bytes_written == 40 * 4000
    assert path.with_name("run.onnx.data").stat().st_size > 80_000
    dump = fs.load(path)
    assert all(dump["m", i, "O"][0] == i for i in range(40))


def test_defect_20_exotic_types_need_no_statistics(path):
    values = [
        torch.ones(3, dtype=dtype)
        for dtype in (torch.uint16, torch.uint64, torch.complex64, torch.float8_e4m3fn)
    ]
    values += [torch.empty(0), torch.ones(3).to_sparse(), torch.tensor(float("nan"))]
    (args, _), _ = captured(path, *values)
    for a, b in zip(args, values, strict=True):
        assert (a.dtype, a.shape, a.layout) == (b.dtype, b.shape, b.layout)
    assert args[1].tolist() == [1, 1, 1]
    assert args[2].tolist() == [1, 1, 1]


def test_defect_21_loading_reads_what_is_asked_for(path):
    model = Echo(lambda x: x.bfloat16())
    x = torch.randn(3, 4).t().requires_grad_()
    with fs.steal_forward(("m", model), dump_file=path):
        out = model(x)
    dump = fs.load(path)
    assert torch.equal(dump["m", 0, "O"], out)
    a, b = dump["m", 0, "O"], dump["m", 0, "O"]
    assert a.data_ptr() == b.data_ptr()  # views of the file
    leaf = dump.info(("m", 0, "I"))["leaves"][0]
    assert (leaf["device"], leaf["requires_grad"], leaf["shape"]) == ("cpu", True, [4, 3])
    assert os.fspath(path) in repr(dump)


def test_defect_22_transformers_is_not_needed():
    code = (
        "import sys\n"
        "sys.modules['transformers'] = sys.modules['onnxruntime'] = None\n"
        "import torch, faststeal as fs\n"
        "with fs.steal_forward(torch.nn.ReLU()) as capture: print(fs.is_stealing())"
    )
    out = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert out.stdout == "True\n"


def test_defect_23_string_type():
    assert "nan" in fs.string_type(np.array([1 + 1j, np.nan]), with_shape=True, with_min_max=True)

    class Pair(NamedTuple):
        first: object
        second: object

    assert fs.string_type(Pair(X, None), with_shape=True) == "(T1s2,None)"
    cache_utils = pytest.importorskip("transformers.cache_utils")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        cache = cache_utils.DynamicCache()
        cache.update(torch.zeros(1, 2, 3, 4), torch.zeros(1, 2, 3, 5), 0)
        cache.layers.append(cache_utils.DynamicSlidingWindowLayer(sliding_window=4))
        cache.update(torch.zeros(1, 2, 3, 4), torch.zeros(1, 2, 3, 5), 1)
    text = fs.string_type(cache, with_shape=True)
    assert text.count("T1s1x2x3x4") == text.count("T1s1x2x3x5") == 2
