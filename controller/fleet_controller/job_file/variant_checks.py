"""Owns where in a job file each setting of a variant stands, and how rules about a whole variant become findings there. Judges nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from fleet_controller.core.job import Job
from fleet_controller.job_file.argument_checks import layers
from fleet_controller.job_file.parsed_job import Reading
from fleet_controller.job_file.sglang_arguments import spell
from fleet_controller.planning.equivalence import configuration
from fleet_controller.planning.job_plan import Variant
from fleet_controller.yaml.document import Path
from fleet_controller.yaml.findings import Finding
from fleet_knowledge.server_configuration import Configuration, Remark

Rule = Callable[[Configuration], Iterable[Remark]]
_Key = tuple[Path, str, str, str, str]


@dataclass(frozen=True, slots=True)
class Arms:
    """The variants of one reading, each with its configuration."""

    reading: Reading
    job: Job
    variants: Sequence[Variant]


def told(arms: Arms, rules: Sequence[Rule]) -> Iterator[Finding]:
    """The remarks on all variants, each once, at the setting that causes it; one that only some variants have names them."""
    places = _Places(arms.reading)
    found: dict[_Key, list[Variant]] = {}
    paths: dict[Path, int] = {}
    for variant in arms.variants:
        asked = configuration(arms.job, variant)
        seen: set[Path] = set()
        for remark in (remark for rule in rules for remark in rule(asked)):
            path = places.of(remark.subject, variant)
            key = (path, remark.code, remark.severity, remark.message, remark.hint)
            found.setdefault(key, []).append(variant)
            seen.add(path)
        for path in seen:
            paths.setdefault(path, sum(_covers(path, other) for other in arms.variants))
    for (path, code, severity, message, hint), having in found.items():
        among = "" if len(having) >= paths[path] else f" (variant {having[0].name}{_more(len(having) - 1)})"
        at_key = len(path) == 4 and path[0] == "factors"
        yield arms.reading.finding(code, path, message + among, hint, severity=severity, at_key=at_key or path[-1:] == ("gpus",))


def _more(count: int) -> str:
    return f" and {count} more" if count else ""


def _covers(path: Path, variant: Variant) -> bool:
    """True when the variant has the level that `path` lies in."""
    return path[0] != "factors" or variant.levels.get(str(path[1])) == path[2]


class _Places:
    """Paths of settings by the names that the server knows them under."""

    def __init__(self, reading: Reading) -> None:
        self._reading = reading
        self._layers: dict[tuple[str, ...], dict[str, Path]] = {}
        for kind in ("args", "env"):
            for path, settings in layers(reading, kind):
                layer = self._layers.setdefault(tuple(map(str, path[:-1])), {})
                for written in settings:
                    layer[f"{kind}.{spell(written).name if kind == 'args' else written}"] = (*path, written)

    def of(self, subject: str, variant: Variant) -> Path:
        """Where the last layer of the variant that sets `subject` does so; the engine when none does."""
        if subject == "concurrency":
            return self._busiest()
        if subject == "gpus":
            return ("engine", "gpus")
        found = self._layers.get(("engine",), {}).get(subject)
        for factor, level in variant.levels.items():
            found = self._layers.get(("factors", factor, level), {}).get(subject, found)
        return found or ("engine",)

    def _busiest(self) -> Path:
        def most(name: str) -> int:
            listed = self._reading.job.workloads[name].concurrency
            return max(listed) if isinstance(listed, tuple) and listed else listed if isinstance(listed, int) else 0

        return ("workloads", max(self._reading.job.workloads, key=most), "concurrency")


def level_path(reading: Reading, levels: Mapping[str, str]) -> Path:
    """The level that stands last in the file among those named."""
    paths: list[Path] = [("factors", factor, level) for factor, level in levels.items()]
    return max(paths, key=lambda path: reading.document.place(path, at_key=True), default=("factors",))
