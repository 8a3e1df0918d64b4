"""What each kind of error tells the shell."""

from __future__ import annotations

import pytest

from fleet_protos import errors
from fleet_protos.errors import ExitCode


@pytest.mark.parametrize(
    ("kind", "code"),
    [
        (errors.ConfigError, ExitCode.USER_MUST_EDIT),
        (errors.NotFound, ExitCode.USER_MUST_EDIT),
        (errors.Conflict, ExitCode.USER_MUST_EDIT),
        (errors.Superseded, ExitCode.USER_MUST_EDIT),
        (errors.HostUnreachable, ExitCode.UNREACHABLE),
        (errors.Bug, ExitCode.BUG),
        (errors.LoadFailed, ExitCode.ANSWER_IS_BAD),
    ],
)
def test_only_a_measurement_that_went_wrong_is_a_bad_answer(kind: type[errors.FleetError], code: ExitCode) -> None:
    assert kind("what", "do").exit_code is code
