"""Owns where in a job file each setting of a variant stands, and how rules about a whole variant
become findings there. Judges nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from fleet_controller.core.job import Job
from fleet_controller.job_file.argument_checks import setting_layers
from fleet_controller.job_file.parsed_job import ParsedJob
from fleet_controller.job_file.sglang_arguments import resolve_name
from fleet_controller.planning.equivalence import configuration
from fleet_controller.planning.job_plan import Variant
from fleet_controller.yaml.document import KeyPath
from fleet_controller.yaml.findings import Finding
from fleet_knowledge.server_configuration import RuleFinding, ServerConfiguration

RemarkRule = Callable[[ServerConfiguration], Iterable[RuleFinding]]
_Key = tuple[KeyPath, str, str, str, str]


@dataclass(frozen=True, slots=True)
class VariantSet:
    """The variants of one reading, each with its configuration."""

    parsed: ParsedJob
    job: Job
    variants: Sequence[Variant]


def remark_findings(variant_set: VariantSet, rules: Sequence[RemarkRule]) -> Iterator[Finding]:
    """The remarks on all variants, each once, at the setting that causes it; one that only some
    variants have names them.
    """
    places = _SettingPaths(variant_set.parsed)
    found: dict[_Key, list[Variant]] = {}
    paths: dict[KeyPath, int] = {}
    for variant in variant_set.variants:
        asked = configuration(variant_set.job, variant)
        seen: set[KeyPath] = set()
        for remark in (remark for rule in rules for remark in rule(asked)):
            path = places.path_of(remark.subject, variant)
            key = (path, remark.code, remark.severity, remark.message, remark.hint)
            found.setdefault(key, []).append(variant)
            seen.add(path)
        for path in seen:
            paths.setdefault(path, sum(_covers(path, other) for other in variant_set.variants))
    for (path, code, severity, message, hint), having in found.items():
        among = (
            ""
            if len(having) >= paths[path]
            else f" (variant {having[0].name}{_and_more(len(having) - 1)})"
        )
        at_key = len(path) == 4 and path[0] == "factors"
        yield variant_set.parsed.finding(
            code,
            path,
            message + among,
            hint,
            severity=severity,
            at_key=at_key or path[-1:] == ("gpus",),
        )


def _and_more(count: int) -> str:
    return f" and {count} more" if count else ""


def _covers(path: KeyPath, variant: Variant) -> bool:
    """True when the variant has the level that `path` lies in."""
    return path[0] != "factors" or variant.levels.get(str(path[1])) == path[2]


class _SettingPaths:
    """Paths of settings by the names that the server knows them under."""

    def __init__(self, parsed: ParsedJob) -> None:
        self._parsed = parsed
        self._layers: dict[tuple[str, ...], dict[str, KeyPath]] = {}
        for kind in ("args", "env"):
            for path, settings in setting_layers(parsed, kind):
                layer = self._layers.setdefault(tuple(map(str, path[:-1])), {})
                for written in settings:
                    layer[f"{kind}.{resolve_name(written).name if kind == 'args' else written}"] = (
                        *path,
                        written,
                    )

    def path_of(self, subject: str, variant: Variant) -> KeyPath:
        """Where the last layer of the variant that sets `subject` does so; the engine when none
        does.
        """
        if subject == "concurrency":
            return self._busiest()
        if subject == "gpus":
            return ("engine", "gpus")
        found = self._layers.get(("engine",), {}).get(subject)
        for factor, level in variant.levels.items():
            found = self._layers.get(("factors", factor, level), {}).get(subject, found)
        return found or ("engine",)

    def _busiest(self) -> KeyPath:
        def most(name: str) -> int:
            listed = self._parsed.job.workloads[name].concurrency
            return (
                max(listed)
                if isinstance(listed, tuple) and listed
                else listed
                if isinstance(listed, int)
                else 0
            )

        return ("workloads", max(self._parsed.job.workloads, key=most), "concurrency")


def level_path(parsed: ParsedJob, levels: Mapping[str, str]) -> KeyPath:
    """The level that stands last in the file among those named."""
    paths: list[KeyPath] = [("factors", factor, level) for factor, level in levels.items()]
    return max(
        paths, key=lambda path: parsed.document.place(path, at_key=True), default=("factors",)
    )
