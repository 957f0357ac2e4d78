"""What it costs to read a dump again, beside what others cost, in one run.

    python benches/reload.py

Every module of a Llama of 12 layers x 1024, 2x256 tokens, is dumped; then all of it is loaded by
each reader in turn: trees rebuilt and all tensors there, as views where the reader has them; the
others read files of their own with the same tensors. Then a dump of 100,000 records is opened. All
files are in the page cache.
"""

import argparse
import gc
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import torch
from capture import SIZES, build
from methods import tensors_of

import faststeal
from faststeal._core import Writer


def ours(path: Path) -> object:
    """Every key of the dump."""
    return dict(faststeal.load(path).items())


def seconds(readers: dict[str, tuple[Callable[[], object], int]]) -> dict[str, list[float]]:
    """Of each round of each reader; what was read is freed outside of the time.

    Readers take turns of up to five rounds: the machine is as fast for the one as for the other,
    and what one leaves in the processor's caches weighs on the next one's first round only. The
    collector is off meanwhile, as in `timeit`.
    """
    gc.collect()
    gc.disable()
    out: dict[str, list[float]] = {name: [] for name in readers}
    for done in range(0, max(rounds for _, rounds in readers.values()), 5):
        for name, (read, rounds) in readers.items():
            for _ in range(done, min(done + 5, rounds)):
                start = time.perf_counter()
                value = read()
                out[name].append(time.perf_counter() - start)
                del value
    gc.enable()
    return out


def large_dump(folder: Path, size: str, rounds: int) -> None:
    """Read a large dump with everything that can read one."""
    import onnx
    from onnx_diagnostic.helpers.mini_onnx_builder import (
        create_input_tensors_from_onnx_model,
        create_onnx_model_from_input_tensors,
    )
    from safetensors.torch import load_file, save_file

    path = folder / "dump.onnx"
    model, tokens = build(SIZES[size])
    with (
        torch.no_grad(),
        faststeal.steal_forward(model, submodules=True, dump_file=path, storage_limit=None),
    ):
        model(input_ids=tokens)
    loaded = ours(path)
    tensors = {str(i): t.clone() for i, t in enumerate(tensors_of(loaded))}
    save_file(tensors, folder / "a.safetensors")
    torch.save(tensors, folder / "a.pt")
    # Of the tensors only: it cannot read what it stores of a call with None.
    theirs = str(folder / "theirs.onnx")
    proto = create_onnx_model_from_input_tensors(tensors)
    onnx.save(proto, theirs, save_as_external_data=True, location="theirs.onnx.data")
    count = len(tensors)
    del loaded, tensors, proto
    readers: dict[str, tuple[Callable[[], object], int]] = {
        "faststeal": (lambda: ours(path), rounds),
        "safetensors load_file": (lambda: load_file(folder / "a.safetensors"), rounds),
        "torch.load(mmap=True)": (lambda: torch.load(folder / "a.pt", mmap=True), rounds),
        "torch.load": (lambda: torch.load(folder / "a.pt"), 3),
        "onnx-diagnostic": (lambda: create_input_tensors_from_onnx_model(theirs), 2),
    }
    print(f"{count} tensors, {path.stat().st_size / 1e6:.0f} MB")
    print(f"{'':24}{'median ms':>12}{'min ms':>10}{'us a tensor':>13}{'of safetensors':>16}")
    results = seconds(readers)
    base = statistics.median(results["safetensors load_file"])
    for name, times in results.items():
        median = statistics.median(times)
        print(
            f"{name:24}{1e3 * median:12.2f}{1e3 * min(times):10.2f}"
            f"{1e6 * median / count:13.2f}{median / base:16.3f}"
        )


def many_records(folder: Path, records: int, rounds: int) -> None:
    """Open a dump of many small records, and ask for one."""
    path = folder / "many.onnx"
    writer = Writer(str(path), "{}")
    value = torch.zeros(4)
    for i in range(records):
        value[0] = i
        key = f"model.layers.{i % 32}.mlp/{i // 32}/O"
        writer.write(key, key, '{"tensor":0}', [""], [value], '"training":false')
    writer.close()

    def first_key() -> object:
        return faststeal.load(path)["model.layers.31.mlp", 17, "O"]

    readers: dict[str, tuple[Callable[[], object], int]] = {
        "open": (lambda: faststeal.load(path), rounds),
        "open, read one key": (first_key, rounds),
        "open, list all keys": (lambda: list(faststeal.load(path)), rounds),
    }
    print(f"\n{records} records, {path.stat().st_size / 1e6:.0f} MB, warm, median (min) ms")
    for what, times in seconds(readers).items():
        print(f"{what:24}{1e3 * statistics.median(times):10.2f} ({1e3 * min(times):.2f})")


def main() -> None:
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", choices=SIZES, default="large")
    parser.add_argument("--records", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--dir", type=Path, default=None, help="where files are written")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory(dir=arguments.dir) as folder:
        large_dump(Path(folder), arguments.size, arguments.rounds)
        many_records(Path(folder), arguments.records, arguments.rounds)


if __name__ == "__main__":
    main()
