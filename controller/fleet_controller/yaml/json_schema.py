"""Owns the JSON Schemas of job and fleet file, made from the models, for editors; checks nothing itself."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel

from fleet_controller.spec.fleet_models import FleetFile
from fleet_controller.spec.models import JobFile


def job_schema() -> dict[str, Any]:
    """JSON Schema (draft 2020-12) of a job file. It accepts all that `load_job` accepts; rules that span keys are `lint`'s."""
    return _schema(JobFile, "benchfleet job")


def fleet_schema() -> dict[str, Any]:
    """JSON Schema (draft 2020-12) of a fleet file. It accepts all that `load_fleet` accepts; rules that span keys are `lint`'s."""
    return _schema(FleetFile, "benchfleet fleet")


def _schema(model: type[BaseModel], title: str) -> dict[str, Any]:
    schema: dict[str, Any] = _untitled(model.model_json_schema(mode="validation"))
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": title} | schema


def _untitled(part: Any) -> Any:
    """Without the titles that pydantic makes of the names of keys: an editor shows the descriptions instead."""
    if isinstance(part, list):
        return [_untitled(entry) for entry in part]
    if isinstance(part, dict):
        return {name: _untitled(entry) for name, entry in part.items() if name != "title" or not isinstance(entry, str)}
    return part
