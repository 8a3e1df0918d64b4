"""Imports a pasted launch. Returns what it launches, the job made from it, and all findings. Never
raises.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from fleet_controller.importers.detect_format import (
    COMPOSE,
    DOCKERFILE,
    MANIFEST,
    SHELL,
    UNIT,
    plain_text,
    source_kind,
)
from fleet_controller.importers.find_launches import activated_python, find_launches
from fleet_controller.importers.job_draft import JobDraft, draft_job, set_environment
from fleet_controller.importers.secret_masking import is_secret_name, mask_secrets, secret_texts
from fleet_controller.importers.server_environment import (
    is_server_variable,
    read_environment,
    unexported_server_variables,
)
from fleet_controller.importers.shell.expansion import SourceText
from fleet_controller.importers.shell.lexer import LARGEST_CHARS
from fleet_controller.importers.shell.script import Script, read_script
from fleet_controller.importers.sources.compose import starts_of_compose
from fleet_controller.importers.sources.dockerfile import starts_of_dockerfile
from fleet_controller.importers.sources.kubernetes import starts_of_manifest
from fleet_controller.importers.sources.launch_values import (
    ServerLaunch,
    StartedCommand,
    starts_of_script,
)
from fleet_controller.importers.sources.systemd_unit import starts_of_unit
from fleet_controller.importers.write_job import JobText, write_job
from fleet_controller.job_file.job_loader import load_job
from fleet_controller.yaml.finding_collector import FindingCollector
from fleet_controller.yaml.findings import ERROR, Finding, JobRejected, has_errors, in_order

OK, EDIT, NO_LAUNCH, BROKEN = "ok", "edit", "no_launch_command", "error"
_READERS = {
    COMPOSE: starts_of_compose,
    MANIFEST: starts_of_manifest,
    DOCKERFILE: starts_of_dockerfile,
    UNIT: starts_of_unit,
}
_EMPTY = Script((), {}, {}, ())
_BLOCKING_CODES = frozenset(
    {
        "text_after_continuation",
        "continuation_missing",
        "unclosed_quote",
        "typographic",
        "several_launches",
    }
)
_ALREADY_REPORTED = frozenset({"variable_overwritten", "unexpanded_variable", "nccl_host_file"})
_REPORTED_WITHOUT_LAUNCH = _ALREADY_REPORTED | {
    "arm_without_effect",
    "python_default",
    "nccl_bypassed",
}


@dataclass(frozen=True, slots=True)
class ImportedLaunch:
    """The result of importing a pasted file. `job_file` is empty if no job can be made. No text of
    the result contains a secret.

    `verdict` is ok, edit, no_launch_command or error. With edit, something must be filled in or
    changed. With error, it is not clear what would be launched.
    """

    verdict: str
    job_file: str
    launch: Mapping[str, Any]
    findings: tuple[Finding, ...] = field(default_factory=tuple)

    def to_json(self) -> dict[str, Any]:
        """Return the JSON of `fleetctl init --from-command --json`."""
        return {
            "version": 1,
            "verdict": self.verdict,
            "job_file": self.job_file,
            "launch": dict(self.launch),
            "findings": [finding.to_json() for finding in self.findings],
        }


def import_launch(content: str, file_name: str) -> ImportedLaunch:
    """Import a shell script, a compose file, a manifest, a Dockerfile, a systemd unit or a single
    command.
    """
    notes = FindingCollector(file_name)
    if len(content) > LARGEST_CHARS:
        notes.error(
            "too_large",
            1,
            f"the file is larger than {LARGEST_CHARS >> 10} KiB",
            "paste only the launch",
        )
        return ImportedLaunch(BROKEN, "", launch_json(JobDraft()), tuple(notes.found))
    text = plain_text(content)
    kind = source_kind(text) or SHELL
    script = read_script(text, notes) if kind == SHELL else _EMPTY
    starts = starts_of_script(script) if kind == SHELL else _READERS[kind](text, notes)
    launches = find_launches(starts, notes)
    if not launches and kind == SHELL:
        script, starts, launches = _from_here_documents(script, starts, notes)
    launch = _choose_launch(launches, notes)
    draft = _draft_from(launch, script, starts, text, notes)
    draft.secret_texts |= secret_texts(text) | {
        value for name, value in script.assigned if is_secret_name(name)
    }
    return _result(draft, launch, file_name, notes)


def _from_here_documents(
    script: Script, starts: list[StartedCommand], notes: FindingCollector
) -> tuple[Script, list[StartedCommand], list[ServerLaunch]]:
    """Find the launch in the here-documents of a script, because a script may write the launch
    script.
    """
    for document in script.here_documents:
        inner = read_script(document.body, FindingCollector(""), document.body_line)
        if find_launches(starts_of_script(inner), FindingCollector("")):
            notes.info(
                "here_document",
                document.line,
                "the launch is inside a here-document, so the text of that here-document is read",
                "",
            )
            inner = read_script(document.body, notes, document.body_line, script.env)
            found = starts_of_script(inner)
            return inner, found, find_launches(found, notes)
    return script, starts, []


def _choose_launch(
    launches: Sequence[ServerLaunch], notes: FindingCollector
) -> ServerLaunch | None:
    """Return the one server that the job launches, and report the other servers."""
    if not launches:
        return None
    first = min(launches, key=_rank)
    for other in launches:
        if other is first:
            continue
        if "node_rank" in other.options and "node_rank" in first.options:
            notes.info(
                "dropped",
                other.entry.line,
                "the command of another host of the same server is left out",
                "",
                "node_rank",
            )
            continue
        line, first_line = other.entry.line, first.entry.line
        place = f" ({other.start.place})" if other.start.place else ""
        message = (
            f"a second server is launched in line {line}{place}, but a job launches one server: "
            f"the server in line {first_line} is used"
        )
        hint = "paste only the server that you want to measure, or make the difference a factor"
        notes.warn("several_servers", other.entry.line, message, hint)
    return first


def _rank(launch: ServerLaunch) -> tuple[bool, int]:
    """Return a sort key that puts a command for another host of the same server last."""
    rank = launch.options.get("node_rank")
    return bool(rank and rank.value not in (0, "0")), 0


def _draft_from(
    launch: ServerLaunch | None,
    script: Script,
    starts: Sequence[StartedCommand],
    text: str,
    notes: FindingCollector,
) -> JobDraft:
    if launch is None:
        return _draft_from_variables(script, starts, text, notes)
    own = frozenset(re.findall(r"\$\{?(\w+)", text))
    meant = (
        unexported_server_variables(_without_given(script.unexported, launch), notes, expanded=own)
        if launch.start.container is None
        else {}
    )
    before = {name: value for name, value in meant.items() if value.line <= _started_at(launch)}
    _warn_exported_late(script, launch, notes)
    environment = read_environment(
        {**before, **launch.env}, launch.start.container is not None, notes
    )
    draft = draft_job(launch, environment, activated_python(starts), notes)
    draft.version = draft.version or _installed_version(text)
    return draft


def _without_given(
    unexported: Mapping[str, SourceText], launch: ServerLaunch
) -> dict[str, SourceText]:
    return {name: value for name, value in unexported.items() if name not in launch.env}


def _warn_exported_late(script: Script, launch: ServerLaunch, notes: FindingCollector) -> None:
    for name, value in script.env.items() if launch.start.container is None else ():
        if name not in launch.env and value.line > _started_at(launch) and is_server_variable(name):
            message = f"{name} is exported after the server starts, so the server does not get it"
            notes.warn("no_effect", value.line, message, "move the export before the command", name)


def _started_at(launch: ServerLaunch) -> int:
    """Return the line of the command itself. Its first words may come from an array in an earlier
    line.
    """
    return max(word.line for word in launch.start.words)


def _installed_version(text: str) -> str:
    found = re.search(r"\bsglang(?:\[[\w,-]*\])?==(\d+(?:\.\d+)+(?:\.?(?:post|rc|dev)\d+)?)", text)
    return found[1] if found else ""


def _draft_from_variables(
    script: Script, starts: Sequence[StartedCommand], text: str, notes: FindingCollector
) -> JobDraft:
    """Return a draft that has only the variables, because no server is launched."""
    draft = JobDraft(version=_installed_version(text))
    draft.needs["MODEL"] = None
    env = {
        **unexported_server_variables(script.unexported, notes, everything=not script.runs),
        **script.env,
    }
    for start in starts if not env else ():
        env.update(start.env)
    set_environment(draft, read_environment(env, False, notes))
    draft.unfilled.update(
        {"model.path": 1}
        | {f"env.{name}": value.line for name, value in draft.env.items() if not value.is_known}
    )
    message = (
        "no launch command was found: neither `sglang serve` nor `python -m sglang.launch_server`"
    )
    if draft.env:
        hint = (
            "the variables are kept: paste the command below them, or fill in model.path and "
            "engine.args in the job"
        )
        notes.warn("no_launch_command", 1, message, hint)
    else:
        notes.error(
            "no_launch_command",
            1,
            message,
            "paste the whole command, with the lines that set its variables",
        )
    return draft


def _result(
    draft: JobDraft, launch: ServerLaunch | None, file_name: str, notes: FindingCollector
) -> ImportedLaunch:
    secrets = draft.secret_texts
    _mask(draft, secrets)
    masked_findings = tuple(_masked_finding(finding, secrets) for finding in notes.found)
    broken = any(
        finding.code in _BLOCKING_CODES and finding.severity == ERROR for finding in masked_findings
    )
    job = write_job(draft, file_name, masked_findings)
    found = (
        masked_findings
        if broken
        else (*masked_findings, *_job_findings(job, draft, file_name, launch))
    )
    nothing = launch is None and not draft.env
    verdict = (
        BROKEN if broken else NO_LAUNCH if launch is None else EDIT if has_errors(found) else OK
    )
    return ImportedLaunch(
        verdict,
        "" if broken or nothing else job.text,
        launch_json(draft),
        in_order(_without_repeated(found)),
    )


def _mask(draft: JobDraft, secrets: Iterable[str]) -> None:
    """Mask secret texts also where no secret is expected, such as in a path or in another
    variable.
    """
    draft.args = {name: mask_secrets(value, secrets) for name, value in draft.args.items()}
    draft.env = {
        name: replace(value, text=mask_secrets(value.text, secrets))
        for name, value in draft.env.items()
    }
    if draft.model_path is not None:
        draft.model_path = replace(
            draft.model_path, text=mask_secrets(draft.model_path.text, secrets)
        )
    if draft.container is not None:
        mounts = {
            mask_secrets(inside, secrets): replace(host, text=mask_secrets(host.text, secrets))
            for inside, host in draft.container.mounts.items()
        }
        draft.container = replace(
            draft.container,
            image=replace(
                draft.container.image, text=mask_secrets(draft.container.image.text, secrets)
            ),
            mounts=mounts,
        )


def _masked_finding(finding: Finding, secrets: Iterable[str]) -> Finding:
    return replace(
        finding,
        message=mask_secrets(finding.message, secrets),
        hint=mask_secrets(finding.hint, secrets),
        key=mask_secrets(finding.key, secrets),
    )


def _job_findings(
    job: JobText, draft: JobDraft, file_name: str, launch: ServerLaunch | None
) -> Iterable[Finding]:
    """Yield the findings of `lint` about the job, at the lines of the pasted file. Findings about
    values that are already reported are left out.
    """
    try:
        findings: Sequence[Finding] = load_job(job.text, file_name).findings
    except JobRejected as rejected:
        findings = rejected.findings
    asked = tuple(
        key if key.startswith(("model.", "engine.")) else f".{key}" for key in draft.unfilled
    )
    blank = re.compile("|".join([r"\$\{", *(rf"\${re.escape(name)}\b" for name in draft.needs)]))
    for finding in findings:
        is_asked = any(finding.key.endswith(key) for key in asked) or bool(
            blank.search(finding.message)
        )
        if not is_asked and finding.code not in (
            _ALREADY_REPORTED if launch else _REPORTED_WITHOUT_LAUNCH
        ):
            yield replace(finding, line=_pasted_line(finding.key, job.places), column=0)


def _pasted_line(key: str, places: Mapping[str, int]) -> int:
    while key and key not in places:
        key = key.rpartition(".")[0]
    return places.get(key, 0)


def _without_repeated(findings: Iterable[Finding]) -> list[Finding]:
    """Return the findings without those that repeat an earlier finding about the same argument or
    variable.
    """
    kept: dict[tuple[str, str, int], Finding] = {}
    for finding in findings:
        kept.setdefault(
            (finding.code, finding.key.rpartition(".")[2] or finding.message, finding.line), finding
        )
    return list(kept.values())


def launch_json(draft: JobDraft) -> dict[str, Any]:
    """Return what the pasted file launches, without secrets and as far as it could be read."""
    model = draft.model_path.text if draft.model_path else None
    args = ({"model_path": model} if model is not None else {}) | {
        name: value for name, value in draft.args.items() if name not in draft.not_read
    }
    return {
        "entry": draft.entry_spelling,
        "image": draft.container.image.text if draft.container else None,
        "sglang_version": draft.version or None,
        "model_path": model,
        "args": args,
        "env": {name: value.text for name, value in draft.env.items()},
        "gpus": [int(name) if name.isdecimal() else name for name in draft.gpu_ids],
        "gpus_needed": draft.gpus,
        "hosts": draft.hosts,
        "server_port": draft.server_port,
        "probe_port": draft.probe_port,
        "secrets_masked": list(draft.secret_names),
        "needs_values": list(draft.needs),
    }
