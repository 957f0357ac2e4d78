"""A dump that another tool saved: moved, re-ordered, without what it did not know."""

import contextlib
import shutil
from pathlib import Path

import numpy as np
import onnx
import onnx_ir
import pytest

import other_readers as others
import wire
from faststeal._core import FormatError, Reader, Writer, repair
from samples import (
    CASES,
    DTYPES,
    PLACES,
    Dumps,
    by_life,
    check_reader,
    floats,
    of,
    write,
)


@pytest.fixture(scope="module")
def dumps(tmp_path_factory):
    return Dumps(tmp_path_factory.mktemp("dumps"))


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
    check_reader(Reader(str(moved / "other.onnx")), CASES["large"])
