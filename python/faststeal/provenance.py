"""Where a dump comes from, and where it goes when there are several ranks."""

import json
import os
import platform
import sys
from collections.abc import Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import torch

from faststeal._core import __version__

__all__ = ["destination", "provenance"]


def destination(dump_file: str | os.PathLike[str]) -> Path:
    """The file to write: `<stem>.rank<r><suffix>` where several ranks would write the same one.

    Raises:
        TypeError: `dump_file` is no path.
    """
    path = Path(os.fspath(dump_file))
    distributed = torch.distributed
    if distributed.is_available() and distributed.is_initialized():
        rank, size = distributed.get_rank(), distributed.get_world_size()
        if size > 1:
            return path.with_name(f"{path.stem}.rank{rank}{path.suffix}")
    return path


def provenance(notes: Mapping[str, Any] | None = None) -> str:
    """JSON object (text): versions, time, rank, command line, and the user's own notes.

    Raises:
        TypeError: JSON cannot hold the notes.
        ValueError: The notes contain themselves, or NaN or an infinity, which JSON has not.
    """
    facts: dict[str, Any] = {
        "faststeal": __version__,
        "torch": str(torch.__version__),
        "python": platform.python_version(),
        "time": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "argv": sys.argv,
    }
    rank = _rank()
    if rank is not None:
        facts["rank"] = rank
    if notes is not None:
        facts["notes"] = dict(notes)
    return json.dumps(facts, allow_nan=False)


def _rank() -> int | None:
    distributed = torch.distributed
    if distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank()
    rank = os.environ.get("RANK", "")
    return int(rank) if rank.isdecimal() else None
