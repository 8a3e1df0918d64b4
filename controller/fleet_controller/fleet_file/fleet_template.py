"""The commented fleet file that `fleetctl init --fleet` writes."""

from __future__ import annotations

_FLEET_TEMPLATE = """\
# The hosts of a fleet. The reference is docs/user/fleet-file.md.
# `fleetctl run` does not need this file: it uses the machine that it runs on.
#   fleetctl lint fleet.yaml   check it
#   fleetctl deploy            install the agents on the hosts, or update them
#   fleetctl up                run the controller here
#                              (as a daemon: `fleet-controller --fleet fleet.yaml`)
#   fleetctl hosts             show which hosts answer, and why the others do not
apiVersion: benchfleet/v1
kind: Fleet
name: lab

currency: USD # of cost_per_hour
deploys_at_once: 16
give_up_after: 1h # trials of a host that is away for longer are closed

# Settings of all hosts. A group and a host may set any of them too, and the nearest setting wins.
# Log in by key: never write a password here. Other ssh settings come from ~/.ssh/config.
defaults:
  user: bench # user for ssh
  # port: 22
  # identity: ~/.ssh/id_ed25519 # default: the keys of ssh and of ssh-agent
  # proxy_jump: me@bastion.example # the controller then reaches the agents through ssh too,
  #                                # unless you write `reach: direct`
  # known_hosts: ~/.ssh/known_hosts # host keys are always checked
  # agent_port: 7433
  # install: {mode: auto} # system or user: a systemd unit; daemon: without systemd

groups:
  h200:
    labels: {gpu: h200} # what a job's `hosts.labels` match
    cost_per_hour: 40 # of a whole host
    # gpus: 8 # default: all GPUs of the host
    # python: /opt/sglang/bin/python3 # for jobs that name neither a Python nor an image
    # image: lmsysorg/sglang:v0.5.5 # or a container image instead
    # env: {NCCL_SOCKET_IFNAME: eth0} # of every server there; a job's own variables win
    # allow: # what jobs may use beyond the harmless defaults
    #   python: [/opt/sglang*/bin/python3]
    #   models: [/models/*]
    hosts:
      - gpu[01-02] # a range of names; leading zeros are kept
      # - {name: "gpu[11-14]", address: "10.0.0.[21-24]"} # if the names are not addresses
      # - {name: gpu20, labels: {rack: b2}}

# Hosts without a group.
# hosts:
#   - {name: load01, load_only: true} # sends load to the others, gets no trials
"""


def fleet_template() -> str:
    """Return a commented fleet file."""
    return _FLEET_TEMPLATE
