"""Protobuf by hand, for tests that must see or make what a library would not."""

from typing import NamedTuple

VARINT, FIXED64, LEN, FIXED32 = 0, 1, 2, 5
FILLER = 15999
INDEX = 15998
HINT = 15997
GRAPH = 7
NODE, GRAPH_NAME, INITIALIZER, OUTPUT, GRAPH_METADATA = 1, 2, 5, 12, 16
RAW_DATA = 9


def varint(value, width=0):
    """`width` pads it: more bytes than it needs."""
    out = bytearray()
    value &= (1 << 64) - 1
    while value >= 0x80 or len(out) + 1 < width:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def tag(number, wire=LEN):
    return varint(number << 3 | wire)


def field(number, value, width=0):
    """A field: text and bytes with their length, numbers as varints."""
    if isinstance(value, int):
        return tag(number, VARINT) + varint(value)
    value = value.encode() if isinstance(value, str) else value
    return tag(number) + varint(len(value), width) + value


def message(*parts):
    return b"".join(parts)


def entry(number, key, value):
    return field(number, field(1, key) + field(2, value))


def tensor(dims=(), dtype=1, raw=None, *rest):
    out = message(*(field(1, dim) for dim in dims), field(2, dtype), *rest)
    return out if raw is None else out + field(RAW_DATA, raw)


def constant(name, value):
    """A Constant node; `value` is a TensorProto."""
    attribute = field(1, "value") + field(20, 4) + field(5, value)
    return field(NODE, field(2, name) + field(4, "Constant") + field(5, attribute))


def node(op, inputs, output, *rest):
    inputs = message(*(field(1, name) for name in inputs))
    return field(NODE, inputs + field(2, output) + field(4, op) + message(*rest))


def output(name, dims=(), dtype=1):
    shape = message(*(field(1, field(1, dim)) for dim in dims))
    return field(OUTPUT, field(1, name) + field(2, field(1, field(1, dtype) + field(2, shape))))


def model(*graph, before=b"", after=b"", name="g"):
    """Any ONNX model."""
    head = field(1, 10) + field(8, field(2, 21))
    return head + before + field(GRAPH, field(GRAPH_NAME, name) + message(*graph)) + after


class Field(NamedTuple):
    number: int
    wire: int
    tag_at: int
    start: int
    end: int
    value: int


def read_varint(data, at):
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at


def fields(data, start=0, end=None):
    """The fields between two offsets; ValueError where they do not fill them exactly."""
    end = len(data) if end is None else end
    out = []
    while start < end:
        at = start
        key, start = read_varint(data, at)
        number, wire, value = key >> 3, key & 7, 0
        if wire == VARINT:
            begin = start
            value, start = read_varint(data, start)
        elif wire == LEN:
            size, begin = read_varint(data, start)
            start = begin + size
        elif wire in {FIXED64, FIXED32}:
            begin, start = start, start + (8 if wire == FIXED64 else 4)
        else:
            raise ValueError(f"wire type {wire} at {at}")
        out.append(Field(number, wire, at, begin, start, value))
    if start != end:
        raise ValueError(f"a field ends at {start}, its message at {end}")
    return out


def inside(data, outer, *numbers):
    """Fields of these numbers, one level of nesting each."""
    found = [outer]
    for number in numbers:
        found = [f for o in found for f in fields(data, o.start, o.end) if f.number == number]
    return found


def whole(data):
    return Field(0, LEN, 0, 0, len(data), 0)


def graph_of(data):
    (graph,) = inside(data, whole(data), GRAPH)
    return graph


def raw_data(data):
    """The `raw_data` of every Constant, in order."""
    return inside(data, graph_of(data), NODE, 5, 5, RAW_DATA)
