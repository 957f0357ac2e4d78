"""Steal the inputs and outputs of every torch module into one ONNX file, and map them back.

>>> import faststeal as fs
>>> with fs.steal_forward(("model", model), submodules=True, dump_file="run.onnx"):
...     model(**inputs)
>>> dump = fs.load("run.onnx")
>>> dump["model.decoder", 0, "I"]  # (args, kwargs), as they went in
>>> dump["model.decoder", 0, "O"]  # the output
"""

import torch

if tuple(map(int, torch.__version__.split(".")[:2])) < (2, 10):
    raise ImportError(f"faststeal needs torch 2.10 or newer; this is torch {torch.__version__}")

from faststeal._core import FaststealError, FormatError, __version__
from faststeal.capture import Capture, FaststealWarning, is_stealing, steal_append, steal_forward
from faststeal.classes import Opaque
from faststeal.describe import string_type
from faststeal.dump import Dump, Key, load

__all__ = [
    "Capture",
    "Dump",
    "FaststealError",
    "FaststealWarning",
    "FormatError",
    "Key",
    "Opaque",
    "__version__",
    "is_stealing",
    "load",
    "steal_append",
    "steal_forward",
    "string_type",
]


def __dir__() -> list[str]:
    return __all__
