"""Owns the JSON Schema of the job file, made from the models, for editors; checks nothing itself."""

from __future__ import annotations

from typing import Any

from fleet_controller.spec.models import JobFile


def job_schema() -> dict[str, Any]:
    """JSON Schema (draft 2020-12) of a job file. It accepts all that `load_job` accepts; rules that span keys are `lint`'s."""
    schema = JobFile.model_json_schema(mode="validation")
    return {"$schema": "https://json-schema.org/draft/2020-12/schema"} | schema
