"""Whether a base can look a fact up: the embedded one can, and weights drawn by lot cannot."""

import sys

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from recurtrace.assets import TINY_BASE
from studies.lookups import NAMED, NAMES, found, main

(WORDING,) = NAMED.values()


def test_the_embedded_base_finds_facts(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["lookups", "embedded/base", "--items", "20"])
    main()
    share = capsys.readouterr().out.splitlines()[2].split("|")[-2]
    assert float(share) > 50  # chance is 8


def test_weights_drawn_by_lot_do_not():
    torch.manual_seed(0)
    drawn = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(TINY_BASE))
    assert found(drawn, AutoTokenizer.from_pretrained(TINY_BASE), NAMES, WORDING, 20) < 0.5
