"""Owns the one way in for a pasted launch: text in, what it launches, the job made of it and all findings out. Never raises."""

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
    kind_of,
    plain_text,
)
from fleet_controller.importers.find_launches import activated_python, launches_of
from fleet_controller.importers.job_draft import Carried, carry, take_environment
from fleet_controller.importers.secret_masking import is_secret_name, masked, secret_texts
from fleet_controller.importers.server_environment import (
    is_meant,
    meant_for_server,
    read_environment,
)
from fleet_controller.importers.shell.expansion import Argument
from fleet_controller.importers.shell.lexer import LARGEST_CHARS
from fleet_controller.importers.shell.script import Script, read_script
from fleet_controller.importers.sources.compose import starts_of_compose
from fleet_controller.importers.sources.dockerfile import starts_of_dockerfile
from fleet_controller.importers.sources.kubernetes import starts_of_manifest
from fleet_controller.importers.sources.launch_values import Launch, Start, starts_of_script
from fleet_controller.importers.sources.systemd_unit import starts_of_unit
from fleet_controller.importers.write_job import JobText, write_job
from fleet_controller.job_file.job_loader import load_job
from fleet_controller.yaml.finding_collector import Notes
from fleet_controller.yaml.findings import ERROR, Finding, JobRejected, has_errors, in_order

OK, EDIT, NO_LAUNCH, BROKEN = "ok", "edit", "no_launch_command", "error"
_READERS = {COMPOSE: starts_of_compose, MANIFEST: starts_of_manifest, DOCKERFILE: starts_of_dockerfile, UNIT: starts_of_unit}
_EMPTY = Script((), {}, {}, ())
_BREAKS = frozenset({"text_after_continuation", "continuation_missing", "unclosed_quote", "typographic", "several_launches"})
_TOLD_ALREADY = frozenset({"variable_overwritten", "unexpanded_variable", "nccl_host_file"})
_OF_A_LAUNCH = _TOLD_ALREADY | {"arm_without_effect", "python_default", "nccl_bypassed"}


@dataclass(frozen=True, slots=True)
class Pasted:
    """What a pasted file came to. `job_file` is empty where no job may be made of it; no text in it holds a secret.

    `verdict`: ok; edit (something must be filled in or changed); no_launch_command; error (it cannot be told what would be launched).
    """

    verdict: str
    job_file: str
    launch: Mapping[str, Any]
    findings: tuple[Finding, ...] = field(default_factory=tuple)

    def to_json(self) -> dict[str, Any]:
        """The JSON of `fleetctl init --from-command --json`."""
        return {
            "version": 1,
            "verdict": self.verdict,
            "job_file": self.job_file,
            "launch": dict(self.launch),
            "findings": [finding.to_json() for finding in self.findings],
        }


def read_pasted(content: str, file_name: str) -> Pasted:
    """Read a shell script, a compose file, a manifest, a Dockerfile, a systemd unit or one command."""
    notes = Notes(file_name)
    if len(content) > LARGEST_CHARS:
        notes.error("too_large", 1, f"the file is larger than {LARGEST_CHARS >> 10} KiB", "paste the launch alone")
        return Pasted(BROKEN, "", launch_json(Carried()), tuple(notes.found))
    text = plain_text(content)
    kind = kind_of(text) or SHELL
    script = read_script(text, notes) if kind == SHELL else _EMPTY
    starts = starts_of_script(script) if kind == SHELL else _READERS[kind](text, notes)
    launches = launches_of(starts, notes)
    if not launches and kind == SHELL:
        script, starts, launches = _from_here_documents(script, starts, notes)
    launch = _chosen(launches, notes)
    carried = _carried(launch, script, starts, text, notes)
    carried.secret_texts |= secret_texts(text) | {value for name, value in script.assigned if is_secret_name(name)}
    return _result(carried, launch, file_name, notes)


def _from_here_documents(script: Script, starts: list[Start], notes: Notes) -> tuple[Script, list[Start], list[Launch]]:
    """A script that writes the launch script: the text that it writes is read instead."""
    for document in script.here_documents:
        inner = read_script(document.body, Notes(""), document.body_line)
        if launches_of(starts_of_script(inner), Notes("")):
            notes.info("here_document", document.line, "the launch stands in the text of a here-document: that is read", "")
            inner = read_script(document.body, notes, document.body_line, script.env)
            found = starts_of_script(inner)
            return inner, found, launches_of(found, notes)
    return script, starts, []


def _chosen(launches: Sequence[Launch], notes: Notes) -> Launch | None:
    """The one server that the job launches; the others are told."""
    if not launches:
        return None
    first = min(launches, key=_rank)
    for other in launches:
        if other is first:
            continue
        if "node_rank" in other.options and "node_rank" in first.options:
            notes.info("dropped", other.entry.line, "the command of another host of the same server is left out", "", "node_rank")
            continue
        here = f" ({other.start.place})" if other.start.place else ""
        message = f"a second server is launched in line {other.entry.line}{here}: a job launches one, that of line {first.entry.line}"
        hint = "paste the one that you want to measure alone, or make the difference a factor"
        notes.warn("several_servers", other.entry.line, message, hint)
    return first


def _rank(launch: Launch) -> tuple[bool, int]:
    """The first server, and of the hosts of one server the one that answers."""
    rank = launch.options.get("node_rank")
    return bool(rank and rank.value not in (0, "0")), 0


def _carried(launch: Launch | None, script: Script, starts: Sequence[Start], text: str, notes: Notes) -> Carried:
    if launch is None:
        return _block_of_variables(script, starts, text, notes)
    own = frozenset(re.findall(r"\$\{?(\w+)", text))
    meant = meant_for_server(_not_given(script.unexported, launch), notes, expanded=own) if launch.start.box is None else {}
    before = {name: value for name, value in meant.items() if value.line <= _started_at(launch)}
    _tell_late(script, launch, notes)
    environment = read_environment({**before, **launch.env}, launch.start.box is not None, notes)
    carried = carry(launch, environment, activated_python(starts), notes)
    carried.version = carried.version or _installed_version(text)
    return carried


def _not_given(unexported: Mapping[str, Argument], launch: Launch) -> dict[str, Argument]:
    return {name: value for name, value in unexported.items() if name not in launch.env}


def _tell_late(script: Script, launch: Launch, notes: Notes) -> None:
    for name, value in script.env.items() if launch.start.box is None else ():
        if name not in launch.env and value.line > _started_at(launch) and is_meant(name):
            message = f"{name} is exported after the server was started: it never reaches it"
            notes.warn("no_effect", value.line, message, "move it before the command", name)


def _started_at(launch: Launch) -> int:
    """The line of the command itself, whose first words may stand in an array further up."""
    return max(word.line for word in launch.start.words)


def _installed_version(text: str) -> str:
    found = re.search(r"\bsglang(?:\[[\w,-]*\])?==(\d+(?:\.\d+)+(?:\.?(?:post|rc|dev)\d+)?)", text)
    return found[1] if found else ""


def _block_of_variables(script: Script, starts: Sequence[Start], text: str, notes: Notes) -> Carried:
    """No server is launched: the variables are what is left to carry over."""
    carried = Carried(version=_installed_version(text))
    carried.needs["MODEL"] = None
    env = {**meant_for_server(script.unexported, notes, everything=not script.runs), **script.env}
    for start in starts if not env else ():
        env.update(start.env)
    take_environment(carried, read_environment(env, False, notes))
    carried.unfilled.update({"model.path": 1} | {f"env.{name}": value.line for name, value in carried.env.items() if not value.is_known})
    message = "no launch command was found: neither `sglang serve` nor `python -m sglang.launch_server`"
    if carried.env:
        hint = "the variables are read: paste the command below them, or fill in model.path and engine.args in the job"
        notes.warn("no_launch_command", 1, message, hint)
    else:
        notes.error("no_launch_command", 1, message, "paste the whole command, with the lines that set its variables")
    return carried


def _result(carried: Carried, launch: Launch | None, file_name: str, notes: Notes) -> Pasted:
    secrets = carried.secret_texts
    _mask(carried, secrets)
    told = tuple(_masked_finding(finding, secrets) for finding in notes.found)
    broken = any(finding.code in _BREAKS and finding.severity == ERROR for finding in told)
    job = write_job(carried, file_name, told)
    found = told if broken else (*told, *_job_findings(job, carried, file_name, launch))
    nothing = launch is None and not carried.env
    verdict = BROKEN if broken else NO_LAUNCH if launch is None else EDIT if has_errors(found) else OK
    return Pasted(verdict, "" if broken or nothing else job.text, launch_json(carried), in_order(_once(found)))


def _mask(carried: Carried, secrets: Iterable[str]) -> None:
    """Secret texts that stand where no secret belongs (in a path, in a variable of another name) are masked there too."""
    carried.args = {name: masked(value, secrets) for name, value in carried.args.items()}
    carried.env = {name: replace(value, text=masked(value.text, secrets)) for name, value in carried.env.items()}
    if carried.model_path is not None:
        carried.model_path = replace(carried.model_path, text=masked(carried.model_path.text, secrets))
    if carried.box is not None:
        mounts = {masked(inside, secrets): replace(host, text=masked(host.text, secrets)) for inside, host in carried.box.mounts.items()}
        carried.box = replace(carried.box, image=replace(carried.box.image, text=masked(carried.box.image.text, secrets)), mounts=mounts)


def _masked_finding(finding: Finding, secrets: Iterable[str]) -> Finding:
    return replace(finding, message=masked(finding.message, secrets), hint=masked(finding.hint, secrets), key=masked(finding.key, secrets))


def _job_findings(job: JobText, carried: Carried, file_name: str, launch: Launch | None) -> Iterable[Finding]:
    """What `lint` says of the job, at the lines of the pasted file; what must be filled in was told already."""
    try:
        findings: Sequence[Finding] = load_job(job.text, file_name).findings
    except JobRejected as rejected:
        findings = rejected.findings
    asked = tuple(key if key.startswith(("model.", "engine.")) else f".{key}" for key in carried.unfilled)
    blank = re.compile("|".join([r"\$\{", *(rf"\${re.escape(name)}\b" for name in carried.needs)]))
    for finding in findings:
        is_asked = any(finding.key.endswith(key) for key in asked) or bool(blank.search(finding.message))
        if not is_asked and finding.code not in (_TOLD_ALREADY if launch else _OF_A_LAUNCH):
            yield replace(finding, line=_line_of(finding.key, job.places), column=0)


def _line_of(key: str, places: Mapping[str, int]) -> int:
    while key and key not in places:
        key = key.rpartition(".")[0]
    return places.get(key, 0)


def _once(findings: Iterable[Finding]) -> list[Finding]:
    """Findings without those that say of the same argument or variable what was said already."""
    kept: dict[tuple[str, str, int], Finding] = {}
    for finding in findings:
        kept.setdefault((finding.code, finding.key.rpartition(".")[2] or finding.message, finding.line), finding)
    return list(kept.values())


def launch_json(carried: Carried) -> dict[str, Any]:
    """What the pasted file launches, as far as it could be read; no secret is in it."""
    model = carried.model_path.text if carried.model_path else None
    args = ({"model_path": model} if model is not None else {}) | {
        name: value for name, value in carried.args.items() if name not in carried.not_read
    }
    return {
        "entry": carried.entry_spelling,
        "image": carried.box.image.text if carried.box else None,
        "sglang_version": carried.version or None,
        "model_path": model,
        "args": args,
        "env": {name: value.text for name, value in carried.env.items()},
        "gpus": [int(name) if name.isdecimal() else name for name in carried.gpu_ids],
        "gpus_needed": carried.gpus,
        "hosts": carried.hosts,
        "server_port": carried.server_port,
        "probe_port": carried.probe_port,
        "secrets_masked": list(carried.secret_names),
        "needs_values": list(carried.needs),
    }
