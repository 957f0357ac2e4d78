"""The dump is a model: read it with onnx alone, and with onnxruntime where it is installed."""

import importlib.util

import numpy as np
import onnx
import torch

import faststeal as fs

model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.GELU())
with fs.steal_forward(("net", model), submodules=True, dump_file="net.onnx"):
    model(torch.randn(1, 4))

proto = onnx.load("net.onnx")
onnx.checker.check_model(proto, full_check=True)
for node in proto.graph.node:
    print(node.op_type, *node.input, "→", *node.output)

ours = fs.load("net.onnx")["net.1", 0, "O"].numpy()
[constant] = [node for node in proto.graph.node if "net.1/0/O" in node.output]
theirs = onnx.numpy_helper.to_array(constant.attribute[0].t)
print("onnx:", np.array_equal(ours, theirs))

if importlib.util.find_spec("onnxruntime") is not None:
    import onnxruntime

    session = onnxruntime.InferenceSession("net.onnx")
    [theirs] = session.run(["net.1/0/O"], {})
    print("onnxruntime:", np.array_equal(ours, theirs))
