"""What several commands share: options, and the line that says what is usually done next."""

import os
from pathlib import Path
from typing import Annotated

import typer

DataDir = Annotated[Path | None, typer.Option(help="Folder with the datasets, instead of the hub.")]
Changes = Annotated[
    list[str] | None, typer.Option("--set", help="Change a field of the recipe, e.g. --set steps=100; may be repeated.")
]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace what the folder already holds.")]
TrustRemoteCode = Annotated[
    bool,
    typer.Option(
        "--trust-remote-code", help="Run code that comes with the model; only for models whose authors you trust."
    ),
]


def allowed(overwrite: bool, trust_remote_code: bool = False) -> list[str]:
    """What the user allows beyond the recipe, as changes of it."""
    asked = {"overwrite": overwrite, "trust_remote_code": trust_remote_code}
    return [f"{name}=true" for name, given in asked.items() if given]


def next_step(*commands: str) -> None:
    for i, command in enumerate(commands):
        typer.secho(f"{'Next:' if i == 0 else '     '}  {command}", dim=True)


def is_main_process() -> bool:
    """Of those that a launcher started; only it prints."""
    return int(os.environ.get("RANK", "0")) == 0
