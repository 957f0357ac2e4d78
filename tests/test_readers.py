"""A dump is an ONNX model to everyone: the same values in every reader, whatever is in it."""

import importlib.util
import json
import shutil
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import pytest
import torch

import faststeal as fs
import other_readers as others
from faststeal._core import Reader, Writer
from samples import (
    CASES,
    Dumps,
    by_case,
    by_life,
    by_place,
    check_reader,
    expected,
    floats,
    split,
    value_name,
    write,
)

READERS = {
    "onnx": others.load,
    "checker": others.check,
    "reference": others.evaluate,
    "onnxruntime": others.runtime,
    "onnx-ir": others.ir,
}


@pytest.fixture(scope="module")
def dumps(tmp_path_factory):
    return Dumps(tmp_path_factory.mktemp("dumps"))


def comparable(found, wanted):
    """onnxruntime does not show float4: it only loads."""
    return {name: value for name, value in wanted.items() if name in found}


def float4_names(records):
    return {
        value_name(key, path)
        for key, tensors in records.items()
        for path, tensor in tensors.items()
        if tensor.dtype == torch.float4_e2m1fn_x2
    }


@by_life
@by_place
@by_case
@pytest.mark.parametrize("reader", READERS)
def test_other_readers(dumps, reader, name, place, live):
    records = CASES[name]
    found = READERS[reader](dumps.get(name, place, live))
    wanted = expected(records)
    if reader == "onnxruntime":
        wanted = {k: v for k, v in wanted.items() if k not in float4_names(records)}
    assert list(found) == list(wanted)
    assert found == wanted


@by_life
@by_place
@by_case
def test_onnxruntime_and_numpy(dumps, name, place, live):
    records = CASES[name]
    found = others.runtime_numpy(dumps.get(name, place, live))
    wanted = expected(records)
    numpy = {
        value_name(key, path)
        for key, tensors in records.items()
        for path, tensor in tensors.items()
        if tensor.dtype in others.NUMPY
    }
    assert numpy <= found.keys()
    assert found == comparable(found, wanted)


@by_life
@by_case
def test_as_bytes(dumps, name, live):
    """An inline dump is one file: nothing else is looked for."""
    data = Path(dumps.get(name, "inline", live)).read_bytes()
    records = CASES[name]
    onnx.checker.check_model(data, full_check=True)
    found = others.runtime(data)
    assert found == comparable(found, expected(records))
    assert others.of_proto(onnx.load_from_string(data), expected(records)) == expected(records)
    check_reader(Reader(data), records)


@by_life
@by_place
@by_case
@pytest.mark.parametrize("mode", ["private", "readonly", "pread"])
def test_our_reader(dumps, mode, name, place, live):
    reader = Reader(dumps.get(name, place, live), mode)
    assert reader.complete is not live
    assert json.loads(reader.provenance)["note"] == "é"
    check_reader(reader, CASES[name])


def test_onnxruntime_gives_values_a_person_would_recognise(dumps):
    path = dumps.get("shapes", "inline", False)
    (scalar,) = others.session_of(path).run(["m/0/I/scalar"], {})
    assert (scalar.dtype, scalar.shape, float(scalar)) == (np.float32, (), 3.5)


def test_reference_evaluator_knows_the_small_types(dumps):
    path = dumps.get("dtypes", "inline", False)
    evaluator = onnx.reference.ReferenceEvaluator(path)
    (array,) = evaluator.run(["torch.bfloat16/0/I/c"], {})
    assert array.dtype == ml_dtypes.bfloat16


@pytest.fixture(scope="module")
def netron(tmp_path_factory):
    """Netron's JavaScript, of its package on PyPI, made readable for node."""
    found = importlib.util.find_spec("netron")
    if found is None or not shutil.which("node"):
        pytest.skip("needs the package netron, and node")
    folder = tmp_path_factory.mktemp("netron") / "modules"
    shutil.copytree(Path(found.origin).parent, folder)
    (folder / "package.json").write_text('{"type": "module"}')
    return folder


@pytest.mark.parametrize("live", [False, True], ids=["closed", "live"])
@pytest.mark.parametrize("place", ["inline", "external"])
@pytest.mark.parametrize("name", ["shapes", "empty", "names", "layouts", "types"])
def test_netron(netron, dumps, name, place, live):
    path = dumps.get(name, place, live)
    found = others.netron(netron, path)
    assert found["producer"].startswith("faststeal ")
    assert found["outputs"] == [others.MARKER, *expected(CASES[name])]
    proto = onnx.load(path, load_external_data=False)
    # It folds what only another node reads: the shapes of Reshapes.
    constants = [
        n.attribute[0].t
        for n in proto.graph.node
        if n.op_type == "Constant" and not n.output[0].endswith("//shape")
    ]
    assert len(found["constants"]) == len(constants)
    for (dims, values, location), tensor in zip(found["constants"], constants, strict=True):
        assert dims == list(tensor.dims)
        assert bytes(values) == tensor.raw_data
        assert location == ("run.onnx.data" if tensor.external_data else "")


def test_a_real_capture(tmp_path):
    """Through the public door: modules, a record without tensors, one skipped for its size."""
    path = tmp_path / "run.onnx"
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU(), torch.nn.Flatten(0))
    x = floats(3, 4)
    with fs.steal_forward(("model", model), submodules=True, dump_file=path):
        out = model(x)
        fs.steal_append("nothing", None)
    found = others.runtime(str(path))
    assert found == others.check(str(path)) == others.evaluate(str(path)) == others.ir(str(path))
    assert found["model/0/O"] == others.value(out)
    assert found["model/0/I/args.0"] == others.value(x)
    reader = Reader(str(path))
    for key, tensors in [(k, reader.record(i)[1]) for i, k in enumerate(reader.keys())]:
        stem = "/".join(map(str, key))
        wanted = [value for name, value in found.items() if name.startswith(stem)]
        assert [others.value(tensor) for tensor in tensors] == wanted
    assert reader.verify() == []


# --- limits, parts


def test_skipped_records(tmp_path):
    """Over a limit: the record says shape and statistics, and no reader sees a value."""
    path = str(tmp_path / "run.onnx")
    writer = Writer(path, "{}", storage_limit=100, total_limit=150)

    def put(key, **tensors):
        tree = json.dumps([{"tensor": i} for i in range(len(tensors))])
        return writer.write(key, key, tree, list(tensors), list(tensors.values()), '"a":1')

    assert put("m/0/I", x=floats(20)) is None
    assert put("m/0/O", x=floats(20), y=floats(6)) == "104 bytes are over the storage limit of 100"
    assert put("m/1/I", x=floats(20)) is None  # its bytes are there already
    reason = put("m/1/O", x=floats(20, seed=1))
    assert reason == "80 new bytes after 80 are over the total limit of 150"
    assert put("m/2/I", x=floats(10, seed=2)) is None
    kept = expected({"m/0/I": {"x": floats(20)}, "m/1/I": {"x": floats(20)}})
    kept |= expected({"m/2/I": {"x": floats(10, seed=2)}})
    for closed in (False, True):
        if closed:
            writer.close()
        for read in READERS.values():
            assert read(path) == kept
        reader = Reader(path)
        assert reader.skipped() == [False, True, False, True, False]
        assert [len(reader.record(i)[1]) for i in range(5)] == [1, 0, 1, 0, 1]
        info = json.loads(reader.info(1))
        assert (info["n"], info["a"]) == (0, 1)
        assert info["skipped"] == "104 bytes are over the storage limit of 100"
        first = info["leaves"][0]
        assert (first["name"], first["dtype"], first["shape"]) == ("m/0/O/x", "float32", [20])
        assert first["stats"]["min"] == pytest.approx(floats(20).min().item())
        assert reader.verify() == []


@pytest.fixture(params=["closed", "live"])
def parts(request, tmp_path):
    """Ten records in several files: `(path, parts, records)`."""
    path = tmp_path / "run.onnx"
    records = {f"m/{i}/O": {"x": floats(20_000, seed=i % 7), "y": floats(3)} for i in range(10)}
    writer = Writer(str(path), '{"note": 1}', part_limit=400_000)
    write(writer, records)
    if request.param == "closed":
        writer.close()
    names = [path, *(tmp_path / f"run.{i}.onnx" for i in range(1, 10))]
    yield path, [str(name) for name in names if name.exists()], records
    writer.close()


def test_parts(parts):
    path, files, records = parts
    assert len(files) > 2
    assert len(list(path.parent.iterdir())) == len(files)
    for mode in ("private", "readonly", "pread"):
        check_reader(Reader(str(path), mode), records)
    for read in READERS.values():
        found = {}
        for file in files:
            onnx.checker.check_model(Path(file).read_bytes(), full_check=True)
            found |= read(file)
        assert found == expected(records)
    # Deduplication begins anew in each: none refers to another.
    for file in files:
        assert Path(file).stat().st_size < 400_000 + 1


def test_parts_of_another_run_are_not_taken_along(tmp_path):
    path = tmp_path / "run.onnx"
    records = {f"m/{i}/O": {"x": floats(20_000, seed=i)} for i in range(10)}
    writer = Writer(str(path), "{}", part_limit=400_000)
    write(writer, records)
    writer.close()
    assert (tmp_path / "run.1.onnx").exists()
    shorter = {"m/0/O": {"x": floats(2)}}
    writer = Writer(str(path), "{}")
    write(writer, shorter)
    check_reader(Reader(str(path)), shorter)
    writer.close()
    check_reader(Reader(str(path)), shorter)


def test_a_part_that_is_missing_does_not_hide_the_others(parts):
    path, files, records = parts
    Path(files[1]).unlink()
    reader = Reader(str(path))
    assert not reader.complete
    assert reader.keys() == [split(key) for key in list(records)[: len(reader)]]
    assert 0 < len(reader) < len(records)
