# ruff: noqa: T201 - printing is what a walk-through is for
"""The walk-through that `faststeal demo` runs: dump a small LLM, restore it, run the file.

Each step is a function whose text is printed before it runs: what is read is what happens.
"""

import importlib.util
import inspect
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import torch
import typer

import faststeal as fs
from faststeal.compat import dummy_llm

__all__ = ["FILE", "run"]

FILE = "faststeal_demo.onnx"

_T = TypeVar("_T")


def run(folder: Path) -> Path:
    """Print the walk-through; returns the file that it wrote into `folder`.

    Raises:
        OSError: The file cannot be written.
    """
    file = folder / FILE
    model, inputs = _step(make)
    _step(submodules, model)
    _step(capture, model, inputs, file)
    _step(restore, file)
    if importlib.util.find_spec("onnxruntime") is None:
        print("\n## The same file in onnxruntime\n")
        print("onnxruntime is not installed here: `pip install onnxruntime`, and run this again.")
    else:
        _step(run_in_onnxruntime, file)
    return file


def _step(step: Callable[..., _T], *args: Any) -> _T:
    """Print what a step is about and its text, then run it."""
    title = inspect.getdoc(step) or ""
    body = inspect.getsource(step).split(f'"""{title}"""', 1)[-1]
    lines = textwrap.dedent(body).strip().splitlines()
    code = "\n".join(line for line in lines if not line.startswith("return"))
    print(f"\n## {title.removesuffix('.')}\n")
    typer.secho(textwrap.indent(code, "    "), dim=True)
    print()
    return step(*args)


def make() -> tuple[torch.nn.Module, tuple[torch.Tensor, ...]]:
    """A simple LLM, its inputs, and which of their dimensions may vary."""
    model, inputs, ds = dummy_llm(dynamic_shapes=True)
    print(f"type(model)={type(model)}")
    print(f"inputs={fs.string_type(inputs, with_shape=True)}")
    print(f"ds={fs.string_type(ds, with_shape=True)}")
    return model, inputs


def submodules(model: torch.nn.Module) -> None:
    """Its submodules."""
    for name, module in model.named_modules():
        print(f"- {name}: {type(module)}")


def capture(model: Any, inputs: tuple[torch.Tensor, ...], file: Path) -> None:
    """Steal what goes into six of its modules, and what comes out."""
    with fs.steal_forward(
        [
            ("model", model),
            ("model.decoder", model.decoder),
            ("model.decoder.attention", model.decoder.attention),
            ("model.decoder.feed_forward", model.decoder.feed_forward),
            ("model.decoder.norm_1", model.decoder.norm_1),
            ("model.decoder.norm_2", model.decoder.norm_2),
        ],
        dump_file=file,
        verbose=1,
        storage_limit=2**28,
    ):
        model(*inputs)
    print(f"{file}: {file.stat().st_size} bytes")


def restore(file: Path) -> None:
    """Restore it: nothing is read until it is asked for."""
    with fs.load(file) as dump:
        for key, value in dump.items():
            print(f"{key} -- {fs.string_type(value, with_shape=True)}")


def run_in_onnxruntime(file: Path) -> None:
    """The same file in onnxruntime: every tensor is an output, with a name that can be typed."""
    import onnxruntime

    session = onnxruntime.InferenceSession(file)
    for output in session.get_outputs():
        print(f"{output.name}: {output.type} {output.shape}")
    [stolen] = session.run(["model.decoder/0/O"], {})
    with fs.load(file) as dump:
        restored = dump["model.decoder", 0, "O"].numpy()
    print(f"the same bits as restored: {stolen.tobytes() == restored.tobytes()}")
