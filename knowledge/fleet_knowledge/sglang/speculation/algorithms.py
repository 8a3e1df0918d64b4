"""Lists SGLang's speculative algorithms by version, and the models that have draft layers of their
own.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from fleet_knowledge.release import VersionRange

# From 0.4.4; server_args.py: "NEXTN shares the same implementation of EAGLE"
ALIASES: Mapping[str, str] = {"NEXTN": "EAGLE"}
# A draft model proposes a tree of steps × topk.
EAGLE_LIKE = frozenset({"EAGLE", "EAGLE3", "STANDALONE"})


@dataclass(frozen=True, slots=True)
class Algorithm:
    """Describes a speculative algorithm. `versions` begin after the last inspected release without
    it.

    `draft` says whether a draft model must be given: `needed`, `own` (needed unless the model has
    draft layers of its own), `bundled` (needed unless the checkpoint contains a draft) or `none`.
    `refuses_dp_attention` and `refuses_pp` are the versions in which the combination stops the
    launch; None means that it never does. `forces_one` says that SGLang sets steps and topk to 1.
    """

    name: str
    versions: VersionRange
    draft: str
    source: str
    refuses_dp_attention: VersionRange | None = None
    refuses_pp: VersionRange | None = None
    forces_one: bool = False


# Up to 0.5.15, check_server_args rejects any speculation with pp_size above 1; 0.5.23
# validation_hook.py: "currently only supports EAGLE".
_NO_PP = VersionRange()

ALGORITHMS: Mapping[str, Algorithm] = {
    row.name: row
    for row in (
        Algorithm(
            "EAGLE",
            VersionRange("0.4.2"),
            "own",
            "0.4.3 - 0.5.23 server_args.py",
            refuses_pp=VersionRange("0.4.6", "0.5.15"),
        ),
        Algorithm(
            "EAGLE3",
            VersionRange("0.4.5"),
            "needed",
            "0.4.6.post5 - 0.5.23 server_args.py; issue 36528",
            refuses_pp=_NO_PP,
        ),
        Algorithm(
            "STANDALONE",
            VersionRange("0.5.2"),
            "needed",
            "0.5.3 - 0.5.23 server_args.py",
            refuses_dp_attention=VersionRange(),
            refuses_pp=_NO_PP,
        ),
        Algorithm(
            "NGRAM",
            VersionRange("0.5.2"),
            "none",
            "0.5.3 - 0.5.23 server_args.py",
            refuses_dp_attention=VersionRange(),
            refuses_pp=_NO_PP,
        ),
        Algorithm(
            "DFLASH",
            VersionRange("0.5.11"),
            "needed",
            "0.5.12 - 0.5.23 speculative_hook.py",
            refuses_dp_attention=VersionRange("0.5.12", "0.5.15"),
            refuses_pp=VersionRange(),
            forces_one=True,
        ),
        Algorithm(
            "DSPARK",
            VersionRange("0.5.16"),
            "bundled",
            "0.5.18 - 0.5.23 speculative_hook.py",
            refuses_pp=VersionRange(),
            forces_one=True,
        ),
        Algorithm(
            "UNO",
            VersionRange("0.5.21"),
            "none",
            "0.5.23 speculative_hook.py",
            refuses_dp_attention=VersionRange(),
            refuses_pp=VersionRange(),
        ),
    )
}


@dataclass(frozen=True, slots=True)
class OwnLayers:
    """Describes models with draft layers in their checkpoint (MTP, NextN).

    `name` is a pattern that matches the models' names. `versions` are the SGLang versions that use
    these layers if no draft path is given.
    """

    name: re.Pattern[str]
    architecture: str
    versions: VersionRange
    source: str


def _own_layers_row(pattern: str, architecture: str, first: str, source: str) -> OwnLayers:
    return OwnLayers(re.compile(pattern, re.I), architecture, VersionRange(first), source)


_CONFIG = "0.5.23 configs/model_config.py: a draft architecture for the same checkpoint"

# Architectures for which server_args.py (speculative_hook.py from 0.5.14) uses the model's own path
# as the draft path.
OWN_LAYERS: tuple[OwnLayers, ...] = (
    _own_layers_row(
        r"deepseek[-_]?(v3\.2|v32)", "DeepseekV32ForCausalLM", "0.5.3", "0.5.3 server_args.py"
    ),
    _own_layers_row(
        r"deepseek[-_]?v4", "DeepseekV4ForCausalLM", "0.5.12", "0.5.23 speculative_hook.py"
    ),
    _own_layers_row(
        r"deepseek[-_]?(v3|r1)|\bds[-_]?(v3|r1)",
        "DeepseekV3ForCausalLM",
        "0.4.6",
        "0.4.6.post5 server_args.py",
    ),
    _own_layers_row(
        r"glm[-_]?4\.[5-9]|glm[-_]?5",
        "Glm4MoeForCausalLM",
        "0.4.9",
        "0.4.9.post6, 0.5.9 server_args.py",
    ),
    _own_layers_row(
        r"ling[-_](mini|flash|1t|plus)|bailing",
        "BailingMoeForCausalLM",
        "0.5.3",
        "0.5.3 server_args.py",
    ),
    _own_layers_row(
        r"mistral[-_]?large[-_]?3|pixtral",
        "MistralLarge3ForCausalLM",
        "0.5.9",
        "0.5.9 server_args.py",
    ),
    _own_layers_row(r"mimo[-_]", "MiMoV2FlashForCausalLM", "0.5.7", _CONFIG),
    _own_layers_row(r"qwen3[-_]next|qwen3\.[5-9]|qwen4", "Qwen3NextForCausalLM", "0.5.3", _CONFIG),
    _own_layers_row(r"longcat", "LongcatFlashForCausalLM", "0.5.3", _CONFIG),
    _own_layers_row(r"step[-_]?3\.5", "Step3p5ForCausalLM", "0.5.9", _CONFIG),
    _own_layers_row(r"nemotron[-_]?3", "NemotronHForCausalLM", "0.5.9", _CONFIG),
    _own_layers_row(r"exaone[-_]?moe|k-exaone", "ExaoneMoEForCausalLM", "0.5.9", _CONFIG),
    _own_layers_row(r"hy[-_]?v[34]", "HYV3ForCausalLM", "0.5.12", "0.5.12 server_args.py"),
)

FAMILIES: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(r"llama", re.I), "LlamaForCausalLM"),
    (re.compile(r"grok", re.I), "Grok1ForCausalLM"),
)


def find_own_layers(model_path: str) -> OwnLayers | None:
    """Return the row for a model's name, or None if the model is not known to have draft layers."""
    return next((row for row in OWN_LAYERS if row.name.search(model_path)), None)


def model_family(model_path: str) -> str:
    """Return the architecture that a model's name implies; empty if unknown. SGLang's automatic
    draft sizes depend on it.
    """
    own = find_own_layers(model_path)
    return (
        own.architecture
        if own
        else next((name for pattern, name in FAMILIES if pattern.search(model_path)), "")
    )


_EAGLE3_NAME = re.compile(r"eagle[-_ ]?3(?![0-9])", re.I)
_EAGLE1_NAME = re.compile(r"eagle2?(?![a-z0-9]|[-_ ]?3(?![0-9]))", re.I)


def names_eagle3(path: str) -> bool:
    """Return whether the last two parts of a draft's path contain EAGLE-3. The paths of all
    published EAGLE-3 drafts do.
    """
    return bool(_EAGLE3_NAME.search(_tail(path)))


def names_older_eagle(path: str) -> bool:
    """Return whether a draft's path names EAGLE or EAGLE-2.

    The last part of the path must name it, and neither of the last two parts may contain EAGLE-3.
    """
    return not names_eagle3(path) and bool(_EAGLE1_NAME.search(path.rstrip("/").rsplit("/", 1)[-1]))


def _tail(path: str) -> str:
    return "/".join(path.rstrip("/").rsplit("/", 2)[-2:])


def is_eagle3_config(config: Mapping[str, object]) -> bool:
    """Return whether a config.json belongs to an EAGLE-3 draft.

    It does if its architecture is `LlamaForCausalLMEagle3` or similar, or if it has
    `eagle_config.eagle_aux_hidden_state_layer_ids`. Source: llama_eagle3.py and the published
    drafts (SpecForge, AngelSlim, lmsys).
    """
    architectures = config.get("architectures")
    if isinstance(architectures, list) and any(
        _EAGLE3_NAME.search(str(name)) for name in architectures
    ):
        return True
    eagle = config.get("eagle_config")
    return isinstance(eagle, Mapping) and "eagle_aux_hidden_state_layer_ids" in eagle
