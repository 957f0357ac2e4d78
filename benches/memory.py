"""What a capture keeps in memory: anonymous bytes a unique tensor, and for many bytes streamed.

python benches/memory.py                # a million unique tensors
python benches/memory.py --records 200000 --gib 2
"""

import argparse
import tempfile
from pathlib import Path

import torch
from capture import PeakMemory

from faststeal._core import Writer


def unique_tensors(folder: Path, records: int) -> None:
    """Anonymous memory as the number of unique tensors grows."""
    now = PeakMemory._now  # noqa: SLF001
    path = folder / "unique.onnx"
    writer = Writer(str(path), "{}")
    value = torch.zeros(8, dtype=torch.int64)
    start = now()
    at_100k = 0
    print(f"{'unique tensors':>16}{'MiB added':>12}{'bytes a tensor beyond 100,000':>32}")
    with PeakMemory() as memory:
        for i in range(records):
            value[0] = i
            key = f"layers.{i % 100}/{i // 100}/O"
            writer.write(key, key, '{"tensor":0}', [""], [value], "")
            if i + 1 == 100_000:
                at_100k = now() - start
            if (i + 1) % 100_000 == 0:
                added = now() - start
                beyond = (added - at_100k) / (i + 1 - 100_000) if i >= 100_000 else 0.0
                print(f"{i + 1:16}{added / 2**20:12.1f}{beyond:32.1f}")
        writer.close()
    beyond = (memory.peak - start - at_100k) / max(records - 100_000, 1)
    print(f"{'peak, closing':>16}{(memory.peak - start) / 2**20:12.1f}{beyond:32.1f}")
    for file in folder.iterdir():
        file.unlink()


def many_bytes(folder: Path, gib: int) -> None:
    """Anonymous memory while large tensors are streamed, contiguous and not."""
    path = folder / "bytes.onnx"
    writer = Writer(str(path), "{}")
    value = torch.zeros(64, 1 << 18)
    with PeakMemory() as memory:
        start = memory.peak
        for i in range(gib * 16):
            value[0, 0] = i
            tensor = value.t() if i % 2 else value
            key = f"m/{i}/O"
            writer.write(key, key, '{"tensor":0}', [""], [tensor], "")
        writer.close()
    print(
        f"{gib} GiB streamed: {(memory.peak - start) / 2**20:.1f} MiB of memory added at the peak"
    )


def main() -> None:
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--gib", type=int, default=3)
    parser.add_argument("--dir", type=Path, default=None, help="where files are written")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=arguments.dir) as folder:
        unique_tensors(Path(folder), arguments.records)
        many_bytes(Path(folder), arguments.gib)


if __name__ == "__main__":
    main()
