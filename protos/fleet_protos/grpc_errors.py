"""Maps the errors of errors.py to gRPC status codes and back, for all servers and clients."""

from __future__ import annotations

import grpc

from fleet_protos.errors import (
    Bug,
    ConfigError,
    Conflict,
    FleetError,
    HostUnreachable,
    NotFound,
    Superseded,
)

# A trailer of errors that the peer itself sent; errors of the connection do not have it.
ANSWER_KEY = "fleet-answer"
# Classes before those that they derive from.
_STATUS: dict[type[FleetError], grpc.StatusCode] = {
    NotFound: grpc.StatusCode.NOT_FOUND,
    ConfigError: grpc.StatusCode.INVALID_ARGUMENT,
    Superseded: grpc.StatusCode.ABORTED,
    Conflict: grpc.StatusCode.FAILED_PRECONDITION,
    HostUnreachable: grpc.StatusCode.UNAVAILABLE,
    Bug: grpc.StatusCode.INTERNAL,
}
# Codes that only gRPC itself or an older peer sends.
_ALIASES: dict[grpc.StatusCode, type[FleetError]] = {
    grpc.StatusCode.RESOURCE_EXHAUSTED: Conflict,
    grpc.StatusCode.ALREADY_EXISTS: Conflict,
    grpc.StatusCode.DEADLINE_EXCEEDED: HostUnreachable,
    grpc.StatusCode.CANCELLED: HostUnreachable,
}
_ERROR = {code: kind for kind, code in _STATUS.items()} | _ALIASES


def status_code(kind: type[FleetError]) -> grpc.StatusCode:
    """Return the status code of an error class, or of its nearest base class that has a status
    code. Return INTERNAL if there is none.
    """
    matching = (code for base, code in _STATUS.items() if issubclass(kind, base))
    return next(matching, grpc.StatusCode.INTERNAL)


def error_class(code: grpc.StatusCode) -> type[FleetError]:
    """Return the error class that a client raises for a status code. Return Bug for an unknown
    code.
    """
    return _ERROR.get(code, Bug)
