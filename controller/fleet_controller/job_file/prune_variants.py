"""Removes variants without an effect from a job. Adds the `exclude` entries for them to the text of
the job file.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from io import StringIO

from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap, CommentedSeq
from ruamel.yaml.error import YAMLError

from fleet_controller.job_file.attached_files import join_attached_files, split_attached_files
from fleet_controller.job_file.job_loader import LoadedJob, load_job
from fleet_controller.planning.equivalence import (
    EquivalentVariant,
    equivalent_variants,
    exclusions,
    prune_job,
)
from fleet_controller.planning.variants import make_variants
from fleet_protos.errors import ConfigError

_WIDEST_LINE = 4096


@dataclass(frozen=True, slots=True)
class PrunedJob:
    """A job without the variants that have no effect, and the variants that were left out. If no
    variant was left out, the job is unchanged.
    """

    loaded: LoadedJob
    left_out: tuple[EquivalentVariant, ...]


def prune_loaded_job(loaded: LoadedJob) -> PrunedJob:
    """Leave out every variant that runs the same server as another variant. Raises ConfigError if
    the text cannot be changed safely.
    """
    found = equivalent_variants(loaded.job, make_variants(loaded.job))
    if not found:
        return PrunedJob(loaded, ())
    entries = exclusions(found)
    own, files = split_attached_files(loaded.text)
    changed = load_job(join_attached_files(with_exclusions(own, entries), files), loaded.file_name)
    if replace(changed.job, file=loaded.job.file) != prune_job(loaded.job, found):
        written = "; ".join(f"- {dict(entry)}" for entry in entries)
        raise ConfigError(
            "the entries of `exclude` could not be added to this file automatically",
            f"add these entries to the file by hand: {written}",
        )
    return PrunedJob(changed, found)


def with_exclusions(text: str, entries: Sequence[Mapping[str, str]]) -> str:
    """Return the job file's text with `entries` added to `exclude`. Comments and the order of keys
    stay. Raises ConfigError if the text cannot be changed.
    """
    yaml = YAML(typ="rt")
    yaml.preserve_quotes = True
    yaml.width = _WIDEST_LINE
    try:
        document = yaml.load(text)
    except YAMLError as error:
        raise ConfigError(
            "the job file cannot be changed", "add the entries of `exclude` by hand"
        ) from error
    if not isinstance(document, CommentedMap):
        raise ConfigError("the job file is not a mapping", "add the entries of `exclude` by hand")
    listed = document.get("exclude")
    kept = list(listed) if isinstance(listed, list) else []
    document["exclude"] = CommentedSeq([*kept, *map(_flow, entries)])
    stream = StringIO()
    yaml.dump(document, stream)
    return stream.getvalue()


def _flow(entry: Mapping[str, str]) -> CommentedMap:
    written = CommentedMap(entry)
    written.fa.set_flow_style()
    return written
