"""One map of errors and gRPC status codes serves both servers and both clients."""

from __future__ import annotations

import grpc
import pytest

from fleet_protos import errors
from fleet_protos.grpc_errors import error_class, status_code

SENT = [
    errors.NotFound,
    errors.ConfigError,
    errors.Superseded,
    errors.Conflict,
    errors.HostUnreachable,
    errors.Bug,
]


@pytest.mark.parametrize("kind", SENT)
def test_a_client_raises_the_error_that_the_server_sent(kind: type[errors.FleetError]) -> None:
    assert error_class(status_code(kind)) is kind


@pytest.mark.parametrize("code", grpc.StatusCode)
def test_each_status_code_becomes_an_error_to_act_on(code: grpc.StatusCode) -> None:
    assert issubclass(error_class(code), errors.FleetError)


def test_a_kind_of_its_own_is_sent_as_its_nearest_base() -> None:
    assert status_code(errors.StoreUnusable) is grpc.StatusCode.FAILED_PRECONDITION
    assert status_code(errors.LoadError) is grpc.StatusCode.INTERNAL


def test_the_error_of_a_nested_group_is_the_first_that_a_user_can_act_on() -> None:
    ours = errors.Conflict("busy")
    group = ExceptionGroup("a", [OSError(), ExceptionGroup("b", [ValueError(), ours])])
    assert errors.first_error(group) is ours
    assert isinstance(errors.first_error(ExceptionGroup("c", [KeyError(), OSError()])), KeyError)
