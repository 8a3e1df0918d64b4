"""Owns what stands before a server's entry point and what is done instead: `nohup`, `numactl`,
`torchrun`, `ssh`; maps none of it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from fleet_controller.importers.shell.expansion import SourceText
from fleet_controller.yaml.finding_collector import FindingCollector
from fleet_controller.yaml.findings import INFO, WARNING

_STARTED = "the agent starts the server itself, in a session of its own"
_PLACED = "the agent binds the server by the host's topology where engine.cpu_binding says so"
_MANY = "a job's server is launched once on each host: SGLang starts its own processes for its GPUs"
_PROFILED = "a profiler changes what is measured"
_ENVIRONMENT = "write engine.python: the path of the Python of that environment on the host"
_REMOTE = "a job names its hosts; the agent on each starts the server"
_INSIDE = "the server is launched in a container of its own: write engine.container"

# Word → severity, what is done instead. All others are left out too, and told.
_KNOWN: Mapping[str, tuple[str, str]] = {
    **dict.fromkeys(("nohup", "setsid", "exec", "nice", "ionice", "stdbuf", "unbuffer", "tini"), (INFO, _STARTED)),
    **dict.fromkeys(("dumb-init", "tmux", "screen"), (INFO, _STARTED)),
    **dict.fromkeys(("sudo", "doas", "su", "runuser", "gosu", "chrt", "systemd-run", "systemd-cat", "command"), (INFO, _STARTED)),
    **dict.fromkeys(("numactl", "taskset", "hwloc-bind"), (INFO, _PLACED)),
    "timeout": (INFO, "engine.ready_timeout limits the start; the agent stops the server when the trial is over"),
    **dict.fromkeys(("torchrun", "torch.distributed.run", "deepspeed", "accelerate"), (WARNING, _MANY)),
    **dict.fromkeys(("srun", "mpirun", "mpiexec", "orterun", "pdsh", "parallel"), (WARNING, _MANY)),
    **dict.fromkeys(("nsys", "ncu", "py-spy", "strace", "gdb", "perf", "valgrind", "viztracer", "rocprof"), (WARNING, _PROFILED)),
    **dict.fromkeys(("conda", "mamba", "micromamba", "uv", "uvx", "poetry", "pixi", "pipenv", "hatch", "module"), (WARNING, _ENVIRONMENT)),
    **dict.fromkeys(("ssh", "sshpass", "ray"), (WARNING, _REMOTE)),
    **dict.fromkeys(("docker", "podman", "nerdctl", "kubectl", "singularity", "apptainer", "enroot", "docker-compose"), (WARNING, _INSIDE)),
    **dict.fromkeys(("env", "bash", "sh", "zsh", "dash", "ksh", "eval"), (INFO, "")),
}  # fmt: skip
_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)
_TAKES_ASSIGNMENTS = frozenset(
    {"env", "sudo", "doas", "mpirun", "mpiexec", "systemd-run", "command", "exec", "nohup"}
)


def report_wrappers(words: Sequence[SourceText], notes: FindingCollector) -> None:
    """Say of each program before the entry point what becomes of it."""
    reported: set[str] = set()
    for place, word in enumerate(words):
        name = word.text.rpartition("/")[2]
        severity, instead = _KNOWN.get(name, ("", ""))
        is_option_value = place > 0 and words[place - 1].text.startswith("--")
        if not severity or not instead or name in reported or is_option_value:
            continue
        reported.add(name)
        tell = notes.warn if severity == WARNING else notes.info
        tell("dropped", word.line, f"`{name}` is left out: {instead}", "", name)
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
            f"what stands before the server's command is left out: `{first.text[:60]}`",
            _STARTED,
            "wrapper",
        )


def variables_of(words: Sequence[SourceText]) -> dict[str, SourceText]:
    """Variables that `env`, `sudo` or `mpirun -x` give to the command behind them."""
    names = {word.text.rpartition("/")[2] for word in words}
    found: dict[str, SourceText] = {}
    for word in words if names & _TAKES_ASSIGNMENTS else ():
        assignment = _ASSIGNMENT.fullmatch(word.text)
        if assignment:
            found[assignment[1]] = SourceText(
                assignment[2], word.line, word.unknown, word.unevaluated
            )
    return found


def removed_by(words: Sequence[SourceText]) -> tuple[str, ...]:
    """Variables that `env -u NAME` takes away."""
    texts = [word.text for word in words]
    if "env" not in {text.rpartition("/")[2] for text in texts}:
        return ()
    return tuple(
        texts[place + 1] for place, text in enumerate(texts[:-1]) if text in ("-u", "--unset")
    )
