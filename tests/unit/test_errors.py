"""What each kind of error tells the shell."""

from __future__ import annotations

import pytest

from fleet_protos import errors
from fleet_protos.errors import ExitCode


@pytest.mark.parametrize(
    ("kind", "code"),
    [
        (errors.ConfigError, ExitCode.USAGE_ERROR),
        (errors.NotFound, ExitCode.USAGE_ERROR),
        (errors.Conflict, ExitCode.USAGE_ERROR),
        (errors.Superseded, ExitCode.USAGE_ERROR),
        (errors.HostUnreachable, ExitCode.UNREACHABLE),
        (errors.Bug, ExitCode.BUG),
        (errors.LoadError, ExitCode.FAILED),
    ],
)
def test_only_a_measurement_that_went_wrong_is_a_bad_answer(
    kind: type[errors.FleetError], code: ExitCode
) -> None:
    assert kind("what", "do").exit_code is code
