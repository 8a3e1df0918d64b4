"""Knows the programs that come before a server's entry point, such as `nohup`, `numactl`,
`torchrun` and `ssh`, and what the job does instead.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from fleet_controller.importers.shell.expansion import SourceText
from fleet_controller.yaml.finding_collector import FindingCollector
from fleet_controller.yaml.findings import INFO, WARNING

_STARTED = "the agent starts the server itself, in its own session"
_TIMED = "engine.ready_timeout limits the start, and the agent stops the server after the trial"
_PLACED = "with engine.cpu_binding, the agent binds the server by the host's topology"
_MANY = "a server is launched once on each host, and SGLang starts the processes for its GPUs"
_PROFILED = "a profiler would change the measurement"
_ENVIRONMENT = "write the path of that environment's Python interpreter as engine.python"
_REMOTE = "a job names its hosts, and the agent on each host starts the server"
_INSIDE = "write the server's container as engine.container"

# Word → severity, what is done instead. Any other word is left out too, with a finding.
_KNOWN: Mapping[str, tuple[str, str]] = {
    **dict.fromkeys((
        "nohup", "setsid", "exec", "nice", "ionice", "stdbuf", "unbuffer", "tini", "dumb-init",
        "tmux", "screen", "sudo", "doas", "su", "runuser", "gosu", "chrt", "systemd-run",
        "systemd-cat", "command",
    ), (INFO, _STARTED)),
    **dict.fromkeys(("numactl", "taskset", "hwloc-bind"), (INFO, _PLACED)),
    "timeout": (INFO, _TIMED),
    **dict.fromkeys((
        "torchrun", "torch.distributed.run", "deepspeed", "accelerate", "srun", "mpirun",
        "mpiexec", "orterun", "pdsh", "parallel",
    ), (WARNING, _MANY)),
    **dict.fromkeys((
        "nsys", "ncu", "py-spy", "strace", "gdb", "perf", "valgrind", "viztracer", "rocprof",
    ), (WARNING, _PROFILED)),
    **dict.fromkeys((
        "conda", "mamba", "micromamba", "uv", "uvx", "poetry", "pixi", "pipenv", "hatch", "module",
    ), (WARNING, _ENVIRONMENT)),
    **dict.fromkeys(("ssh", "sshpass", "ray"), (WARNING, _REMOTE)),
    **dict.fromkeys((
        "docker", "podman", "nerdctl", "kubectl", "singularity", "apptainer", "enroot",
        "docker-compose",
    ), (WARNING, _INSIDE)),
    **dict.fromkeys(("env", "bash", "sh", "zsh", "dash", "ksh", "eval"), (INFO, "")),
}  # fmt: skip
_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)
_TAKES_ASSIGNMENTS = frozenset(
    {"env", "sudo", "doas", "mpirun", "mpiexec", "systemd-run", "command", "exec", "nohup"}
)


def report_wrappers(words: Sequence[SourceText], notes: FindingCollector) -> None:
    """Report each program before the entry point, with what the job does instead."""
    reported: set[str] = set()
    for place, word in enumerate(words):
        name = word.text.rpartition("/")[2]
        severity, instead = _KNOWN.get(name, ("", ""))
        is_option_value = place > 0 and words[place - 1].text.startswith("--")
        if not severity or not instead or name in reported or is_option_value:
            continue
        reported.add(name)
        report = notes.warn if severity == WARNING else notes.info
        report("dropped", word.line, f"`{name}` is left out: {instead}", "", name)
    first = words[0] if words else None
    if (
        first
        and not reported
        and first.text.rpartition("/")[2] not in _KNOWN
        and not _ASSIGNMENT.match(first.text)
    ):
        notes.warn(
            "dropped",
            first.line,
            f"the words before the server's command are left out, from `{first.text[:60]}` on",
            _STARTED,
            "wrapper",
        )


def wrapper_variables(words: Sequence[SourceText]) -> dict[str, SourceText]:
    """Return the variables that `env`, `sudo` or `mpirun -x` give to the command after them."""
    names = {word.text.rpartition("/")[2] for word in words}
    found: dict[str, SourceText] = {}
    for word in words if names & _TAKES_ASSIGNMENTS else ():
        assignment = _ASSIGNMENT.fullmatch(word.text)
        if assignment:
            found[assignment[1]] = SourceText(
                assignment[2], word.line, word.unknown, word.unevaluated
            )
    return found


def removed_variables(words: Sequence[SourceText]) -> tuple[str, ...]:
    """Return the variables that `env -u NAME` removes."""
    texts = [word.text for word in words]
    if "env" not in {text.rpartition("/")[2] for text in texts}:
        return ()
    return tuple(
        texts[place + 1] for place, text in enumerate(texts[:-1]) if text in ("-u", "--unset")
    )
