"""The command line: what it prints, and how it ends."""

import json
import os
import pty
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import faststeal as fs
from faststeal import cli, demo
from faststeal.cli import main

# The trace and the restored keys of the walk-through that the demo follows.
TRACE = """\
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
RESTORED = """\
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


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.flat = torch.nn.Flatten()

    def forward(self, x, mask=None):
        fs.steal_append("extra/1", {"x": x, "note": "a\x1b[31mb\n"})
        return self.flat(x), mask


X = torch.tensor([[[0.0, 2.0, float("nan")]]])


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "run.onnx"
    with fs.steal_forward(Net(), submodules=True, dump_file=path):
        pass
    net = Net()
    with fs.steal_forward(net, submodules=True, dump_file=path):
        net(X)
    return path


def run(capsys, *args):
    code = main([str(arg) for arg in args])
    out, err = capsys.readouterr()
    return code, out, err


# demo


def test_demo_is_the_walk_through(tmp_path, capsys):
    code, out, err = run(capsys, "demo", "--dir", tmp_path)
    assert (code, err) == (0, "")
    assert f"\n\n{TRACE}" in out
    assert RESTORED in out
    for line in (
        "inputs=(T7s2x30,)",
        "ds=dict(input_ids:{0:Dim(batch),1:Dim(length)})",
        "- decoder.attention.attention.1.value: <class 'torch.nn.modules.linear.Linear'>",
        "model.decoder.norm_2/0/I/args.0: tensor(float) [2, 30, 16]",
        "the same bits as restored: True",
        f"$ faststeal ls {tmp_path / demo.FILE}",
        "12 records of 6 names; 41.7 KiB seen, 26.7 KiB stored; complete",
    ):
        assert line in out.splitlines()
    assert re.search(r"^type\(model\)=<class 'faststeal\..*LLM'>$", out, re.MULTILINE)
    assert out.count("\n- ") == 22  # the root and 21 modules below it
    assert len(fs.load(tmp_path / demo.FILE)) == 12


def test_demo_shows_the_code_that_runs(tmp_path, capsys):
    _, out, _ = run(capsys, "demo", "--dir", tmp_path)
    assert "    with fs.steal_forward(\n        [\n" in out
    assert '"""' not in out
    assert "return" not in out


def test_demo_without_onnxruntime(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(demo.importlib.util, "find_spec", lambda _: None)
    code, out, _ = run(capsys, "demo", "--dir", tmp_path)
    assert code == 0
    assert "onnxruntime is not installed here" in out
    assert "same bits" not in out


def test_demo_where_nothing_can_be_written(tmp_path, capsys):
    code, _, err = run(capsys, "demo", "--dir", tmp_path / "absent")
    assert code == 2
    assert err == f"faststeal: {tmp_path / 'absent'}: No such file or directory\n"


# ls


def test_ls(file, capsys):
    code, out, err = run(capsys, "ls", file)
    assert (code, err) == (0, "")
    assert cells(out) == [
        "key | class | value | size | stored",
        "('', 0, 'I') | Net | ((T1s1x1x3,),{}) | 12 B | 12 B",
        "'extra/1' | dict(x:T1s1x1x3,note:str) | 12 B | as ('', 0, 'I')",
        "('flat', 0, 'I') | Flatten | ((T1s1x1x3,),{}) | 12 B | as ('', 0, 'I')",
        "('flat', 0, 'O') | Flatten | T1s1x3 | 12 B | as ('', 0, 'I')",
        "('', 0, 'O') | Net | (T1s1x3,None) | 12 B | as ('', 0, 'I')",
        "",
        "5 records of 3 names; 60 B seen, 12 B stored; complete",
    ]


def cells(out):
    """Lines of a table with one separator between the cells."""
    return [re.sub(r"  +", " | ", line) for line in out.splitlines()]


def test_ls_for_programs(file, capsys):
    code, out, _ = run(capsys, "ls", file, "--json")
    document = json.loads(out)
    assert code == 0
    assert document["complete"] is True
    assert document["provenance"]["faststeal"] == fs.__version__
    assert [record["key"] for record in document["records"]] == [
        ["", 0, "I"],
        "extra/1",
        ["flat", 0, "I"],
        ["flat", 0, "O"],
        ["", 0, "O"],
    ]
    first, *rest = document["records"]
    assert first["stored_bytes"] == first["bytes"] == 12
    assert first["leaves"][0]["name"] == "./0/I/args.0"
    assert all(record["same_as"] == ["", 0, "I"] for record in rest)
    assert all(record["stored_bytes"] == 0 for record in rest)


def test_bytes_that_a_record_has_twice(tmp_path, capsys):
    path = tmp_path / "run.onnx"
    with fs.steal_forward(torch.nn.Identity(), dump_file=path) as capture:
        x = torch.ones(3)
        capture.append("x", (x, x))
    _, out, _ = run(capsys, "ls", path, "--json")
    [record] = json.loads(out)["records"]
    assert (record["bytes"], record["stored_bytes"]) == (24, 12)


@pytest.mark.filterwarnings("ignore::faststeal.capture.FaststealWarning")
def test_ls_of_what_was_skipped_and_raised(tmp_path, capsys):
    class Raises(torch.nn.Module):
        def forward(self, x):
            raise ValueError("no\nway")

    path, model = tmp_path / "run.onnx", Raises()
    with (
        pytest.raises(ValueError, match="way"),
        fs.steal_forward(("m", model), dump_file=path, storage_limit=10),
    ):
        model(torch.zeros(4))
    _, out, _ = run(capsys, "ls", path)
    _, skipped, raised, _, summary = cells(out)
    assert "float32[4] | 16 B | skipped: 16 bytes are over the storage limit of 10" in skipped
    assert r"ValueError: no\nway" in raised
    assert summary == "2 records of 1 name, 1 skipped; 16 B seen, 0 B stored; complete"


def test_ls_of_a_capture_that_runs(file, capsys):
    net = Net()
    with fs.steal_forward(net, dump_file=file):
        net(X)
        code, out, _ = run(capsys, "ls", file)
    assert code == 0
    assert out.endswith("not closed: the capture runs, or was killed\n")


def test_ls_of_a_file_of_onnx_diagnostic(capsys):
    import onnx_diagnostic.tasks

    name = "dummies_imagetext2text_generation_gemma3.onnx"
    path = Path(onnx_diagnostic.tasks.__file__).parent / "data" / name
    code, out, _ = run(capsys, "ls", path)
    assert code == 0
    assert "2 records of 1 name" in out
    assert out.endswith("; of another tool\n")


def test_colours_on_a_terminal_only(file):
    command = [sys.executable, "-m", "faststeal", "ls", str(file)]
    env = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "120"}
    env.pop("NO_COLOR", None)
    piped = subprocess.run(command, capture_output=True, check=True, env=env).stdout
    assert b"\x1b[" not in piped
    leader, follower = pty.openpty()
    process = subprocess.Popen(command, stdout=follower, env=env)
    os.close(follower)
    out = b""
    while True:
        try:
            piece = os.read(leader, 65536)
        except OSError:  # how Linux says that the other side is closed
            break
        if not piece:
            break
        out += piece
    os.close(leader)
    assert process.wait() == 0
    assert b"\x1b[" in out
    assert b"('flat', 0, 'O')" in out


# show


def test_show(file, capsys):
    code, out, err = run(capsys, "show", file, "flat/0/I")
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert lines[0] == "key        ('flat', 0, 'I')"
    assert "class      torch.nn.modules.flatten:Flatten" in lines
    assert "training   true" in lines
    assert "parent     /0" in lines
    assert "flat/0/I/args.0 | float32 | [1, 1, 3] | 0 | 2 | 1 | 1" in cells(out)
    assert "((tensor([[[0., 2., nan]]]),), {})" in out


@pytest.mark.parametrize("key", ["/0/O", "./0/O"])
def test_show_the_root(file, capsys, key):
    code, out, _ = run(capsys, "show", file, key)
    assert code == 0
    assert out.startswith("key        ('', 0, 'O')\n")


def test_show_a_key_as_it_is_printed(file, capsys):
    _, table, _ = run(capsys, "ls", file)
    keys = [line[: line.index(")") + 1] for line in table.splitlines() if line.startswith("(")]
    assert len(keys) > 3
    for key in keys:
        code, out, _ = run(capsys, "show", file, key)
        assert (code, out.splitlines()[0]) == (0, f"key        {key}")


def test_show_shortens_what_is_long(tmp_path, capsys):
    path = tmp_path / "run.onnx"
    with fs.steal_forward(torch.nn.Identity(), dump_file=path):
        fs.steal_append("long", torch.arange(960).reshape(2, 30, 16))
    code, out, _ = run(capsys, "show", path, "long")
    assert code == 0
    assert "..." in out
    assert "959" in out
    assert "480" in out
    assert len(out.splitlines()) < 30


def test_show_what_was_appended(file, capsys):
    code, out, _ = run(capsys, "show", file, "extra/1")
    assert code == 0
    assert out.startswith("key        'extra/1'\n")
    assert "\x1b" not in out  # a file does not write to the terminal


def test_show_for_programs(file, capsys):
    code, out, _ = run(capsys, "show", file, "flat/0/O", "--json")
    document = json.loads(out)
    assert code == 0
    assert document["key"] == ["flat", 0, "O"]
    assert document["tree"] == {"tensor": 0}


@pytest.mark.filterwarnings("ignore::faststeal.capture.FaststealWarning")
def test_show_what_was_skipped(tmp_path, capsys):
    path, net = tmp_path / "run.onnx", Net()
    with fs.steal_forward(("net", net), dump_file=path, storage_limit=4):
        net(X)
    code, out, _ = run(capsys, "show", path, "net/0/I")
    assert code == 0
    assert "skipped    12 bytes are over the storage limit of 4" in out
    assert "net/0/I/args.0 | float32 | [1, 1, 3] | 0 | 2 | 1 | 1" in cells(out)
    assert "tensor([" not in out


def test_show_every_type(tmp_path, capsys):
    def forward(self, *args):
        return args

    model = type("Any", (torch.nn.Module,), {"forward": forward})()
    names = "bool uint16 complex64 bfloat16 float8_e5m2 float8_e8m0fnu float4_e2m1fn_x2 int64"
    values = [torch.zeros(4, dtype=torch.uint8).view(torch.uint8)]
    for name in names.split():
        dtype = getattr(torch, name)
        size = max(dtype.itemsize, 1)
        values.append(torch.zeros(4 * size, dtype=torch.uint8).view(dtype))
    path = tmp_path / "run.onnx"
    with fs.steal_forward(("any", model), dump_file=path):
        model(*values, torch.empty(0))
    code, out, _ = run(capsys, "show", path, "any/0/O")
    assert code == 0
    for name in names.replace("complex64", "float32 ").split():
        assert name in out


@pytest.mark.parametrize(
    "key",
    [
        "flaat/0/I",
        "flat",
        "flat/0/X",
        "flat/7/I",
        "a/b/c",
        "",
        "///",
        "('flat', 0)",
        "(",
        "('flat', 0, 'X')",
    ],
)
def test_show_what_is_not_there(file, capsys, key):
    code, out, err = run(capsys, "show", file, key)
    assert (code, out) == (2, "")
    assert err.startswith("faststeal: no record ")
    assert err.count("\n") == 1


# verify


def test_verify(file, capsys):
    assert run(capsys, "verify", file) == (0, f"{file}: 5 records, fine; complete\n", "")
    assert run(capsys, "verify", "--repair", file) == (
        0,
        f"{file}: 5 records, fine; complete\n",
        "",
    )


def test_verify_of_changed_bytes(file, capsys):
    data = bytearray(file.read_bytes())
    at = data.find(X.numpy().tobytes())
    data[at] ^= 1
    file.write_bytes(data)
    code, out, err = run(capsys, "verify", file)
    assert (code, err) == (1, "")
    assert "tensor 0 is not the one that was written" in out
    assert out.endswith("5 problems; complete\n")


def test_verify_of_a_killed_capture(tmp_path, capsys):
    path, net = tmp_path / "run.onnx", Net()
    copy = tmp_path / "killed.onnx"
    with fs.steal_forward(net, dump_file=path):
        net(X)
        shutil.copy(path, copy)
    code, out, _ = run(capsys, "verify", copy)
    assert code == 0
    assert out.endswith("3 records, fine; not closed: the capture runs, or was killed\n")
    code, out, _ = run(capsys, "verify", "--repair", copy)
    assert code == 0
    assert "repaired: wrote the index of 3 records\n" in out
    assert fs.load(copy)["", 0, "O"][1] is None


def test_repair_of_a_capture_that_runs(file, capsys):
    net = Net()
    with fs.steal_forward(net, dump_file=file):
        net(X)
        code, out, err = run(capsys, "verify", "--repair", file)
    assert (code, out) == (2, "")
    assert "another live capture is writing this file" in err


# How it ends


@pytest.mark.parametrize("command", [["ls"], ["ls", "--json"], ["show"], ["verify"]])
def test_file_that_is_not_there(tmp_path, capsys, command):
    path = tmp_path / "absent.onnx"
    rest = ["a/0/I"] if command == ["show"] else []
    code, out, err = run(capsys, *command, path, *rest)
    assert (code, out, err) == (2, "", f"faststeal: {path}: No such file or directory\n")


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04", b"\x08\x0a"])
def test_file_that_is_no_dump(tmp_path, capsys, content):
    path = tmp_path / "other.onnx"
    path.write_bytes(content)
    code, out, err = run(capsys, "ls", path)
    assert (code, out) == (2, "")
    assert err.startswith(f"faststeal: {path}: at byte ")
    assert "ONNX model" in err
    assert err.count("\n") == 1


def test_directory(tmp_path, capsys):
    code, _, err = run(capsys, "ls", tmp_path)
    assert code == 2
    assert str(tmp_path) in err


def test_version(capsys):
    assert run(capsys, "--version") == (0, f"faststeal {fs.__version__}\n", "")


@pytest.mark.parametrize("args", [["--help"], ["ls", "--help"], ["demo", "--help"]])
def test_help(capsys, args):
    code, out, err = run(capsys, *args)
    assert (code, err) == (0, "")
    assert out.startswith("Usage: faststeal ")


def test_no_command_is_no_success(capsys):
    code, out, _ = run(capsys)
    assert code == 2
    assert "Commands:" in out


@pytest.mark.parametrize("args", [["lss"], ["ls"], ["ls", "--colour", "x"], ["show", "a.onnx"]])
def test_wrong_command_line(capsys, args):
    code, out, err = run(capsys, *args)
    assert (code, out) == (2, "")
    assert err.startswith("faststeal: ")
    assert err.endswith("(see faststeal --help)\n")
    assert err.count("\n") == 1


def test_reader_that_has_had_enough(file):
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-m", "faststeal", "ls", str(file)]
    result = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, check=False)
    os.close(writing)
    assert (result.returncode, result.stderr) == (-signal.SIGPIPE, b"")


def test_interrupt(file, capsys, monkeypatch):
    def interrupted(_):
        raise KeyboardInterrupt

    monkeypatch.setattr(cli, "records", interrupted)
    assert run(capsys, "ls", file)[0] == 130


def test_as_a_module(file):
    command = [sys.executable, "-W", "error", "-m", "faststeal", "verify", str(file)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (result.returncode, result.stderr) == (0, "")
    result = subprocess.run([*command, "--nothing"], capture_output=True, text=True, check=False)
    assert result.returncode == 2


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1536, "1.5 KiB"),
        (3 << 30, "3.0 GiB"),
        (5000 << 30, "5000.0 GiB"),
    ],
)
def test_sizes(size, text):
    assert cli.size_text(size) == text
