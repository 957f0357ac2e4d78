"""A dump, opened by everything that is not ours; each returns `{output: (dims, bytes)}`.

Dims count elements; bytes are packed as ONNX packs them, whatever the library makes of them.
"""

import ctypes
import json
import subprocess

import numpy as np
import onnx
import onnx.reference
import onnx_ir
import onnxruntime as ort
import torch

MARKER = "faststeal_format"

# Types that onnxruntime hands to numpy with the values they have; of float4 it only loads.
NUMPY = {
    torch.bool,
    torch.int8,
    torch.uint8,
    torch.int16,
    torch.uint16,
    torch.int32,
    torch.uint32,
    torch.int64,
    torch.uint64,
    torch.float16,
    torch.float32,
    torch.float64,
}

WITHOUT_NUMPY = {
    "bfloat16",
    "float8e4m3fnuz",
    "float8e5m2",
    "float8e5m2fnuz",
    "float8e8m0",
    "float4e2m1",
}


def raw(tensor):
    """The bytes of the logical elements, row-major."""
    if tensor.numel() == 0:
        return b""
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def dims_of(tensor):
    """Sizes as ONNX counts them: torch packs two values of float4 into one."""
    dims = list(tensor.shape)
    if tensor.dtype == torch.float4_e2m1fn_x2:
        dims[-1] *= 2
    return tuple(dims)


def value(tensor):
    return dims_of(tensor), raw(tensor)


def of_array(array):
    """ml_dtypes has one byte for an element of four bits."""
    if array.dtype.name == "float4_e2m1fn":
        nibbles = array.view(np.uint8).reshape(-1)
        nibbles = np.append(nibbles, np.zeros(nibbles.size % 2, np.uint8))
        return array.shape, (nibbles[::2] | nibbles[1::2] << 4).tobytes()
    return array.shape, array.tobytes()


def of_proto(proto, inputs):
    """What the nodes of a dump give, from the raw data that stand in the message."""
    values = {}
    for node in proto.graph.node:
        if node.op_type == "Constant":
            (attribute,) = node.attribute
            values[node.output[0]] = (tuple(attribute.t.dims), attribute.t.raw_data)
        elif node.op_type == "Identity":
            values[node.output[0]] = values[node.input[0]]
        else:
            assert node.op_type == "Reshape"
            data, shape = (values[name] for name in node.input)
            values[node.output[0]] = (tuple(np.frombuffer(shape[1], np.int64).tolist()), data[1])
    return {name: values[name] for name in inputs}


def names_of(proto):
    return [output.name for output in proto.graph.output if output.name != MARKER]


def load(path):
    proto = onnx.load(path)
    for output in proto.graph.output:
        assert output.type.tensor_type.HasField("shape")
    return of_proto(proto, names_of(proto))


def check(path):
    onnx.checker.check_model(path, full_check=True)
    proto = onnx.load(path)
    declared = {
        o.name: tuple(d.dim_value for d in o.type.tensor_type.shape.dim) for o in proto.graph.output
    }
    inferred = onnx.shape_inference.infer_shapes(proto, strict_mode=True, data_prop=True)
    onnx.checker.check_model(inferred)
    values = of_proto(proto, names_of(proto))
    assert {name: dims for name, (dims, _) in values.items()} | {MARKER: ()} == declared
    return values


def evaluate(path):
    session = onnx.reference.ReferenceEvaluator(path)
    values = dict(zip(session.output_names, session.run(None, {}), strict=True))
    assert values.pop(MARKER) == 1
    return {name: of_array(np.asarray(array)) for name, array in values.items()}


def session_of(source):
    options = ort.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 3
    return ort.InferenceSession(source, options, providers=["CPUExecutionProvider"])


def of_ort_value(ort_value):
    size = ort_value.tensor_size_in_bytes()
    found = ctypes.string_at(ort_value.data_ptr(), size) if size else b""
    return tuple(ort_value.shape()), found


def runtime(source):
    """By name and all at once; as OrtValues, which exist for every type."""
    session = session_of(source)
    names = [o.name for o in session.get_outputs()]
    assert names[0] == MARKER
    float4 = {o.name for o in session.get_outputs() if o.type == "tensor(float4e2m1)"}
    names = [name for name in names[1:] if name not in float4]
    together = session.run_with_ort_values(names, {}) if names else []
    values = dict(zip(names, map(of_ort_value, together), strict=True))
    for name in names[:: max(1, len(names) // 8)]:
        (alone,) = session.run_with_ort_values([name], {})
        assert of_ort_value(alone) == values[name]
    return values


def runtime_numpy(source):
    """What numpy can hold, as a person would ask for it."""
    session = session_of(source)
    lost = {
        "bfloat16",
        "float8e4m3fnuz",
        "float8e5m2",
        "float8e5m2fnuz",
        "float8e8m0",
        "float4e2m1",
    }
    names = [o.name for o in session.get_outputs() if o.type[7:-1] not in lost]
    values = dict(zip(names, session.run(names, {}), strict=True))
    assert values.pop(MARKER) == 1
    if len(names) == len(session.get_outputs()):
        everything = session.run(None, {})
        assert [a.tobytes() for a in everything[1:]] == [a.tobytes() for a in values.values()]
    return {name: of_array(array) for name, array in values.items()}


def ir(path):
    """onnx-ir turns no node into a value: aliases are followed here."""
    graph = onnx_ir.load(path).graph
    values = {}
    for node in graph:
        name = node.outputs[0].name
        if node.op_type == "Constant":
            tensor = node.attributes["value"].as_tensor()
            values[name] = (tuple(tensor.shape.numpy()), tensor.tobytes())
        else:
            data = values[node.inputs[0].name]
            dims = tuple(node.outputs[0].shape.numpy())
            values[name] = (dims, data[1])
    return {o.name: values[o.name] for o in graph.outputs if o.name != MARKER}


NETRON = r"""
import * as fs from 'fs';
import * as path from 'path';
import { pathToFileURL } from 'url';
const [folder, file] = process.argv.slice(2);
const load = (name) => import(pathToFileURL(path.join(folder, name)).href);
const [base, protobuf, onnx] = await Promise.all(['base.js', 'protobuf.js', 'onnx.js'].map(load));
const bytes = new Uint8Array(fs.readFileSync(file));
// What the viewer gives its readers; `tags` is its slow way of telling what a file is.
const context = {
  identifier: path.basename(file),
  stream: new base.BinaryStream(bytes),
  tags: async () => { throw new Error('not known by its first bytes'); },
  peek: async () => null,
  require: (name) => load(`${name}.js`),
  asset: async (name) => fs.readFileSync(path.join(folder, name), 'utf-8'),
  read: async () => protobuf.BinaryReader.open(new base.BinaryStream(bytes)),
  set(type, value) { this.type = type; this.value = value; return value; },
};
const factory = new onnx.ModelFactory();
await factory.match(context);
const model = await factory.open(context);
const [graph] = model.modules;
const constants = graph.nodes.filter((node) => node.type.name === 'Constant').map((node) => {
  const tensor = node.attributes[0].value;
  const values = tensor.location ? [] : Array.from(tensor.values || []);
  return [tensor.type.shape.dimensions.map(Number), values, tensor.location || ''];
});
const outputs = graph.outputs.map((output) => output.name);
console.log(JSON.stringify({ producer: model.producer, outputs, constants }));
"""


def netron(folder, path):
    """What Netron's own reader tells; `folder` has its JavaScript, as modules."""
    script = folder / "faststeal.mjs"
    script.write_text(NETRON)
    command = ["node", str(script), str(folder), str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)
