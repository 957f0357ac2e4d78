"""Store what no module takes or returns: a result in the middle of a forward."""

import torch

import faststeal as fs


class Attention(torch.nn.Module):
    """Attention of a sequence to itself."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return x, each row replaced by a mean of all rows like it."""
        scores = x @ x.transpose(-1, -2) / x.shape[-1] ** 0.5
        if fs.is_stealing():
            fs.steal_append("scores", {"raw": scores, "shape": tuple(scores.shape)})
        return scores.softmax(-1) @ x


attention = Attention()
with fs.steal_forward(("attention", attention), dump_file="attention.onnx"):
    attention(torch.randn(2, 5, 4))
    attention(torch.randn(2, 7, 4))

for key, value in fs.load("attention.onnx").items():
    print(key, fs.string_type(value, with_shape=True))
