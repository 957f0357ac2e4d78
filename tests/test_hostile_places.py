"""What a hostile file points to: through its index, its hints, its external data, its name."""

import os
import re
from pathlib import Path

import onnx
import onnx.parser
import pytest

import other_readers as others
from faststeal._core import FormatError, Reader, Writer, repair
from hostile import F4, MODES, Found, X, dump, floats, native, record, refused, with_tensor
from wire import (
    FIXED64,
    HINT,
    INDEX,
    NODE,
    constant,
    entry,
    field,
    graph_of,
    inside,
    node,
    output,
    raw_data,
    tag,
    tensor,
    whole,
)

EXTERNAL = field(14, 1)


# --- the index


RECORDS = {f"m/{i}/O": others.raw(floats(4, seed=i)) for i in range(4)} | {"m/0/I": F4}
SKIPPED = 1 << 63


@pytest.fixture(scope="module")
def hashes(tmp_path_factory):
    """What the writer puts in the index for a key."""
    path = str(tmp_path_factory.mktemp("hashes") / "run.onnx")
    writer = Writer(path, "{}")
    keys = [*RECORDS, "m/9/O", "other/0/O", "theirs"]
    for key in keys:
        writer.write(key, key, "1", [], [], "")
    writer.close()
    data = Path(path).read_bytes()
    (index,) = inside(data, whole(data), INDEX)
    found = data[index.start : index.end]
    return {key: found[16 * i : 16 * i + 8] for i, key in enumerate(keys)}


def indexed(hashes, make, extra=b""):
    """A dump whose index is what `make` says of its records' offsets."""
    graph = b"".join(
        record(key, key) + output(key, [4]) + constant(key, tensor([4], 1, value))
        for key, value in RECORDS.items()
    )
    data = native(graph + extra)
    found = inside(data, graph_of(data), 16)[1:]
    offsets = dict(zip([*RECORDS, "theirs"], (f.tag_at for f in found), strict=False))
    entries = make(offsets, data)
    if not isinstance(entries, bytes):
        entries = b"".join(hashes[key] + (at % 2**64).to_bytes(8, "little") for key, at in entries)
    return data + entry(14, "faststeal.complete", "1") + field(INDEX, entries)


def test_an_index_that_is_right(hashes):
    found = Found(indexed(hashes, lambda at, _: at.items()))
    assert (found.reader.complete, found.failures, found.reader.verify()) == (True, [], [])
    assert [v[0][1] for _, v in found.records] == list(RECORDS.values())


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda at, _: [("m/0/O", 0)], "the index points to byte 0, outside the graph"),
        (lambda at, data: [("m/0/O", len(data))], r"points to byte \d+, outside the graph"),
        (lambda at, data: [("m/0/O", graph_of(data).end)], "outside the graph"),
        (lambda at, _: [("m/0/O", 2**62)], "outside the graph"),
        (lambda at, _: [("m/0/O", -1)], "outside the graph"),
        (lambda at, _: b"\0" * 15, "expected an index of 16 bytes an entry"),
        (lambda at, _: b"\0" * 17, "expected an index of 16 bytes an entry"),
        (lambda at, _: [("m/0/O", at["m/0/O"] + 1)], ""),
        (lambda at, _: [("m/0/O", at["m/0/O"] + 3)], ""),
        (lambda at, data: [("m/0/O", graph_of(data).end - 1)], ""),
        (lambda at, data: [("m/0/O", raw_data(data)[0].start)], ""),
        (lambda at, _: [("m/0/O", at["m/1/O"])], "not the one that the index names"),
        (lambda at, _: [("other/0/O", at["m/0/O"])], "not the one that the index names"),
        (lambda at, _: [("m/0/O", at["m/0/O"] | SKIPPED)], "differ in whether values"),
    ],
)
def test_an_index_that_is_wrong(tmp_path, hashes, make, message):
    refused(tmp_path, indexed(hashes, make), message)


@pytest.mark.parametrize(
    "make",
    [
        lambda at, _: [],
        lambda at, _: list(at.items())[:-1],
        lambda at, _: list(at.items())[::-1],
        lambda at, _: [*at.items(), *at.items()],
    ],
)
def test_an_index_that_tells_another_order_is_told_by_verify(hashes, make):
    """What it says of each record is true; what it leaves out is found by the walk."""
    found = Found(indexed(hashes, make))
    assert found.failures == []
    keys = ["/".join(map(str, key)) for key in found.reader.keys()]  # noqa: SIM118 - no mapping
    assert [v[0][1] for _, v in found.records] == [RECORDS[key] for key in keys]
    problems = found.reader.verify()
    assert any("the index is not that of the records" in line for line in problems)


def test_an_index_that_names_what_is_no_record(tmp_path, hashes):
    """Its key has not three parts: another tool's entry."""

    data = indexed(hashes, lambda at, _: [("theirs", at["theirs"])], entry(16, "theirs", "{}"))
    refused(tmp_path, data, "expected name/iteration/kind as a key", lambda r: r.keys())


FAKE = record("m/9/O", "m/0/O", tree='"fake"') + output("m/0/O", [4])


def test_an_index_into_the_bytes_of_a_tensor(hashes):
    """A record that only the index knows: other readers see a tensor's bytes there."""
    hidden = constant("big", tensor([len(FAKE)], 2, FAKE))

    def make(at, data):
        return [*at.items(), ("m/9/O", data.index(FAKE))]

    assert any("index" in line for line in Reader(indexed(hashes, make, hidden)).verify())


# --- hints


def hinted(make, hidden=b""):
    """A dump whose `Identity` says that its original is where `make` says."""
    mark = tag(HINT, FIXED64) + b"hinthint"
    data = native(
        record("m/0/I", "x"),
        output("x", [4]),
        X,
        record("m/1/I", "z"),
        output("z", [4]),
        constant("z", tensor([4], 1, F4[::-1])),
        record("m/0/O", "y"),
        output("y", [4]),
        node("Identity", ["x"], "y", mark),
        record("m/2/O", "late"),
        output("late", [4]),
        constant("late", tensor([4], 1, F4)),
        hidden,
    )
    nodes = inside(data, graph_of(data), NODE)
    at = {n: f.tag_at for n, f in zip(["x", "z", "y", "late"], nodes, strict=False)}
    return data.replace(b"hinthint", (make(at, data) % 2**64).to_bytes(8, "little"))


def right(at, data):
    return at["x"]


@pytest.mark.parametrize(
    "make",
    [
        right,
        lambda at, data: at["z"],
        lambda at, data: at["y"],
        lambda at, data: at["late"],
        lambda at, data: at["x"] + 1,
        lambda at, data: at["x"] - 1,
        lambda at, data: raw_data(data)[0].start,
        lambda at, data: 0,
        lambda at, data: 1,
        lambda at, data: len(data),
        lambda at, data: len(data) - 1,
        lambda at, data: -1,
        lambda at, data: 2**63,
    ],
)
@pytest.mark.parametrize("mode", MODES)
def test_hints_are_only_hints(tmp_path, mode, make):
    path = tmp_path / "run.onnx"
    path.write_bytes(hinted(make))
    found = Found(str(path), mode)
    assert found.failures == []
    assert [v[0][1] for _, v in found.records] == [F4, F4[::-1], F4, F4]
    problems = found.reader.verify()
    if make is right:
        assert problems == []
    else:
        assert "the original is not where the hint says" in "".join(problems)


def test_a_hint_into_the_bytes_of_a_tensor(tmp_path):
    """A node that only the hint knows: verify tells, for other readers see other values."""
    fake = constant("x", tensor([4], 1, F4[::-1]))
    data = native(
        record("m/0/I", "x"),
        output("x", [4]),
        X,
        record("m/1/I", "big"),
        output("big", [len(fake)], 2),
        constant("big", tensor([len(fake)], 2, fake)),
        record("m/0/O", "y"),
        output("y", [4]),
        node("Identity", ["x"], "y", tag(HINT, FIXED64) + b"hinthint"),
    )
    data = data.replace(b"hinthint", data.index(fake).to_bytes(8, "little"))
    assert others.of_proto(onnx.load_from_string(data), ["y"])["y"][1] == F4
    reader = Reader(data)
    (found,) = reader.record(2)[1]
    assert others.raw(found) == F4[::-1]
    assert "the original is not where the hint says" in "".join(reader.verify())


# --- external data


def external(location, offset="0", length="16", **more):
    entries = {"location": location, "offset": offset, "length": length, **more}
    parts = [entry(13, key, value) for key, value in entries.items() if value is not None]
    return with_tensor(tensor([4], 1, None, EXTERNAL, *parts))


@pytest.fixture
def folder(tmp_path):
    """Data that can be read by who is allowed, beside what is not to be read."""
    (tmp_path / "secret").write_bytes(F4)
    inner = tmp_path / "inner"
    inner.mkdir()
    (inner / "data").write_bytes(F4)
    (inner / "short").write_bytes(F4[:8])
    (inner / "link").symlink_to("data")
    (inner / "out").symlink_to("../secret")
    (inner / "up").symlink_to("..")
    (inner / "sub").mkdir()
    (inner / "sub" / "data").write_bytes(F4)
    (inner / "hard").write_bytes(F4)
    os.link(inner / "hard", tmp_path / "hard")
    os.mkfifo(inner / "fifo")
    (inner / "back\\slash").write_bytes(F4)
    return inner


def test_external_data_that_may_be_read(folder):
    for location in ("data", "sub/data", "sub//data"):
        path = folder / "run.onnx"
        path.write_bytes(external(location))
        for mode in MODES:
            found = Found(str(path), mode)
            assert (found.records[0][1], found.failures) == ([((4,), F4)], [])


@pytest.mark.parametrize(
    ("location", "message"),
    [
        ("", "expected a relative path"),
        ("/etc/passwd", "expected a relative path"),
        ("//data", "expected a relative path"),
        ("../secret", "expected a relative path without `..`"),
        ("sub/../data", "expected a relative path without `..`"),
        ("..", "expected a relative path without `..`"),
        (".", "expected a relative path"),
        ("back\\slash", "expected a relative path"),
        ("..\\secret", "expected a relative path"),
        ("C:\\data", "expected a relative path"),
        ("da\0ta", "expected a relative path"),
        ("#data", "expected a relative path"),
        ("*/_ORT_MEM_ADDR_/*", "expected a relative path"),
        ("link", "symbolic links are not followed"),
        ("out", "symbolic links are not followed"),
        ("up/secret", "symbolic links are not followed"),
        ("hard", r"expected a file with one name, it has several \(hard links\)"),
        ("fifo", "expected a regular file"),
        ("sub", "expected a regular file"),
        ("data/more", "Not a directory"),
        ("nothing", "No such file or directory"),
        ("n" * 300, "File name too long"),
        (None, "expected the location of external data"),
    ],
)
def test_external_locations(folder, location, message):
    path = folder / "bad.onnx"
    path.write_bytes(external(location))
    for mode in MODES:
        with pytest.raises(FormatError, match=rf"^{re.escape(str(path))}: at byte \d+: ") as caught:
            Reader(str(path), mode).record(0)
        assert re.search(message, str(caught.value))
        assert location is None or "external data at" in str(caught.value)


@pytest.mark.parametrize(
    ("members", "message"),
    [
        ({"length": "17"}, r"17 bytes of data, float32 \[4\] needs 16"),
        ({"length": "15"}, r"15 bytes of data, float32 \[4\] needs 16"),
        ({"offset": "1"}, r"16 bytes at 1, the file has 16"),
        ({"offset": "18446744073709551615"}, r"16 bytes at 18446744073709551615, the file has"),
        ({"offset": "18446744073709551616"}, "expected a number"),
        ({"offset": "-1"}, 'expected a number, found "-1"'),
        ({"offset": "1.0"}, "expected a number"),
        ({"offset": ""}, "expected a number"),
        ({"length": "0x10"}, "expected a number"),
        ({"length": " 16"}, "expected a number"),
        ({"location": "short"}, r"16 bytes at 0, the file has 8"),
        ({"location": "short", "length": None}, r"16 bytes at 0, the file has 8"),
    ],
)
def test_external_ranges(folder, members, message):
    path = folder / "bad.onnx"
    path.write_bytes(external(**{"location": "data", **members}))
    for mode in MODES:
        with pytest.raises(FormatError, match=rf"bad\.onnx: at byte \d+: .*{message}"):
            Reader(str(path), mode).record(0)


def test_external_and_raw(folder):
    path = folder / "bad.onnx"
    both = tensor([4], 1, F4, EXTERNAL, entry(13, "location", "data"))
    path.write_bytes(with_tensor(both))
    with pytest.raises(FormatError, match="expected one of raw, typed and external data"):
        Reader(str(path)).record(0)


def test_external_data_of_bytes():
    """Bytes have no folder: neither the working directory nor anything else is tried."""
    with pytest.raises(FormatError, match=r"<bytes>: at byte .* a model in memory cannot be found"):
        Reader(external("data")).record(0)


def test_a_shape_says_nothing_about_the_file(folder):
    """Nothing is allocated for what is not there."""
    path = folder / "bad.onnx"
    huge = tensor([2**50], 1, None, EXTERNAL, entry(13, "location", "data"))
    path.write_bytes(with_tensor(huge))
    for mode in MODES:
        with pytest.raises(FormatError, match="4503599627370496 bytes at 0, the file has 16"):
            Reader(str(path), mode).record(0)


# --- what is no file of ours


def test_paths(tmp_path):
    for mode in MODES:
        with pytest.raises(FileNotFoundError) as caught:
            Reader(str(tmp_path / "nothing"), mode)
        assert str(tmp_path / "nothing") in str(caught.value)
        with pytest.raises(IsADirectoryError) as caught:
            Reader(str(tmp_path), mode)
        assert str(tmp_path) in str(caught.value)
        with pytest.raises(NotADirectoryError):
            Reader(__file__ + "/more", mode)
        with pytest.raises((ValueError, OSError)):
            Reader("a\0b", mode)
    with pytest.raises(ValueError, match='expected "private", "readonly" or "pread", got "x"'):
        Reader(__file__, "x")
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(OSError, match="loop"):
        Reader(str(tmp_path / "loop"))


def test_a_model_that_computes(tmp_path):
    """Opens as the model it is, and says what it is asked in vain."""
    proto = onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["" : 17]>
        agraph (float[N, 2] x) => (float[N, 2] y, float[2] w) {
            c = Constant <value = float[2] {1, 2}> ()
            y = Add (x, c)
            w = Identity (c)
        }
    """)
    path = str(tmp_path / "net.onnx")
    onnx.save(proto, path)
    reader = Reader(path)
    assert (reader.native, len(reader), reader.keys(), reader.complete) == (False, 0, [], False)
    with pytest.raises(FormatError, match=r"net\.onnx: at byte \d+: \"y\" is computed by Add"):
        reader.outputs()
    with pytest.raises(FormatError, match=r"net\.onnx: at byte 0: expected a dump of faststeal"):
        repair(path)


def test_who_says_faststeal_and_is_not():
    """The producer's name alone, or the provenance alone, makes no dump."""
    named = field(1, 10) + field(2, "faststeal") + field(7, field(2, "g") + record("m/0/O", "x"))
    assert not Reader(named).native
    other = field(1, 10) + field(2, "other") + field(7, entry(16, "faststeal", "{}"))
    assert not Reader(other).native
    assert len(Reader(other)) == 0


def test_a_next_part_that_is_none(tmp_path):
    """Only what belongs to the same run is taken along, whatever lies there."""
    path = tmp_path / "run.onnx"
    writer = Writer(str(path), "{}", part_limit=300_000)
    for i in range(6):
        writer.write(f"m/{i}/O", f"m/{i}/O", '{"tensor":0}', [""], [floats(20_000, seed=i)], "")
    writer.close()
    second = tmp_path / "run.1.onnx"
    right, whole_run = second.read_bytes(), len(Reader(str(path)))
    alone = len(Reader(str(path))) - len(Reader(str(second)))
    for wrong in (b"", b"text", bytes(100), path.read_bytes(), dump(), right[: len(right) // 2]):
        second.write_bytes(wrong)
        found = Found(str(path))
        assert (len(found.reader), len(found.records), found.failures) == (alone, alone, [])
        assert not found.reader.complete
    second.unlink()
    second.mkdir()
    assert len(Reader(str(path))) == alone
    second.rmdir()
    os.mkfifo(second)
    assert len(Reader(str(path))) == alone
    second.unlink()
    second.write_bytes(right)
    assert len(Reader(str(path))) == whole_run
