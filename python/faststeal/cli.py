"""The command `faststeal`: see the walk-through, and look at dumps."""

import json
import pprint
import signal
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any, Final, cast

import torch
import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from faststeal._core import FaststealError, __version__, repair
from faststeal.dump import Dump, Key, load
from faststeal.listing import (
    Record,
    find_key,
    one_line,
    records,
    size_text,
    summary,
    tensors_of,
    value_text,
)

__all__ = ["app", "main"]

# Where typer keeps its base of all complaints about the command line differs between versions.
_UsageError = cast("type[Exception]", typer.BadParameter.__mro__[1])
_INTERRUPTED: Final = 130
_TEXT: Final = 200  # characters of a value in a table that goes to a pipe
_ELEMENTS: Final = 100  # of a tensor that is shown in full

app = typer.Typer(
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    help="Steal the inputs and outputs of torch modules into one ONNX file, and look at them.",
)

_File = Annotated[Path, typer.Argument(metavar="FILE", help="A dump.", show_default=False)]
_Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def main(args: Sequence[str] | None = None) -> int:
    """Run a command.

    Args:
        args: The command line, without the program's name; by default that of the process.

    Returns:
        Exit code: 0 fine, 1 problems were found, 2 error.
    """
    if args is None and hasattr(signal, "SIGPIPE"):
        # Whoever read our output and has had enough ends us, as any command.
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    try:
        command = typer.main.get_command(app)
        given = None if args is None else list(args)
        code = command.main(args=given, prog_name="faststeal", standalone_mode=False)
    except (KeyboardInterrupt, typer.Abort):
        return _INTERRUPTED
    except (_UsageError, FaststealError, KeyError, OSError) as error:
        sys.stderr.write(f"faststeal: {one_line(_message(error))}\n")
        return 2
    return code if isinstance(code, int) else 0


def _message(error: Exception) -> str:
    """What an error says, as a line; its class is of no use to who types commands."""
    if isinstance(error, _UsageError):
        return f"{error.format_message()} (see faststeal --help)"  # type: ignore[attr-defined]
    if isinstance(error, KeyError):
        return str(error.args[0]) if error.args else "no such key"
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.filename}: {error.strerror}"
    return str(error)


@app.callback(invoke_without_command=True)
def _program(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version and stop.")] = False,
) -> None:
    if version:
        typer.echo(f"faststeal {__version__}")
        raise typer.Exit
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())
        raise typer.Exit(2)


@app.command()
def demo(
    folder: Annotated[
        Path, typer.Option("--dir", metavar="DIR", help="Where the file goes.")
    ] = Path(),
) -> None:
    """Dump a small LLM step by step, restore it, run the file in onnxruntime, and list it."""
    from faststeal.demo import run

    file = run(folder)
    typer.echo(f"\n$ faststeal ls {file}\n")
    _print_list(str(file))


@app.command(name="ls")
def list_(file: _File, as_json: _Json = False) -> None:
    """List the records: key, class of the module, value, bytes, and which bytes are stored."""
    if not as_json:
        _print_list(str(file))
        return
    with load(file) as dump:
        document = {
            "file": str(file),
            "complete": dump.complete,
            "provenance": dump.provenance,
            "records": [summary(record) for record in records(str(file))],
        }
    _print_json(document)


@app.command()
def show(
    file: _File,
    key: Annotated[
        str,
        typer.Argument(
            metavar="KEY",
            help="As printed by ls, \"('model.decoder', 0, 'I')\", or model.decoder/0/I (the root: "
            "./0/I), or the name given to steal_append.",
            show_default=False,
        ),
    ],
    as_json: _Json = False,
) -> None:
    """Show one record: what is known of the call, its tensors with statistics, and the value."""
    with load(file) as dump:
        found = find_key(dump, key)
        info = dump.info(found)
        if as_json:
            _print_json({"key": list(found) if isinstance(found, Key) else found, **info})
            return
        known = {name: info[name] for name in info if name not in {"n", "tree", "leaves"}}
        for name, value in {"key": repr(found), **known}.items():
            text = value if isinstance(value, str) else json.dumps(value)
            typer.echo(f"{name:<10} {one_line(text)}")
        skipped = found in dump.skipped
        value = None if skipped else dump[found]
        leaves = info.get("leaves", [])
        if leaves:
            tensors = [] if skipped else tensors_of(str(file), found)
            typer.echo("")
            _print_leaves(leaves, tensors)
        if not skipped:
            typer.echo("")
            # Of the whole process, which is ours.
            torch.set_printoptions(threshold=_ELEMENTS)  # type: ignore[no-untyped-call]
            typer.echo(pprint.pformat(value, width=100, sort_dicts=False))


@app.command()
def verify(
    file: _File,
    mend: Annotated[
        bool, typer.Option("--repair", help="First mend on disk what a kill left.")
    ] = False,
) -> None:
    """Check every checksum, every name and the index. Exit code: 0 fine, 1 problems, 2 error."""
    if mend:
        for line in repair(str(file)):
            typer.echo(f"repaired: {one_line(line)}")
    with load(file) as dump:
        problems = dump.verify()
        for problem in problems:
            typer.echo(one_line(problem))
        count = _count(len(dump) + len(dump.skipped), "record")
        found = _count(len(problems), "problem") if problems else "fine"
        typer.echo(f"{file}: {count}, {found}; {_state(dump)}")
    if problems:
        raise typer.Exit(1)


def _print_list(file: str) -> None:
    table = _Rows("key", "class", "value", "size", "stored")
    names, count, size, new, skipped = set(), 0, 0, 0, 0
    for record in records(file):
        table.add(
            repr(record.key),
            record.class_name,
            _shortened(value_text(record)),
            size_text(record.size),
            _stored(record),
        )
        count += 1
        names.add(record.key.name if isinstance(record.key, Key) else record.key)
        size += record.size
        new += record.new
        skipped += record.skipped is not None
    table.print()
    with load(file) as dump:
        state = _state(dump)
    typer.echo(
        f"\n{_count(count, 'record')} of {_count(len(names), 'name')}"
        f"{f', {skipped} skipped' if skipped else ''}; "
        f"{size_text(size)} seen, {size_text(new)} stored; {state}"
    )


def _state(dump: Dump) -> str:
    if not dump.provenance:
        return "of another tool"
    return "complete" if dump.complete else "not closed: the capture runs, or was killed"


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def _stored(record: Record) -> str:
    if record.skipped is not None:
        return f"skipped: {record.skipped}"
    if record.same is not None:
        return f"as {record.same!r}"
    return size_text(record.new)


def _shortened(text: str) -> str:
    return text if len(text) <= _TEXT else f"{text[:_TEXT]}…"


def _print_leaves(leaves: list[dict[str, Any]], tensors: list[torch.Tensor]) -> None:
    table = _Rows("tensor", "dtype", "shape", "min", "max", "mean", "nan", "")
    for i, leaf in enumerate(leaves):
        stats = leaf.get("stats") or (_statistics(tensors[i]) if i < len(tensors) else {})
        numbers = [_number(stats.get(name)) for name in ("min", "max", "mean", "nan")]
        known = {"name", "dtype", "shape", "stats"}
        usual = {"device": "cpu", "requires_grad": False}
        rest = {k: v for k, v in leaf.items() if k not in known and usual.get(k) != v}
        more = ", ".join(f"{k}={v}" for k, v in rest.items())
        table.add(
            str(leaf.get("name")), str(leaf.get("dtype")), str(leaf.get("shape")), *numbers, more
        )
    table.print()


def _statistics(tensor: torch.Tensor) -> dict[str, float]:
    """Least, greatest and mean of the finite elements, and how many are NaN."""
    try:
        values = torch.view_as_real(tensor) if tensor.is_complex() else tensor
        values = values.to(torch.float64)
    except (RuntimeError, NotImplementedError):  # types that torch stores but does not convert
        return {}
    finite = values[values.isfinite()]
    stats = {"nan": float(values.isnan().sum())}
    if finite.numel():
        low, high = torch.aminmax(finite)
        stats |= {"min": float(low), "max": float(high), "mean": float(finite.mean())}
    return stats


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.6g}"


def _print_json(document: object) -> None:
    typer.echo(json.dumps(document, indent=2))


class _Rows:
    """A table: fitted to a terminal and coloured there, one whole line a row elsewhere."""

    def __init__(self, *columns: str) -> None:
        self._columns = columns
        self._rows: list[tuple[str, ...]] = []

    def add(self, *cells: str) -> None:
        self._rows.append(tuple(map(one_line, cells)))

    def print(self) -> None:
        if sys.stdout.isatty():
            table = Table(box=None, pad_edge=False, header_style="bold")
            for i, column in enumerate(self._columns):
                style = "cyan" if i == 0 else "dim" if i == len(self._columns) - 1 else None
                table.add_column(column, style=style, overflow="fold")
            for row in self._rows:
                table.add_row(*map(Text, row))
            Console(highlight=False).print(table)
            return
        for line in _aligned([self._columns, *self._rows]):
            typer.echo(line)


def _aligned(rows: Iterable[Sequence[str]]) -> list[str]:
    rows = list(rows)
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]
