"""Limits how many HTTP/2 streams the holder of a certificate may have reset.

A peer that opens streams and resets each at once keeps a gRPC server busy with calls that nobody
waits for, and the server then cancels the calls of others (CVE-2023-44487). gRPC does not limit
this. Both directions count, because a peer can also make the server reset streams (CVE-2025-8671).
"""

from __future__ import annotations

_PREFACE_BYTES = 24
_HEADER_BYTES = 9  # of a frame: length (3), type, flags, stream (4)
_RST_STREAM = 3
_BURST = 500.0
_PER_SECOND = 50.0  # a client that works as it should resets a few in a minute


class ResetCounter:
    """Counts the RST_STREAM frames in one direction of a connection, in pieces of any size."""

    def __init__(self, *, after_preface: bool) -> None:
        """Begin before the first byte. A client's bytes begin with a preface (`after_preface`)."""
        self._skip = _PREFACE_BYTES if after_preface else 0
        self._header = b""

    def count(self, content: bytes) -> int:
        """Return how many such frames begin in this piece."""
        found, place = 0, 0
        while True:
            skipped = min(self._skip, len(content) - place)
            place += skipped
            self._skip -= skipped
            if place == len(content):
                return found
            rest = _HEADER_BYTES - len(self._header)
            self._header += content[place : place + rest]
            place += rest
            if len(self._header) < _HEADER_BYTES:
                return found
            found += self._header[3] == _RST_STREAM
            self._skip, self._header = int.from_bytes(self._header[:3], "big"), b""


class ResetLimit:
    """How many streams each holder of a certificate may still have reset."""

    def __init__(self) -> None:
        self._left: dict[
            str, tuple[float, float]
        ] = {}  # by fingerprint: allowance, time in seconds

    def allows(self, fingerprint: str, resets: int, now_s: float) -> bool:
        """Take `resets` from the allowance of the certificate. Return False if it is used up."""
        left, at_s = self._left.get(fingerprint, (_BURST, now_s))
        left = min(_BURST, left + (now_s - at_s) * _PER_SECOND) - resets
        self._left[fingerprint] = max(left, 0.0), now_s
        return left >= 0
