"""What a training run is made of."""

import dataclasses
import itertools
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt, model_validator

from recurtrace.assets import place
from recurtrace.data.example import End
from recurtrace.data.synthetic import PRETRAIN_STEPS, Sizes
from recurtrace.recipe import Recipe, Seed, Switch
from recurtrace.training.lessons import Lesson

Beta = Annotated[float, Field(ge=0, lt=1)]
Method = Literal["loop", "plain_loop", "full", "adapter"]


class Optimization(Recipe):
    """Length, learning rate and batch size; the same fields for every method, so that budgets are equal."""

    paths: ClassVar[tuple[str, ...]] = ("out", "model", "data", "probe", "start_from")

    root: Path | None = None
    """Folder that relative paths start from, itself relative to the recipe. Default: the working directory."""
    out: Path
    """Folder of the run: checkpoints, the trained model, the budget."""
    seed: Seed = 0
    steps: PositiveInt | None = None
    """Optimizer steps; or give epochs."""
    epochs: PositiveFloat | None = None
    batch_size: PositiveInt = 128
    """Sequences in one optimizer step, over all processes."""
    micro_batch_size: PositiveInt = 2
    """Sequences in one forward pass of one process."""
    max_length: int = Field(1024, ge=32)
    """Tokens in one packed sequence. The default is capped at the positions of the base."""
    extrapolate: Switch = False
    """Allow a longer max_length than the base has positions."""
    share_beginnings: bool = False
    """Read a text once for all questions about it that follow each other in the data; not with flash attention."""
    answer_end: End = "text"
    """What follows an answer in training: the end of the text, or of the line, for a base that never saw the former."""
    learning_rate: PositiveFloat = 1e-4
    warmup: float = Field(0.03, ge=0, lt=1)
    """Share of the steps in which the learning rate rises; after that it falls as a cosine."""
    betas: tuple[Beta, Beta] = (0.9, 0.95)
    weight_decay: NonNegativeFloat = 0.01
    clip: PositiveFloat = 1.0
    """Largest gradient norm."""
    precision: Literal["fp32", "bf16"] = "bf16"
    """bf16 computes in bfloat16 and keeps what is trained in float32."""
    compile: bool = False
    """torch.compile the model."""
    gradient_checkpointing: bool = False
    log_every: PositiveInt = 10
    evaluate_every: PositiveInt = 500
    save_every: PositiveInt = 500
    keep: PositiveInt = 2
    """Checkpoints that are kept."""
    evaluate_on: PositiveInt = 1000
    """Largest number of held-out examples that the loss is measured on."""
    report_to: list[str] = []
    """Trackers: tensorboard, wandb and so on."""
    overwrite: bool = Field(default=False, exclude=True)
    """Replace what the folder already holds; given with the command, not in a recipe."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if (self.steps is None) == (self.epochs is None):
            raise ValueError("give exactly one of steps and epochs")
        if self.batch_size % self.micro_batch_size:
            raise ValueError(
                f"batch_size {self.batch_size} is not a multiple of micro_batch_size {self.micro_batch_size}"
            )
        return self


class TrainRecipe(Optimization):
    """A stage-1 run, or one of the baselines it is compared with."""

    model: str
    """Hub id or folder of the base, or a converted folder, whose loop modules are then trained on its base;
    embedded/base is the one that comes with the package."""
    revision: str | None = None
    """Branch, tag or commit of a hub model."""
    method: Method = "loop"
    """loop (memory and injection on a frozen base), plain_loop (no memory), full (every weight of the base, no loop),
    adapter (LoRA on the same block, as many parameters as the loop modules, no loop)."""
    loop: dict[str, Any] = {}
    """Fields of the loop's config: loop_start, loop_memory_window, loop_qk_norm and so on."""
    probe: Path | None = None
    """Result of `recurtrace probe`: loop the block it found."""
    data: Path
    """Folder of a mixture made by `recurtrace data build`."""
    train_block: bool = False
    """Train the looped layers' weights too: an extension (not in the paper). One loop is then no longer the base."""
    block_learning_rate: Annotated[PositiveFloat | None, Field(exclude_if=lambda value: value is None)] = None
    """Peak learning rate of the looped layers, where they are trained. Default: that of everything else."""
    match_block: Annotated[bool, Field(exclude_if=lambda value: not value)] = False
    """adapter: as many parameters as the loop modules and the looped layers together, to stand beside train_block."""
    curriculum: Annotated[list[Lesson], Field(exclude_if=lambda value: not value)] = []
    """Easy examples first, the same for every method: lessons such as {until: 0.2, hardest: 2}, one after the other;
    what follows the last draws from all. An extension (not in the paper). Default: none."""
    start_from: Path | None = None
    """A looped model to continue from; memory that it lacks is added untrained. For the matched same-start control."""
    attention: str | None = None
    """Attention implementation, e.g. flash_attention_2."""
    evaluate_depths: Annotated[list[PositiveInt], Field(min_length=1)] = [1, 2, 4, 6, 8]
    trust_remote_code: bool = Field(default=False, exclude=True)
    """Run code that comes with the base; given with the command, not in a recipe."""

    @property
    def base(self) -> str:
        """Where the base is."""
        return place(self.model)

    @property
    def counts_block(self) -> bool:
        """The looped layers are among what is trained, or what the adapter is as large as."""
        return self.train_block or self.match_block

    @property
    def hub(self) -> dict[str, Any]:
        """How it is read."""
        revision = {"revision": self.revision} if self.revision else {}
        return revision | ({"trust_remote_code": True} if self.trust_remote_code else {})

    @model_validator(mode="after")
    def _check_loop(self) -> Self:
        if self.loop:
            from recurtrace.model.configuration_recurtrace import RecurTraceConfig

            if unknown := [name for name in self.loop if name not in RecurTraceConfig.__dataclass_fields__]:
                raise ValueError(f"loop.{unknown[0]} is not a field of the loop's config")
        return self

    @model_validator(mode="after")
    def _check_curriculum(self) -> Self:
        if self.curriculum and self.steps is None:
            raise ValueError("lessons are shares of the steps; give steps instead of epochs")
        ends = [lesson.until for lesson in self.curriculum]
        if any(end >= later for end, later in itertools.pairwise(ends)):
            raise ValueError(f"lessons must end one after the other, not at {', '.join(map(str, ends))}")
        return self

    @model_validator(mode="after")
    def _check_method(self) -> Self:
        if self.share_beginnings and "flash" in str(self.attention):
            raise ValueError("share_beginnings needs an attention that takes a mask, such as sdpa, not flash attention")
        if self.method in ("full", "adapter") and (self.train_block or self.start_from):
            raise ValueError(f"train_block and start_from are for looped models, not for {self.method}")
        if self.match_block and self.method != "adapter":
            raise ValueError(f"match_block is the size of an adapter, not for {self.method}")
        if self.block_learning_rate is not None and not self.train_block:
            raise ValueError("block_learning_rate is for train_block, which is off")
        if self.probe is not None and {"loop_start", "loop_num_layers"} & self.loop.keys():
            raise ValueError("probe says which layers to loop; leave out loop.loop_start and loop.loop_num_layers")
        if self.method == "plain_loop" and self.loop.get("loop_memory"):
            raise ValueError("plain_loop has no memory; leave out loop_memory, or use the method loop")
        if self.method == "loop" and self.loop.get("loop_memory") is False:
            raise ValueError("loop has memory; use the method plain_loop for looping without it")
        return self


class PretrainRecipe(Optimization):
    """A small base from random weights, trained on generated text."""

    architecture: dict[str, Any]
    """Fields of transformers' Qwen3Config; the vocabulary is the tokenizer's."""
    world: Literal["problems", "stories"] = "problems"
    """What it reads: the synthetic tasks in small sizes, or stories of people, places and things (data/stories.py)."""
    examples: PositiveInt
    """Examples to generate."""
    turns: PositiveInt = 12
    """stories: sentences and questions of the talk after a story, at most."""
    rhymes: float = Field(0.1, ge=0, le=1)
    """stories: share of counting rhymes, in which lookups are learned first."""
    sizes: Sizes = Sizes()
    """problems: sizes of the synthetic tasks."""
    k: list[PositiveInt] = Field(list(PRETRAIN_STEPS), min_length=1)
    """problems: steps of a problem are drawn from these; one that is there twice comes twice as often."""
    variety: float = Field(0.1, ge=0, le=1)
    """problems: share of examples that are none of the three tasks."""
    walks: float = Field(0.2, ge=0, le=1)
    """problems: share of examples that follow pointers and write down the way."""
    start_from: Path | None = None
    """A base of the same architecture to continue from."""

    @model_validator(mode="after")
    def _check_world(self) -> Self:
        if self.variety + self.walks > 1:
            raise ValueError("variety and walks are shares of the same examples and must not exceed 1 together")
        from transformers import Qwen3Config

        fields = {field.name for field in dataclasses.fields(Qwen3Config)} - {"vocab_size"}
        if unknown := [name for name in self.architecture if name not in fields]:
            raise ValueError(f"architecture.{unknown[0]} is not a field of Qwen3Config that can be set")
        return self
