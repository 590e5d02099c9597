"""`recurtrace serve`: what is asked for in RecurTrace's words, as vLLM's own command line."""

import json
from importlib.util import find_spec
from typing import Any

from recurtrace.errors import RecurTraceError
from recurtrace.model.base import read_looped_config
from recurtrace.model.checkpoint import find_file
from recurtrace.model.cost import cost_of
from recurtrace.serving.checkpoint import base_of_adapter
from recurtrace.serving.depths import ServedDepths

HUB_OPTIONS = {"revision": "--revision", "cache_dir": "--download-dir"}
MISSING = (
    "vLLM is not installed; pip install 'recurtrace[serve]' on a CUDA machine, or see docs/serving.md for the CPU. "
    "Everything else in RecurTrace works without it."
)


def require_vllm() -> None:
    if find_spec("vllm") is None:
        raise RecurTraceError(MISSING)


def command_line(model: str, overrides: dict[str, Any], options: list[str]) -> tuple[list[str], str]:
    """Arguments for vLLM's server, and a sentence on what it will hold."""
    if model.startswith("-"):
        raise RecurTraceError(f"the model comes first: recurtrace serve MODEL {model} …")
    if overrides.get("base_model_name_or_path") is not None:
        overrides = {**overrides, "base_revision": ""}  # that was the other base's
    overrides = {name: value for name, value in overrides.items() if value is not None}
    options, given = _without_overrides(options)
    overrides = given | overrides
    hub: dict[str, Any] = {
        name: value for name, option in HUB_OPTIONS.items() if (value := _value(options, option)) is not None
    }
    hub |= {"trust_remote_code": "--trust-remote-code" in options}
    config = read_looped_config(model, **hub)
    for name, value in overrides.items():
        setattr(config, name, value)
    served = ServedDepths.of(config)
    place = base_of_adapter(model, config, **hub)
    if place and _value(options, "--tokenizer") is None and find_file(model, "tokenizer_config.json", **hub) is None:
        options += ["--tokenizer", place[0]]
    cost = cost_of(config)
    ratio = cost.kv_bytes(served.maximum, 2) / cost.kv_bytes(1, 2)
    at_depth = f"depth {served.default}" if served.default else f"a depth of {served.minimum} to {served.maximum}"
    said = (
        f"Serving {model} at {at_depth}; keys and values for {served.maximum} loops take {ratio:.2f}× the base's "
        "memory per token (--max-loops lowers it)."
    )
    return [model, *(["--hf-overrides", json.dumps(overrides)] if overrides else []), *options], said


def _without_overrides(options: list[str]) -> tuple[list[str], dict[str, Any]]:
    """The user's own `--hf-overrides` are taken out, to be given together with ours: vLLM takes the last it sees."""
    left: list[str] = []
    found: dict[str, Any] = {}
    words = iter(_separated(options))
    for word in words:
        if word.startswith("--hf-overrides."):
            raise RecurTraceError("write --hf-overrides as one JSON object.")
        if word != "--hf-overrides":
            left.append(word)
            continue
        try:
            read = json.loads(next(words, ""))
        except ValueError:
            read = None
        if not isinstance(read, dict):
            raise RecurTraceError('--hf-overrides takes a JSON object, such as {"loop_halting_threshold": 0.4}.')
        found |= read
    return left, found


def _separated(options: list[str]) -> list[str]:
    """Options as vLLM reads them: --a_b=c is --a-b c."""
    words = []
    for word in options:
        name, equals, value = word.partition("=")
        if not word.startswith("--"):
            words.append(word)
        else:
            words += [name.replace("_", "-"), value] if equals else [name.replace("_", "-")]
    return words


def _value(options: list[str], name: str) -> str | None:
    return options[options.index(name) + 1] if name in options[:-1] else None


def launch(arguments: list[str]) -> None:
    """vLLM's own OpenAI server, in this process."""
    from pydantic import ValidationError
    from vllm.entrypoints.cli.serve import ServeSubcommand
    from vllm.entrypoints.launchers.cli_args import make_arg_parser
    from vllm.entrypoints.serve.utils.api_utils import cli_env_setup
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    cli_env_setup()
    parsed = make_arg_parser(FlexibleArgumentParser(prog="recurtrace serve")).parse_args(arguments)
    command = ServeSubcommand()
    command.validate(parsed)
    try:
        command.cmd(parsed)
    except ValidationError as error:  # so vLLM wraps what its settings refuse
        cause = error.errors()[0].get("ctx", {}).get("error")
        if isinstance(cause, RecurTraceError):
            raise cause from None
        raise
