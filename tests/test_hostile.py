"""A file is hostile until proven otherwise: a file for each rule, which breaks it."""

import onnx
import pytest
import torch

import other_readers as others
from faststeal._core import FormatError, Reader, Writer
from hostile import (
    F4,
    Found,
    X,
    dump,
    floats,
    int64s,
    native,
    record,
    refused,
    with_tensor,
)
from wire import (
    FIXED64,
    HINT,
    INITIALIZER,
    NODE,
    constant,
    entry,
    field,
    graph_of,
    inside,
    model,
    node,
    output,
    tag,
    tensor,
    varint,
)

EXTERNAL = field(14, 1)


def outputs(reader):
    return reader.outputs()


def test_what_is_refused_here_is_read_when_right():
    """The builders make what a reader accepts, or the rest of this file shows nothing."""
    found = Found(dump())
    assert (found.records, found.failures) == ([('{"tensor":0}', [((4,), F4)])], [])
    for_others = model(constant("x", tensor([4], 1, F4)), output("x", [4]))
    onnx.checker.check_model(for_others, full_check=True)
    ((name, value),) = Reader(for_others).outputs()
    assert (name, others.value(value)) == ("x", ((4,), F4))
    assert not Reader(for_others).native


# --- framing

OVERLONG = b"\x80" * 10 + b"\0"
TOO_LARGE = b"\xff" * 9 + b"\x02"


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "expected an ONNX model, found an empty file"),
        (field(1, 10) + field(2, "faststeal"), "expected an ONNX model, found no graph"),
        (b"hello, this is text\n", ""),
        (b"PK\x03\x04" + b"\0" * 100, ""),
        (b"\x93NUMPY\x01\x00v\x00{'descr': '<f4'}", ""),
        (bytes(1000), "expected a field, found number 0"),
        (b"\xff" * 100, "found no tag"),
        (OVERLONG, "found no tag"),
        (tag(1, 0) + OVERLONG, "expected a varint"),
        (tag(1, 0) + TOO_LARGE, "expected a varint"),
        (tag(7) + OVERLONG, "expected a length"),
        (tag(7) + varint(2**64 - 1), r"field 7 has 18446744073709551615 bytes, 0 are left"),
        (tag(7) + varint(2**63) + b"\0" * 50, r"field 7 has 9223372036854775808 bytes, 50"),
        (tag(7) + varint(2**32 - 1) + b"\0" * 50, r"field 7 has 4294967295 bytes, 50 are left"),
        (varint(2**29 << 3 | 2) + b"\0", "found number 536870912"),
        (tag(5, 1) + b"\0" * 7, "expected eight bytes"),
        (tag(5, 5) + b"\0" * 3, "expected four bytes"),
        (tag(5, 3), "found wire type 3"),
        (tag(5, 4), "found wire type 4"),
        (tag(5, 6), "found wire type 6"),
        (tag(5, 7), "found wire type 7"),
        (model() + model(), "expected one graph, found a second"),
        (dump() + field(7, b""), "expected one graph, found a second"),
        (model() + tag(9), "expected a length"),
        (dump(after=tag(7)), "expected a length"),
    ],
)
def test_framing(tmp_path, data, message):
    refused(tmp_path, data, message)


@pytest.mark.parametrize(
    ("inner", "message"),
    [
        (tag(1) + varint(1000), "field 1 has 1000 bytes"),
        (tag(16) + varint(2**40), "field 16 has 1099511627776 bytes"),
        (b"\0", "found number 0"),
        (field(NODE, tag(2) + varint(99)), "field 2 has 99 bytes"),
        (field(NODE, field(5, tag(5) + varint(99))), "field 5 has 99 bytes"),
        (constant("x", tag(9) + varint(99)), "field 9 has 99 bytes"),
        (constant("x", tag(1) + varint(99)), "field 1 has 99 bytes"),
        (field(INITIALIZER, tag(9) + varint(99)), "field 9 has 99 bytes"),
    ],
)
@pytest.mark.parametrize("maker", [native, model])
def test_framing_inside_the_graph(tmp_path, maker, inner, message):
    """A length is that of its own message: what lies behind is not read into it."""
    data = maker(inner, output("x"), after=b"" if maker is native else field(4, b"\0" * 2000))
    refused(tmp_path, data, message, outputs)


def test_a_second_graph_is_not_merged():
    """As protobuf would do, where Netron keeps the last: nobody is to see two contents."""
    first = dump()
    with pytest.raises(FormatError, match="found a second"):
        Reader(first + model(constant("m/0/O", tensor([4], 1, F4[::-1]))))


def test_zeros_behind_a_graph_are_only_a_killed_capture():
    """The one thing that a kill leaves: zeros. Not a text, and not in another's file."""
    assert len(Reader(dump(after=bytes(100)))) == 1
    with pytest.raises(FormatError, match="found number 0"):
        Reader(model(after=bytes(100)))


@pytest.mark.parametrize("junk", [b"PK\x03\x04", b"\x01", b"%PDF-1.7"])
def test_nothing_hides_behind_zeros(junk):
    """A file that is a dump to us and an archive to another."""
    with pytest.raises(FormatError):
        Reader(dump(after=bytes(40) + junk)).record(0)


def test_zeros_behind_a_dump_that_was_closed(tmp_path):
    path = tmp_path / "run.onnx"
    writer = Writer(str(path), "{}")
    writer.close()
    data = path.read_bytes()
    refused(tmp_path, data + bytes(8), "found number 0")


def test_functions_are_refused(tmp_path):
    """A model may define its own `Identity`: who ignores that shows other values."""
    body = field(1, "Identity") + field(4, "x") + field(5, "y") + field(10, "")
    refused(tmp_path, dump(after=field(25, body)), "function")
    refused(tmp_path, model(after=field(25, body)), "function", outputs)


def test_deep_nesting(tmp_path):
    """Nothing recurses: neither messages, nor JSON, nor subgraphs."""
    inner = b""
    for _ in range(2000):
        inner = field(6, field(1, field(5, inner)))
    attribute = field(1, "value") + field(20, 5) + inner
    bad = field(NODE, field(2, "m/0/O") + field(4, "Constant") + field(5, attribute))
    refused(tmp_path, dump(bad), "m/0/O.* is computed by Constant, expected a constant")
    deep = '{"n":1,"tree":' + "[" * 200_000 + "]" * 200_000 + ',"leaves":' + "[" * 200_000 + "}"
    found = Found(native(entry(16, "m/0/O", deep)))
    assert found.records == []
    assert "expected the names of the leaves" in str(found.failures[0])


def test_groups_are_refused(tmp_path):
    group = tag(100, 3) * 5000 + tag(100, 4) * 5000
    refused(tmp_path, model(group), "found wire type 3", outputs)


# --- tensors


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (tensor([4], 1, F4) + field(9, F4), "expected one raw_data in a tensor"),
        (tensor([4], 1, F4[:-1]), r"15 bytes of data, float32 \[4\] needs 16"),
        (tensor([4], 1, F4 + b"\0"), r"17 bytes of data, float32 \[4\] needs 16"),
        (tensor([4], 1), r"0 bytes of data, float32 \[4\] needs 16"),
        (tensor([], 1, F4), r"16 bytes of data, float32 \[\] needs 4"),
        (tensor([0], 1, F4), r"16 bytes of data, float32 \[0\] needs 0"),
        (tensor([0, 2**62, 2**62], 1, F4), r"needs 0"),
        (tensor([5], 23, b"\0\0"), r"2 bytes of data, float4_e2m1fn_x2 \[5\] needs 3"),
        (tensor([4], 1, F4, field(4, F4)), "expected one of raw, typed and external data"),
        (tensor([4], 1, F4, field(5, 1)), "expected one of raw, typed and external data"),
        (tensor([4], 1, None, field(4, F4[:8])), r"8 bytes of data, float32 \[4\] needs 16"),
        (tensor([4], 1, None, field(7, varint(1) * 4)), "field 7 holds no float32"),
        (tensor([4], 7, None, field(7, b"\x80" * 11)), "expected a varint"),
        (tensor([-4], 1, F4), "expected a size, found a negative one"),
        (tensor([], 1, F4, field(1, varint(-1))), "expected a size, found a negative one"),
        (tensor([], 1, F4, field(1, b"\x80")), "expected a varint"),
        (tensor([2**32, 2**32], 1, F4), r"the shape .* overflows"),
        (tensor([2**62], 11, F4), r"the shape .* overflows"),
        (tensor([2**62, 2**62, 0], 1, b""), r"the shape .* overflows"),
        (tensor([2**50], 1, F4), r"16 bytes of data, float32 \[1125899906842624\] needs"),
        (tensor([1] * 65, 1, F4[:4]), "expected at most 64 dimensions"),
        (tensor([], 1, F4[:4], field(1, varint(1) * 65)), "expected at most 64 dimensions"),
        (tensor([4], 0, F4), "unknown element type 0"),
        (tensor([4], 27, F4), "unknown element type 27"),
        (tensor([4], 2**40 + 1, F4), "unknown element type 1099511627777"),
        (tensor([4], -1, F4), "unknown element type 18446744073709551615"),
        (tensor([4], 9, b"\0\1\2\0"), "expected 0 or 1 in a bool tensor"),
        (tensor([4], 9, b"\0\1\xff\0"), "expected 0 or 1 in a bool tensor"),
        (tensor([1], 9, None, field(5, 2)), "expected 0 or 1 in a bool tensor"),
        (tensor([1], 8, None, field(6, "text")), "expected tensors"),
    ],
)
def test_tensors(tmp_path, value, message):
    refused(tmp_path, with_tensor(value), message)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (tensor([2], 8, None, field(6, "text")), r"1 strings for the shape \[2\]"),
        (tensor([1], 8, b"text"), r"0 strings for the shape \[1\]"),
        (tensor([2**63 - 1, 2**63 - 1], 8, None, field(6, "text")), "1 strings for the shape"),
    ],
)
def test_strings(tmp_path, value, message):
    refused(tmp_path, model(constant("x", value), output("x", [1], 8)), message, outputs)


def test_rank_64_is_read():
    found = Found(with_tensor(tensor([1] * 64, 1, F4[:4])))
    assert (found.records[0][1], found.failures) == ([((1,) * 64, F4[:4])], [])


def test_zero_sizes_beside_huge_ones():
    """No element, but strides that overflow."""
    found = Found(with_tensor(tensor([0, 2**62, 2**62], 1, b"")))
    assert (found.records[0][1], found.failures) == ([((0, 2**62, 2**62), b"")], [])


def test_two_tensors_in_an_attribute(tmp_path):
    value = field(5, tensor([4], 1, F4))
    attribute = field(1, "value") + field(20, 4) + value + value
    bad = field(NODE, field(2, "m/0/O") + field(4, "Constant") + field(5, attribute))
    refused(tmp_path, dump(bad), "expected one tensor in an attribute")


@pytest.mark.parametrize("number", [1, 2, 4])
def test_names_have_a_limit(tmp_path, number):
    bad = field(NODE, field(number, b"n" * 65537))
    refused(tmp_path, dump(bad), "a name of 65537 bytes, expected 65536")


@pytest.mark.parametrize(
    ("key", "path", "value"),
    [
        ("m/0/O", "a" * 65_530, floats(3)),
        ("m/0/O", "a" * 70_000, floats(3)),
        ("m" * 70_000 + "/0/O", "x", floats(3)),
        ("m/0/O", "a" * 65_525, floats(1, 2)),  # an alias, whose shape has a longer name
        ("m/0/O", "x", torch.zeros([1] * 64)),
        ("m/0/O", "x", torch.zeros([1] * 65)),
    ],
)
def test_what_is_written_can_be_read(tmp_path, key, path, value):
    """The writer knows the reader's limits: it refuses, and the dump goes on."""
    file = str(tmp_path / "run.onnx")
    writer = Writer(file, "{}")
    writer.write("m/9/O", "m/9/O", '{"tensor":0}', [""], [floats(2)], "")
    try:
        writer.write(key, key, '{"tensor":0}', [path], [value], "")
    except (ValueError, TypeError):
        stored = 1
    else:
        stored = 2
    writer.close()
    found = Found(file)
    assert (len(found.records), found.failures) == (stored, [])
    assert found.reader.verify() == []


# --- nodes


def values(*graph):
    return native(record("m/0/O", "y"), *graph, output("y", [4]), in_place=False)


@pytest.mark.parametrize(
    ("graph", "message"),
    [
        ((node("Identity", ["y"], "y"),), '\'y"?.*behind more than 64 nodes|"y" is behind'),
        ((node("Identity", ["z"], "y"), node("Identity", ["y"], "z")), "behind more than 64"),
        ((node("Reshape", ["y", "y"], "y"),), "behind more than 64 nodes"),
        ((node("SequenceConstruct", ["y"], "y"),), "behind more than 64 nodes"),
        (
            tuple(node("Identity", [f"i{i + 1}"], f"i{i}" if i else "y") for i in range(70)),
            "behind more than 64 nodes",
        ),
        ((node("Identity", ["nobody"], "y"),), 'nothing defines "nobody"'),
        ((X,), 'nothing defines "y"'),
        ((X, node("Identity", [], "y")), "computed by Identity"),
        ((X, node("Identity", ["x", "x"], "y")), "computed by Identity"),
        ((X, node("Add", ["x", "x"], "y")), "computed by Add, expected a constant"),
        ((X, node("If", ["x"], "y")), "computed by If, expected a constant"),
        ((X, node("Identity", ["x"], "y", field(7, "mine"))), "expected a constant"),
        ((constant("y", tensor([4], 1, F4)) * 2,), '"y" is defined twice'),
        ((constant("y", tensor([4], 1, F4)), node("Identity", ["y"], "y")), "is defined twice"),
        (
            (
                constant("y", tensor([4], 1, F4)),
                field(INITIALIZER, tensor([4], 1, F4, field(8, "y"))),
            ),
            "is defined twice",
        ),
        ((node("SequenceEmpty", [], "y"),), "expected tensors"),
        ((X, node("SequenceConstruct", ["x"], "y")), "expected tensors"),
        (
            (X, node("SequenceEmpty", [], "s"), node("SequenceConstruct", ["s"], "y")),
            "expected a tensor as input",
        ),
    ],
)
def test_nodes(tmp_path, graph, message):
    refused(tmp_path, values(*graph), message)


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        (tensor([1], 7, int64s(5)), r"\[4\] cannot have the shape \[5\]"),
        (tensor([1], 7, int64s(-1)), r"\[4\] cannot have the shape \[-1\]"),
        (tensor([2], 7, int64s(-2, -2)), r"\[4\] cannot have the shape \[-2, -2\]"),
        (tensor([2], 7, int64s(2**62, 4)), r"\[4\] cannot have the shape"),
        (tensor([0], 7, b""), r"\[4\] cannot have the shape \[\]"),
        (tensor([1], 6, b"\4\0\0\0"), "expected a list of int64"),
        (tensor([66], 7, int64s(4, *[1] * 65)), r"\[4\] cannot have the shape \[4, 1, 1"),
        (tensor([1, 1], 7, int64s(4)), "expected a list of int64"),
        (tensor([], 7, int64s(4)), "expected a list of int64"),
    ],
)
@pytest.mark.parametrize("place", [constant, lambda n, t: field(INITIALIZER, t + field(8, n))])
def test_reshape(tmp_path, place, shape, message):
    data = values(X, place("s", shape), node("Reshape", ["x", "s"], "y"))
    refused(tmp_path, data, message)


def test_reshape_where_it_stands(tmp_path):
    """In place, the output's own shape is what counts, and it must hold as many elements."""
    data = native(
        record("m/0/I", "x"),
        output("x", [4]),
        X,
        record("m/0/O", "y"),
        output("y", [5]),
        constant("y//shape", tensor([1], 7, int64s(5))),
        node("Reshape", ["x", "y//shape"], "y", tag(HINT, FIXED64) + bytes(8)),
    )
    (first,) = inside(data, graph_of(data), NODE)[:1]
    data = data.replace(
        tag(HINT, FIXED64) + bytes(8), tag(HINT, FIXED64) + first.tag_at.to_bytes(8, "little")
    )
    refused(tmp_path, data, r"\[4\] cannot have the shape \[5\]", lambda r: r.record(1))


# --- records


def one_record(text, key="m/0/O"):
    return native(entry(16, key, text), output("m/0/O", [4]), constant("m/0/O", tensor([4], 1, F4)))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "expected the number of tensors"),
        ("{}", "expected the number of tensors"),
        ('{"n":x,"tree":1}', "expected the number of tensors"),
        ('{"n":-1,"tree":1}', "expected the number of tensors"),
        ('{"n":1e3,"tree":1}', "expected the number of tensors"),
        ('{"n":99999999999999999999999,"tree":1}', "expected the number of tensors"),
        ('{"n":1,"leaves":[]}', "expected a tree"),
        ('{"n":1,"tree":', "expected a tree"),
        ('{"n":1,"tree":{"a', "expected a tree"),
        ('{"n":1,"tree":"\\', "expected a tree"),
        ('{"n":2,"tree":{}}', "expected the names of the leaves"),
        ('{"n":2,"tree":{},"leaves":[{"name":"m/0/O"}]}', "the number of tensors is not that"),
        ('{"n":18446744073709551615,"tree":{},"leaves":[]}', "the number of tensors is not that"),
        ('{"n":2,"tree":{},"leaves":[{"name":1},{"name":2}]}', "expected the names"),
        ('{"n":2,"tree":{},"leaves":[{"name":"m/0/O"},{"name":"q"}]}', 'nothing defines "q"'),
    ],
)
def test_descriptions(tmp_path, text, message):
    refused(tmp_path, one_record(text), message)


@pytest.mark.parametrize(
    ("data", "call"),
    [
        (native(entry(16, b"m\xff/0/O", "{}")), len),
        (one_record(b'{"n":1,"tree":{"a":"\xff"},"leaves":[]}'), lambda r: r.info(0)),
        (one_record(b'{"n":1,"tree":{"a":"\xff"},"leaves":[]}'), lambda r: r.record(0)),
        (native(provenance=b'{"a":"\xff"}'), len),
        (
            native(
                record("m/0/O", "m/0/O"),
                constant(
                    "m/0/O",
                    tensor([4], 1, None, EXTERNAL, entry(13, "location", b"\xff")),
                ),
            ),
            lambda r: r.record(0),
        ),
    ],
)
def test_text_is_utf8(tmp_path, data, call):
    refused(tmp_path, data, "expected UTF-8", call)


def test_names_that_are_no_utf8_are_names(tmp_path):
    """Output names are compared as bytes: they can be listed, not mistaken."""
    data = model(constant(b"\xff", tensor([4], 1, F4)), output(b"\xff", [4]))
    ((name, value),) = Reader(data).outputs()
    assert (name, others.raw(value)) == ("�", F4)


@pytest.mark.parametrize("key", ["m/O", "m/x/O", "m/-1/O", "/", "m/1.5/O", "m/0/O/", "theirs"])
def test_what_has_not_a_key_of_three_parts_is_no_record(key):
    """Other tools may add what they know."""
    found = Found(native(record(key, "m/0/O"), record("m/0/O", "m/0/O")))
    assert found.reader.keys() == [("m", 0, "O")]


def test_a_key_that_stands_for_two():
    """Opening does not compare keys; `verify` does, and the first is what is found."""
    value = constant("m/0/O", tensor([4], 1, F4))
    data = native(record("m/0/O", "m/0/O"), output("m/0/O", [4]), value, record("m/0/O"))
    found = Found(data)
    assert found.reader.find("m", 0, "O") == 0
    assert "its key stands for another too" in "".join(found.reader.verify())


def test_an_unknown_index_is_an_index_error():
    reader = Reader(dump())
    for index in (1, 10**9):
        with pytest.raises(IndexError, match=rf"record {index} of 1"):
            reader.record(index)
    with pytest.raises(OverflowError):
        reader.record(-1)
