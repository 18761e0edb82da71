"""Trained parts of Medusa, Chimera and EAGLE, as in a folder."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

import torch

from paceline.drafters.chimera_model import ChimeraModel
from paceline.drafters.chimera_programs import compile_chimera
from paceline.drafters.eagle_model import EagleModel
from paceline.drafters.eagle_programs import compile_eagle
from paceline.drafters.eight_bits import in_floats, scale_shapes
from paceline.drafters.head_module import Compile, HeadModule, HeadWeights
from paceline.drafters.host import Host
from paceline.drafters.medusa_heads import MedusaHeads, compile_medusa
from paceline.drafters.trained_parts import TrainedParts
from paceline.errors import ModelError
from paceline.trained_configs import ChimeraConfig, EagleConfig, MedusaConfig

HeadConfigT = TypeVar("HeadConfigT", bound=MedusaConfig | ChimeraConfig | EagleConfig)
ModuleT = TypeVar("ModuleT", bound=HeadModule)


@dataclass(frozen=True, eq=False)
class HeadParts(TrainedParts[HeadConfigT], Generic[HeadConfigT, ModuleT]):
    """Heads whose guesses may be limited to some tokens.

    tensors: of the module, by its own names, matrices as they are or as `in_eight_bits` has them;
    and "token_ids" [vocabulary] int64, ascending, if the configuration names a vocabulary.

    module: makes the module before training, of configuration, output head, embeddings and token
    ids. compiled: makes its programs, see `HeadModule.ready`. reads_words: whether these read the
    target's embeddings themselves.
    """

    module: ClassVar[Callable[..., Any]]
    compiled: ClassVar[Compile]
    reads_words: ClassVar[bool] = False

    def open(self, host: Host, weights: HeadWeights = "fastest") -> ModuleT:
        """The module, ready to guess for a host of its model, on its device: one for all drafters
        of the host with these weights. Raises UsageError for unavailable weights."""

        def made() -> ModuleT:
            target = host.target
            head = target.output_head(self.token_ids)
            place = head[0].device  # the head itself must not be kept

            def embed(ids: torch.Tensor) -> torch.Tensor:  # a model may be spread over devices
                return target.embed(ids).to(place)

            module: ModuleT = type(self).module(self.config, head, embed, self.token_ids)
            if self.reads_words:
                module.words = target.word_table()
            # Token ids are no part of it.
            module.float().load_state_dict(in_floats(self.tensors), strict=False)
            return module.ready(weights, type(self).compiled)

        found: ModuleT = host.share((self, weights), made)
        return found

    @property
    def token_ids(self) -> torch.Tensor | None:
        """See `TrainedParts`: the tokens that columns of logits stand for."""
        return self.tensors["token_ids"] if self.config.vocabulary else None

    def module_shapes(self) -> dict[str, tuple[int, ...]]:
        """Shapes of the module's tensors. Raises ModelError for sizes that no tensor has."""
        outputs = self.config.vocabulary or self.base.vocab_size
        try:
            with torch.device("meta"):  # where tensors are shapes alone
                head = torch.empty(outputs, self.base.hidden_size), torch.empty(outputs)
                module = type(self).module(self.config, head, head[0].__getitem__, None)
        except (RuntimeError, OverflowError, TypeError) as error:
            reason = str(error).partition("\n")[0]
            raise ModelError(f"these sizes describe no {self.kind} ({reason})") from error
        return {name: tuple(part.shape) for name, part in module.named_parameters()}

    def expected_shapes(self) -> dict[str, tuple[int, ...]]:
        count = self.config.vocabulary
        ids = {"token_ids": (count,)} if count else {}
        return {**self.module_shapes(), **ids, **scale_shapes(self.tensors)}

    def check_tensors(self, path: Path) -> None:
        super().check_tensors(path)
        ids = self.token_ids
        if ids is not None and not (
            ids.dtype == torch.int64
            and bool((ids.diff() > 0).all())
            and 0 <= int(ids[0]) <= int(ids[-1]) < self.base.vocab_size
        ):
            raise ModelError(f"{path} is damaged: its token_ids are not ascending ids of the model")


@dataclass(frozen=True, eq=False)
class MedusaParts(HeadParts[MedusaConfig, MedusaHeads]):
    """Medusa heads of one model; see `MedusaHeads` for the tensors."""

    kind: ClassVar[str] = "Medusa heads"
    method: ClassVar[str] = "medusa"
    config_type: ClassVar[type] = MedusaConfig
    module: ClassVar[Callable[..., Any]] = staticmethod(
        lambda config, head, embed, token_ids: MedusaHeads(config, head, token_ids)
    )
    compiled: ClassVar[Compile] = staticmethod(compile_medusa)


@dataclass(frozen=True, eq=False)
class ChimeraParts(HeadParts[ChimeraConfig, ChimeraModel]):
    """A draft model of Chimera for one model; see `ChimeraModel` for the tensors."""

    kind: ClassVar[str] = "Chimera parts"
    method: ClassVar[str] = "chimera"
    config_type: ClassVar[type] = ChimeraConfig
    module: ClassVar[Callable[..., Any]] = ChimeraModel
    compiled: ClassVar[Compile] = staticmethod(compile_chimera)
    reads_words: ClassVar[bool] = True

    def check_tensors(self, path: Path) -> None:
        super().check_tensors(path)
        known = self.tensors.get("common_ngrams")
        if known is not None and not (
            known.shape[1:] == (self.config.order,)
            and bool(((known >= 0) & (known < self.base.vocab_size)).all())
        ):
            raise ModelError(f"{path} is damaged: its common_ngrams are not n-grams of the model")

    def common_ngrams(self, count: int) -> list[list[int]]:
        """The `count` most frequent n-grams of the training texts, `order` tokens each; fewer if
        fewer are known."""
        found = self.tensors.get("common_ngrams")
        return [] if found is None else found[:count].tolist()

    def check_usable(self) -> None:
        """Raises ModelError for extensions that decoding does not support."""
        if self.config.bottom != "ngram":
            raise ModelError(
                "these Chimera parts have a transformer layer at the bottom, which exists only for "
                "the study: decode with parts that have an n-gram encoder"
            )


@dataclass(frozen=True, eq=False)
class EagleParts(HeadParts[EagleConfig, EagleModel]):
    """A draft model of EAGLE for one model; see `EagleModel` for the tensors."""

    kind: ClassVar[str] = "EAGLE parts"
    method: ClassVar[str] = "eagle"
    config_type: ClassVar[type] = EagleConfig
    needed: ClassVar[frozenset[str]] = frozenset({"layers"})
    module: ClassVar[Callable[..., Any]] = EagleModel
    compiled: ClassVar[Compile] = staticmethod(compile_eagle)
    reads_words: ClassVar[bool] = True
