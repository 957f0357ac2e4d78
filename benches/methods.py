"""Ways to keep what every module of a model takes and returns: ours, those of others, and a floor.

Each is a context manager around code that runs the model; what it takes includes entering and
leaving. `folder` is empty and may be filled; `bytes_written` is filled in by those that know.
"""

import contextlib
import io
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

Method = Callable[[torch.nn.Module, Path], contextlib.AbstractContextManager[None]]


@contextlib.contextmanager
def bare(_model: torch.nn.Module, _folder: Path) -> Iterator[None]:
    """Nothing is kept."""
    yield


@contextlib.contextmanager
def faststeal(model: torch.nn.Module, folder: Path) -> Iterator[None]:
    """This package."""
    import faststeal as fs

    with fs.steal_forward(
        model, submodules=True, dump_file=folder / "dump.onnx", storage_limit=None
    ):
        yield


@contextlib.contextmanager
def onnx_diagnostic(model: torch.nn.Module, folder: Path) -> Iterator[None]:
    """The incumbent; it prints whatever it is told."""
    from onnx_diagnostic.helpers.torch_helper import steal_forward

    modules = [(f"model.{name}".rstrip("."), module) for name, module in model.named_modules()]
    with (
        contextlib.redirect_stdout(io.StringIO()),
        steal_forward(modules, dump_file=str(folder / "dump.onnx"), storage_limit=1 << 62),
    ):
        yield


@contextlib.contextmanager
def debugger(model: torch.nn.Module, folder: Path) -> Iterator[None]:
    """What transformers offers to those who add a model."""
    from transformers.model_debugging_utils import model_addition_debugger_context

    with model_addition_debugger_context(
        model, debug_path=str(folder), do_prune_layers=False, use_repr=False
    ):
        yield


def tensors_of(value: Any) -> Iterator[torch.Tensor]:
    """All tensors in nested containers."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for item in value:
            yield from tensors_of(item)
    elif isinstance(value, dict):
        for item in value.values():
            yield from tensors_of(item)


@contextlib.contextmanager
def hooked(model: torch.nn.Module, keep: Callable[[str, torch.Tensor], None]) -> Iterator[None]:
    """Give each tensor that a module takes or returns to `keep`, with a name."""
    handles = []
    for name, module in model.named_modules():

        def before(_: Any, args: Any, kwargs: Any, name: str = name) -> None:
            for i, tensor in enumerate(tensors_of((args, kwargs))):
                keep(f"{name}/I/{i}", tensor)

        def after(_: Any, _args: Any, _kwargs: Any, output: Any, name: str = name) -> None:
            for i, tensor in enumerate(tensors_of(output)):
                keep(f"{name}/O/{i}", tensor)

        handles += [
            module.register_forward_pre_hook(before, with_kwargs=True),
            module.register_forward_hook(after, with_kwargs=True),
        ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


@contextlib.contextmanager
def safetensors(model: torch.nn.Module, folder: Path) -> Iterator[None]:
    """Hooks that clone, and one file at the end."""
    from safetensors.torch import save_file

    kept: dict[str, torch.Tensor] = {}
    with hooked(model, lambda name, t: kept.__setitem__(name, t.detach().clone().contiguous())):
        yield
    save_file(kept, folder / "dump.safetensors")


@contextlib.contextmanager
def torch_save(model: torch.nn.Module, folder: Path) -> Iterator[None]:
    """Hooks that clone, and `torch.save` at the end."""
    kept: dict[str, torch.Tensor] = {}
    with hooked(model, lambda name, t: kept.__setitem__(name, t.detach().clone())):
        yield
    torch.save(kept, folder / "dump.pt")


@contextlib.contextmanager
def floor(model: torch.nn.Module, folder: Path) -> Iterator[None]:
    """XXH3-128 of everything and `write(2)` of what is new: what nobody can spare."""
    import xxhash

    seen: set[bytes] = set()
    file = os.open(folder / "floor.bin", os.O_WRONLY | os.O_CREAT | os.O_EXCL)

    def keep(_: str, tensor: torch.Tensor) -> None:
        data = memoryview(tensor.detach().contiguous().numpy()).cast("B")
        digest = xxhash.xxh3_128_digest(data)
        if digest not in seen:
            seen.add(digest)
            while data:
                data = data[os.write(file, data) :]

    try:
        with hooked(model, keep):
            yield
    finally:
        os.close(file)


METHODS: dict[str, Method] = {
    "faststeal": faststeal,
    "floor": floor,
    "safetensors": safetensors,
    "torch.save": torch_save,
    "debugger": debugger,
    "onnx-diagnostic": onnx_diagnostic,
}
