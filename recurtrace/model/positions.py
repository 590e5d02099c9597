"""How long an input may be: as long as the positions that the base was trained on."""

from transformers import PreTrainedConfig

from recurtrace.errors import RecurTraceError


def positions_of(config: PreTrainedConfig) -> int | None:
    """Of a base, or of the base of a looped model; None where its config does not say."""
    return getattr(config.get_text_config(), "max_position_embeddings", None)


def longest_input(
    config: PreTrainedConfig,
    asked: int | None,
    default: int,
    extrapolate: bool = False,
    remedy: str = "lower max_length (--max-length), or set extrapolate (--extrapolate)",
) -> int:
    """The length asked for, refused beyond the base's positions; the default is what fits there."""
    positions = positions_of(config)
    if asked is None:
        return default if positions is None else min(default, positions)
    if positions is not None and asked > positions and not extrapolate:
        raise RecurTraceError(
            f"max_length is {asked:,}, but the base has {positions:,} positions and was not trained beyond them; "
            f"{remedy}."
        )
    return asked
