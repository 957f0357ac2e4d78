"""A dump is an ONNX model to everyone: the same values in every reader, whatever is in it."""

import contextlib
import importlib.util
import json
import os
import re
import shutil
from pathlib import Path
from typing import NamedTuple

import ml_dtypes
import numpy as np
import onnx
import onnx_ir
import pytest
import torch

import faststeal as fs
import other_readers as others
import wire
from faststeal._core import FaststealError, FormatError, Reader, Writer, repair

DTYPES = {
    torch.bool: 9,
    torch.int8: 3,
    torch.uint8: 2,
    torch.int16: 5,
    torch.uint16: 4,
    torch.int32: 6,
    torch.uint32: 12,
    torch.int64: 7,
    torch.uint64: 13,
    torch.float16: 10,
    torch.bfloat16: 16,
    torch.float32: 1,
    torch.float64: 11,
    torch.float8_e4m3fn: 17,
    torch.float8_e4m3fnuz: 18,
    torch.float8_e5m2: 19,
    torch.float8_e5m2fnuz: 20,
    torch.float8_e8m0fnu: 24,
    torch.float4_e2m1fn_x2: 23,
}


def of(dtype, *shape, seed=0):
    """All bit patterns in turn: NaNs with payloads, infinities, subnormals."""
    count = int(np.prod(shape))
    if dtype == torch.bool:
        return (torch.arange(count) % 3 == seed % 3).reshape(shape)
    pattern = (torch.arange(count * dtype.itemsize) * 37 + seed * 11) % 256
    return pattern.to(torch.uint8).view(dtype).reshape(shape)


def floats(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


class Case(NamedTuple):
    """Records by key: `{path: tensor}`."""

    records: dict
    options: dict = {}  # noqa: RUF012


class Base(torch.nn.Module):
    """Rank-4 weights in channels-last order."""

    weight = floats(2, 3, 4, 5).contiguous(memory_format=torch.channels_last)


def same_bytes(dtype):
    """Stored once where aliases exist: another shape, the same again, and in a later record."""
    first = {"a": of(dtype, 2, 6), "b": of(dtype, 2, 6), "c": of(dtype, 3, 4), "d": of(dtype, 12)}
    return {
        f"{dtype}/0/I": first,
        f"{dtype}/0/O": {"": of(dtype, 2, 6), "flat": of(dtype, 1, 12, 1)},
    }


STRIDED = floats(40, 50, 60)

CASES = {
    "dtypes": Case({k: v for dtype in DTYPES for k, v in same_bytes(dtype).items()}),
    "float4": Case(same_bytes(torch.float4_e2m1fn_x2)),
    "shapes": Case(
        {
            "m/0/I": {
                "scalar": torch.tensor(3.5),
                "again": torch.tensor(3.5),
                "one": torch.tensor([3.5]),
                "ones": torch.tensor([[[3.5]]]),
                "int": torch.tensor(7),
                "ints": torch.tensor([[7]]),
                "back": torch.tensor(7).reshape(()),
                "rank6": floats(2, 1, 3, 1, 2, 2),
                "rank10": floats(*[1, 2] * 5),
                "true": torch.tensor(True),
            },
            "m/0/O": {"": torch.tensor([3.5])},
            "m/1/O": {"": torch.tensor(3.5)},
        }
    ),
    "empty": Case(
        {
            "m/0/I": {
                "none": torch.empty(0),
                "rows": torch.empty(0, 5),
                "middle": torch.empty(2, 0, 3),
                "again": torch.empty(2, 0, 3),
                "ints": torch.empty(0, dtype=torch.int64),
                "halves": torch.empty(3, 0, dtype=torch.bfloat16),
                "bools": torch.empty(0, dtype=torch.bool),
                "float8": torch.empty(0, 2, dtype=torch.float8_e5m2),
            }
        }
    ),
    "layouts": Case(
        {
            "m/0/I": {
                "transposed": floats(3, 5).T,
                "permuted": STRIDED.permute(2, 0, 1),
                "steps": STRIDED[::3, 1::2, 5:40:7],
                "offset": floats(100)[3:20],
                "expanded": floats(1, 7, 1).expand(3, 7, 4),
                "zero strides": torch.tensor(1.5).expand(5, 6),
                "channels last": Base.weight,
                "its plain twin": Base.weight.contiguous(),
                "diagonal": floats(9, 9).diagonal(),
                "windows": floats(20).unfold(0, 5, 2),
                "bytes": of(torch.uint8, 30, 40).T,
                "doubles": floats(30, 40).double().T,
                "unaligned": torch.frombuffer(
                    bytearray(range(1, 82)), dtype=torch.int64, offset=1, count=10
                ),
            },
            "m/0/O": {"grad": floats(3, 3).requires_grad_().T},
        }
    ),
    "names": Case(
        {
            "modèle.层[0]/0/I": {"args.0": floats(2), "naïve ключ": floats(3), "🙂": floats(4)},
            "a b  c/0/I": {" ": floats(5), "quo\"te'": floats(6), "back\\slash": floats(7)},
            "/0/I": {"x": floats(8)},
            "a/b/c/0/O": {"": floats(9), "p%2Fq": floats(10), "tab\t": floats(11)},
            "n" * 3000 + "/0/O": {"y" * 3000: floats(12)},
            "nul\0/0/O": {"": floats(13)},
        }
    ),
    "nothing": Case({"m/0/I": {}, "m/0/O": {}, "m/1/I": {"": floats(3)}, "m/1/E": {}}),
    "no records": Case({}),
    "large": Case(
        {
            "m/0/I": {"x": floats(600, 500), "small": floats(5), "y": floats(1 << 18, seed=1)},
            "m/0/O": {
                "x": floats(600, 500),
                "flat": floats(600, 500).reshape(-1),
                "z": floats(1200, 1300).T,
                "under": of(torch.uint8, (1 << 20) - 1),
                "over": of(torch.uint8, 1 << 20),
            },
        }
    ),
    "many": Case(
        {
            f"layer.{i % 7}/{i // 7}/{kind}": {"x": floats(8, seed=i), "y": floats(5, seed=i % 3)}
            for i in range(70)
            for kind in "IO"
        }
    ),
    "types": Case(
        {
            "m/0/I": {str(i): of(dtype, 4, 2) for i, dtype in enumerate(DTYPES)},
            "m/0/O": {str(i): of(dtype, 4, 2) for i, dtype in enumerate(DTYPES)},
        }
    ),
}

PLACES = {"inline": {}, "external": {"external": True}, "mixed": {"inline_limit": 64}}
READERS = {
    "onnx": others.load,
    "checker": others.check,
    "reference": others.evaluate,
    "onnxruntime": others.runtime,
    "onnx-ir": others.ir,
}


def value_name(key, path):
    key = "./0/I" if key == "/0/I" else key
    return f"{key}/{path}" if path else key


def write(writer, records):
    for key, tensors in records.items():
        tree = json.dumps([{"tensor": i} for i in range(len(tensors))])
        paths = list(tensors)
        prefix = value_name(key, "")
        assert writer.write(key, prefix, tree, paths, list(tensors.values()), "") is None


def expected(records):
    return {
        value_name(key, path): others.value(tensor)
        for key, tensors in records.items()
        for path, tensor in tensors.items()
    }


def split(key):
    name, iteration, kind = key.rsplit("/", 2)
    return name, int(iteration), kind


def check_reader(reader, records):
    """Bit for bit, dtype and shape, by position and by key."""
    assert reader.native
    assert reader.keys() == [split(key) for key in records]
    assert len(reader) == len(records)
    for i, (key, tensors) in enumerate(records.items()):
        assert reader.find(*split(key)) == i
        tree, found = reader.record(i)
        assert json.loads(tree) == [{"tensor": i} for i in range(len(tensors))]
        assert len(found) == len(tensors)
        for (path, was), now in zip(tensors.items(), found, strict=True):
            assert (now.dtype, now.shape) == (was.dtype, was.shape), path
            assert others.raw(now) == others.raw(was), path
            assert now.is_contiguous()
            assert not now.requires_grad
            assert now.untyped_storage().nbytes() == len(others.raw(was))
        leaves = json.loads(reader.info(i))["leaves"]
        assert [leaf["name"] for leaf in leaves] == [value_name(key, path) for path in tensors]
        assert [leaf["dtype"] for leaf in leaves] == [str(t.dtype)[6:] for t in tensors.values()]
        assert [leaf["shape"] for leaf in leaves] == [list(t.shape) for t in tensors.values()]
    assert reader.verify() == []


class Dumps:
    """Each dump is written once: closed, or while its writer is open."""

    def __init__(self, folder):
        self.folder, self.paths, self.writers = folder, {}, []

    def get(self, name, place, live):
        key = (name, place, live)
        if key not in self.paths:
            folder = self.folder / f"{len(self.paths)}"
            folder.mkdir()
            path = str(folder / "run.onnx")
            case = CASES[name]
            writer = Writer(path, '{"note": "é"}', **PLACES[place], **case.options)
            write(writer, case.records)
            if live:
                self.writers.append(writer)
            else:
                writer.close()
            self.paths[key] = path
        return self.paths[key]


@pytest.fixture(scope="module")
def dumps(tmp_path_factory):
    return Dumps(tmp_path_factory.mktemp("dumps"))


by_case = pytest.mark.parametrize("name", CASES)
by_place = pytest.mark.parametrize("place", PLACES)
by_life = pytest.mark.parametrize("live", [False, True], ids=["closed", "live"])


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
    records = CASES[name].records
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
    records = CASES[name].records
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
    records = CASES[name].records
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
    check_reader(reader, CASES[name].records)


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
    assert found["outputs"] == [others.MARKER, *expected(CASES[name].records)]
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


# --- saved again by others


def shuffled(proto, seed=0):
    """Another order of everything that has one, and a node and a value that are not ours."""
    order = np.random.default_rng(seed)
    for repeated in (proto.graph.node, proto.graph.output, proto.graph.metadata_props):
        items = list(repeated)
        order.shuffle(items)
        del repeated[:]
        repeated.extend(items)
    added = onnx.helper.make_node("Add", ["faststeal_format", "faststeal_format"], ["added"])
    proto.graph.node.insert(0, added)
    proto.graph.metadata_props.insert(0, onnx.StringStringEntryProto(key="theirs", value="x"))
    return proto


def save_inline(path, out):
    onnx.save(onnx.load(path), out)


def save_external(path, out):
    onnx.save(
        onnx.load(path), out, save_as_external_data=True, location="other.data", size_threshold=0
    )


def save_external_attributes(path, out):
    onnx.save(
        onnx.load(path),
        out,
        save_as_external_data=True,
        location="other.data",
        size_threshold=0,
        convert_attribute=True,
    )


def save_each_external(path, out):
    onnx.save(
        onnx.load(path),
        out,
        save_as_external_data=True,
        all_tensors_to_one_file=False,
        size_threshold=0,
        convert_attribute=True,
    )


def save_ir(path, out):
    onnx_ir.save(onnx_ir.load(path), out)


def save_ir_external(path, out):
    onnx_ir.save(onnx_ir.load(path), out, external_data="other.data")


def save_shuffled(path, out):
    onnx.save(shuffled(onnx.load(path)), out)


SAVES = [
    save_inline,
    save_external,
    save_external_attributes,
    save_each_external,
    save_ir,
    save_ir_external,
    save_shuffled,
]


@pytest.mark.parametrize("save", SAVES)
def test_skipped_records_saved_again(tmp_path, save):
    path, out = str(tmp_path / "run.onnx"), str(tmp_path / "again.onnx")
    writer = Writer(path, "{}", storage_limit=100)
    for i, size in enumerate([20, 30, 10]):
        writer.write(f"m/{i}/O", f"m/{i}/O", '{"tensor":0}', [""], [floats(size)], "")
    writer.close()
    save(path, out)
    before, after = Reader(path), Reader(out)
    assert by_key(after) == by_key(before)
    skipped = dict(zip(after.keys(), after.skipped(), strict=True))
    assert skipped == {("m", 0, "O"): False, ("m", 1, "O"): True, ("m", 2, "O"): False}
    assert after.verify() == []


def by_key(reader):
    return {
        key: (reader.record(i)[0], [others.value(t) for t in reader.record(i)[1]])
        for i, key in enumerate(reader.keys())
    }


@by_life
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize(
    "name", ["shapes", "empty", "layouts", "nothing", "many", "large", "types"]
)
@pytest.mark.parametrize("save", SAVES)
def test_saved_again(dumps, tmp_path, save, name, place, live):
    """By another tool, which moves, re-orders and drops what it does not know."""
    # In the same folder: onnx-ir leaves external data of attributes where they are.
    for file in Path(dumps.get(name, place, live)).parent.iterdir():
        shutil.copy(file, tmp_path)
    path, out = str(tmp_path / "run.onnx"), str(tmp_path / "again.onnx")
    save(path, out)
    before = Reader(path)
    for mode in ("private", "pread"):
        after = Reader(out, mode)
        assert after.native
        assert by_key(after) == by_key(before)
        assert after.verify() == []
        assert after.provenance == before.provenance
    if {file.name for file in tmp_path.iterdir()} == {"run.onnx", "again.onnx"}:
        assert by_key(Reader((tmp_path / "again.onnx").read_bytes())) == by_key(before)


def test_data_that_nobody_aligned(tmp_path):
    """Every remainder: torch reads only what is aligned to an element."""
    path, out = str(tmp_path / "run.onnx"), tmp_path / "again.onnx"
    records = {"m/0/I": {str(i): of(dtype, 6, 4) for i, dtype in enumerate(DTYPES)}}
    writer = Writer(path, "{}")
    write(writer, records)
    writer.close()
    proto = onnx.load(path)
    seen = set()
    for padding in range(1, 9):
        proto.graph.doc_string = "x" * padding
        onnx.save(proto, out)
        data = out.read_bytes()
        seen |= {f.start % 8 for f in wire.raw_data(data)}
        for mode in ("private", "readonly", "pread"):
            check_reader(Reader(str(out), mode), records)
        check_reader(Reader(data), records)
    assert seen == set(range(8))


@by_life
@pytest.mark.parametrize("save", [save_inline, save_shuffled, save_ir])
def test_repair_leaves_what_another_tool_saved(dumps, tmp_path, save, live):
    """Its bytes are not where a capture puts them: refused or left alone, never changed."""
    out = tmp_path / "again.onnx"
    save(dumps.get("many", "inline", live), str(out))
    before = out.read_bytes()
    with contextlib.suppress(FormatError):
        repair(str(out))
    assert out.read_bytes() == before


def test_saved_by_path_of_data_elsewhere(dumps, tmp_path):
    """Moved together, a dump and its data are found; alone, the error says what is missing."""
    path = dumps.get("large", "external", False)
    moved = tmp_path / "moved"
    moved.mkdir()
    shutil.copy(path, moved / "other.onnx")
    reader = Reader(str(moved / "other.onnx"))
    with pytest.raises(FormatError, match=r"other\.onnx.*at byte \d+.*run\.onnx\.data"):
        reader.record(0)
    shutil.copy(path + ".data", moved / "run.onnx.data")
    check_reader(Reader(str(moved / "other.onnx")), CASES["large"].records)


# --- the bytes


@by_life
@by_place
@by_case
def test_bytes_of_the_file(dumps, name, place, live):
    path = Path(dumps.get(name, place, live))
    data = path.read_bytes()
    version = fs.__version__.encode()
    start = wire.field(1, 10) + wire.field(2, "faststeal") + wire.field(3, version)
    assert data.startswith(start)
    graph = wire.graph_of(data)  # one graph, or this fails
    assert data[graph.start - 6 : graph.start] == wire.tag(7) + wire.varint(
        graph.end - graph.start, 5
    )
    for f in wire.raw_data(data):
        size = f.end - f.start
        assert f.start % (4096 if size >= 1 << 20 else 64) == 0
    proto = onnx.load(path, load_external_data=False)
    checksums(path.parent, proto)
    assert (proto.graph.node[0].op_type, proto.graph.output[0].name) == ("Constant", others.MARKER)
    for record in wire.inside(data, graph, wire.GRAPH_METADATA)[1:]:
        assert record.tag_at % 64 == 0
    files = {path.name}
    payload = sum(len(p) for p in unique(CASES[name].records))
    if place != "inline" and payload > (0 if place == "external" else 64):
        files.add("run.onnx.data")
    assert {f.name for f in path.parent.iterdir()} == files


def unique(records):
    """Payloads that have to be stored: one for the same bytes of the same type."""
    types_without_alias = {torch.float8_e8m0fnu, torch.float4_e2m1fn_x2}
    out, seen = [], set()
    for tensors in records.values():
        for tensor in tensors.values():
            key = (tensor.dtype, others.raw(tensor))
            no_reshape = tensor.dtype.itemsize == 1 and tensor.dtype.is_floating_point
            if no_reshape and tensor.dtype not in types_without_alias:
                key = (*key, tensor.shape)
            if tensor.dtype in types_without_alias or key not in seen:
                out.append(key[1])
            seen.add(key)
    return out


def checksums(folder, proto):
    """Each constant of a record has one, and it is that of its bytes."""
    constants = [n for n in proto.graph.node if n.op_type == "Constant"]
    stored = {n.output[0]: n.attribute[0].t for n in constants}
    values = [o.name for o in proto.graph.output if o.name in stored and o.name != others.MARKER]
    for name in values:
        tensor = stored[name]
        external = {e.key: e.value for e in tensor.external_data}
        data = tensor.raw_data
        if external:
            # onnxruntime refuses any other key, and a location that is not relative.
            assert list(external) == ["location", "offset", "length"]
            offset, length = int(external["offset"]), int(external["length"])
            assert offset % (4096 if length >= 1 << 20 else 64) == 0
            with (folder / external["location"]).open("rb") as file:
                file.seek(offset)
                data = file.read(length)
            assert len(data) == length
        (entry,) = tensor.metadata_props
        assert entry.key == "xxh3_128"
        if importlib.util.find_spec("xxhash"):
            assert entry.value == importlib.import_module("xxhash").xxh3_128_hexdigest(data)
        else:
            assert re.fullmatch("[0-9a-f]{32}", entry.value)


@by_place
@by_case
def test_each_payload_once(dumps, name, place):
    """As many payload bytes as there are different ones, inline and external together."""
    proto = onnx.load(dumps.get(name, place, False))
    sizes = [
        len(n.attribute[0].t.raw_data)
        for n in proto.graph.node
        if n.op_type == "Constant"
        and n.output[0] != others.MARKER
        and not n.output[0].endswith("//shape")
    ]
    assert sum(sizes) == sum(len(payload) for payload in unique(CASES[name].records))


@by_place
def test_size_of_the_file(tmp_path, place):
    """Large tensors: their unique bytes and one per cent."""
    path = tmp_path / "run.onnx"
    records = {f"m/{i}/O": {"x": floats(300_000, seed=i % 5), "y": floats(1000)} for i in range(20)}
    writer = Writer(str(path), "{}", **PLACES[place])
    write(writer, records)
    writer.close()
    payload = sum(map(len, unique(records)))
    total = sum(f.stat().st_size for f in tmp_path.iterdir())
    assert payload == writer.bytes_written
    assert payload <= total <= payload * 1.01
    assert writer.bytes_seen == sum(t.nbytes for r in records.values() for t in r.values())


def test_a_live_file_is_sparse(tmp_path):
    path = tmp_path / "run.onnx"
    writer = Writer(str(path), "{}")
    stat = path.stat()
    assert stat.st_blocks * 512 <= 16 << 10 < 256 << 10 <= stat.st_size
    writer.close()
    assert path.stat().st_size < 2048


@pytest.mark.parametrize(
    ("dtypes", "opset"),
    [
        ([torch.float32, torch.bfloat16, torch.float8_e4m3fn, torch.bool], 21),
        ([torch.float32, torch.float4_e2m1fn_x2], 23),
        ([torch.float8_e8m0fnu], 24),
        ([torch.float8_e8m0fnu, torch.float4_e2m1fn_x2], 24),
    ],
)
def test_opset(tmp_path, dtypes, opset):
    """Raised only when needed, before the record that needs it, and it stays."""
    path = str(tmp_path / "run.onnx")
    writer = Writer(path, "{}")
    write(writer, {"m/0/I": {"": floats(2)}})
    assert onnx.load(path).opset_import[0].version == 21
    write(writer, {f"m/1/{i}": {"": of(dtype, 2, 2)} for i, dtype in enumerate(dtypes)})
    write(writer, {"m/2/I": {"": floats(2)}})
    for closed in (False, True):
        if closed:
            writer.close()
        (found,) = onnx.load(path).opset_import
        assert (found.domain, found.version) == ("", opset)
        others.check(path)
    assert onnx.load(path).ir_version == 10


def test_a_new_inode_each_time(tmp_path):
    """Who has the old dump mapped keeps it."""
    path = tmp_path / "run.onnx"
    old = {"m/0/O": {"x": floats(1000)}}
    writer = Writer(str(path), "{}", external=True)
    write(writer, old)
    writer.close()
    reader = Reader(str(path))
    (tensor,) = reader.record(0)[1]
    inodes = {path.stat().st_ino, Path(f"{path}.data").stat().st_ino}
    writer = Writer(str(path), "{}")
    write(writer, {"m/0/O": {"x": floats(1000, seed=1)}})
    assert path.stat().st_ino not in inodes
    assert not Path(f"{path}.data").exists()
    assert others.raw(tensor) == others.raw(old["m/0/O"]["x"])
    writer.close()


def test_a_live_capture_is_not_replaced(tmp_path):
    path = str(tmp_path / "run.onnx")
    writer = Writer(path, "{}")
    write(writer, {"m/0/O": {"x": floats(3)}})
    with pytest.raises(BlockingIOError, match=r"run\.onnx: another live capture"):
        Writer(path, "{}")
    with pytest.raises(BlockingIOError, match=r"run\.onnx: another live capture"):
        repair(path)
    assert os.listdir(tmp_path) == ["run.onnx"]  # noqa: PTH208
    writer.close()
    Writer(path, "{}").close()


def test_a_record_that_no_file_can_hold(tmp_path):
    path = str(tmp_path / "run.onnx")
    writer = Writer(path, "{}", part_limit=400_000)
    write(writer, {"m/0/O": {"x": floats(3)}})
    with pytest.raises(FaststealError, match=r"run\.onnx: a record needs \d+ bytes"):
        write(writer, {"m/1/O": {"x": floats(100_000)}})
    write(writer, {"m/2/O": {"x": floats(4)}})
    writer.close()
    check_reader(Reader(path), {"m/0/O": {"x": floats(3)}, "m/2/O": {"x": floats(4)}})
