"""Kill a capturing process at random moments, and see what its file is worth.

    python tests/kill.py -n 100

Each round kills a process with SIGKILL while it captures: small tensors and some of 4 MiB, into one
file or with external data, in place of an older dump. Then

- faststeal opens the file as it lies, with every record that the process knew to be stored, and
  each has the content that it must have;
- onnx, its checker and onnxruntime open it as it lies. Where they do not, because the kill fell
  between two steps of growing or closing, it is counted, and they must after `repair`.

The exit code is 1 if anything was lost.
"""

import argparse
import collections
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from pathlib import Path

import torch

import faststeal as fs

CALLS = 40
KIBI = 1 << 10
SIZES = (1, 16, 300, 1, 5_000, 0, 16, 70_000, 3, 1, 1_000, KIBI * KIBI)  # elements, in turn
OLD = ("old", 0, "A")


class Child(torch.nn.Module):
    def forward(self, x, step, log):
        log()
        return x * 2, None, {"step": step}


class Root(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.child = Child()

    def forward(self, step, log):
        log()
        x = torch.arange(SIZES[step % len(SIZES)], dtype=torch.float32) + step
        out = self.child(x, step=step, log=log)
        log()
        return [x, out[0], -x]


class Log:
    """Counts the records that are known to be stored, where a kill does not reach it."""

    def __init__(self, path):
        self.file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def __call__(self, what=b"."):
        os.write(self.file, what)

    def __repr__(self):
        return "log"


def capture(folder, external):
    """What is killed: runs to its end, then waits for it."""
    log = Log(folder / "log")
    root = Root()
    steal = fs.steal_forward(
        root,
        submodules=True,
        dump_file=folder / "run.onnx",
        dump_drop={"log"},
        save_as_external_data=external,
    )
    with steal, torch.no_grad():
        log(b"<")
        for step in range(CALLS):
            root(step, log=log)
            log()
    log(b">")
    signal.pause()


def serve():
    """Fork a capturing child for each line of stdin; a process that has no threads can do that."""
    torch.set_num_threads(1)
    for line in sys.stdin:
        folder, external = line.rstrip("\n").rsplit(" ", 1)
        pid = os.fork()
        if pid == 0:
            try:
                capture(Path(folder), external == "external")
            finally:
                os._exit(1)  # never reached but by an error, which is on stderr
        sys.stdout.write(f"{pid}\n")
        sys.stdout.flush()
        _, status = os.waitpid(pid, 0)
        sys.stdout.write(f"{os.waitstatus_to_exitcode(status)}\n")
        sys.stdout.flush()


def expected():
    """What is stored, in order: keys and objects, log left out."""
    seen = []
    root = Root()
    for step in range(CALLS):
        x, doubled, negative = root(step, log=lambda: None)
        seen += [
            (("", step, "I"), ((step,), {})),
            (("child", step, "I"), ((x,), {"step": step})),
            (("child", step, "O"), (doubled, None, {"step": step})),
            (("", step, "O"), [x, doubled, negative]),
        ]
    return seen


def same(got, wanted):
    if isinstance(wanted, torch.Tensor):
        return got.dtype == wanted.dtype and torch.equal(got, wanted)
    if isinstance(wanted, list | tuple):
        return len(got) == len(wanted) and all(map(same, got, wanted))
    if isinstance(wanted, dict):
        return list(got) == list(wanted) and all(map(same, got.values(), wanted.values()))
    return got == wanted


def open_elsewhere(path, wanted):
    """Why another reader refuses the file; nothing if all take it, and find what is there."""
    import onnx
    import onnxruntime

    try:
        onnx.load(path)
        onnx.checker.check_model(path, full_check=True)
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4  # what it refuses is told by the exception
        session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        names = [output.name for output in session.get_outputs()]
        for name, tensor in wanted.items():
            if name not in names or session.run([name], {})[0].tobytes() != tensor.tobytes():
                return f"onnxruntime does not find {name}"
    except Exception as error:  # noqa: BLE001 - each reader has its own
        return f"{type(error).__name__}: {error}"
    return None


class Round:
    """One kill and its consequences."""

    def __init__(self, folder, wanted):
        self.path = folder / "run.onnx"
        self.wanted = wanted
        log = (folder / "log").read_bytes() if (folder / "log").exists() else b""
        self.reported = log.count(b".")
        self.begun = b"<" in log
        self.ended = b">" in log
        self.problems = []
        self.window = None

    def require(self, condition, text):
        if not condition:
            self.problems.append(text)

    def examine(self):
        before = self.records()
        some = self.some_values()
        self.window = open_elsewhere(str(self.path), some)
        told = self.verified()
        self.require(len(told) == (self.window is not None), f"verify: {told}, but {self.window}")
        fs._core.repair(str(self.path))
        self.require(self.records() == before, "repair changed the records")
        self.require(self.verified() == [], "verify finds something after repair")
        after = open_elsewhere(str(self.path), some)
        self.require(after is None, f"after repair: {after}")

    def records(self):
        """Number of records that faststeal finds, all of them examined; -1 for the older dump."""
        with fs.load(self.path) as dump:
            keys = list(dump)
            if keys == ["old"] and not self.begun:
                return -1
            self.require(len(keys) >= self.reported, f"{len(keys)} records of {self.reported}")
            self.require(len(keys) <= self.reported + 1, f"{len(keys)} for {self.reported}")
            self.require(dump.complete or not self.ended, "closed, but not complete")
            self.require(keys == [key for key, _ in self.wanted[: len(keys)]], "other keys")
            for key, value in self.wanted[: len(keys)]:
                self.require(same(dump[key], value), f"other content in {key}")
            return len(keys)

    def verified(self):
        """Problems that faststeal finds."""
        with fs.load(self.path) as dump:
            return dump.verify()

    def some_values(self):
        """Values for another reader to find: those of the last records."""
        with fs.load(self.path) as dump:
            keys = [key for key in dump if key != "old"]
            return {
                leaf["name"]: tensor.numpy().copy()
                for key in keys[-4:]
                if key.kind == "O" and key.name == ""
                for leaf, tensor in zip(dump.info(key)["leaves"], dump[key], strict=True)
            }


class Counts(collections.Counter):
    """How many rounds ended how; `lost` tells of those that must not be."""

    def __init__(self):
        super().__init__()
        self.lost = []
        self.windows = []


class Server:
    """The process that forks those to be killed."""

    def __enter__(self):
        self.process = subprocess.Popen(
            [sys.executable, __file__, "--serve"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        return self

    def __exit__(self, *_):
        self.process.stdin.close()
        self.process.wait()
        self.process.stdout.close()

    def kill(self, folder, external, delay):
        """Fork, wait, kill. `delay` is in seconds; None waits for the end and returns its time."""
        self.process.stdin.write(f"{folder} {'external' if external else 'inline'}\n")
        self.process.stdin.flush()
        start = time.perf_counter()
        pid = int(self.process.stdout.readline())
        if delay is None:
            log = folder / "log"
            while not (log.exists() and b">" in log.read_bytes()):
                time.sleep(0.001)
        else:
            time.sleep(delay)
        seconds = time.perf_counter() - start
        os.kill(pid, signal.SIGKILL)
        status = int(self.process.stdout.readline())
        if status != -signal.SIGKILL:
            raise RuntimeError(f"the capturing process ended by itself: {status}")
        return seconds


def one_round(server, folder, external, delay, wanted):
    """One kill, in a folder that is removed afterwards. Returns what came of it, and its time."""
    folder.mkdir()
    try:
        with fs.steal_forward([], dump_file=folder / "run.onnx"):
            fs.steal_append("old", torch.ones(3))
        seconds = server.kill(folder, external, delay)
        result = Round(folder, wanted)
        try:
            result.examine()
        except Exception:  # noqa: BLE001 - whatever it is, it must not be
            result.problems.append(traceback.format_exc())
        return result, seconds
    finally:
        shutil.rmtree(folder)


def run(count, seed=0):
    """Kill `count` times; a third of the rounds has external data."""
    moments = random.Random(seed)  # noqa: S311 - no secret
    counts = Counts()
    wanted = expected()
    with tempfile.TemporaryDirectory() as top, Server() as server:
        times = []
        for i in range(4):  # undisturbed, to know how long it takes; the first one warms up
            result, seconds = one_round(server, Path(top) / f"full{i}", False, None, wanted)
            counts.lost += result.problems
            times.append(seconds)
        for i in range(count):
            external = i % 3 == 2
            delay = moments.uniform(0, 1.05 * min(times))
            result, _ = one_round(server, Path(top) / str(i), external, delay, wanted)
            counts["killed"] += 1
            counts["with external data"] += external
            counts["before the first record"] += not result.reported
            counts["after the end"] += result.ended
            counts["records reported as stored"] += result.reported
            if result.window is not None:
                counts["opened by faststeal only, until mended"] += 1
                counts.windows.append(result.window)
            if result.problems:
                counts["rounds with a loss"] += 1
                counts.lost += [f"round {i}, {delay:.4f} s: {text}" for text in result.problems]
    return counts


def main():
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-n", "--count", type=int, default=100, help="number of kills")
    parser.add_argument("--seed", type=int, default=0, help="of the moments")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve:
        return serve()
    counts = run(arguments.count, arguments.seed)
    lines = [f"{number:8} {what}" for what, number in counts.items()]
    lines += [f"         {text.splitlines()[0][:120]}" for text in counts.windows]
    lines += [f"LOST: {text}" for text in counts.lost] or ["nothing was lost"]
    sys.stdout.write("\n".join(lines) + "\n")
    return 1 if counts.lost else 0


if __name__ == "__main__":
    sys.exit(main())
