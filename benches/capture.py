"""What it costs to capture every module of a Llama, beside what others cost, in one run.

    python benches/capture.py                    # all sizes, all methods, ten rounds
    python benches/capture.py --size large --methods faststeal,floor --rounds 5

Each round runs each method in a process of its own (forked from one that has only imported), in
an order that alternates. In it the bare and the captured forward take turns; what is counted is
the difference of the two, leaving the capture included, when most of the others write: its median,
and the fastest captured forward less the fastest bare one. Entering the capture, once for any
number of calls, has a column of its own. Anonymous memory is sampled in another
process, in its first capture, and compared with that of the bare forward before it. Files are
deleted after each pass, so that the kernel never has to write them back; the file of the floor has
the unique bytes and nothing else.
"""

import argparse
import ctypes
import gc
import importlib
import json
import os
import shutil
import statistics
import tempfile
import threading
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers
from methods import METHODS, Method, bare

SIZES = {
    "small": {"layers": 24, "hidden": 64, "batch": 1, "tokens": 1, "passes": 12},
    "middle": {"layers": 8, "hidden": 256, "batch": 2, "tokens": 64, "passes": 6},
    "large": {"layers": 12, "hidden": 1024, "batch": 2, "tokens": 256, "passes": 1},
}

WEIGHED = 3  # rounds in which memory is measured too

PACKAGES = (
    "faststeal",
    "onnx_diagnostic.helpers.torch_helper",
    "safetensors.torch",
    "transformers.model_debugging_utils",
    "xxhash",
)


def build(size: dict[str, int]) -> tuple[torch.nn.Module, torch.Tensor]:
    """A Llama with random weights, and tokens for it."""
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        num_hidden_layers=size["layers"],
        hidden_size=size["hidden"],
        intermediate_size=4 * size["hidden"],
        num_attention_heads=4,
        num_key_value_heads=4,
        vocab_size=1000,
        use_cache=False,
    )
    model = transformers.LlamaForCausalLM(config).eval()
    return model, torch.randint(0, 1000, (size["batch"], size["tokens"]))


class PeakMemory:
    """The most anonymous memory this process had while the context was open, in bytes."""

    def __enter__(self) -> "PeakMemory":  # noqa: PYI034 - Self needs Python 3.11
        self.peak, self._stop = self._now(), threading.Event()
        self._thread = threading.Thread(target=self._sample)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _sample(self) -> None:
        while not self._stop.wait(0.001):
            self.peak = max(self.peak, self._now())

    @staticmethod
    def _now() -> int:
        text = Path("/proc/self/status").read_text()
        return int(text.split("RssAnon:")[1].split()[0]) * 1024


def save_built(size: dict[str, int], path: Path) -> dict[str, Any]:
    """Keep what was built: children map the weights, which takes them no time."""
    torch.save(build(size), path)
    return {}


def load_built(path: Path) -> tuple[torch.nn.Module, torch.Tensor]:
    """The model and the tokens that were saved."""
    built: tuple[torch.nn.Module, torch.Tensor] = torch.load(path, mmap=True, weights_only=False)
    return built


def once(way: Method, built: tuple[torch.nn.Module, torch.Tensor], folder: Path) -> list[float]:
    """Run the model; seconds it took to enter the capture, and from there to its end."""
    model, tokens = built
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    gc.collect()
    start = time.perf_counter()
    with way(model, folder), torch.no_grad():
        entered = time.perf_counter()
        model(input_ids=tokens)
    return [entered - start, time.perf_counter() - entered]


def measure(method: str, saved: Path, folder: Path, turns: range) -> dict[str, Any]:
    """One round of one method: seconds of entering, of bare and of captured forwards."""
    built, capture = load_built(saved), METHODS[method]
    for warm_up in (bare, capture):
        once(warm_up, built, folder)
    entering, pairs = [], []
    for i in turns:
        order = (bare, capture) if i % 2 else (capture, bare)
        seconds = {way: once(way, built, folder) for way in order}
        entering.append(seconds[capture][0])
        pairs.append((seconds[bare][1], seconds[capture][1]))
    return {"pairs": pairs, "entering": statistics.median(entering)}


def weigh(method: str, saved: Path, folder: Path) -> dict[str, Any]:
    """Bytes of memory that the first capture adds to a bare forward, and of its files."""
    give_back_memory()
    built = load_built(saved)
    for _ in range(2):
        once(bare, built, folder)
    with PeakMemory() as without:
        once(bare, built, folder)
    with PeakMemory() as memory:
        once(METHODS[method], built, folder)
    files = sum(p.stat().st_size for p in folder.rglob("*") if p.is_file())
    return {"memory": memory.peak - without.peak, "files": files}


def give_back_memory() -> None:
    """Make glibc return at once what is freed; else its reserve hides or adds what it likes."""
    libc = ctypes.CDLL(None)
    if hasattr(libc, "mallopt"):
        for option in (-1, -3):  # the thresholds for trimming the heap and for using mmap
            libc.mallopt(option, 1 << 17)


def in_a_process(function: Callable[..., dict[str, Any]], *arguments: Any) -> dict[str, Any]:
    """What the function returns in a forked child; what it prints goes nowhere."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reader)
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, 1)
        try:
            warnings.simplefilter("ignore")
            result = function(*arguments)
        except BaseException as error:  # noqa: BLE001 - told by the parent
            result = {"error": f"{type(error).__name__}: {error}"}
        with os.fdopen(writer, "w") as pipe:
            json.dump(result, pipe)
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        text = pipe.read()
    os.waitpid(pid, 0)
    return json.loads(text) if text else {"error": "the process died"}


def table(name: str, results: dict[str, list[dict[str, Any]]]) -> None:
    """Print what was found for one size."""
    costs = {}
    for method, rounds in results.items():
        pairs = [pair for r in rounds for pair in r["pairs"]]
        without, captured = zip(*pairs, strict=True)
        median = statistics.median(with_it - bare for bare, with_it in pairs)
        costs[method] = median, min(captured) - min(without)
    forwards = [pair[0] for rounds in results.values() for r in rounds for pair in r["pairs"]]
    size = SIZES[name]
    print(
        f"\n{name}: {size['layers']} layers of {size['hidden']}, "
        f"{size['batch']}x{size['tokens']} tokens; bare forward "
        f"{1e3 * statistics.median(forwards):.1f} ms (median of {len(forwards)})"
    )
    base = costs.get("floor")
    print(
        f"{'':16}{'overhead ms':>22}{'of the floor':>22}"
        f"{'enter ms':>10}{'memory MiB':>12}{'file MB':>9}"
    )
    print(f"{'':16}{'median':>12}{'min':>10}{'median':>12}{'min':>10}")
    for method, (median, least) in costs.items():
        ratios = f"{'':>22}"
        if base:
            ratios = f"{median / base[0]:12.2f}{least / base[1]:10.2f}"
        entering, memory, files = (
            statistics.median(r[what] for r in results[method] if what in r)
            for what in ("entering", "memory", "files")
        )
        print(
            f"{method:16}{1e3 * median:12.1f}{1e3 * least:10.1f}{ratios}"
            f"{1e3 * entering:10.1f}{memory / 2**20:12.1f}{files / 1e6:9.1f}"
        )
    if "faststeal" in costs and base:
        files, unique = (results[which][0]["files"] for which in ("faststeal", "floor"))
        print(f"file of faststeal: {100 * (files / unique - 1):.2f} % more than the unique bytes")
    if "faststeal" in costs and "onnx-diagnostic" in costs:
        ours, theirs = costs["faststeal"], costs["onnx-diagnostic"]
        print(
            f"onnx-diagnostic / faststeal: {theirs[0] / ours[0]:.1f} by the medians, "
            f"{theirs[1] / ours[1]:.1f} by the minima"
        )


def main() -> None:
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", choices=[*SIZES, "all"], default="all")
    parser.add_argument("--methods", default=",".join(METHODS), help="separated by commas")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--dir", type=Path, default=None, help="where files are written")
    arguments = parser.parse_args()
    methods = arguments.methods.split(",")
    torch.set_num_threads(arguments.threads)
    for package in PACKAGES:  # what importing takes is nobody's cost of capturing
        importlib.import_module(package)
    names = list(SIZES) if arguments.size == "all" else [arguments.size]
    with tempfile.TemporaryDirectory(dir=arguments.dir) as folder:
        saved = Path(folder) / "model.pt"
        for name in names:
            in_a_process(save_built, SIZES[name], saved)
            results: dict[str, list[dict[str, Any]]] = {method: [] for method in methods}
            for i in range(arguments.rounds):
                for method in methods if i % 2 else reversed(methods):
                    case = method, saved, Path(folder) / "out"
                    result = in_a_process(measure, *case, range(i, i + SIZES[name]["passes"]))
                    if i < WEIGHED and "error" not in result:
                        result |= in_a_process(weigh, *case)
                    shutil.rmtree(Path(folder) / "out", ignore_errors=True)
                    if "error" in result:
                        print(f"{name}, {method}: {result['error']}")
                        continue
                    results[method].append(result)
            table(name, {method: rounds for method, rounds in results.items() if rounds})


if __name__ == "__main__":
    main()
