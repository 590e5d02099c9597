"""The trace explorer: a page in the browser with a model behind it, or a page of traces in one file."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from pydantic import Field, NonNegativeInt, PositiveInt, model_validator

from recurtrace.errors import RecurTraceError
from recurtrace.stages.settings import Names, OnDevice, stage
from recurtrace.stages.trace import TraceSettings, trace

if TYPE_CHECKING:
    from fastapi import FastAPI

    from recurtrace.data.example import Example
    from recurtrace.data.mixture import MixtureRecipe
    from recurtrace.explorer.server import Question, Sample
    from recurtrace.records import LoopTrace

EMBEDDED = "embedded/loop"
EMBEDDED_MIXTURE = "embedded/mixture"  # what the embedded model is asked
PER_BUCKET = 4  # items of each kind and difficulty among which turning ones are looked for
PAGE_TITLE = b"<title>Trace explorer</title>"  # by which a page of ours is known
LOCAL_HOSTS = ("127.0.0.1", "localhost", "::1")


class ExploreSettings(OnDevice):
    arguments: ClassVar[tuple[str, ...]] = ("models",)

    models: Names = [EMBEDDED]
    """Looped models to choose from, separated by commas: folders, hub ids, or embedded/loop (the default)."""
    trace: Names = []
    """Trace files to begin with, separated by commas; two are compared."""
    static: Path | None = None
    """Write one self-contained page of these traces, and stop."""
    examples: str | None = None
    """Recipe of a mixture whose test items are offered as examples. Default: that of the embedded model, for itself."""
    host: str = "127.0.0.1"
    """Address to listen on; any but this machine's own needs the token that is printed."""
    port: Annotated[NonNegativeInt, Field(le=65535)] = 8642
    """Port; 0 takes a free one."""
    token: str | None = None
    """Token that visitors need. Default: none on this machine, otherwise a random one."""
    max_loops: Annotated[PositiveInt, Field(le=64)] = 32
    """Deepest loop that can be asked for."""
    max_tokens: PositiveInt = 512
    """Longest prompt, in tokens."""
    waiting: NonNegativeInt = 4
    """Questions that may wait while one is traced."""

    @model_validator(mode="after")
    def _check(self) -> "ExploreSettings":
        if self.static is not None and not self.trace:
            raise ValueError("a static page shows traces; make one with `recurtrace trace --out`, and pass --trace")
        if len(self.trace) > 2:
            raise ValueError(f"a page compares at most two traces, got {len(self.trace)}")
        return self

    @property
    def needs_token(self) -> bool:
        return self.host not in LOCAL_HOSTS


@stage(ExploreSettings)
def explore(settings: ExploreSettings) -> "FastAPI | Path":
    """The app to serve, with the models loaded; or, for a static page, the file that was written."""
    from recurtrace.explorer.page import whole_page
    from recurtrace.files import writing
    from recurtrace.records import LoopTrace

    traces = [LoopTrace.read(Path(file)) for file in settings.trace]
    if settings.static is not None:
        _refuse_other_page(settings.static)
        with writing(settings.static) as temporary:
            temporary.write_text(whole_page(traces), encoding="utf-8")
        return settings.static
    return _app(settings, traces)


def _refuse_other_page(file: Path) -> None:
    """An earlier page may be made again; any other file is not overwritten."""
    if file.is_dir():
        raise RecurTraceError(f"{str(file)!r} is a folder; name a file to write.")
    if file.exists() and PAGE_TITLE not in file.read_bytes()[:4096]:
        raise RecurTraceError(f"{str(file)!r} is no page of the explorer and is not overwritten; choose another file.")


def _app(settings: ExploreSettings, traces: "list[LoopTrace]") -> "FastAPI":
    from recurtrace.assets import place
    from recurtrace.data.mixture import MixtureRecipe
    from recurtrace.evaluation.turning import turning
    from recurtrace.explorer.server import About, make_app
    from recurtrace.model.loading import load_looped

    loaded = {name: load_looped(place(name), **settings.loading) for name in settings.models}
    recipe = settings.examples or (EMBEDDED_MIXTURE if EMBEDDED in settings.models else None)
    pool = _pool(MixtureRecipe.read(recipe)) if recipe is not None else []
    samples = _samples(pool)

    def tracer(question: "Question", progress: Any) -> "LoopTrace":
        asked = TraceSettings(**question.model_dump(), max_tokens=settings.max_tokens)
        return trace(asked, loaded=loaded[question.model], progress=progress)

    def turns() -> "Iterator[list[Sample]]":
        """What has been found after each batch, until there is one that more loops turn wrong, and one right."""
        offered = {sample.prompt for sample in samples}
        items = [bucket[i] for i in range(PER_BUCKET) for buckets in pool for bucket in buckets if i < len(bucket)]
        items = [item for item in items if item.prompt not in offered]
        found: dict[bool, Sample] = {}
        for batch in turning(*loaded[settings.models[0]], items):
            for example, right in batch:
                found.setdefault(right, _sample(example, f"more loops turn it {'right' if right else 'wrong'}"))
            yield list(found.values())
            if len(found) == 2:
                return

    about = About(
        settings.models,
        samples,
        settings.max_loops,
        settings.max_tokens,
        without_memory=[name for name, (model, _) in loaded.items() if not model.config.loop_memory],
        stories=EMBEDDED in settings.models,
    )
    return make_app(about, tracer, turns, traces, settings.token, settings.waiting)


def _pool(recipe: "MixtureRecipe") -> "list[list[list[Example]]]":
    """Test items of each generated task, by difficulty."""
    from recurtrace.data.loading import few_of_each_bucket

    tasks = [source.name for source in recipe.sources if source.row.generated]
    return [list(few_of_each_bucket(task, PER_BUCKET, recipe.seed, recipe.sizes).values()) for task in tasks]


def _samples(pool: "list[list[list[Example]]]") -> "list[Sample]":
    """For each task the first item of its easiest bucket, and of one in the middle: the hardest are beyond training."""
    chosen = [(buckets, place) for buckets in pool for place in sorted({0, (len(buckets) - 1) // 2})]
    return [_sample(buckets[place][0], "hard" if place else "easy") for buckets, place in chosen]


def _sample(example: "Example", level: str) -> "Sample":
    from recurtrace.explorer.server import Sample

    level = f"{level}, {_in_words(example.bucket)}"
    return Sample(example.task.replace("_", " "), level, example.prompt, example.answer)


def _in_words(bucket: str) -> str:
    """facts=4 is 4 facts; k=4 stays, as a symbol of the paper."""
    name, _, number = bucket.partition("=")
    if not number or len(name) == 1:
        return bucket
    return f"{number} {name.removesuffix('s') if number == '1' else name}"
