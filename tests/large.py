"""A dump beyond 2 GiB: write it, load it again, and let onnxruntime open it.

    python tests/large.py                # 3 GiB, in the folder for temporary files
    python tests/large.py --gib 5 --dir /scratch

One tensor of 1.25 GiB is among it (it takes 4 MiB of memory: it is expanded), the others have
32 MiB. Each step runs in a process of its own, whose memory is shown: anonymous memory is what it
asked for itself; resident memory has pages of mapped files in it, which the kernel takes back when
it needs them. The exit code is 1 if a bit was wrong.
"""

import argparse
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import torch

MIB = 1 << 20
GIB = 1 << 30
ELEMENTS = 8 * MIB  # of 4 bytes
ROWS = 320


class Double(torch.nn.Module):
    def forward(self, x):
        return x * 2


def expanded():
    """1.25 GiB of 4 MiB."""
    return torch.arange(MIB, dtype=torch.float32).expand(ROWS, MIB)


def number_of_calls(gib):
    return -(-(gib * GIB - ROWS * MIB * 4) // (2 * ELEMENTS * 4))


def argument(step):
    return torch.arange(ELEMENTS, dtype=torch.int32).add_(step * ELEMENTS)


def run(model, calls):
    for step in range(calls):
        model(argument(step))


class Peak:
    """The most memory that this process had, in bytes, sampled each millisecond."""

    def __enter__(self):
        self.before = self.now("RssAnon")
        self.anonymous, self.resident = self.before, self.now("VmRSS")
        self.stop = threading.Event()
        self.thread = threading.Thread(target=self.sample)
        self.thread.start()
        self.start = time.perf_counter()
        return self

    def __exit__(self, *_):
        self.seconds = time.perf_counter() - self.start
        self.stop.set()
        self.thread.join()

    def sample(self):
        while not self.stop.wait(0.001):
            self.anonymous = max(self.anonymous, self.now("RssAnon"))
            self.resident = max(self.resident, self.now("VmRSS"))

    @staticmethod
    def now(what):
        status = Path("/proc/self/status")
        if not status.exists():
            return 0
        return int(status.read_text().split(f"{what}:")[1].split()[0]) * 1024

    def show(self, what):
        added = (self.anonymous - self.before) / MIB
        say(
            f"{what:38}{self.seconds:8.2f} s{added:10.1f} MiB anonymous added"
            f"{self.resident / MIB:10.1f} MiB resident at most"
        )


def say(text):
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def require(condition, text):
    if not condition:
        say(f"WRONG: {text}")
        sys.exit(1)


def write(path, gib):
    """Capture."""
    import faststeal as fs

    model, calls = Double(), number_of_calls(gib)
    run(model, 1)
    with Peak() as bare:
        run(model, calls)
    bare.show("the model alone")
    with Peak() as peak, fs.steal_forward(model, dump_file=path, storage_limit=None) as capture:
        fs.steal_append("expanded", expanded())
        run(model, calls)
    peak.show("captured")
    files = sorted(path.parent.iterdir())
    for file in files:
        say(f"    {file.name:20}{file.stat().st_size / GIB:8.3f} GiB")
    require(capture.records == 2 * calls + 1, f"{capture.records} records")
    require(sum(file.stat().st_size for file in files) >= gib * GIB, "too small")


def reload(path, gib):
    """Load with faststeal, and compare all of it."""
    import faststeal as fs

    with Peak() as peak:
        dump = fs.load(path)
        values = {key: dump[key] for key in dump}
    peak.show("load, every record rebuilt")
    with Peak() as peak:
        require(torch.equal(values["expanded"], expanded()), "expanded")
        for step in range(number_of_calls(gib)):
            (x,), _ = values["", step, "I"]
            wanted = argument(step)
            require(torch.equal(x, wanted), f"input {step}")
            require(torch.equal(values["", step, "O"], wanted.mul_(2)), f"output {step}")
    peak.show("and compared, to the last bit")
    with Peak() as peak:
        problems = dump.verify()
    peak.show("verified")
    require(problems == [], f"verify: {problems}")


def onnx_reads(path, gib):
    """Check with onnx, by path: its parser takes no more than 2 GiB from memory."""
    import onnx

    with Peak() as peak:
        model = onnx.load(path, load_external_data=False)
        onnx.checker.check_model(path)
    peak.show("onnx.load without data, checker")
    require(len(model.graph.output) == 2 * number_of_calls(gib) + 2, "outputs")


def onnxruntime_reads(path, gib):
    """Open with onnxruntime, and compare some of it."""
    import onnxruntime

    with Peak() as peak:
        session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    peak.show("onnxruntime opens it")
    last = number_of_calls(gib) - 1
    with Peak() as peak:
        for step in (0, last // 2, last):
            names = [f"./{step}/I/args.0", f"./{step}/O"]
            x, y = map(torch.from_numpy, session.run(names, {}))
            require(torch.equal(x, argument(step)), f"onnxruntime: input {step}")
            require(torch.equal(y, argument(step) * 2), f"onnxruntime: output {step}")
    peak.show("and gives six of the tensors")
    with Peak() as peak:
        (all_of_it,) = session.run(["expanded"], {})
    require(torch.equal(torch.from_numpy(all_of_it), expanded()), "onnxruntime: expanded")
    peak.show("and the large one, a copy")


STEPS = {each.__name__: each for each in (write, reload, onnx_reads, onnxruntime_reads)}


def main():
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gib", type=int, default=3, help="size of the dump, 2 or more")
    parser.add_argument("--dir", default=None, help="where it is written")
    parser.add_argument("--step", choices=list(STEPS), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.step:
        STEPS[arguments.step](Path(arguments.dir) / "run.onnx", arguments.gib)
        return 0
    with tempfile.TemporaryDirectory(dir=arguments.dir) as folder:
        for step in STEPS:
            command = [sys.executable, __file__, "--step", step, "--dir", folder]
            done = subprocess.run([*command, "--gib", str(arguments.gib)], check=False)
            if done.returncode:
                return 1
    say("all of it is right")
    return 0


if __name__ == "__main__":
    sys.exit(main())
