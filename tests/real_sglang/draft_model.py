"""Owns an EAGLE-3 draft of random numbers for the tiny model: it fits, and proposes nothing that
the target would say.
"""

from __future__ import annotations

import json
from pathlib import Path


def write_draft(target: Path, folder: Path) -> Path:
    """config.json of one layer with the target's sizes and vocabulary; weights are dummies, and the
    tokenizer is the target's.
    """
    config = json.loads((target / "config.json").read_text(encoding="utf-8"))
    config |= {
        "architectures": ["LlamaForCausalLMEagle3"],
        "num_hidden_layers": 1,
        "draft_vocab_size": config["vocab_size"],
    }
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config, indent=1), encoding="utf-8")
    return folder
