"""What the package offers, what importing it costs, and that its parts agree on names."""

import ast
import importlib
import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest

import faststeal
from faststeal import _core

ROOT = Path(__file__).parent.parent
PACKAGE = Path(faststeal.__file__).parent


def test_names():
    assert faststeal.__all__ == [
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
    for name in faststeal.__all__:
        assert getattr(faststeal, name) is not None
    assert dir(faststeal) == sorted(faststeal.__all__)


def test_names_of_compat():
    from faststeal import compat

    assert set(compat.__all__) >= {
        "MiniOnnxBuilder",
        "create_input_tensors_from_onnx_model",
        "create_onnx_model_from_input_tensors",
        "dummy_llm",
        "proto_from_array",
        "torch_deepcopy",
        "torch_tensor_size",
    }


def loaded_by(statement):
    code = f"import sys\n{statement}\nprint(*sys.modules)"
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    return set(result.stdout.split())


COMPANIONS = {
    "onnx",
    "onnxruntime",
    "transformers",
    "typer",
    "rich",
    "ml_dtypes",
    "onnx_diagnostic",
}


def test_import_is_light():
    assert not loaded_by("import faststeal") & COMPANIONS


def test_import_of_companions_would_be_seen():
    assert loaded_by("import rich") & COMPANIONS


def test_versions_agree():
    [version] = re.findall(r'^version = "(.+)"$', (ROOT / "Cargo.toml").read_text(), re.MULTILINE)
    assert faststeal.__version__ == _core.__version__ == version
    from importlib.metadata import version as installed

    assert installed("faststeal") == version


def stub():
    return ast.parse((PACKAGE / "_core.pyi").read_text())


def test_stub_and_module_have_the_same_names():
    [listed] = [
        ast.literal_eval(node.value)
        for node in stub().body
        if isinstance(node, ast.Assign) and node.targets[0].id == "__all__"
    ]
    assert sorted(_core.__all__) == sorted(listed)
    assert {name for name in dir(_core) if not name.startswith("__")} <= set(listed)


@pytest.mark.parametrize("name", ["Reader", "Writer"])
def test_stub_and_class_have_the_same_members(name):
    [cls] = [n for n in stub().body if isinstance(n, ast.ClassDef) and n.name == name]
    described = {node.name for node in cls.body if isinstance(node, ast.FunctionDef)}
    there = set(vars(getattr(_core, name)))
    assert {name for name in described ^ there if not name.startswith("__")} == set()
    assert described <= there


def test_errors_have_one_base():
    assert issubclass(faststeal.FormatError, faststeal.FaststealError)
    assert issubclass(faststeal.FormatError, ValueError)
    assert issubclass(_core.NotPlainError, faststeal.FaststealError)
    assert issubclass(_core.NotPlainError, TypeError)


def modules():
    names = sorted(path.stem for path in PACKAGE.glob("*.py") if path.stem != "__main__")
    return ["faststeal" if name == "__init__" else f"faststeal.{name}" for name in names]


@pytest.mark.parametrize("name", modules())
def test_every_module_lists_its_names(name):
    module = importlib.import_module(name)
    assert inspect.getdoc(module)
    for public in module.__all__:
        assert hasattr(module, public)


def test_what_is_public_is_documented():
    for name in faststeal.__all__:
        found = getattr(faststeal, name)
        if callable(found):
            assert inspect.getdoc(found), name


def test_types_are_marked():
    assert (PACKAGE / "py.typed").exists()
