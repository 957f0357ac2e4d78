# ruff: noqa: T201 - a command
"""Run onnx-diagnostic's own tests against this package: `python tests/incumbent.py CHECKOUT`.

`CHECKOUT` is a clone of https://github.com/sdpython/onnx-diagnostic. The tests run twice, each time
in a process of its own: as they are, and with this package's functions in place of the functions of
the same names. What fails only the second time is a failure, but for the tests in `EXPECTED`.

The tests need what onnx-diagnostic needs: scipy and optree, besides what its package asks for, and
a transformers that its release knows (0.9.3 knows 5.5, and does not import with 5.25).
"""

import argparse
import contextlib
import importlib
import importlib.util
import io
import json
import subprocess
import sys
import tempfile
import unittest
import unittest.mock
import warnings
from pathlib import Path
from types import ModuleType
from typing import Any

FILES = [
    "ut_helpers/test_mini_onnx_builder.py",
    "ut_helpers/test_torch_helper.py",
    "ut_helpers/test_helper.py",
    "ut_helpers/test_cache_helper.py",
    "ut_tasks/test_data.py",
]
EXPECTED = {
    "test_mini_onnx_bulder_specific_data": "pins names and initializers of another layout",
}
# What some tests import and these do without, where it does not go with the transformers here.
OPTIONAL = [
    "onnx_diagnostic.torch_export_patches",
    "onnx_diagnostic.torch_export_patches.patch_inputs",
    "onnx_diagnostic.torch_export_patches.patches.patch_transformers",
    "onnx_diagnostic.export",
]
NAMES = [
    *("steal_forward", "steal_append", "is_stealing", "string_type", "dummy_llm"),
    *("torch_deepcopy", "torch_tensor_size", "MiniOnnxBuilder", "proto_from_array"),
    *("create_onnx_model_from_input_tensors", "create_input_tensors_from_onnx_model"),
]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("checkout", type=Path, help="clone of onnx-diagnostic")
    parser.add_argument("--into", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--ours", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--verbose", action="store_true", help="print the text of each failure")
    options = parser.parse_args()
    if options.into is not None:
        options.into.write_text(json.dumps(run(options.checkout, options.ours)))
        return 0
    theirs, ours = (in_process(options.checkout, ours=ours) for ours in (False, True))
    return report(theirs, ours, options.verbose)


def in_process(checkout: Path, *, ours: bool) -> dict[str, str]:
    """Outcome of each test: `ok`, `skipped: …`, or the text of what it raised."""
    with tempfile.TemporaryDirectory() as folder:
        results = Path(folder) / "results.json"
        command = [sys.executable, __file__, str(checkout.resolve()), "--into", str(results)]
        # The tests leave files in the current directory.
        subprocess.run([*command, *(["--ours"] if ours else [])], check=True, cwd=folder)
        found: dict[str, str] = json.loads(results.read_text())
        return found


def run(checkout: Path, ours: bool) -> dict[str, str]:
    warnings.simplefilter("ignore")
    sys.path.insert(0, str(checkout))
    for each in OPTIONAL:
        if not importable(each):
            sys.modules[each] = unittest.mock.MagicMock()
    if ours:
        substitute()
    outcomes = Outcomes()
    for path in FILES:
        file = checkout / "_unittests" / path
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            try:
                module = load(file)
            except ImportError as error:
                outcomes.found[f"{file.stem}.*"] = f"cannot be loaded: {error}"
                continue
            unittest.defaultTestLoader.loadTestsFromModule(module).run(outcomes)
    return outcomes.found


def importable(module: str) -> bool:
    """False where it needs a part of transformers that is gone."""
    try:
        importlib.import_module(module)
    except ModuleNotFoundError as error:
        return str(error.name).partition(".")[0] not in {"transformers", "onnx_diagnostic"}
    return True


def substitute() -> None:
    """Put this package's functions wherever onnx-diagnostic has its own of these names."""
    from faststeal import compat

    for each in ("ext_test_case", "helpers.mini_onnx_builder", "helpers.torch_helper"):
        importlib.import_module(f"onnx_diagnostic.{each}")
    theirs = [module for key, module in sys.modules.items() if key.startswith("onnx_diagnostic")]
    for module in theirs:
        for each in NAMES:
            if each in vars(module):
                setattr(module, each, getattr(compat, each))


def load(file: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(file.stem, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[file.stem] = module
    spec.loader.exec_module(module)
    return module


class Outcomes(unittest.TestResult):
    """Keeps one outcome of each test, the worst of its parts."""

    def __init__(self) -> None:
        super().__init__()
        self.found: dict[str, str] = {}

    def addSuccess(self, test: Any) -> None:
        self.found.setdefault(test.id(), "ok")

    def addSkip(self, test: Any, reason: str) -> None:
        self.found[test.id()] = f"skipped: {reason}"

    def addFailure(self, test: Any, err: Any) -> None:
        self.found[test.id()] = self._exc_info_to_string(err, test)  # type: ignore[attr-defined]

    addError = addFailure

    def addSubTest(self, test: Any, subtest: Any, err: Any) -> None:
        if err is not None:
            text = self._exc_info_to_string(err, test)  # type: ignore[attr-defined]
            self.found[test.id()] = f"{subtest}\n{text}"


def failed(outcome: str | None) -> bool:
    return outcome is not None and outcome != "ok" and not outcome.startswith("skipped: ")


def report(theirs: dict[str, str], ours: dict[str, str], verbose: bool) -> int:
    passed = [test for test, outcome in ours.items() if outcome == "ok"]
    skipped = {test: o for test, o in ours.items() if o.startswith("skipped: ")}
    wrong = {test: outcome for test, outcome in ours.items() if failed(outcome)}
    excused = {test for test in wrong if test.rpartition(".")[2] in EXPECTED}
    also = {test for test in wrong if failed(theirs.get(test))} - excused
    unloaded = {test for test in also if test.endswith(".*")}
    new = [test for test in wrong if test not in also | excused] + sorted(unloaded)
    better = [test for test in passed if failed(theirs.get(test))]
    lists: list[tuple[str, list[str]]] = [
        ("passed", passed),
        ("skipped", [f"{test}: {o.removeprefix('skipped: ')}" for test, o in skipped.items()]),
        ("failed as expected", [f"{t}: {EXPECTED[t.rpartition('.')[2]]}" for t in sorted(excused)]),
        (
            "failed, and fails for onnx-diagnostic itself in this environment",
            sorted(also - unloaded),
        ),
        ("passed, and fails for onnx-diagnostic itself in this environment", better),
        ("FAILED", [f"{test}: {last_line(wrong[test])}" for test in new]),
    ]
    for title, tests in lists:
        if tests:
            print(f"{title}: {len(tests)}", *tests, sep="\n  ")
    if verbose:
        for test, outcome in wrong.items():
            print(f"\n== {test}\n{outcome}")
    print(f"{len(ours) - len(unloaded)} tests run")
    return int(bool(new) or not passed)


def last_line(text: str) -> str:
    return text.strip().rpartition("\n")[2]


if __name__ == "__main__":
    sys.exit(main())
