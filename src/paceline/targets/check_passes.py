"""Choose a way of running passes that reproduces the model's own forward."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from paceline.errors import ModelError
from paceline.protocols import Target
from paceline.targets.model_pass import ModelPass
from paceline.targets.support import attention_windows, narrow_windows, self_check

if TYPE_CHECKING:
    from transformers import PreTrainedModel

__all__ = ["check_passes"]


def check_passes(target: Target, passes: ModelPass, model: PreTrainedModel) -> None:
    """Switch off compiled passes or those on a device, then attention by text, which some models do not pass on, if
    trees do not match the model's own forward. Raises ModelError if they still do not. The texts
    of `target` have to be read again.
    """
    config = model.config.get_text_config()
    try:
        with narrow_windows(config):
            passes.windows = attention_windows(config)
            if passes.compiled is not None or passes.on_device is not None:
                try:
                    return self_check(target, model)
                except ModelError as reason:
                    passes.compiled, passes.on_device = None, None
                    passes.own_forward = str(reason)
            if passes.by_text:
                with suppress(ModelError):
                    return self_check(target, model)
                passes.by_text = False
            self_check(target, model)
    finally:
        passes.windows = attention_windows(config)
