"""Folders of draft models, as trainings write them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedConfig

from paceline.models.draft_folder import DraftParts, DraftRecord


def save_draft(
    folder: Path,
    config: PreTrainedConfig,
    tensors: Mapping[str, torch.Tensor],
    record: DraftRecord,
    training: Mapping[str, Any],
) -> None:
    """Write such a folder."""
    DraftParts(record, tensors, training, config).save_pretrained(folder)
