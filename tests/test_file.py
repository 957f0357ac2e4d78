"""What is in the file, byte by byte, and what lies beside it."""

import contextlib
import importlib.util
import os
import re
from pathlib import Path

import onnx
import pytest
import torch

import faststeal as fs
import other_readers as others
import wire
from faststeal._core import FaststealError, NotPlainError, Reader, Writer, repair
from samples import (
    CASES,
    DTYPES,
    PLACES,
    Dumps,
    by_case,
    by_life,
    by_place,
    check_reader,
    floats,
    of,
    write,
)


@pytest.fixture(scope="module")
def dumps(tmp_path_factory):
    return Dumps(tmp_path_factory.mktemp("dumps"))


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
    payload = sum(len(p) for p in unique(CASES[name]))
    if place != "inline" and payload > (0 if place == "external" else 64):
        files.add("run.onnx.data")
    assert {f.name for f in path.parent.iterdir()} == files


def test_element_types(dumps):
    """Each of torch's types under ONNX's number for it; what is not in the table is refused."""
    path = dumps.get("dtypes", "inline", False)
    types = {o.name: o.type.tensor_type.elem_type for o in onnx.load(path).graph.output}
    for dtype, number in DTYPES.items():
        assert {types[f"{dtype}/0/I/{leaf}"] for leaf in "abcd"} == {number}


@pytest.mark.filterwarnings("ignore::UserWarning")  # torch tells of experimental types
def test_other_types_are_not_plain(tmp_path):
    """What the caller has to take apart: complex, quantized, and shells of a few bits."""
    writer = Writer(str(tmp_path / "run.onnx"), "{}")
    others_of_torch = {d for d in vars(torch).values() if isinstance(d, torch.dtype)} - {*DTYPES}
    assert {torch.complex64, torch.complex128} <= others_of_torch
    for dtype in others_of_torch:
        with contextlib.suppress(RuntimeError, NotImplementedError):
            tensor = torch.empty(2, 2, dtype=dtype)
            with pytest.raises(NotPlainError) as caught:
                writer.write("m/0/O", "m/0/O", "1", ["a", "b"], [torch.ones(2), tensor], "")
            assert caught.value.args[1] == 1
    assert (writer.records, writer.bytes_written) == (0, 0)


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
    assert sum(sizes) == sum(len(payload) for payload in unique(CASES[name]))


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
