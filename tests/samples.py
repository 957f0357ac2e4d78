"""Dumps with all that one can hold, and what every reader has to find in them."""

import json

import numpy as np
import pytest
import torch

import other_readers as others
from faststeal._core import Writer

DTYPES = {
    torch.bool: 9,
    torch.int8: 3,
    torch.uint8: 2,
    torch.int16: 5,
    torch.uint16: 4,
    torch.int32: 6,
    torch.uint32: 12,
    torch.int64: 7,
    torch.uint64: 13,
    torch.float16: 10,
    torch.bfloat16: 16,
    torch.float32: 1,
    torch.float64: 11,
    torch.float8_e4m3fn: 17,
    torch.float8_e4m3fnuz: 18,
    torch.float8_e5m2: 19,
    torch.float8_e5m2fnuz: 20,
    torch.float8_e8m0fnu: 24,
    torch.float4_e2m1fn_x2: 23,
}


def of(dtype, *shape, seed=0):
    """All bit patterns in turn: NaNs with payloads, infinities, subnormals."""
    count = int(np.prod(shape))
    if dtype == torch.bool:
        return (torch.arange(count) % 3 == seed % 3).reshape(shape)
    pattern = (torch.arange(count * dtype.itemsize) * 37 + seed * 11) % 256
    return pattern.to(torch.uint8).view(dtype).reshape(shape)


def floats(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


class Base(torch.nn.Module):
    """Rank-4 weights in channels-last order."""

    weight = floats(2, 3, 4, 5).contiguous(memory_format=torch.channels_last)


def same_bytes(dtype):
    """Stored once where aliases exist: another shape, the same again, and in a later record."""
    first = {"a": of(dtype, 2, 6), "b": of(dtype, 2, 6), "c": of(dtype, 3, 4), "d": of(dtype, 12)}
    return {
        f"{dtype}/0/I": first,
        f"{dtype}/0/O": {"": of(dtype, 2, 6), "flat": of(dtype, 1, 12, 1)},
    }


STRIDED = floats(40, 50, 60)

# By the key of a record: `{path: tensor}`.
CASES = {
    "dtypes": {k: v for dtype in DTYPES for k, v in same_bytes(dtype).items()},
    "float4": same_bytes(torch.float4_e2m1fn_x2),
    "shapes": {
        "m/0/I": {
            "scalar": torch.tensor(3.5),
            "again": torch.tensor(3.5),
            "one": torch.tensor([3.5]),
            "ones": torch.tensor([[[3.5]]]),
            "int": torch.tensor(7),
            "ints": torch.tensor([[7]]),
            "back": torch.tensor(7).reshape(()),
            "rank6": floats(2, 1, 3, 1, 2, 2),
            "rank10": floats(*[1, 2] * 5),
            "true": torch.tensor(True),
        },
        "m/0/O": {"": torch.tensor([3.5])},
        "m/1/O": {"": torch.tensor(3.5)},
    },
    "empty": {
        "m/0/I": {
            "none": torch.empty(0),
            "rows": torch.empty(0, 5),
            "middle": torch.empty(2, 0, 3),
            "again": torch.empty(2, 0, 3),
            "ints": torch.empty(0, dtype=torch.int64),
            "halves": torch.empty(3, 0, dtype=torch.bfloat16),
            "bools": torch.empty(0, dtype=torch.bool),
            "float8": torch.empty(0, 2, dtype=torch.float8_e5m2),
        }
    },
    "layouts": {
        "m/0/I": {
            "transposed": floats(3, 5).T,
            "permuted": STRIDED.permute(2, 0, 1),
            "steps": STRIDED[::3, 1::2, 5:40:7],
            "offset": floats(100)[3:20],
            "expanded": floats(1, 7, 1).expand(3, 7, 4),
            "zero strides": torch.tensor(1.5).expand(5, 6),
            "channels last": Base.weight,
            "its plain twin": Base.weight.contiguous(),
            "diagonal": floats(9, 9).diagonal(),
            "windows": floats(20).unfold(0, 5, 2),
            "bytes": of(torch.uint8, 30, 40).T,
            "doubles": floats(30, 40).double().T,
            "unaligned": torch.frombuffer(
                bytearray(range(1, 82)), dtype=torch.int64, offset=1, count=10
            ),
        },
        "m/0/O": {"grad": floats(3, 3).requires_grad_().T},
    },
    "names": {
        "modèle.层[0]/0/I": {"args.0": floats(2), "naïve ключ": floats(3), "🙂": floats(4)},
        "a b  c/0/I": {" ": floats(5), "quo\"te'": floats(6), "back\\slash": floats(7)},
        "/0/I": {"x": floats(8)},
        "a/b/c/0/O": {"": floats(9), "p%2Fq": floats(10), "tab\t": floats(11)},
        "n" * 3000 + "/0/O": {"y" * 3000: floats(12)},
        "nul\0/0/O": {"": floats(13)},
    },
    "nothing": {"m/0/I": {}, "m/0/O": {}, "m/1/I": {"": floats(3)}, "m/1/E": {}},
    "no records": {},
    "large": {
        "m/0/I": {"x": floats(600, 500), "small": floats(5), "y": floats(1 << 18, seed=1)},
        "m/0/O": {
            "x": floats(600, 500),
            "flat": floats(600, 500).reshape(-1),
            "z": floats(1200, 1300).T,
            "under": of(torch.uint8, (1 << 20) - 1),
            "over": of(torch.uint8, 1 << 20),
        },
    },
    "many": {
        f"layer.{i % 7}/{i // 7}/{kind}": {"x": floats(8, seed=i), "y": floats(5, seed=i % 3)}
        for i in range(70)
        for kind in "IO"
    },
    "types": {
        "m/0/I": {str(i): of(dtype, 4, 2) for i, dtype in enumerate(DTYPES)},
        "m/0/O": {str(i): of(dtype, 4, 2) for i, dtype in enumerate(DTYPES)},
    },
}

PLACES = {"inline": {}, "external": {"external": True}, "mixed": {"inline_limit": 64}}


def value_name(key, path):
    key = "./0/I" if key == "/0/I" else key
    return f"{key}/{path}" if path else key


def write(writer, records):
    for key, tensors in records.items():
        tree = json.dumps([{"tensor": i} for i in range(len(tensors))])
        paths = list(tensors)
        prefix = value_name(key, "")
        assert writer.write(key, prefix, tree, paths, list(tensors.values()), "") is None


def expected(records):
    return {
        value_name(key, path): others.value(tensor)
        for key, tensors in records.items()
        for path, tensor in tensors.items()
    }


def split(key):
    name, iteration, kind = key.rsplit("/", 2)
    return name, int(iteration), kind


def check_reader(reader, records):
    """Bit for bit, dtype and shape, by position and by key."""
    assert reader.native
    assert reader.keys() == [split(key) for key in records]
    assert len(reader) == len(records)
    for i, (key, tensors) in enumerate(records.items()):
        assert reader.find(*split(key)) == i
        tree, found = reader.record(i)
        assert json.loads(tree) == [{"tensor": i} for i in range(len(tensors))]
        assert len(found) == len(tensors)
        for (path, was), now in zip(tensors.items(), found, strict=True):
            assert (now.dtype, now.shape) == (was.dtype, was.shape), path
            assert others.raw(now) == others.raw(was), path
            assert now.is_contiguous()
            assert not now.requires_grad
            assert now.untyped_storage().nbytes() == len(others.raw(was))
        leaves = json.loads(reader.info(i))["leaves"]
        assert [leaf["name"] for leaf in leaves] == [value_name(key, path) for path in tensors]
        assert [leaf["dtype"] for leaf in leaves] == [str(t.dtype)[6:] for t in tensors.values()]
        assert [leaf["shape"] for leaf in leaves] == [list(t.shape) for t in tensors.values()]
    assert reader.verify() == []


class Dumps:
    """Each dump is written once: closed, or while its writer is open."""

    def __init__(self, folder):
        self.folder, self.paths, self.writers = folder, {}, []

    def get(self, name, place, live):
        key = (name, place, live)
        if key not in self.paths:
            folder = self.folder / f"{len(self.paths)}"
            folder.mkdir()
            path = str(folder / "run.onnx")
            writer = Writer(path, '{"note": "é"}', **PLACES[place])
            write(writer, CASES[name])
            if live:
                self.writers.append(writer)
            else:
                writer.close()
            self.paths[key] = path
        return self.paths[key]


by_case = pytest.mark.parametrize("name", CASES)
by_place = pytest.mark.parametrize("place", PLACES)
by_life = pytest.mark.parametrize("live", [False, True], ids=["closed", "live"])
