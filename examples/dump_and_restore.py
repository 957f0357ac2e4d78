"""Capture every module of a small model over two calls, restore it, run the file elsewhere."""

import torch

import faststeal as fs


class Block(torch.nn.Module):
    """A residual block."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.norm = torch.nn.LayerNorm(size)
        self.linear = torch.nn.Linear(size, size)

    def forward(self, x: torch.Tensor, scale: float = 1.0) -> dict[str, object]:
        """Add a linear function of the normed input; returns more than that."""
        y = x + scale * self.linear(self.norm(x))
        return {"hidden": y, "scale": scale, "mask": None}


block = Block(8)
with fs.steal_forward(("block", block), submodules=True, dump_file="block.onnx") as capture:
    block(torch.randn(2, 8))
    block(torch.randn(3, 8), scale=0.5)
print(capture)

dump = fs.load("block.onnx")
for key, value in dump.items():
    print(key, fs.string_type(value, with_shape=True))

# Each value is the object that the module took or returned.
args, kwargs = dump["block", 1, "I"]
print(f"{len(args)} positional, {kwargs}")

# The bytes are those that the model computed: the linear layer gives them again.
[normed], _ = dump["block.linear", 1, "I"]
print("same bits:", torch.equal(block.linear(normed), dump["block.linear", 1, "O"]))
