"""A small transformer for walk-throughs and tests: one decoder layer, two heads, random weights."""

from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.nn import functional

__all__ = [
    "LLM",
    "AttentionBlock",
    "DecoderLayer",
    "Embedding",
    "FeedForward",
    "MultiAttentionBlock",
    "dummy_llm",
]

_LENGTH: Final = 30
_MAX_BATCH: Final = 1024


class Embedding(nn.Module):
    """Adds two embeddings of the same tokens: of the word, and one that stands for its place."""

    def __init__(self, vocab_size: int = 1024, embedding_dim: int = 16) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocab_size, embedding_dim)
        self.pe = nn.Embedding(vocab_size, embedding_dim)

    def forward(self, x: Tensor) -> Tensor:
        """From (batch, length) of int64 to (batch, length, embedding_dim)."""
        return self.embedding(x) + self.pe(x)  # type: ignore[no-any-return]


class AttentionBlock(nn.Module):
    """One head of causal attention, as wide as its input."""

    def __init__(self, embedding_dim: int = 16, context_size: int = 256) -> None:
        super().__init__()
        self.query = nn.Linear(embedding_dim, embedding_dim, bias=False)
        self.key = nn.Linear(embedding_dim, embedding_dim, bias=False)
        self.value = nn.Linear(embedding_dim, embedding_dim, bias=False)
        # A parameter, not a buffer: exporters trace it more easily.
        self.mask = nn.Parameter(torch.ones(context_size, context_size).tril())

    def forward(self, x: Tensor) -> Tensor:
        """From and to (batch, length, embedding_dim)."""
        _, length, width = x.shape
        scores = self.query(x) @ self.key(x).transpose(-2, -1) * width**-0.5
        hidden = self.mask[:length, :length] == 0
        weights = functional.softmax(scores.masked_fill(hidden, float("-inf")), dim=-1)
        return weights @ self.value(x)  # type: ignore[no-any-return]


class MultiAttentionBlock(nn.Module):
    """Several heads side by side, brought back to the width of one."""

    def __init__(
        self, embedding_dim: int = 16, num_heads: int = 2, context_size: int = 256
    ) -> None:
        super().__init__()
        self.attention = nn.ModuleList(
            AttentionBlock(embedding_dim, context_size) for _ in range(num_heads)
        )
        self.linear = nn.Linear(embedding_dim * num_heads, embedding_dim)

    def forward(self, x: Tensor) -> Tensor:
        """From and to (batch, length, embedding_dim)."""
        heads = torch.cat([head(x) for head in self.attention], dim=-1)
        return self.linear(heads)  # type: ignore[no-any-return]


class FeedForward(nn.Module):
    """Two linear layers with a ReLU between."""

    def __init__(self, embedding_dim: int = 16, ff_dim: int = 128) -> None:
        super().__init__()
        self.linear_1 = nn.Linear(embedding_dim, ff_dim)
        self.relu = nn.ReLU()
        self.linear_2 = nn.Linear(ff_dim, embedding_dim)

    def forward(self, x: Tensor) -> Tensor:
        """From and to (batch, length, embedding_dim)."""
        return self.linear_2(self.relu(self.linear_1(x)))  # type: ignore[no-any-return]


class DecoderLayer(nn.Module):
    """Attention and feed-forward, each after a norm and with a residual connection."""

    def __init__(
        self,
        embedding_dim: int = 16,
        num_heads: int = 2,
        context_size: int = 256,
        ff_dim: int = 128,
    ) -> None:
        super().__init__()
        self.attention = MultiAttentionBlock(embedding_dim, num_heads, context_size)
        self.feed_forward = FeedForward(embedding_dim, ff_dim)
        self.norm_1 = nn.LayerNorm(embedding_dim)
        self.norm_2 = nn.LayerNorm(embedding_dim)

    def forward(self, x: Tensor) -> Tensor:
        """From and to (batch, length, embedding_dim)."""
        x = self.attention(self.norm_1(x)) + x
        return self.feed_forward(self.norm_2(x)) + x  # type: ignore[no-any-return]


class LLM(nn.Module):
    """An embedding and one decoder layer; the output is that of the layer, not of a vocabulary."""

    def __init__(
        self,
        vocab_size: int = 1024,
        embedding_dim: int = 16,
        num_heads: int = 2,
        context_size: int = 256,
        ff_dim: int = 128,
    ) -> None:
        super().__init__()
        self.embedding = Embedding(vocab_size, embedding_dim)
        self.decoder = DecoderLayer(embedding_dim, num_heads, context_size, ff_dim)

    def forward(self, input_ids: Tensor) -> Tensor:
        """From (batch, length) of int64 to (batch, length, embedding_dim)."""
        return self.decoder(self.embedding(input_ids))  # type: ignore[no-any-return]


_PARTS: Final[dict[str, type[nn.Module]]] = {
    cls.__name__: cls for cls in (DecoderLayer, MultiAttentionBlock, AttentionBlock)
}


def dummy_llm(cls_name: str | None = None, dynamic_shapes: bool = False) -> Any:
    """Make a small model and inputs for it.

    Args:
        cls_name: `"LLM"` (also by default), or one of its parts: `"DecoderLayer"`,
            `"MultiAttentionBlock"`, `"AttentionBlock"`.
        dynamic_shapes: Whether to tell which dimensions of the inputs may vary, in the form that
            `torch.export.export` takes; there are two sequences in the batch then, else one.

    Returns:
        `(model, inputs)`, or `(model, inputs, dynamic_shapes)`.

    Raises:
        NotImplementedError: There is no such part.
    """
    batch = 2 if dynamic_shapes else 1
    if cls_name in {None, "LLM"}:
        model: nn.Module = LLM()
        name, x = "input_ids", torch.randint(0, 1024, (batch, _LENGTH))
    elif cls_name in _PARTS:
        model = _PARTS[cls_name]()
        name, x = "x", torch.rand(batch, _LENGTH, 16)
    else:
        raise NotImplementedError(
            f"cls_name must be None, 'LLM' or one of {', '.join(map(repr, _PARTS))}, "
            f"not {cls_name!r}"
        )
    if not dynamic_shapes:
        return model, (x,)
    axes = {
        0: torch.export.Dim("batch", min=1, max=_MAX_BATCH),
        1: torch.export.Dim("length", min=1, max=255),
    }
    return model, (x,), {name: axes}
