"""Files made by hand, nearly right, and what a reader may do with them."""

import json
import re

import numpy as np
import pytest
import torch

import other_readers as others
from faststeal._core import FormatError, Reader
from wire import constant, entry, field, output, tensor

F4 = np.arange(4, dtype=np.float32).tobytes()
MODES = ("private", "readonly", "pread")


def int64s(*values):
    return np.array(values, np.int64).tobytes()


def floats(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def record(key, *names, tree='{"tensor":0}'):
    leaves = json.dumps([{"name": name} for name in names])
    return entry(16, key, f'{{"n":{len(names)},"tree":{tree},"leaves":{leaves}}}')


def native(*graph, provenance="{}", after=b"", in_place=True):
    """A dump; in place means that a filler stands before the graph, as the writer leaves it."""
    filler = field(15999, b"\0" * 4) if in_place else b""
    head = field(1, 10) + field(2, "faststeal") + field(8, field(2, 21)) + filler
    graph = field(2, "g") + entry(16, "faststeal", provenance) + b"".join(graph)
    return head + field(7, graph) + after


def dump(*parts, **options):
    """A dump of one record, `m/0/O`, of one tensor of four floats."""
    parts = parts or (constant("m/0/O", tensor([4], 1, F4)),)
    return native(record("m/0/O", "m/0/O"), output("m/0/O", [4]), *parts, **options)


X = constant("x", tensor([4], 1, F4))


def with_tensor(value):
    return dump(constant("m/0/O", value))


def tolerant(source, call, *args):
    """The call's result, or the FormatError that says where; anything else fails."""
    try:
        return call(*args)
    except FormatError as error:
        check_message(source, error)
        return error


def check_message(source, error):
    name = re.escape(source) if isinstance(source, str) else "<bytes>"
    if isinstance(source, str) and source.endswith(".onnx"):
        # In a dump of several files it may be another of them.
        name = re.escape(source[:-5]) + r"(\.\d+)?\.onnx"
    assert re.match(rf"{name}: at byte \d+: ", str(error)), str(error)


class Found:
    """Everything that a reader can be asked, and the errors that came of it."""

    def __init__(self, source, mode="private"):
        self.source, self.failures, self.records = source, [], []
        self.reader = self.attempt(Reader, source, mode)
        self.opened = self.reader is not None
        if not self.opened:
            return
        keys = self.attempt(self.reader.keys) or []
        assert len(self.reader.skipped()) == len(self.reader)
        assert isinstance(self.reader.provenance, str)
        for i in range(len(self.reader)):
            self.attempt(self.reader.info, i)
            found = self.attempt(self.reader.record, i)
            if found is not None:
                # Reads every byte: what points outside would crash.
                self.records.append((found[0], [others.value(t) for t in found[1]]))
        for key in keys:
            assert self.attempt(self.reader.find, *key) != -1
        for _, value in self.attempt(self.reader.outputs) or []:
            if isinstance(value, torch.Tensor):
                others.raw(value)
        assert all(isinstance(line, str) for line in self.reader.verify())

    def attempt(self, call, *args):
        result = tolerant(self.source, call, *args)
        if isinstance(result, FormatError):
            self.failures.append(result)
            return None
        return result


def refused(tmp_path, data, message, call=None):
    """Says where and what: from a path in each mode, and from bytes."""
    path = tmp_path / "bad.onnx"
    path.write_bytes(data)
    call = call or (lambda reader: reader.record(0))
    for source, mode in [*((str(path), mode) for mode in MODES), (data, "private")]:
        name = re.escape(source) if isinstance(source, str) else "<bytes>"
        with pytest.raises(FormatError, match=rf"^{name}: at byte \d+: .*{message}") as caught:
            call(Reader(source, mode))
        at = int(re.search(r"at byte (\d+)", str(caught.value)).group(1))
        assert 0 <= at <= len(data)
