"""Any damage at all: cut, flipped, mutated. Never a crash, never an end that does not come."""

import os
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path

import hypothesis
import onnx
import torch
from hypothesis import strategies as st

from faststeal._core import FormatError, Writer, repair
from hostile import F4, MODES, Found, floats, int64s, native, tolerant
from wire import (
    INITIALIZER,
    LEN,
    constant,
    field,
    fields,
    graph_of,
    model,
    node,
    output,
    raw_data,
    tag,
    tensor,
    varint,
)

# --- what must end

CALLS = r"""
import sys
from faststeal._core import FormatError, Reader, Writer, repair
for line in sys.stdin:
    call, path = line.rstrip("\n").split(" ", 1)
    try:
        if call == "repair":
            repair(path)
        elif call == "write":
            Writer(path, "{}").close()
        else:
            Reader(path).outputs()
        print("done", flush=True)
    except (FormatError, OSError) as error:
        print(type(error).__name__, flush=True)
"""


def chain(op, length):
    links = (node(op, [f"x{i - 1}"] * 2, f"x{i}") for i in range(1, length + 1))
    return model(constant("x0", tensor([1], 7, int64s(1))), *links, output(f"x{length}", [1], 7))


def wrapping_field():
    """A number that is, read as a length, a jump back to the field itself."""
    head = tag(90, 0)
    return head + varint(2**64 - len(head) - 10)


def test_nothing_goes_on_for_ever(tmp_path):
    """In a process of its own, for a loop in Rust cannot be interrupted."""
    calls = []

    def add(call, name, data):
        path = tmp_path / name
        if data is None:
            os.mkfifo(path)
        else:
            path.write_bytes(data)
        calls.append(f"{call} {path}")

    add("open", "reshapes.onnx", chain("Reshape", 60))
    add("open", "sequences.onnx", chain("SequenceConstruct", 60))
    add("open", "fifo.onnx", None)
    add("repair", "fifo2.onnx", None)
    add("write", "fifo3.onnx", None)
    padded = native(wrapping_field(), field(15999, b""), in_place=True)
    add("repair", "wraps.onnx", padded)
    # As `repair` finds what a capture left: the length in five bytes.
    graph = graph_of(padded)
    inner = padded[graph.start : graph.end]
    head = padded[: graph.tag_at]
    add("repair", "wraps2.onnx", head + tag(7) + varint(len(inner), 5) + inner)
    (tmp_path / "next.onnx").write_bytes(native(provenance='{"run":"r","part":0}'))
    os.mkfifo(tmp_path / "next.1.onnx")
    calls.append(f"open {tmp_path / 'next.onnx'}")
    done = ""
    with subprocess.Popen(
        [sys.executable, "-c", CALLS], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            done, _ = process.communicate("\n".join(calls), timeout=40)
        except subprocess.TimeoutExpired:
            process.kill()
            done, _ = process.communicate()
    assert len(done.split()) == len(calls), f"hangs: {calls[len(done.split())]}"
    assert process.returncode == 0


# --- anything at all


def small_dump(tmp_path, *, live=False):
    """A dump with all that one can have, in little space."""
    path = str(tmp_path / "run.onnx")
    writer = Writer(path, "{}", storage_limit=100)
    x = floats(2, 3)
    for key, tensors in {
        "m/0/I": [x, x, x.reshape(6), torch.tensor([True, False])],
        "m/0/O": [x.reshape(3, 2), torch.zeros(0, 2)],
        "m/1/I": [],
        "m/1/O": [floats(40)],
    }.items():
        paths = [str(i) for i in range(len(tensors))]
        writer.write(key, key, '[{"tensor":0}]', paths, tensors, '"class":"C"')
    data = Path(path).read_bytes()
    if not live:
        writer.close()
        return Path(path).read_bytes()
    writer.close()
    return data


def test_cut_at_every_byte(tmp_path):
    """The end of the graph is the only place where a file may end early."""
    data = small_dump(tmp_path)
    wanted = Found(data).records
    opens = []
    path = tmp_path / "cut.onnx"
    for size in range(len(data)):
        found = Found(data[:size])
        if found.opened:
            assert (found.records, found.failures) == (wanted, [])
            opens.append(size)
        if size % 50 == 0:
            path.write_bytes(data[:size])
            for mode in MODES:
                assert Found(str(path), mode).opened is found.opened
    assert opens == [f.tag_at for f in fields(data) if f.tag_at >= graph_of(data).end]


def test_every_bit_flipped(tmp_path):
    """Never a crash, and never other bytes in a tensor without `verify` telling."""
    data = bytearray(small_dump(tmp_path))
    stored = [f for f in raw_data(bytes(data)) if f.end - f.start == 24]
    payload = {at for f in stored for at in range(f.start, f.end)}
    assert len(payload) == 24
    opened = 0
    for at in range(len(data)):
        for bit in range(8):
            data[at] ^= 1 << bit
            found = Found(bytes(data))
            data[at] ^= 1 << bit
            opened += found.opened
            if at in payload:
                assert found.failures == []
                assert "is not the one that was written" in "".join(found.reader.verify())
    assert opened > len(data)


def test_flipped_in_a_live_file(tmp_path):
    """A sample, through mappings and plain reads; and `repair` mends or refuses it."""
    live = small_dump(tmp_path, live=True)
    path = tmp_path / "bad.onnx"
    mended = 0
    for at in range(0, len(live.rstrip(b"\0")), 7):
        flipped = bytearray(live)
        flipped[at] ^= 1 << at % 8
        path.write_bytes(flipped)
        found = [Found(str(path), mode) for mode in MODES]
        assert found[0].records == found[1].records == found[2].records
        if not isinstance(tolerant(str(path), repair, str(path)), FormatError):
            assert Found(str(path)).records == found[0].records
            mended += 1
    assert mended > 10


@cache
def bases():
    """What is mutated: closed, live, saved again, and a model that is not ours."""
    with tempfile.TemporaryDirectory() as name:
        closed, live = small_dump(Path(name)), small_dump(Path(name), live=True)
    # The arena cut short, so that mutations hit what is in use.
    used = len(live.rstrip(b"\0")) + 8
    graph = graph_of(live)
    live = live[: graph.start - 5] + varint(used - graph.start, 5) + live[graph.start : used]
    arena = live.rindex(tag(15999))
    live = live[: arena + 3] + varint(used - arena - 8, 5) + live[arena + 8 :]
    other = model(
        constant("x", tensor([4], 1, F4)),
        constant("s", tensor([2], 7, int64s(2, 2))),
        node("Reshape", ["x", "s"], "y"),
        node("SequenceConstruct", ["x", "y"], "z"),
        constant("t", tensor([2], 8, None, field(6, "a"), field(6, "b"))),
        constant("f", tensor([2], 1, None, field(4, F4[:8]))),
        field(INITIALIZER, tensor([3], 7, None, field(7, varint(300) * 3), field(8, "i"))),
        *(output(name) for name in "xyztfi"),
    )
    again = onnx.load_from_string(closed).SerializeToString()
    return {"closed": closed, "live": live, "again": again, "other": other}


def test_what_is_mutated_is_right():
    for data in bases().values():
        found = Found(data)
        assert (found.opened, found.failures, found.reader.verify()) == (True, [], [])
        assert len(found.records) == (4 if found.reader.native else 0)
        onnx.load_from_string(data)


EDGES = [0, 1, 2, 63, 64, 127, 128, 255, 2**16, 2**31 - 1, 2**31, 2**32, 2**63, 2**64 - 1]
NUMBERS = st.sampled_from(EDGES) | st.integers(0, 2**64 - 1)


def lengths(data, start, end, depth=0):
    """All that looks like a length, a few levels deep."""
    try:
        found = fields(data, start, end)
    except (ValueError, IndexError):
        return
    for f in found:
        if f.wire == LEN:
            yield f
            if depth < 6:
                yield from lengths(data, f.start, f.end, depth + 1)


def flip(data, at, bit):
    data[at] ^= 1 << bit


def put(data, at, byte):
    data[at] = byte


def cut(data, at, size):
    del data[at : at + size]


def insert(data, at, some):
    data[at:at] = some


def repeat(data, at, size):
    data[at:at] = data[at : at + size]


def stop(data, at, _):
    del data[at:]


def number(data, at, value):
    data[at : at + 1] = varint(value)


def length(data, at, value):
    places = list(lengths(bytes(data), 0, len(data)))
    if places:
        f = places[at % len(places)]
        width = f.start - f.tag_at - len(tag(f.number))
        data[f.start - width : f.start] = varint(value, width)


def mutation(change, argument):
    return st.tuples(st.just(change), st.integers(0, 10**6), argument)


MUTATIONS = st.lists(
    st.one_of(
        mutation(flip, st.integers(0, 7)),
        mutation(put, st.integers(0, 255)),
        mutation(cut, st.integers(1, 40)),
        mutation(insert, st.binary(min_size=1, max_size=20)),
        mutation(repeat, st.integers(1, 300)),
        mutation(stop, st.none()),
        mutation(number, NUMBERS),
        mutation(length, NUMBERS),
    ),
    min_size=1,
    max_size=6,
)


def mutated(data, mutations):
    data = bytearray(data)
    for change, at, argument in mutations:
        if data:
            change(data, at % len(data), argument)
    return bytes(data)


mutate = hypothesis.given(st.sampled_from(["closed", "live", "again", "other"]), MUTATIONS)


@hypothesis.settings(max_examples=1000, deadline=None)
@mutate
def test_mutations(name, mutations):
    Found(mutated(bases()[name], mutations))


@hypothesis.settings(max_examples=200, deadline=None)
@mutate
def test_mutations_of_a_file(tmp_path_factory, name, mutations):
    """Through a mapping, where a wrong offset is a crash; and mended where it can be."""
    path = tmp_path_factory.mktemp("mutated") / "run.onnx"
    path.write_bytes(mutated(bases()[name], mutations))
    found = [Found(str(path), mode) for mode in MODES]
    assert found[0].records == found[1].records == found[2].records
    if not isinstance(tolerant(str(path), repair, str(path)), FormatError):
        assert Found(str(path)).records == found[0].records


@hypothesis.settings(max_examples=300, deadline=None)
@hypothesis.given(st.binary(max_size=300))
def test_any_bytes(data):
    Found(data)
