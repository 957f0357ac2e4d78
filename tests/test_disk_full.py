"""A disk that is full: the model goes on, what was stored is good, the loss is told once."""

import errno
import os
import resource
import shutil
import subprocess
import warnings

import onnx
import onnxruntime
import pytest
import torch

import faststeal as fs
from faststeal._core import Writer
from faststeal.capture import FaststealWarning

MIB = 1 << 20
FULL = 8 * MIB
ELEMENTS = 25_000
CALLS = 150  # 30 MB


class Add(torch.nn.Module):
    def forward(self, x, by):
        return x + by


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = Add(), Add()

    def forward(self, x, step):
        return self.second(self.first(x, by=step), by=0.5)


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 8 MiB."""
    if os.geteuid() != 0:
        pytest.skip("only root can mount a small file system")
    folder = tmp_path / "small"
    folder.mkdir()
    mount, unmount = shutil.which("mount"), shutil.which("umount")
    if mount is None or unmount is None:
        pytest.skip("there is no mount command")
    command = [mount, "-t", "tmpfs", "-o", f"size={FULL}", "tmpfs", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"a small file system cannot be mounted here: {done.stderr.strip()}")
    yield folder
    # Lazily: a test that failed may have left a view of a file there.
    subprocess.run([unmount, "-l", str(folder)], check=True)


@pytest.fixture
def small_files():
    """Files may not be larger than 8 MiB: another error, which needs no other disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (FULL, hard))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def run(model, calls=CALLS):
    return [model(torch.full((ELEMENTS,), float(step)), step) for step in range(calls)]


def captured(path, code, **options):
    """Run until the disk is full and further; the capture, and the one warning of it."""
    model = Net()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with fs.steal_forward(model, submodules=True, dump_file=path, **options) as capture:
            outputs = run(model)
            assert not caught  # while the model runs there is only the log
    assert all(map(torch.equal, outputs, run(Net())))
    assert set(vars(model)) == set(vars(Net()))
    assert [item.category for item in caught] == [FaststealWarning]
    assert capture.lost
    assert f"{len(capture.lost)} records lost" in str(caught[0].message)
    assert os.strerror(code) in str(caught[0].message)
    return capture


def assert_good(path, capture):
    """All that is not lost is there, right to the bit, for every reader."""
    with fs.load(path) as dump:
        assert dump.verify() == []
        assert len(dump) == capture.records > 10
        # What was lost are single records: smaller ones may still have found a place.
        first = min(key.iteration for key in capture.lost)
        assert {key.iteration for key in dump if key.name == "first"} >= set(range(first))
        assert not set(dump) & set(capture.lost)
        everything = {
            (name, step, kind)
            for name in ("", "first", "second")
            for step in range(CALLS)
            for kind in "IO"
        }
        assert set(dump) | set(capture.lost) == everything
        for key in dump:
            args, kwargs = dump[key] if key.kind == "I" else ((dump[key],), {})
            value = float(key.iteration)
            if key.kind == "O" or key.name == "second":
                value += key.iteration
            if key.kind == "O" and key.name != "first":
                value += 0.5
            assert torch.equal(args[0], torch.full((ELEMENTS,), value)), key
            assert kwargs == ({"by": 0.5} if key[::2] == ("second", "I") else kwargs)
        values = sum(len(dump.info(key)["leaves"]) for key in dump)
    onnx.load(path)
    onnx.checker.check_model(path, full_check=True)
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    assert len(session.get_outputs()) == values + 1


@pytest.mark.parametrize("external", [False, True], ids=["inline", "external"])
def test_full_disk(small_disk, external):
    path = small_disk / "run.onnx"
    capture = captured(path, errno.ENOSPC, save_as_external_data=external)
    assert_good(path, capture)
    assert capture.bytes_written > 0.9 * FULL


@pytest.mark.parametrize("external", [False, True], ids=["inline", "external"])
def test_file_too_large(small_files, tmp_path, external):
    path = tmp_path / "run.onnx"
    capture = captured(path, errno.EFBIG, save_as_external_data=external)
    assert_good(path, capture)


def test_there_is_room_again(small_disk):
    other, path = small_disk / "other", small_disk / "run.onnx"
    other.write_bytes(bytes(7 * MIB))
    model = Net()

    def use():
        with fs.steal_forward(model, submodules=True, dump_file=path) as capture:
            run(model, calls=20)
            lost = dict(capture.lost)
            other.unlink()
            run(model, calls=20)
        return capture, lost

    with pytest.warns(FaststealWarning, match="records lost"):
        capture, lost = use()
    assert capture.lost == lost
    assert lost
    dump = fs.load(path)
    assert dump.complete
    assert dump.verify() == []
    assert {("", step, "O") for step in range(20, 40)} <= set(dump)


def test_whoever_asks_gets_the_error(small_disk):
    path = small_disk / "run.onnx"
    model = Net()
    with (
        pytest.raises(OSError, match="No space left on device") as caught,
        fs.steal_forward(model, submodules=True, dump_file=path, on_error="raise") as capture,
    ):
        run(model)
    assert caught.value.errno == errno.ENOSPC
    assert set(vars(model)) == set(vars(Net()))
    with fs.load(path) as dump:
        assert dump.verify() == []
        assert len(dump) == capture.records > 10


def test_full_from_the_beginning(small_disk):
    path = small_disk / "run.onnx"
    path.write_bytes(b"older")
    with pytest.raises(OSError, match="No space left on device"):
        (small_disk / "other").write_bytes(bytes(FULL))
    model = Net()
    with (
        pytest.raises(OSError, match="No space left on device"),
        fs.steal_forward(model, submodules=True, dump_file=path),
    ):
        raise AssertionError("not entered")
    assert path.read_bytes() == b"older"
    assert sorted(file.name for file in small_disk.iterdir()) == ["other", "run.onnx"]
    assert set(vars(model)) == set(vars(Net()))


def test_no_room_to_roll_over(small_disk):
    """What is begun anew has a place, what ends has none: it goes on where it was."""
    path, rest = small_disk / "run.onnx", small_disk / "rest"
    writer = Writer(str(path), "{}", part_limit=4 * MIB)

    def put(n, tensor):
        return writer.write(f"m/{n}/A", f"m/{n}/A", '{"tensor":0}', [""], [tensor], "")

    def leave(pages):
        with rest.open("ab", buffering=0) as file:
            file.write(bytes(shutil.disk_usage(small_disk).free - pages * 4096))

    for stored in range(3000):  # the index takes 48 kB
        put(stored, torch.tensor([float(stored)]))
    leave(30)
    size, beyond, stored = path.stat().st_size, 0, 3000
    while beyond < 150:  # into what was only promised: there is no room to allocate ahead
        put(stored, torch.tensor([float(stored)]))
        stored += 1
        beyond += path.stat().st_size > size
    leave(5)
    with pytest.raises(OSError, match="No space left"):
        put(stored, torch.zeros(MIB * 3 // 4))
    assert sorted(small_disk.iterdir()) == [rest, path]
    for _ in range(3):
        assert put(stored + 1, torch.tensor([float(stored)])) is None
        stored += 1
        assert len(fs.load(path)) == stored  # whatever comes, that many are stored
        onnx.load(path)
    rest.unlink()
    put(stored + 1, torch.zeros(MIB * 3 // 4))
    writer.close()
    with fs.load(path) as dump:
        assert dump.verify() == []
        assert (len(dump), dump.complete) == (stored + 1, True)
    assert len(list(small_disk.iterdir())) == 2
