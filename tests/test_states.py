"""Every state that a file goes through can be opened, by everyone.

A process that captures is watched from outside: a preloaded library logs its writes, and the test
repeats them one after the other, cut between pages as a kill may cut them.
"""

import contextlib
import hashlib
import json
import os
import shutil
import struct
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import google.protobuf.message
import onnx
import pytest
import torch
from onnxruntime.capi.onnxruntime_pybind11_state import InvalidProtobuf

import other_readers as others
from faststeal._core import Reader, repair

PAGE = 4096

# Run under the preloaded library. `put` reports a record as stored by one byte in `marks`.
WRITER = r"""
import json, os, shutil, sys
import torch
from faststeal._core import Writer, repair

root = sys.argv[1]
count = 0
marks = os.open(os.path.join(root, "marks"), os.O_WRONLY | os.O_CREAT)

def floats(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))

def put(writer, key, *tensors):
    global count
    tree = json.dumps([{"tensor": i} for i in range(len(tensors))])
    writer.write(key, key, tree, [str(i) for i in range(len(tensors))], tensors, "")
    with open(os.path.join(root, f"{count}.json"), "w") as file:
        json.dump(key, file)
    torch.save(tensors, os.path.join(root, f"{count}.pt"))
    os.pwrite(marks, b"x", count)
    count += 1

def start(scenario, **options):
    folder = os.path.join(root, scenario)
    os.makedirs(folder, exist_ok=True)
    return Writer(os.path.join(folder, "run.onnx"), "{}", **options)

writer = start("small", storage_limit=5000)
put(writer, "m/0/I", floats(4), floats(4), floats(2, 2), torch.tensor(1.5))
put(writer, "m/0/O")
put(writer, "m/1/I", floats(4), floats(0, 3))
put(writer, "n" * 5000 + "/0/O", floats(2, 2))
put(writer, "m/1/O", floats(2000))
for i in range(8):
    put(writer, f"m/{i}/A", floats(100, seed=i), floats(3, 5, seed=i).T, floats(i, 1))
put(writer, "m/8/A", torch.zeros(4, dtype=torch.uint8).view(torch.float4_e2m1fn_x2))
put(writer, "m/9/A", torch.zeros(4, dtype=torch.uint8).view(torch.float8_e8m0fnu))
put(writer, "m/10/A", floats(4))
writer.close()

writer = start("growth")
put(writer, "m/0/I", floats(1000))
for i in range(6):
    put(writer, f"m/{i}/O", floats(25_000, seed=i), floats(1000))
put(writer, "m/7/O", floats(300_000).reshape(300, 1000).T)
writer.close()

writer = start("external", external=True)
put(writer, "m/0/I", floats(1000), floats(3), floats(1000))
put(writer, "m/0/O", floats(3000, seed=1), floats(0))
put(writer, "m/1/I", floats(1000), floats(300_000, seed=2))
writer.close()

# Again at the same place, with what is large outside: what was there is replaced.
writer = start("external", inline_limit=500)
put(writer, "m/0/I", floats(50), floats(200), floats(10))
put(writer, "m/0/O", floats(200), floats(40), floats(60, seed=2))
put(writer, "m/1/O", floats(60, seed=3))
writer.close()
writer = start("external")
put(writer, "m/0/I", floats(50))
writer.close()

writer = start("parts", part_limit=400_000)
for i in range(9):
    put(writer, f"m/{i}/O", floats(20_000, seed=i // 2), floats(50), floats(7, seed=i))
put(writer, "m/9/O")
writer.close()

def killed(scenario, grow=0):
    before = count
    writer = start(scenario)
    for i in range(5):
        put(writer, f"m/{i}/O", floats(5000, seed=i), floats(50))
    folder = os.path.join(root, scenario)
    copy = os.path.join(folder, "copy.onnx")
    shutil.copy(os.path.join(folder, "run.onnx"), copy)
    if grow:
        os.truncate(copy, os.path.getsize(copy) + grow)
    shutil.copy(copy, os.path.join(folder, "start.onnx"))
    repair(copy)
    writer.close()

killed("repair")
killed("repair grown", 300_000)
killed("repair barely grown", 3)
"""


class Call(NamedTuple):
    name: str
    number: int
    path: Path
    data: bytes


def read_log(path):
    data, at, calls = path.read_bytes(), 0, []
    while at < len(data):
        name, number, path_len, size = struct.unpack_from("8sQQQ", data, at)
        at += 32
        path = Path(os.fsdecode(data[at : at + path_len]))
        at += path_len
        calls.append(Call(name.rstrip(b"\0").decode(), number, path, data[at : at + size]))
        at += size
    return calls


class Run(NamedTuple):
    root: Path
    calls: list
    keys: list
    tensors: list


@pytest.fixture(scope="module")
def watched(tmp_path_factory):
    """One run of the writer: what it did, and what it says that it stored."""
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None or not sys.platform.startswith("linux"):
        pytest.skip("needs Linux and a C compiler")
    build, root = tmp_path_factory.mktemp("build"), tmp_path_factory.mktemp("watched")
    library, log = build / "record_writes.so", build / "log"
    source = Path(__file__).with_name("record_writes.c")
    command = [compiler, "-shared", "-fPIC", "-O1", "-o", str(library), str(source), "-ldl"]
    subprocess.run(command, check=True)
    environment = {**os.environ, "LD_PRELOAD": str(library), "RECORD_WRITES": str(log)}
    subprocess.run([sys.executable, "-c", WRITER, str(root)], check=True, env=environment)
    calls = read_log(log)
    count = sum(call.path.name == "marks" for call in calls)
    keys = [json.loads((root / f"{i}.json").read_text()) for i in range(count)]
    tensors = [torch.load(root / f"{i}.pt") for i in range(count)]
    return Run(root, calls, keys, tensors)


def cuts(call):
    """How much of a write may have happened: some pages of it, in order, or all."""
    size, first = len(call.data), PAGE - call.number % PAGE
    inside = list(range(first, size, PAGE))
    if len(inside) > 8:  # pages between tell nothing new
        inside = inside[:3] + inside[3 : -2 : len(inside) // 3] + inside[-2:]
    return [*inside, size]


class State(NamedTuple):
    number: int
    stored: int  # records reported until then
    first: int  # number of the first record of this dump
    window: bool  # a file has just grown, and nothing covers the zeros yet
    call: str
    path: Path


def steps(call, path):
    """Repeat a call on `path`, as far as it may have come; says whether the file only grew."""
    if call.name == "write":
        path.touch()
        for size in cuts(call):
            with path.open("r+b") as file:
                file.seek(call.number)
                file.write(call.data[:size])
            yield False
    elif call.name == "length":
        grown = call.number > path.stat().st_size
        os.truncate(path, call.number)
        # Before it has its name, a file may be anything.
        yield grown and path.suffix == ".onnx"
    elif call.name == "rename":
        path.rename(path.with_name(Path(os.fsdecode(call.data)).name))
        yield False
    else:
        path.unlink()
        yield False


def replay(run, scenario, folder):
    """Repeat a scenario's calls in `folder`; each state that it has on the way, once."""
    source, stored, first, seen = run.root / scenario, 0, 0, set()
    if (source / "start.onnx").exists():
        shutil.copy(source / "start.onnx", folder / "copy.onnx")
    for call in run.calls:
        if call.path.name == "marks":
            stored += 1
        if call.path.parent != source:
            continue
        path = folder / call.path.name
        for window in steps(call, path):
            if call.name == "rename" and call.data.endswith(b"/run.onnx"):
                first = stored
            digest = hashlib.sha256(f"{stored} {window}".encode())
            for file in sorted(p for p in folder.iterdir() if p.suffix != ".tmp"):
                digest.update(file.name.encode() + file.read_bytes())
            if digest.digest() not in seen:
                seen.add(digest.digest())
                yield State(len(seen), stored, first, window, f"{call.name} {path.name}", path)


def is_stored(tensors, reader, index):
    """Values of a skipped record were never promised."""
    _, found = reader.record(index)
    if reader.skipped()[index]:
        return found == []
    return list(map(others.value, found)) == list(map(others.value, tensors))


def check_ours(run, state, path, stored=None):
    """All that was reported, bit for bit, and at most the one that was on its way."""
    reader = Reader(str(path))
    names = [(key.rsplit("/", 2)) for key in run.keys[state.first :]]
    keys = [(name, int(iteration), kind) for name, iteration, kind in names]
    stored = state.stored - state.first if stored is None else stored
    assert stored <= len(reader) <= stored + 1
    assert reader.keys() == keys[: len(reader)]
    for i in range(len(reader)):
        assert is_stored(run.tensors[state.first + i], reader, i)
    return reader


def values_of(run, reader, first):
    return {
        f"{run.keys[first + i]}/{j}": others.value(tensor)
        for i in range(len(reader))
        if not reader.skipped()[i]
        for j, tensor in enumerate(run.tensors[first + i])
    }


def parts_of(path):
    found = [path, *(path.with_suffix(f".{i}.onnx") for i in range(1, 9))]
    return [str(part) for part in found if part.exists()]


def check_others(path, wanted, *, thorough):
    """The same values in every reader."""
    readers = [others.check, others.runtime]
    if thorough:
        readers += [others.evaluate, others.ir, others.load]
    for read in readers:
        found = {}
        for part in parts_of(path):
            found |= read(part)
        assert found == {name: wanted[name] for name in found}
        missing = wanted.keys() - found.keys()
        # onnxruntime does not hand out float4.
        assert not missing or (read is others.runtime and missing == {"m/8/A/0"})


def opens_elsewhere(path):
    try:
        for part in parts_of(path):
            others.session_of(part)
            onnx.load(part)
    except (google.protobuf.message.DecodeError, InvalidProtobuf):
        return False
    return True


def check_repaired(run, state, folder, path, wanted):
    """Mended from any state: nothing is lost, everyone opens it, and there is no more to do."""
    with contextlib.suppress(FileNotFoundError):
        shutil.rmtree(folder)
    shutil.copytree(path.parent, folder)
    was_complete = Reader(str(path)).complete
    path = folder / path.name
    done = repair(str(path))
    assert not (done and was_complete)
    reader = check_ours(run, state, path)
    assert reader.verify() == []
    assert reader.complete is was_complete
    assert repair(str(path)) == []
    check_others(path, wanted, thorough=state.window)
    return done


SCENARIOS = {
    # name: files grown, and how often that left zeros uncovered
    "small": 0,
    "growth": 3,
    "external": 0,
    "parts": 1,
}


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_every_state_opens(watched, scenario, tmp_path):
    folder, scratch = tmp_path / "states", tmp_path / "scratch"
    folder.mkdir()
    path = folder / "run.onnx"
    windows, states, calls = 0, 0, set()
    for state in replay(watched, scenario, folder):
        if not path.exists():
            continue
        states += 1
        calls.add(state.call)
        reader = check_ours(watched, state, path)
        wanted = values_of(watched, reader, state.first)
        # The documented windows are the only states that another reader refuses.
        assert opens_elsewhere(path) is not state.window, state
        assert len(reader.verify()) == state.window, state
        if state.window:
            windows += 1
        else:
            check_others(path, wanted, thorough=state.number % 5 == 0)
        if state.window or state.number % 3 == 0:
            done = check_repaired(watched, state, scratch, path, wanted)
            assert not state.window or done[0].startswith("cut off ")
    assert windows == SCENARIOS[scenario]
    assert states > 20
    assert {p.name for p in folder.iterdir()} == {
        p.name for p in (watched.root / scenario).iterdir()
    }
    reader = Reader(str(path))
    assert reader.complete


def test_the_log_is_complete(watched, tmp_path):
    """Repeating it gives the very files that the process left."""
    for scenario in SCENARIOS:
        folder = tmp_path / scenario
        folder.mkdir()
        for _ in replay(watched, scenario, folder):
            pass
        for file in (watched.root / scenario).iterdir():
            assert file.read_bytes() == (folder / file.name).read_bytes()


@pytest.mark.parametrize("scenario", ["repair", "repair grown", "repair barely grown"])
def test_every_state_of_a_repair_opens(watched, scenario, tmp_path):
    """Who is killed while mending loses nothing, and mends again."""
    folder, scratch = tmp_path / "states", tmp_path / "scratch"
    folder.mkdir()
    path = folder / "copy.onnx"
    states = 0
    for state in replay(watched, scenario, folder):
        if state.path != path:
            continue
        states += 1
        reader = check_ours(watched, state, path, stored=5)
        wanted = values_of(watched, reader, state.first)
        if states == 1 and scenario != "repair":
            assert state.call == "length copy.onnx"  # the cut, which is all that others need
        assert opens_elsewhere(path) is not state.window, state
        assert len(reader.verify()) == state.window, state
        check_repaired(watched, state._replace(stored=state.first + 5), scratch, path, wanted)
    assert states >= 5
    assert not Reader(str(path)).complete
