"""The compiled programs of a language model: one for each size of batch, chunk and cache.

All programs share one set of device arrays for the weights. Caches are donated: a step updates them
where they lie, and they never leave the device.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias, final

import jax
import jax.numpy as jnp
import numpy as np

from rlx.compiled import CompiledGraph
from rlx.options.compile import CompileOptions
from rlx.session import Session, TracedFunction
from rlx_xla.generation import sampling
from rlx_xla.generation.ready import ReadyProgram, ReadyPrograms
from rlx_xla.models import decoder, decoder_loop
from rlx_xla.models.decoder_config import DecoderConfig
from rlx_xla.runtime.client import find_device

Key: TypeAlias = "tuple[int, int, int]"
"""Batch, tokens of a call, capacity of the caches."""

STATE = ("offset", "seen", "caches")
"""Arguments of a step that its results replace."""


@final
@dataclass(frozen=True)
class State:
    """What lives on the device between steps.

    Attributes:
        token: i32[batch, 1], the newest token of each row.
        logprob: f32[batch], its log-probability in the model.
        offset: i32[], positions of the caches that are filled.
        seen: bool[batch, vocabulary], tokens that occurred.
        caches: keys and values of each layer, or of all layers stacked.
    """

    token: Any
    logprob: Any
    offset: Any
    seen: Any
    caches: Any


@final
class Programs:
    """Compiles on demand, and keeps what it compiled."""

    def __init__(
        self,
        session: Session,
        config: DecoderConfig,
        params: Mapping[str, Any],
        cache_dtype: Any,
        *,
        native: bool = False,
        loops: bool = False,
    ) -> None:
        """Hold a model; nothing is compiled and nothing uploaded yet.

        Args:
            session: where to run.
            config: sizes that belong to `params`.
            params: as `decoder_params.load_params` returns them.
            cache_dtype: of keys and values.
            native: take packed weights apart into integers that the device's products read.
            loops: run layers as a loop where they are alike and their matrices packed; for
                devices that have a kernel for `DequantMatmulPick`.
        """
        joined = decoder_loop.loop_params(params) if loops else None
        self._loops = joined is not None
        self._cache_dtype = cache_dtype
        self._native = native
        self._session = session
        self._config = config
        self._params = params if joined is None else joined
        self._compiled: dict[Key, CompiledGraph] = {}
        self._ready: dict[Key, ReadyProgram] = {}
        self._names: tuple[str, ...] = ()  # of the params, in the order of their leaves

    def prepare(self, batch: int, seq: int, capacity: int) -> None:
        """Load or compile the program that a step of these sizes runs."""
        key = (batch, seq, capacity)
        if self.has(*key):
            return
        store = None if self._native else self._store()
        found = None if store is None else store.load(self._config.architecture, key)
        if found is None:
            made = self.get(*key)
            if store is not None:
                inputs = [v.name for v in made.graph.inputs]
                store.save(key, made, self._names, _donated(inputs))
            return
        held = self._arrays()
        if held is None:
            held = dict(zip(found.params, self._leaves(), strict=True))
        found.loaded.bind({**held})
        jax.block_until_ready(list(found.arrays().values()))
        self._ready[key] = found

    def has(self, batch: int, seq: int, capacity: int) -> bool:
        """Whether a step of these sizes runs at once."""
        key = (batch, seq, capacity)
        return key in self._compiled or key in self._ready

    def get(self, batch: int, seq: int, capacity: int) -> CompiledGraph:
        """Return the program for `seq` tokens in each of `batch` rows of `capacity` positions."""
        key = (batch, seq, capacity)
        if key not in self._compiled:
            self._compiled[key] = self._compile(*key)
        return self._compiled[key]

    def compiled(self) -> Mapping[Key, CompiledGraph]:
        """The programs in use, by batch, seq and capacity; graphs of those that had none so far."""
        return {key: self.get(*key) for key in (*self._ready, *self._compiled)}

    def _arrays(self) -> dict[str, Any] | None:
        """Params on the device, by name; None where there is no program so far."""
        if self._compiled:
            return next(iter(self._compiled.values())).params()
        if self._ready:
            return next(iter(self._ready.values())).arrays()
        return None

    def _leaves(self) -> list[Any]:
        return jax.tree_util.tree_leaves(self._params)

    def _store(self) -> ReadyPrograms:
        leaves = [(leaf.shape, str(leaf.dtype)) for leaf in self._leaves()]
        tree = jax.tree_util.tree_structure(self._params)
        kinds = (self._config, np.dtype(self._cache_dtype).name, self._loops, leaves, str(tree))
        device = find_device(self._session.device)
        return ReadyPrograms(device, repr(kinds), CompileOptions())

    def start(self, batch: int, capacity: int) -> State:
        """Return an empty state."""
        # NumPy's zeros: each jnp.zeros would be a program of its own, compiled and kept.
        zeros = jax.tree_util.tree_map(
            lambda leaf: np.zeros(leaf.shape, leaf.dtype), self.caches(batch, capacity)
        )
        return State(
            token=None,
            logprob=None,
            offset=np.int32(0),
            seen=np.zeros((batch, self._config.vocabulary), np.bool_),
            caches=zeros,
        )

    def resumed(self, state: State, offset: int, capacity: int, ids: Sequence[int]) -> State:
        """Return a state that goes on from a position of another one, which is gone.

        Args:
            state: of one row, as a step returned it.
            offset: positions of its caches that count.
            capacity: at least that of the state.
            ids: tokens of the row; those fed later are marked as they come.
        """
        made = self.caches(1, capacity)
        caches = jax.tree_util.tree_map(_widened, state.caches, made)
        seen = np.zeros((1, self._config.vocabulary), np.bool_)
        seen[0, np.asarray(ids, np.int32)] = True
        return replace(state, offset=np.int32(offset), seen=seen, caches=caches)

    def caches(self, batch: int, capacity: int) -> Any:
        """Shapes and dtypes of the caches."""
        make = decoder_loop.empty_stacks if self._loops else decoder.empty_caches
        return jax.eval_shape(lambda: make(self._config, batch, capacity, self._cache_dtype))

    def step(
        self, state: State, ids: Any, start: Any, settings: Any, seed: Any, capacity: int
    ) -> State:
        """Run the model over some tokens and choose the next one; the old state is gone.

        Args:
            state: as `start` or a step returned it.
            ids: i32[batch, seq], on the device or not.
            start: i32[batch], the first position of each row that is not padding.
            settings: f32[SETTINGS], how to choose.
            seed: u32[], of the draws.
            capacity: of the caches.
        """
        batch, seq = ids.shape
        key = (batch, seq, capacity)
        run = self._ready.get(key) or self.get(*key)
        made = run(ids, start, settings, seed, state.offset, state.seen, state.caches)
        token, logprob, offset, seen, caches = made
        return replace(state, token=token, logprob=logprob, offset=offset, seen=seen, caches=caches)

    def traced(self, batch: int, seq: int, capacity: int) -> TracedFunction:
        """The function of a program, its params without values: for `rlx_xla.preflight`."""
        from rlx.packing import repacked

        found = self._traced(batch, seq, capacity)
        return repacked(found) if self._native else found

    def _traced(self, batch: int, seq: int, capacity: int) -> TracedFunction:
        from rlx_xla.tracing.trace import trace  # what a program that is loaded needs none of

        config = self._config
        caches = self.caches(batch, capacity)
        forward = decoder_loop.forward if self._loops else decoder.forward
        abstract = jax.tree_util.tree_map(
            lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), self._params
        )

        def model(
            params: Any, ids: Any, start: Any, settings: Any, seed: Any, offset: Any, seen: Any,
            caches: Any,
        ) -> Any:  # fmt: skip
            return _step(forward, config, params, ids, start, settings, seed, offset, seen, caches)

        model.__name__ = config.architecture
        return trace(
            model,
            abstract,
            jax.ShapeDtypeStruct((batch, seq), np.int32),
            jax.ShapeDtypeStruct((batch,), np.int32),
            jax.ShapeDtypeStruct((sampling.SETTINGS,), np.float32),
            jax.ShapeDtypeStruct((), np.uint32),
            jax.ShapeDtypeStruct((), np.int32),
            jax.ShapeDtypeStruct((batch, config.vocabulary), np.bool_),
            caches,
            params=0,
        )

    def _compile(self, batch: int, seq: int, capacity: int) -> CompiledGraph:
        traced = self._traced(batch, seq, capacity)
        held = self._arrays()
        self._names = tuple(traced.params)
        if self._native:
            from rlx.packing import Repacked, repacked

            leaves = self._leaves() if held is None else ()
            values = dict(zip(traced.params, leaves, strict=False))
            params = {name: values.get(name) for name in traced.params}
            traced = repacked(Repacked(traced.graph, traced.signature, params))
        donated = _donated([v.name for v in traced.graph.inputs])
        compiled = self._session.compile(traced, options=CompileOptions(donate=donated))
        if held is None and not self._native:
            held = dict(zip(traced.params, self._leaves(), strict=True))
        if held is not None:
            compiled.set_params(held)
            jax.block_until_ready(list(compiled.params().values()))
        return compiled


def _widened(cache: Any, wanted: Any) -> Any:
    """A cache with more positions, the last but one axis."""
    if cache.shape == wanted.shape:
        return cache
    wide = np.zeros(wanted.shape, wanted.dtype)
    wide[..., : cache.shape[-2], :] = np.asarray(cache)
    return wide


def _donated(inputs: Sequence[str]) -> frozenset[str]:
    return frozenset(name for name in inputs if name.partition("/")[0] in STATE)


def _step(
    forward: Callable[..., tuple[jax.Array, Any]],
    config: DecoderConfig,
    params: Any,
    ids: jax.Array,
    start: jax.Array,
    settings: jax.Array,
    seed: jax.Array,
    offset: jax.Array,
    seen: jax.Array,
    caches: Any,
) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array, Any]:
    hidden, caches = forward(params, config, ids, start, offset, caches)
    after = offset + ids.shape[1]
    places = offset + jnp.arange(ids.shape[1], dtype=jnp.int32)
    padding = places[None, :] < start[:, None]
    rows = jnp.arange(ids.shape[0], dtype=jnp.int32)[:, None]
    marked = jnp.where(padding, config.vocabulary, ids)  # out of range: dropped
    seen = seen.at[rows, marked].set(True, mode="drop")
    logits = decoder.logits_of(params, config, hidden[:, -1])
    token, logprob = sampling.choose(logits, seen, settings, seed, after)
    return token[:, None], logprob, after, seen, caches
