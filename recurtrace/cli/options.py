"""Choices that several commands share."""

from typing import Literal

Dtype = Literal["auto", "float32", "bfloat16", "float16"]
