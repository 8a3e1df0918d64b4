"""When a failed trial is tried again."""

from __future__ import annotations

import pytest

from fleet_controller.core.retry import RULES, may_retry
from fleet_protos.errors import ErrorKind


@pytest.mark.parametrize("kind", [kind for kind in ErrorKind if kind is not ErrorKind.NONE])
def test_every_error_kind_has_a_rule(kind: ErrorKind) -> None:
    assert kind in RULES


@pytest.mark.parametrize("kind", list(RULES))
def test_a_kind_is_retried_as_often_as_its_rule_says_and_no_more(kind: ErrorKind) -> None:
    retries = RULES[kind].retries
    assert [may_retry([kind] * failures) for failures in range(1, retries + 2)] == [
        True
    ] * retries + [False]


def test_kinds_are_counted_apart() -> None:
    assert may_retry([ErrorKind.LOAD_FAILED, ErrorKind.SERVER_LAUNCH])
    assert not may_retry([ErrorKind.LOAD_FAILED, ErrorKind.SERVER_LAUNCH, ErrorKind.LOAD_FAILED])


def test_a_trial_that_never_failed_is_not_a_retry() -> None:
    assert not may_retry([])
