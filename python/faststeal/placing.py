"""Tensors of a record on the device that the user wants them on."""

import json
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from faststeal.arrays import ARRAY_COMPOSERS

__all__ = ["placed", "usable"]


def usable(device: torch.device | str | int) -> torch.device:
    """A device that tensors can be put on.

    Raises:
        ValueError: There is none of that name, or this torch or machine does not have it.
    """
    try:
        found = torch.device(device)
        torch.empty(0, device=found)
    except Exception as error:  # of many classes, among them AssertionError
        reason = str(error).partition("\n")[0].partition(". ")[0]
        raise ValueError(f"device {str(device)!r} cannot be used: {reason}") from error
    return found


def placed(tree: str, tensors: Sequence[Tensor], device: torch.device) -> list[Tensor]:
    """Move tensors, but not those that the tree makes numpy arrays of: these have no device.

    Args:
        tree: JSON text of the nested object.
        tensors: Its tensors, on the CPU.
        device: Where they go.

    Returns:
        As many tensors, in the same order.
    """
    if device.type == "cpu":
        return list(tensors)
    stay: set[object] = set()
    if any(f'"{kind}"' in tree for kind in ARRAY_COMPOSERS):
        stay.update(_numbers(json.loads(tree), inside=False))
    return [t if i in stay else t.to(device) for i, t in enumerate(tensors)]


def _numbers(node: Any, inside: bool) -> Iterator[object]:
    """Numbers of the tensors inside arrays."""
    if isinstance(node, list):
        for item in node:
            yield from _numbers(item, inside)
    elif isinstance(node, dict):
        for kind, value in node.items():
            if kind == "tensor" and inside:
                yield value
            else:
                yield from _numbers(value, inside or kind in ARRAY_COMPOSERS)
