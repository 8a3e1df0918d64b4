"""Finds variants that differ in the job file although their servers run alike."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

from fleet_controller.core.job import Job
from fleet_controller.planning.variants import Variant
from fleet_knowledge.release import Release
from fleet_knowledge.server_configuration import ServerConfiguration
from fleet_knowledge.sglang.effective_configuration import (
    EffectiveConfiguration,
    resolve_configuration,
)
from fleet_knowledge.sglang_releases import release_of_image
from fleet_protos.trial_types import EngineKind, EngineSpec


@dataclass(frozen=True, slots=True)
class EquivalentVariant:
    """A variant without an effect of its own, because its server runs like the server of `same_as`.

    - `settings`: the settings of the variant that change nothing.
    - `exclude`: an entry for the job's `exclude` that removes this variant and no variant with an
      effect.
    """

    variant: Variant
    same_as: Variant
    exclude: Mapping[str, str]
    settings: tuple[str, ...]
    why: str

    def to_json(self) -> dict[str, Any]:
        """Return the entry for the output of `fleetctl plan --json`."""
        return {
            "variant": self.variant.name,
            "same_as": self.same_as.name,
            "why": self.why,
            "exclude": dict(self.exclude),
        }


def release_of(engine: EngineSpec) -> Release | None:
    """Return the SGLang version that the tag of the container image names, or None."""
    return release_of_image(engine.container.image) if engine.container.image else None


def launch_configuration(job: Job, variant: Variant) -> ServerConfiguration:
    """Return what the variant launches, in the form that the rules about SGLang take."""
    engine = variant.engine
    most = max((workload.concurrency for workload in job.workloads), default=0)
    return ServerConfiguration(
        engine.args,
        engine.env,
        engine.model_path,
        job.gpus,
        release_of(engine),
        max(engine.gang.nodes, 1),
        most,
    )


def equivalent_variants(job: Job, variants: Sequence[Variant]) -> tuple[EquivalentVariant, ...]:
    """Return each variant of an SGLang job whose server certainly runs like the server of another
    variant. The baseline is never returned.

    A variant with the same arguments and variables as another one is not returned either. That is
    an A/A comparison, which may be intended.
    """
    if job.engine.kind != EngineKind.SGLANG or len(variants) < 2:
        return ()
    groups: dict[tuple[str, tuple[str, ...]], list[tuple[Variant, EffectiveConfiguration]]] = {}
    for variant in variants:
        found = resolve_configuration(launch_configuration(job, variant))
        key = found.identity, variant.engine.env_removed
        groups.setdefault(key, []).append((variant, found))
    pairs = [pair for group in groups.values() for pair in _equivalent_pairs(group)]
    entries = _exclude_entries(pairs, variants)
    return tuple(
        _equivalent_variant(pair, entry) for pair, entry in zip(pairs, entries, strict=True)
    )


_Pair = tuple[tuple[Variant, EffectiveConfiguration], tuple[Variant, EffectiveConfiguration]]


def _equivalent_pairs(group: Sequence[tuple[Variant, EffectiveConfiguration]]) -> Iterator[_Pair]:
    """Yield each variant of a group, paired with the variant that is kept: the baseline, or else
    the first of the group.
    """
    kept = next((member for member in group if member[0].is_baseline), group[0])
    yield from ((member, kept) for member in group if not _is_written_alike(member[0], kept[0]))


def _is_written_alike(variant: Variant, other: Variant) -> bool:
    ours, theirs = variant.engine, other.engine
    return (ours.args, ours.env, ours.env_removed) == (theirs.args, theirs.env, theirs.env_removed)


def _equivalent_variant(pair: _Pair, entry: Mapping[str, str]) -> EquivalentVariant:
    (variant, found), (kept, other) = pair
    reasons = dict(_ineffective_settings(variant, found, kept, other)) | dict(
        _corrected_arguments(variant, found, kept)
    )
    why = "; ".join(
        f"`{subject.partition('.')[2]}`: {reason}" for subject, reason in reasons.items()
    )
    return EquivalentVariant(variant, kept, entry, tuple(reasons), why)


def _ineffective_settings(
    variant: Variant, found: EffectiveConfiguration, kept: Variant, other: EffectiveConfiguration
) -> Iterator[tuple[str, str]]:
    """Yield the settings without an effect that differ between the two variants."""
    for each in (*found.ineffective, *other.ineffective):
        if _value(variant, each.subject) != _value(kept, each.subject):
            yield each.subject, each.why


def _corrected_arguments(
    variant: Variant, found: EffectiveConfiguration, kept: Variant
) -> Iterator[tuple[str, str]]:
    """Yield the arguments that differ between the two variants although SGLang uses the same value
    for both.
    """
    for name, used in found.args.items():
        asked, other = variant.engine.args.get(name), kept.engine.args.get(name)
        if asked != other and str(asked) != str(used):
            yield (
                f"args.{name}",
                f"SGLang uses {used}"
                + (f" instead of {asked}" if asked is not None else " by default"),
            )
        elif asked != other and str(other) != str(used):
            although = f", although it sets {other}" if other is not None else ""
            yield f"args.{name}", f"SGLang uses {used} for `{kept.name}` too{although}"


def _value(variant: Variant, subject: str) -> Any:
    kind, _, name = subject.partition(".")
    return (variant.engine.args if kind == "args" else variant.engine.env).get(name)


_Levels = tuple[tuple[str, str], ...]


def _exclude_entries(
    pairs: Sequence[_Pair], variants: Sequence[Variant]
) -> list[Mapping[str, str]]:
    """Return for each pair the fewest levels that exclude its variant. The levels may exclude
    further variants without an effect, but no variant with an effect.
    """
    gone = {variant.index for (variant, _), _ in pairs}
    harmless: dict[_Levels, bool] = {}

    def is_harmless(part: _Levels) -> bool:
        if part not in harmless:
            wanted = dict(part).items()
            harmless[part] = all(
                variant.index in gone for variant in variants if wanted <= variant.levels.items()
            )
        return harmless[part]

    found = [
        next(part for part in _exclude_candidates(variant, kept) if is_harmless(part))
        for (variant, _), (kept, _) in pairs
    ]
    shortest = sorted(dict.fromkeys(found), key=len)
    return [
        dict(next(part for part in shortest if dict(part).items() <= variant.levels.items()))
        for (variant, _), _ in pairs
    ]


def _exclude_candidates(variant: Variant, kept: Variant) -> Iterator[_Levels]:
    """Return sets of levels from the smallest to the largest: first the levels that differ, then
    these with one further level, then all levels of the variant.
    """
    own = tuple(
        (factor, level)
        for factor, level in variant.levels.items()
        if kept.levels.get(factor) != level
    )
    others = [item for item in variant.levels.items() if item not in own]
    return chain([own], ((*own, other) for other in others), [tuple(variant.levels.items())])


def exclusions(equivalents: Iterable[EquivalentVariant]) -> tuple[Mapping[str, str], ...]:
    """Return the `exclude` entries of all these variants, each entry once."""
    return tuple(
        dict(entry) for entry in dict.fromkeys(tuple(each.exclude.items()) for each in equivalents)
    )


def prune_job(job: Job, equivalents: Iterable[EquivalentVariant]) -> Job:
    """Return the job without the variants that have no effect."""
    return replace(job, exclude=(*job.exclude, *exclusions(equivalents)))
