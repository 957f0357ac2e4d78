"""What a capture could not store: logged while the model runs, told once at the end."""

import logging
from collections.abc import Iterable, Mapping
from typing import Final

from faststeal.dump import AnyKey

__all__ = ["FaststealWarning", "Losses"]

_logger = logging.getLogger("faststeal")
_LISTED: Final = 4  # keys that a message names


class FaststealWarning(UserWarning):
    """Told once when a capture ends: something was not stored, or could not be put back."""


class Losses:
    """What was not stored, and why.

    Attributes:
        skipped: Reason by key: a limit left the values out; shapes and statistics are kept.
        lost: Reason by key: there is no such record.
        described: By key, a text for each object that was described in place of its value.
        remarks: Whatever else the user has to know.
    """

    def __init__(self) -> None:
        self.skipped: dict[AnyKey, str] = {}
        self.lost: dict[AnyKey, str] = {}
        self.described: dict[AnyKey, list[str]] = {}
        self.remarks: list[str] = []

    def skip(self, key: AnyKey, reason: str) -> None:
        """A limit left the values of a record out."""
        self.skipped[key] = reason
        _logger.info("%r skipped: %s", key, reason)

    def lose(self, key: AnyKey, error: BaseException) -> None:
        """A record could not be written."""
        # A disk that is full stays full: one loud message, the rest is for those who ask.
        level = logging.DEBUG if self.lost else logging.WARNING
        self.lost[key] = f"{type(error).__name__}: {error}"
        _logger.log(level, "%r lost: %s: %s", key, type(error).__name__, error)

    def describe(self, key: AnyKey, notes: Iterable[str]) -> None:
        """Objects of a record were described in place of their values."""
        self.described[key] = list(notes)
        _logger.info("%r holds objects that are only described: %s", key, self.described[key])

    def remark(self, text: str) -> None:
        """Anything else; each text once."""
        if text not in self.remarks:
            self.remarks.append(text)
            _logger.info("%s", text)

    def message(self) -> str:
        """All of it in a few sentences; empty if there is nothing to tell."""
        described = {
            key: notes[0] + (f" and {len(notes) - 1} more" if len(notes) > 1 else "")
            for key, notes in self.described.items()
            if notes
        }
        parts = [
            _part("skipped by a limit (shapes and statistics are kept)", self.skipped),
            _part("lost", self.lost),
            _part("stored with objects that are only described", described),
            *self.remarks,
        ]
        return "; ".join(part for part in parts if part)


def _part(what: str, reasons: Mapping[AnyKey, str]) -> str:
    if not reasons:
        return ""
    listed = [repr(key) for key, _ in zip(reasons, range(_LISTED), strict=False)]
    more = len(reasons) - len(listed)
    first = next(iter(reasons.values()))
    count = f"{len(reasons)} record{'s' if len(reasons) > 1 else ''}"
    return (
        f"{count} {what}: {', '.join(listed)}{f' and {more} more' if more else ''} ({first}"
        f"{', …' if len(set(reasons.values())) > 1 else ''})"
    )
