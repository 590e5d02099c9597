"""One prompt at every depth, and all that the loop does with it, from one unroll.

The block runs once for each loop. After each, the decoder layers run on its output, and the answer is written on from
a copy of the cache; nothing is computed again for another depth. What happens inside a loop is read by hooks on the
loop modules, which are there only while a trace is made: trace one prompt at a time with a model.

Shapes: s positions of the prompt · d hidden size · H heads · m remembered loops.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from transformers import PreTrainedTokenizerBase

from recurtrace.data.answers import first_line, same_text
from recurtrace.data.collate import Encoder
from recurtrace.data.example import Example
from recurtrace.errors import RecurTraceError
from recurtrace.halting.measure import EndOfAnswer
from recurtrace.model import RecurTraceCache, RecurTraceForCausalLM
from recurtrace.model.halting import pool_prompt
from recurtrace.model.heads import loop_fingerprint
from recurtrace.model.labelled_loss import head_chunks
from recurtrace.model.loop_modules import LoopModules
from recurtrace.records import Lens, LoopedLayer, LoopTrace, TracedHead, TracedLayer, TracedLoop

Progress = Callable[[TracedLoop], bool]
"""Called after each loop; False says that this is enough."""


def trace(
    model: RecurTraceForCausalLM,
    tokenizer: PreTrainedTokenizerBase,
    prompt: str,
    *,
    reference: str | None = None,
    max_loops: int = 16,
    memory_off_from: int | None = None,
    head: str | None = None,
    answer_tokens: int = 8,
    likeliest: int = 3,
    max_tokens: int = 2048,
    progress: Progress = lambda loop: True,
) -> LoopTrace:
    """Trace a prompt to `max_loops`.

    With a `reference` the answer is as long as that, and compared with it. `memory_off_from` is an ablation: from that
    loop on nothing is added from memory, though states are still remembered.
    """
    ids, length = _encode(tokenizer, prompt, reference, max_tokens)
    config, watch = model.config, _Watch(length, memory_off_from)
    if memory_off_from is not None and not config.loop_memory:
        raise RecurTraceError("this model has no memory to switch off; leave out memory_off_from.")
    if memory_off_from is not None and memory_off_from > max_loops:
        raise RecurTraceError(
            f"there is no loop {memory_off_from} to switch the memory off from, max_loops is {max_loops}; raise it, or "
            "choose an earlier loop."
        )
    named = head is not None or config.loop_halting_trained
    rule = config.head_settings(head) if named else None
    vocabulary = _Vocabulary(tokenizer)
    ends = EndOfAnswer(tokenizer)
    cache = RecurTraceCache(config)
    cache.activate_past_recording()  # sliding windows too can then be cut back to the prompt
    inputs = torch.tensor([ids], device=model.device)
    everywhere = torch.ones_like(inputs)
    targets = inputs[0, length:]
    found: list[TracedLoop] = []

    def pooled(h: Tensor, pooling: str) -> Tensor:
        return pool_prompt(h[:, :length], everywhere[:, :length].bool(), pooling)

    def visit(t: int, h: Tensor, decode: Callable[[RecurTraceCache], Tensor]) -> bool:
        slots = cache.fork(t)
        final = decode(slots)[0]
        log_probs = F.log_softmax(model.lm_head(final[length - 1 :]).float(), dim=-1)  # of the answer's tokens
        if len(targets):
            slots.crop(-len(targets))
        with watch.aside():
            answer, prob = _greedy(model, slots, log_probs[0], length, len(targets) or answer_tokens, ends)
        of_reference = log_probs[: len(targets)].gather(1, targets[:, None])
        states = watch.states
        found.append(
            TracedLoop(
                loop=t,
                continue_prob=None if rule is None else _number(model.loop.head(head)(pooled(h, rule.pooling))[0]),
                confidence=_number(log_probs[0].max().exp()),
                answer=answer,
                answer_prob=prob,
                right=None if reference is None else same_text(answer, reference),
                loss=None if reference is None else _number(-of_reference.mean()),
                norm=_numbers(_norm(states.after)),
                change=_numbers(_angle(states.before, states.after)),
                injection=_numbers(states.injection),
                lens=vocabulary.lens(model, model.model.norm(h[0, :length]), likeliest),
                decoded=vocabulary.lens(model, final[:length], likeliest),
                layers=states.layers,
            )
        )
        return progress(found[-1])

    with torch.inference_mode(), watch.on(model.loop):
        positions = torch.arange(len(ids), device=model.device)[None]
        model.unroll(inputs, everywhere, positions, loops=max_loops, cache=cache, visit=visit)
    return LoopTrace(
        model=config.name_or_path,
        prompt=prompt,
        tokens=[tokenizer.decode([token]) for token in ids[:length]],
        reference=reference,
        memory_off_from=memory_off_from,
        memory_window=config.loop_memory_window if config.loop_memory else 0,
        injection_scale=_number(model.loop.injection.alpha),
        head=None if rule is None else TracedHead(rule.threshold, rule.min_depth, rule.max_depth, head or ""),
        block=[_layer(model.loop, j, index) for j, index in enumerate(config.block)],
        vocabulary=vocabulary.texts,
        loops=found,
        loop_fingerprint=loop_fingerprint(model.loop_state_dict()),
        version=version("recurtrace"),
    )


def _layer(loop: LoopModules, j: int, index: int) -> LoopedLayer:
    if not loop.config.loop_memory:
        return LoopedLayer(index, None, [])
    memory: Any = loop.memory[j]
    return LoopedLayer(index, _number(memory.scale), _numbers(memory.slope))


def _encode(
    tokenizer: PreTrainedTokenizerBase, prompt: str, reference: str | None, max_tokens: int
) -> tuple[list[int], int]:
    """Token ids of the prompt and the reference behind it, and how many of them are the prompt's."""
    if not prompt.strip():
        raise RecurTraceError("the prompt is empty; give at least one word.")
    if reference is not None and not reference.strip():
        raise RecurTraceError("the reference is empty; leave it out, or give the right answer.")
    alone = tokenizer(prompt)["input_ids"]
    if len(alone) > max_tokens:
        raise RecurTraceError(f"the prompt has {len(alone)} tokens, more than {max_tokens}; shorten it.")
    if reference is None:
        return alone, len(alone)
    encoder = Encoder(tokenizer, max_length=2**30, end=None)
    (encoded,) = encoder([Example("", "", prompt, reference.strip())])
    return encoded.input_ids, encoded.prompt_length


def _greedy(
    model: RecurTraceForCausalLM, cache: RecurTraceCache, log_probs: Tensor, length: int, limit: int, ends: EndOfAnswer
) -> tuple[str, float]:
    """The answer after a prompt that is in the cache, and its probability."""
    written: list[int] = []
    total = 0.0
    while True:
        best = log_probs.max(dim=-1)
        written.append(int(best.indices))
        total += float(best.values)
        if len(written) == limit or ends(written[-1]):
            return first_line(ends.text(written)), _number(math.exp(total))
        token = torch.tensor([written[-1:]], device=log_probs.device)
        position = torch.tensor([[length + len(written) - 1]], device=log_probs.device)
        mask = token.new_ones(1, length + len(written))
        out = model(token, attention_mask=mask, position_ids=position, past_key_values=cache)
        log_probs = F.log_softmax(out.logits[0, -1].float(), dim=-1)


class _Vocabulary:
    """Texts of the tokens that were likely somewhere."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase):
        self.tokenizer = tokenizer
        self.texts: list[str] = []
        self._place: dict[int, int] = {}

    def lens(self, model: RecurTraceForCausalLM, normed: Tensor, likeliest: int) -> Lens:
        """What the LM head reads in states [s, d]; as many positions at a time as it may see."""
        tokens, probs, entropy = [], [], []
        for chunk in head_chunks(model.lm_head, len(normed)):
            log_probs = F.log_softmax(model.lm_head(normed[chunk]).float(), dim=-1)
            top = log_probs.topk(min(likeliest, log_probs.shape[-1]), dim=-1)
            tokens += [[self._word(token) for token in row] for row in top.indices.tolist()]
            probs += _numbers(top.values.exp())
            entropy += _numbers(-(log_probs.exp() * log_probs).nan_to_num().sum(-1))
        return Lens(tokens, probs, entropy)

    def _word(self, token: int) -> int:
        if token not in self._place:
            self._place[token] = len(self.texts)
            self.texts.append(self.tokenizer.decode([token]))
        return self._place[token]


@dataclass
class _States:
    """What one loop does with its states; the prompt's positions only."""

    before: Tensor  # [s, d] the block's state as the loop finds it
    outputs: list[Tensor]  # [s, d] each: the layers' of the loop before
    injection: Tensor  # [s]
    after: Tensor = field(default_factory=lambda: torch.empty(0))
    memories: dict[int, dict[str, Any]] = field(default_factory=dict)  # by looped layer
    layers: list[TracedLayer] = field(default_factory=list)


class _Watch:
    """Hooks on the loop modules: they tell what a loop does, and switch the memory off where that was asked for."""

    def __init__(self, length: int, memory_off_from: int | None):
        self.length = length
        self.off_from = math.inf if memory_off_from is None else memory_off_from
        self.states: _States
        self._watching = True
        self._t = 0

    @contextmanager
    def on(self, loop: LoopModules) -> Iterator[None]:
        handles = [
            loop.register_forward_pre_hook(self._begin),
            loop.register_forward_hook(self._end),
            loop.injection.register_forward_hook(self._injected),
            *(
                memory.register_forward_hook(lambda *call, j=j: self._remembered(j, *call))
                for j, memory in enumerate(loop.memory)
            ),
        ]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    @contextmanager
    def aside(self) -> Iterator[None]:
        """What runs meanwhile, such as the tokens of an answer, is not looked at; switches stay as they are."""
        self._watching = False
        try:
            yield
        finally:
            self._watching = True

    def _prompt(self, states: Tensor) -> Tensor:
        return states[0, : self.length].float()

    def _begin(self, loop: Any, args: Sequence[Any]) -> None:
        self._t, state = args[0], args[1]
        if self._watching:
            outputs = [self._prompt(output) for output in state.outputs]
            before = self._prompt(state.h)
            self.states = _States(before, outputs, injection=before.new_zeros(self.length))

    def _injected(self, injection: Any, args: Sequence[Any], out: Tensor) -> None:
        if self._watching:
            h = self._prompt(args[0])
            self.states.injection = _norm(self._prompt(out) - h) / _norm(h)

    def _remembered(self, j: int, memory: Any, args: Sequence[Any], out: Any) -> Any:
        h, state, window = args
        if self._t >= self.off_from:
            return h, out[1]
        if self._watching:
            found = memory.read(state, window)
            added = self._prompt(memory.scale * found.gate * found.value)
            self.states.memories[j] = {
                "gate": _numbers(self._prompt(found.gate).mean(-1)),
                "memory": _numbers(_norm(added) / _norm(self._prompt(h))),
                "attention": _numbers(self._prompt(found.weights).transpose(0, 1)),  # [H, s, m]
            }
        return None

    def _end(self, loop: Any, args: Sequence[Any], out: Tensor) -> None:
        if self._watching:
            states, outputs = self.states, [self._prompt(output) for output in args[1].outputs]
            states.after = self._prompt(out)
            states.layers = [
                TracedLayer(
                    norm=_numbers(_norm(output)),
                    change=_numbers(_angle(before, output)),
                    **states.memories.get(j, {}),
                )
                for j, (before, output) in enumerate(zip(states.outputs, outputs, strict=True))
            ]


def _norm(states: Tensor) -> Tensor:
    return torch.linalg.vector_norm(states, dim=-1)


def _angle(one: Tensor, other: Tensor) -> Tensor:
    """In half turns, as in the block probe."""
    return F.cosine_similarity(one, other, dim=-1).clamp(-1, 1).arccos() / math.pi


def _numbers(values: Tensor) -> Any:
    """Nested lists of numbers with four digits."""
    return _rounded(values.detach().double().tolist())


def _rounded(value: Any) -> Any:
    return [_rounded(part) for part in value] if isinstance(value, list) else float(f"{value:.4g}")


def _number(value: Tensor | float) -> float:
    return float(f"{value.item() if isinstance(value, Tensor) else value:.6g}")
