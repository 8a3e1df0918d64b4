"""Holds the measured requests of a run as columns, with one row for each request. Uses only the
standard library.

A row takes about 90 bytes, however long the prompt and the answer are. The chunks of all rows are
stored separately, in pieces (`chunk_store.py`).
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import Final

from fleet_agent.load.client.request_record import ErrorName, RequestRecord, Response
from fleet_agent.load.results.chunk_store import HELD_CHUNKS, PIECE_CHUNKS, ChunkPiece, ChunkStore

NOT_REPORTED: Final = -1  # a count that the server did not report
MAX_COUNT: Final = 2**31 - 1
DIGEST_CHARACTERS: Final = 16
# limit for different finish reasons; further ones become OTHER_NAME
MAX_NAMES: Final = 200
MAX_NAME_CHARACTERS: Final = 100
MAX_EXAMPLES: Final = 20  # of errors
OTHER_NAME: Final = "(other)"
# Name → type code of the array. Times are perf_counter_ns, or 0 for something that never happened;
# counts are NOT_REPORTED if the server did not report them.
SCALARS: Final[Mapping[str, str]] = {
    "number": "i",
    "asked_tokens": "i",
    "intended_ns": "q",
    "sent_ns": "q",
    "first_output_ns": "q",
    "last_output_ns": "q",
    "last_ns": "q",
    "prompt_tokens": "i",
    "completion_tokens": "i",
    "cached_tokens": "i",
    "verify_ct": "i",
    "own_tokens": "i",
    "own_is_exact": "B",
    "status": "i",
    "chunks": "i",
    "tokens_reported": "B",  # 1: the tokens of each chunk of the row are stored
    "finish_reason": "B",  # a code, see Columns.names
    "error_kind": "B",
}
_TIMES: Final = ("intended_ns", "sent_ns", "first_output_ns", "last_output_ns", "last_ns")
_CODES: Final = ("finish_reason", "error_kind")


@dataclass(frozen=True, slots=True)
class Columns:
    """Holds rows in the order in which their requests ended, shard after shard.

    `digests`: 16 ASCII characters for each row.
    `names`: the texts that the codes of a column stand for. Code 1 is the first text; code 0 means
      that nothing was reported.
    """

    scalars: Mapping[str, array[int]] = field(
        default_factory=lambda: {name: array(code) for name, code in SCALARS.items()}
    )
    digests: bytearray = field(default_factory=bytearray)
    names: Mapping[str, tuple[str, ...]] = field(
        default_factory=lambda: {name: () for name in _CODES}
    )
    # error kind, with its status for http_status → text of a server or the system
    error_examples: Mapping[str, str] = field(default_factory=dict)
    pieces: tuple[ChunkPiece, ...] = ()

    @staticmethod
    def from_requests(requests: Iterable[RequestRecord]) -> Columns:
        """Return columns with the given records as rows."""
        builder = ColumnsBuilder()
        for request in requests:
            builder.add(request)
        return builder.build()

    @staticmethod
    def concatenate(parts: Sequence[Columns]) -> Columns:
        """Return the rows of all parts, one part after another. Pieces of chunks are neither read
        nor copied.
        """
        tables = {name: _Names() for name in _CODES}
        scalars = {name: array(code) for name, code in SCALARS.items()}
        digests = bytearray()
        examples: dict[str, str] = {}
        for part in parts:
            for name, column in part.scalars.items():
                scalars[name].extend(
                    tables[name].recode(column, part.names[name]) if name in _CODES else column
                )
            digests += part.digests
            examples = dict(part.error_examples) | examples
        names = {name: table.names for name, table in tables.items()}
        return Columns(
            scalars,
            digests,
            names,
            examples,
            tuple(piece for part in parts for piece in part.pieces),
        )

    @property
    def rows(self) -> int:
        """Return the number of requests."""
        return len(self.scalars["number"])

    @property
    def chunks(self) -> int:
        """Return the number of events with output in all requests."""
        return sum(piece.chunks for piece in self.pieces)

    @property
    def spilled(self) -> bool:
        """Return whether some chunks are in files."""
        return any(piece.path for piece in self.pieces)

    def shifted(self, by_ns: int) -> Columns:
        """Return the columns with all times `by_ns` later. A time of 0, which means "never", stays
        0.
        """
        moved = {
            name: array("q", (ns + by_ns if ns else 0 for ns in self.scalars[name]))
            for name in _TIMES
        }
        return replace(
            self,
            scalars={**self.scalars, **moved},
            pieces=tuple(piece.shifted(by_ns) for piece in self.pieces),
        )

    def requests(self) -> list[RequestRecord]:
        """Return the rows as records, sorted by number. Use it only for small runs. Raises OSError
        if chunks cannot be read from their file.
        """
        return sorted(self._rows(), key=lambda request: request.number)

    def _rows(self) -> Iterator[RequestRecord]:
        row = 0
        for piece in self.pieces:
            chunks = piece.read().with_absolute_times(piece.shift_ns)
            rows = range(row, row := row + piece.rows)
            ends = accumulate(self.scalars["chunks"][at] for at in rows)
            token_ends = accumulate(
                self.scalars["chunks"][at] * self.scalars["tokens_reported"][at] for at in rows
            )
            for at, end, token_end in zip(rows, ends, token_ends, strict=True):
                count = self.scalars["chunks"][at]
                times = chunks.times_ns[end - count : end]
                tokens = (
                    chunks.tokens[token_end - count : token_end]
                    if self.scalars["tokens_reported"][at]
                    else None
                )
                yield self._row(at, times, tokens)

    def _row(self, at: int, chunk_ns: array[int], chunk_tokens: array[int] | None) -> RequestRecord:
        value = {name: column[at] for name, column in self.scalars.items()}
        texts = {name: self.names[name][value[name] - 1] if value[name] else "" for name in _CODES}
        response = Response(
            status=value["status"],
            chunk_ns=chunk_ns,
            chunk_tokens=chunk_tokens,
            last_ns=value["last_ns"],
            prompt_tokens=_or_none(value["prompt_tokens"]),
            completion_tokens=_or_none(value["completion_tokens"]),
            cached_tokens=_or_none(value["cached_tokens"]),
            verify_ct=_or_none(value["verify_ct"]),
            own_tokens=value["own_tokens"],
            own_is_exact=bool(value["own_is_exact"]),
            finish_reason=texts["finish_reason"],
            error_kind=texts["error_kind"],
        )
        digest = self.digests[at * DIGEST_CHARACTERS : (at + 1) * DIGEST_CHARACTERS].decode("ascii")
        return RequestRecord(
            value["number"],
            value["intended_ns"],
            value["sent_ns"],
            digest,
            response,
            value["asked_tokens"],
        )


class ColumnsBuilder:
    """Collects rows. `ChunkStore` keeps their chunks in bounded memory and describes
    the arguments.
    """

    def __init__(
        self, path: str = "", held_chunks: int = HELD_CHUNKS, piece_chunks: int = PIECE_CHUNKS
    ) -> None:
        self._columns = Columns()
        self._appends = tuple(column.append for column in self._columns.scalars.values())
        self._chunks = ChunkStore(path, held_chunks, piece_chunks)
        self._finish_reasons = _Names()
        self._error_kinds = _Names()
        self._examples: dict[str, str] = {}

    def add(self, request: RequestRecord) -> None:
        """Add a row for the request, without the text of its answer. Raises ValueError if the
        prompt's digest has another length than 16.
        """
        response = request.response
        if len(request.prompt_digest) != DIGEST_CHARACTERS:
            digest = request.prompt_digest
            raise ValueError(
                f"the prompt digest {digest!r} of request {request.number} "
                f"must have {DIGEST_CHARACTERS} characters"
            )
        row = (
            request.number,
            request.asked_tokens,
            request.intended_ns,
            request.sent_ns,
            response.first_output_ns,
            response.last_output_ns,
            response.last_ns,
            _or_not_reported(response.prompt_tokens),
            _or_not_reported(response.completion_tokens),
            _or_not_reported(response.cached_tokens),
            _or_not_reported(response.verify_ct),
            response.own_tokens,
            response.own_is_exact,
            response.status,
            len(response.chunk_ns),
            response.chunk_tokens is not None,
            self._finish_reasons.code(response.finish_reason),
            self._error_kinds.code(response.error_kind),
        )
        for append, value in zip(self._appends, row, strict=True):
            append(value)
        self._columns.digests.extend(request.prompt_digest.encode("ascii"))
        self._chunks.add(response.chunk_ns, response.chunk_tokens)
        if response.error_kind:
            self._add_example(response)

    def _add_example(self, response: Response) -> None:
        """Keep the first error text of each kind, and of each HTTP status."""
        kind = response.error_kind
        name = f"{kind} {response.status}" if kind == ErrorName.HTTP_STATUS else kind
        if name in self._examples or len(self._examples) < MAX_EXAMPLES:
            self._examples.setdefault(name, response.error_detail)

    def build(self) -> Columns:
        """Return the columns with all rows. The builder must not be used afterwards."""
        names = {"finish_reason": self._finish_reasons.names, "error_kind": self._error_kinds.names}
        return replace(
            self._columns, names=names, error_examples=self._examples, pieces=self._chunks.finish()
        )


class _Names:
    """Maps a small number of different texts to codes from 1 on. An empty text has code 0."""

    def __init__(self) -> None:
        self._codes: dict[str, int] = {}

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._codes)

    def code(self, name: str) -> int:
        if not name:
            return 0
        known = self._codes.get(name)
        if known is None:
            is_full = len(self._codes) >= MAX_NAMES
            # JSON can contain lone surrogates, which UTF-8 cannot encode
            kept = (
                OTHER_NAME
                if is_full
                else name[:MAX_NAME_CHARACTERS].encode("utf-8", "replace").decode()
            )
            known = self._codes.setdefault(kept, len(self._codes) + 1)
        return known

    def recode(self, codes: array[int], names: Sequence[str]) -> array[int]:
        """Translate codes of another table, whose texts are `names`, into codes of this table."""
        ours = bytes([0, *(self.code(name) for name in names)])
        return array("B", codes.tobytes().translate(ours.ljust(256, b"\0")))


def _or_not_reported(count: int | None) -> int:
    return NOT_REPORTED if count is None else min(count, MAX_COUNT)


def _or_none(count: int) -> int | None:
    return None if count == NOT_REPORTED else count
