"""The commented fleet file that `fleetctl init` writes."""

from __future__ import annotations

_FLEET_TEMPLATE = """\
# The hosts of a fleet. The reference is docs/user/fleet-file.md. `fleetctl run` needs none of this: it uses the machine that it runs on.
#   fleetctl lint fleet.yaml   what is wrong with it
#   fleetctl deploy            bring the agents to the hosts, or up to date
#   fleetctl up                run the controller here; `fleet-controller --fleet fleet.yaml` is the same as a daemon
#   fleetctl hosts             who answers, and why the others do not
apiVersion: benchfleet/v1
kind: Fleet
name: lab

currency: USD # of cost_per_hour
deploys_at_once: 16
give_up_after: 1h # what waits for a host that is away for so long is closed

# What holds for all hosts that do not say otherwise; a group and a host may say any of it too, the nearest wins.
# Logging in is by key: no password ever stands here. What is left open is taken from ~/.ssh/config.
defaults:
  user: bench # who logs in by ssh
  # port: 22
  # identity: ~/.ssh/id_ed25519 # default: those of ssh, and the agent's
  # proxy_jump: me@bastion.example # then the controller reaches the agents through ssh as well; reach: direct says otherwise
  # known_hosts: ~/.ssh/known_hosts # host keys are always checked
  # agent_port: 7433
  # install: {mode: auto} # system: a systemd unit; user: one of the user; daemon: without systemd

groups:
  h200:
    labels: {gpu: h200} # what a job's `hosts.labels` match
    cost_per_hour: 40 # of a whole host
    # gpus: 8 # default: all that are there
    # python: /opt/sglang/bin/python3 # for jobs that name neither Python nor image
    # image: lmsysorg/sglang:v0.5.5 # or a container image instead
    # env: {NCCL_SOCKET_IFNAME: eth0} # of every server there; a job's own win
    # allow: # what jobs may ask for beyond what is harmless
    #   python: [/opt/sglang*/bin/python3]
    #   models: [/models/*]
    hosts:
      - gpu[01-02] # a range stands for many; zeros are kept
      # - {name: "gpu[11-14]", address: "10.0.0.[21-24]"} # addresses that are not the names
      # - {name: gpu20, labels: {rack: b2}}

# Hosts of no group.
# hosts:
#   - {name: load01, load_only: true} # drives load for the others, gets no trials
"""


def fleet_template() -> str:
    """A commented fleet file."""
    return _FLEET_TEMPLATE
