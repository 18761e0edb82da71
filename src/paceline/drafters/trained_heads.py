"""Trained parts of Medusa, Chimera and EAGLE, as in a folder. Modules are loaded on demand."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

from paceline.drafters.eight_bits import in_floats, scale_shapes
from paceline.drafters.head_configs import ChimeraConfig, EagleConfig, HeadWeights, MedusaConfig
from paceline.drafters.host import Host
from paceline.drafters.trained_parts import TrainedParts
from paceline.errors import ModelError

if TYPE_CHECKING:
    import torch

    from paceline.drafters.chimera_model import ChimeraModel
    from paceline.drafters.eagle_model import EagleModel
    from paceline.drafters.medusa_heads import Compile, HeadModule, MedusaHeads
    from paceline.protocols import Target

__all__ = ["ChimeraParts", "EagleParts", "HeadParts", "MedusaParts", "eagle_shapes"]

HeadConfigT = TypeVar("HeadConfigT", bound=MedusaConfig | ChimeraConfig | EagleConfig)
ModuleT = TypeVar("ModuleT", bound="HeadModule")


@dataclass(frozen=True)
class HeadParts(TrainedParts[HeadConfigT], Generic[HeadConfigT, ModuleT]):
    """Heads whose guesses may be limited to some tokens.

    tensors: of the module, by its own names, matrices as they are or as `in_eight_bits` has them;
    and "token_ids" [vocabulary] int64, ascending, if the configuration names a vocabulary.
    """

    def open(self, host: Host, weights: HeadWeights = "fastest") -> ModuleT:
        """The module, ready to guess for a host of its model, on its device: one for all drafters
        of the host with these weights.

        Raises UsageError for unavailable weights.
        """

        def made() -> tuple[object, ModuleT]:
            module, compiled = self._new_module(host.target)
            return self, module.float().load(in_floats(self.tensors)).ready(weights, compiled)

        # Kept with these parts, so that nothing else gets their id.
        found: tuple[object, ModuleT] = host.share((id(self), weights), made)
        return found[1]

    @abstractmethod
    def _new_module(self, target: Target) -> tuple[ModuleT, Compile]:
        """The module before training, and what makes its programs, see `HeadModule.ready`."""

    @property
    def token_ids(self) -> torch.Tensor | None:
        """See `TrainedParts`: the tokens that columns of logits stand for."""
        return self.tensors["token_ids"] if self.vocabulary else None

    @property
    def vocabulary(self) -> int:
        """How many tokens may be guessed; 0 is all."""
        return self.config.vocabulary

    @abstractmethod
    def module_shapes(self) -> dict[str, tuple[int, ...]]:
        """Shapes of the module's tensors."""

    def expected_shapes(self) -> dict[str, tuple[int, ...]]:
        """See `TrainedParts`."""
        ids = {"token_ids": (self.vocabulary,)} if self.vocabulary else {}
        return {**self.module_shapes(), **ids, **scale_shapes(self.tensors)}

    def check_tensors(self, path: Path) -> None:
        """See `TrainedParts`."""
        import torch

        super().check_tensors(path)
        ids = self.token_ids
        if ids is not None and not (
            ids.dtype == torch.int64
            and bool((ids.diff() > 0).all())
            and 0 <= int(ids[0]) <= int(ids[-1]) < self.base.vocab_size
        ):
            raise ModelError(f"{path} is damaged: its token_ids are not ascending ids of the model")

    @property
    def outputs(self) -> int:
        """Columns of logits."""
        return self.vocabulary or self.base.vocab_size


@dataclass(frozen=True)
class MedusaParts(HeadParts[MedusaConfig, "MedusaHeads"]):
    """Medusa heads of one model; see `MedusaHeads` for the tensors."""

    kind: ClassVar[str] = "Medusa heads"
    method: ClassVar[str] = "medusa"
    config_type: ClassVar[type] = MedusaConfig

    def module_shapes(self) -> dict[str, tuple[int, ...]]:
        """Shapes of the module's tensors."""
        config, hidden = self.config, self.base.hidden_size
        shapes: dict[str, tuple[int, ...]] = {}
        if config.layers:
            shapes["blocks.weight"] = (config.layers, config.heads, hidden, hidden)
            shapes["blocks.bias"] = (config.layers, config.heads, hidden)
        if config.form == "full":
            shapes["output"] = (config.heads, self.outputs, hidden)
        return shapes

    def _new_module(self, target: Target) -> tuple[MedusaHeads, Compile]:
        from paceline.drafters.medusa_heads import MedusaHeads, compile_medusa

        head = target.output_head(self.token_ids)
        return MedusaHeads(self.config, head, self.token_ids), compile_medusa


@dataclass(frozen=True)
class ChimeraParts(HeadParts[ChimeraConfig, "ChimeraModel"]):
    """A draft model of Chimera for one model; see `ChimeraModel` for the tensors."""

    kind: ClassVar[str] = "Chimera parts"
    method: ClassVar[str] = "chimera"
    config_type: ClassVar[type] = ChimeraConfig

    def module_shapes(self) -> dict[str, tuple[int, ...]]:
        """Shapes of the module's tensors, except a trained layer of the target."""
        config, hidden = self.config, self.base.hidden_size
        read = 2 * hidden if config.residual else hidden
        width, queries = config.order * hidden, config.attention_heads * config.head_size
        keys = config.kv_heads * config.head_size
        shapes: dict[str, tuple[int, ...]] = {
            "encoder.mature_norm": (hidden,),
            "encoder.green_norm": (hidden,),
            "encoder.inner_norm": (hidden,),
            "encoder.query.weight": (queries, hidden),
            "encoder.key.weight": (keys, hidden),
            "encoder.value.weight": (keys, hidden),
            "encoder.join.weight": (hidden, queries),
            "encoder.gate.weight": (config.intermediate, hidden),
            "encoder.up.weight": (config.intermediate, hidden),
            "encoder.down.weight": (hidden, config.intermediate),
        }
        if config.final_norm:
            shapes["encoder.output_norm"] = (hidden,)
        if config.biases:
            sizes = {"query": queries, "key": keys, "value": keys}
            shapes |= {f"encoder.{name}.bias": (size,) for name, size in sizes.items()}
        if config.bottom == "ngram":
            shapes["bottom.block.weight"] = (width, config.rank or width)
            shapes["bottom.block.bias"] = (width,)
            shapes["bottom.down.weight"] = (hidden, width)
        if config.form == "full":
            shapes["output"] = (config.heads, self.outputs, read)
        else:
            shapes["joint"] = (config.heads, hidden, config.rank or read)
        if config.rank:
            shapes["bottom.narrow.weight"] = (config.rank, width)
            shapes["narrow"] = (config.heads, config.rank, read)
        if config.layers:
            shapes["blocks.weight"] = (config.layers, config.heads, hidden, hidden)
            shapes["blocks.bias"] = (config.layers, config.heads, hidden)
        return shapes

    def check_tensors(self, path: Path) -> None:
        """See `TrainedParts`."""
        super().check_tensors(path)
        known = self.tensors.get("common_ngrams")
        if known is not None and not (
            known.shape[1:] == (self.config.order,)
            and bool(((known >= 0) & (known < self.base.vocab_size)).all())
        ):
            raise ModelError(f"{path} is damaged: its common_ngrams are not n-grams of the model")

    def common_ngrams(self, count: int) -> torch.Tensor | None:
        """[n, order] int64: the `count` most frequent n-grams of the training texts, fewer if fewer
        are known; None if none are."""
        found = self.tensors.get("common_ngrams")
        return None if found is None else found[:count].long()

    def check_usable(self) -> None:
        """Raises ModelError for extensions that decoding does not support."""
        if self.config.bottom != "ngram":
            raise ModelError(
                "these Chimera parts have a transformer layer at the bottom, which exists only for "
                "the study: decode with parts that have an n-gram encoder"
            )

    def _new_module(self, target: Target) -> tuple[ChimeraModel, Compile]:
        from paceline.drafters.chimera_model import ChimeraModel
        from paceline.drafters.chimera_programs import compile_chimera

        head = target.output_head(self.token_ids)
        model = ChimeraModel(self.config, head, target.embed, self.token_ids)
        model.words = target.word_table()
        return model, compile_chimera


@dataclass(frozen=True)
class EagleParts(HeadParts[EagleConfig, "EagleModel"]):
    """A draft model of EAGLE for one model; see `EagleModel` for the tensors."""

    kind: ClassVar[str] = "EAGLE parts"
    method: ClassVar[str] = "eagle"
    config_type: ClassVar[type] = EagleConfig

    @classmethod
    def read_config(cls, content: dict[str, Any]) -> EagleConfig:
        """See `TrainedParts`."""
        return super().read_config({**content, "layers": tuple(content["layers"])})

    def module_shapes(self) -> dict[str, tuple[int, ...]]:
        """Shapes of the module's tensors."""
        return dict(eagle_shapes(self.config, self.base.hidden_size))

    def _new_module(self, target: Target) -> tuple[EagleModel, Compile]:
        from paceline.drafters.eagle_model import EagleModel
        from paceline.drafters.eagle_programs import compile_eagle

        head = target.output_head(self.token_ids)
        model = EagleModel(self.config, head, target.embed, self.token_ids)
        model.words = target.word_table()
        return model, compile_eagle


def eagle_shapes(config: EagleConfig, hidden: int) -> Mapping[str, tuple[int, ...]]:
    """Shapes of the tensors of `EagleModel` by their names. hidden: numbers of a state."""
    queries = config.attention_heads * config.head_size
    keys = config.kv_heads * config.head_size
    taps = len(config.layers)
    fusion = {"tap_norms": (taps, hidden), "fuse.weight": (hidden, taps * hidden)} if taps else {}
    biases = {"query.bias": (queries,), "key.bias": (keys,), "value.bias": (keys,)}
    return {
        **fusion,
        **(biases if config.biases else {}),
        "feature_norm": (hidden,),
        "own_norm": (hidden,),
        "word_norm": (hidden,),
        "enter.weight": (hidden, 2 * hidden),
        "row_norm": (hidden,),
        "query.weight": (queries, hidden),
        "key.weight": (keys, hidden),
        "value.weight": (keys, hidden),
        "join.weight": (hidden, queries),
        "inner_norm": (hidden,),
        "gate.weight": (config.intermediate, hidden),
        "up.weight": (config.intermediate, hidden),
        "down.weight": (hidden, config.intermediate),
        "last_norm": (hidden,),
    }
