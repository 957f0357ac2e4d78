"""What a capture could not store: logged while the model runs, told once at the end."""

import logging
from collections.abc import Callable, Iterable
from typing import Final, TypeVar

from faststeal.dump import AnyKey

__all__ = ["FaststealWarning", "Losses", "Reasons"]

_logger = logging.getLogger("faststeal")
_LISTED: Final = 4  # keys that a message names
_KEPT: Final = 10_000  # keys of each kind that are kept: a long capture must not fill the memory

_Reason = TypeVar("_Reason")


class FaststealWarning(UserWarning):
    """Told once when a capture ends: something was not stored, or could not be put back."""


class Reasons(dict[AnyKey, _Reason]):
    """The first reasons by key; `total` counts those that are not kept as well."""

    total = 0

    def note(self, key: AnyKey, reason: _Reason) -> None:
        """One more."""
        self.total += 1
        if len(self) < _KEPT:
            self[key] = reason


class Losses:
    """What was not stored, and why.

    Attributes:
        skipped: Reason by key: a limit left the values out; shapes and statistics are kept.
        lost: Reason by key: there is no such record.
        described: By key, a text for each object that was described in place of its value.
        remarks: Whatever else the user has to know.
    """

    def __init__(self) -> None:
        self.skipped: Reasons[str] = Reasons()
        self.lost: Reasons[str] = Reasons()
        self.described: Reasons[list[str]] = Reasons()
        self.remarks: list[str] = []

    def skip(self, key: AnyKey, reason: str) -> None:
        """A limit left the values of a record out."""
        self.skipped.note(key, reason)
        _logger.info("%r skipped: %s", key, reason)

    def lose(self, key: AnyKey, error: BaseException) -> None:
        """A record could not be written."""
        # A disk that is full stays full: one loud message, the rest is for those who ask.
        level = logging.DEBUG if self.lost else logging.WARNING
        self.lost.note(key, f"{type(error).__name__}: {error}")
        _logger.log(level, "%r lost: %s: %s", key, type(error).__name__, error)

    def describe(self, key: AnyKey, notes: Iterable[str]) -> None:
        """Objects of a record were described in place of their values."""
        texts = list(notes)
        self.described.note(key, texts)
        _logger.info("%r holds objects that are only described: %s", key, texts)

    def remark(self, text: str) -> None:
        """Anything else; each text once."""
        if text not in self.remarks:
            self.remarks.append(text)
            _logger.info("%s", text)

    def message(self) -> str:
        """All of it in a few sentences; empty if there is nothing to tell."""
        parts = [
            _part("skipped by a limit (shapes and statistics are kept)", self.skipped),
            _part("lost", self.lost),
            _part("stored with objects that are only described", self.described, _first_of),
            *self.remarks,
        ]
        return "; ".join(part for part in parts if part)


def _first_of(notes: list[str]) -> str:
    return notes[0] + (f" and {len(notes) - 1} more" if len(notes) > 1 else "")


def _part(what: str, reasons: Reasons[_Reason], text: Callable[[_Reason], str] = str) -> str:
    if not reasons:
        return ""
    listed = [repr(key) for key, _ in zip(reasons, range(_LISTED), strict=False)]
    more = reasons.total - len(listed)
    texts = [text(reason) for reason in reasons.values()]
    count = f"{reasons.total} record{'s' if reasons.total > 1 else ''}"
    return (
        f"{count} {what}: {', '.join(listed)}{f' and {more} more' if more else ''} ({texts[0]}"
        f"{', …' if len(set(texts)) > 1 else ''})"
    )
