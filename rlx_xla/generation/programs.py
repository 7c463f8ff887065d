"""The compiled programs of a language model: one for each size of batch, chunk and cache.

All programs share one set of device arrays for the weights. Caches are donated: a step updates them
where they lie, and they never leave the device.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias, final

import jax
import jax.numpy as jnp
import numpy as np

from rlx.compiled import CompiledGraph
from rlx.options.compile import CompileOptions
from rlx.session import Session, TracedFunction
from rlx_xla._jax_compat import client as jax_client
from rlx_xla.generation import sampling, steps
from rlx_xla.generation.compiling import ProgramMaker
from rlx_xla.generation.ready import ReadyProgram, ReadyPrograms
from rlx_xla.models import decoder, decoder_flat, decoder_loop
from rlx_xla.models.decoder_config import DecoderConfig
from rlx_xla.runtime.client import find_device, from_device
from rlx_xla.runtime.program_cache import ProgramCache

Key: TypeAlias = "tuple[int, int, int]"
"""Batch, tokens of a call, capacity of the caches."""

STATE = ("offset", "seen", "caches")
"""Arguments of a step that its results replace."""

_Key: TypeAlias = "tuple[int, int, int, bool | None]"  # and whether the likeliest token is taken

_FORWARD: Mapping[str, steps.Forward] = {
    "layers": decoder.forward,
    "loop": decoder_loop.forward,
    "flat": decoder_flat.forward,
}
_CACHES: Mapping[str, Callable[..., Any]] = {
    "layers": decoder.empty_caches,
    "loop": decoder_loop.empty_stacks,
    "flat": decoder_loop.empty_stacks,
}


@final
@dataclass(frozen=True)
class State:
    """What lives on the device between steps.

    Attributes:
        token: i32[batch, burst], tokens of each row, of which the last is the newest.
        logprob: f32[batch, burst], their log-probabilities in the model.
        offset: i32[], positions of the caches that are filled.
        seen: bool[batch, vocabulary], tokens that occurred.
        caches: keys and values of each layer, or of all layers stacked.
        count: how many of the tokens, from the last one on, the last call chose.
    """

    token: Any
    logprob: Any
    offset: Any
    seen: Any
    caches: Any
    count: int = 1


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
        flat: bool = False,
        burst: int = 1,
        in_child: bool | None = False,
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
            flat: write layers out with few arguments, and decide on the host whether tokens are
                drawn, for devices that wait for it otherwise; see `decoder_flat`.
            burst: tokens of each row that a call of `advance` makes; more than 1 with `flat` only.
            in_child: compile in a process of its own; None where that pays.
        """
        joined = None
        if flat:
            joined = decoder_flat.flat_params(params, decoder_flat.rows_shape)
        elif loops:
            joined = decoder_loop.loop_params(params)
        self._form = "layers" if joined is None else "flat" if flat else "loop"
        self._far = flat
        self._decides = flat  # on the host, whether tokens are drawn
        self._plain = params if self._form == "flat" else None
        self.burst = burst
        self._cache_dtype = cache_dtype
        self._native = native
        self._session = session
        self._config = config
        self._params = params if joined is None else joined
        self._compiled: dict[_Key, CompiledGraph] = {}
        self._ready: dict[_Key, ReadyProgram] = {}
        self._none: dict[int, tuple[Any, ...]] = {}  # by batch, what tells `burst` of no ids
        self._names: tuple[str, ...] = ()  # of the params, in the order of their leaves
        self._maker = ProgramMaker(session.device, in_child)

    def prepare(
        self,
        batch: int,
        seq: int,
        capacity: int,
        greedy: bool | None = None,
        *,
        then: Sequence[_Key] = (),
    ) -> None:
        """Load or compile the program that a step of these sizes runs.

        Args:
            batch: rows.
            seq: tokens of a call.
            capacity: of the caches.
            greedy: as `greedy` returns it.
            then: programs that are asked for next; a child process makes them while this one runs.
        """
        key, name = (batch, seq, capacity, greedy), self._config.architecture
        if self.has(*key):
            return
        store = None if self._native else self._store()
        found = None if store is None else store.load(name, key)
        if found is not None:
            self._maker.made[key] = "found in the compile cache"
        elif store is not None:
            keys = [key, *(other for other in then if not self.has(*other))]
            found = self._maker.program(self, store, name, keys)
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

    def has(self, batch: int, seq: int, capacity: int, greedy: bool | None = None) -> bool:
        """Whether a step of these sizes runs at once."""
        key = (batch, seq, capacity, greedy)
        return key in self._compiled or key in self._ready

    def get(self, batch: int, seq: int, capacity: int, greedy: bool | None = None) -> CompiledGraph:
        """Return the program for `seq` tokens in each of `batch` rows of `capacity` positions."""
        key = (batch, seq, capacity, greedy)
        if key not in self._compiled:
            self._compiled[key] = self._compile(*key)
        return self._compiled[key]

    def where(self) -> Mapping[Key, str]:
        """Where programs were compiled, and why there, by batch, seq and capacity."""
        return {key[:3]: how for key, how in self._maker.made.items()}

    @property
    def weight_bytes(self) -> int:
        """Bytes of the params."""
        types = map(_type_of, jax.tree_util.tree_leaves(self._params))
        return sum(t.size * t.dtype.itemsize for t in types)

    def end_child(self) -> None:
        """End the process that compiles programs which nobody asked for yet, if there is one."""
        self._maker.close()

    def without_weights(self) -> Programs:
        """The same for another process: nothing compiled, types in place of weights."""
        twin = copy.copy(self)
        vars(twin).update(_session=None, _maker=None, _compiled={}, _ready={})
        twin._params = jax.tree_util.tree_map(_type_of, self._params)
        twin._plain = None
        return twin

    def revived(self, device: str) -> Programs:
        """What `without_weights` gave, in the process where it goes on."""
        self._session = Session(device)
        return self

    def compile_into(self, cache: ProgramCache, key: _Key, parts: Mapping[str, str]) -> str | None:
        """Compile a program without weights; return why it is not in the cache, or None.

        Args:
            cache: takes it.
            key: of the program.
            parts: what it depends on where it will run.
        """
        store = self._store()
        mine = store.parts(key)
        differing = [name for name in sorted({*parts, *mine}) if parts.get(name) != mine.get(name)]
        if differing:
            return f"its program would differ: {', '.join(differing)}"
        problem = store.problem()
        if problem is not None:
            return problem
        with jax_client.without_cache():  # a program that it gives has no code to hand on
            made = self._compile(*key, bind=False)
        inputs = [v.name for v in made.graph.inputs]
        kept = store.save(key, made, self._names, _donated(inputs), cache)
        return None if kept else "its program cannot be handed on"

    def greedy(self, seq: int, options: sampling.SamplingOptions) -> bool | None:
        """Whether a step takes the likeliest token; None where its program itself looks.

        Args:
            seq: tokens of the call; programs for several look, as they run once.
            options: how to choose.
        """
        return options.temperature == 0 if self._decides and seq == 1 else None

    def compiled(self) -> Mapping[Key, CompiledGraph]:
        """The programs in use, by batch, seq and capacity; graphs of those that had none so far.

        Of two that differ in whether tokens are drawn, the one that was made last.
        """
        return {key[:3]: self.get(*key) for key in (*self._ready, *self._compiled)}

    def _arrays(self) -> dict[str, Any] | None:
        """Params on the device, by name; None where there is no program so far."""
        if self._compiled:
            return next(iter(self._compiled.values())).params()
        if self._ready:
            return next(iter(self._ready.values())).arrays()
        return None

    def _leaves(self) -> list[Any]:
        """Values of the params, in the order of their leaves."""
        params = self._params
        if self._plain is not None:
            rows = decoder_flat.rows_on(find_device(self._session.device))
            params = decoder_flat.flat_params(self._plain, rows)
        return jax.tree_util.tree_leaves(params)

    def _store(self) -> ReadyPrograms:
        types = jax.tree_util.tree_leaves(self._params)
        leaves = [(leaf.shape, str(leaf.dtype)) for leaf in types]
        tree = jax.tree_util.tree_structure(self._params)
        kinds = (
            self._config,
            np.dtype(self._cache_dtype).name,
            self._form,
            self.burst,
            leaves,
            str(tree),
        )
        device = find_device(self._session.device)
        return ReadyPrograms(device, repr(kinds), CompileOptions())

    def start(self, batch: int, capacity: int) -> State:
        """Return an empty state."""
        # NumPy's zeros: each jnp.zeros would be a program of its own, compiled and kept. Where the
        # host is far, it is worth that.
        here = find_device(self._session.device) if self._far else None
        zeros = jax.tree_util.tree_map(
            lambda leaf: (
                np.zeros(leaf.shape, leaf.dtype)
                if here is None
                else jnp.zeros(leaf.shape, leaf.dtype, device=here)
            ),
            self.caches(batch, capacity),
        )
        return State(
            token=np.zeros((batch, self.burst), np.int32),
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
        make = _CACHES[self._form]
        return jax.eval_shape(lambda: make(self._config, batch, capacity, self._cache_dtype))

    def settled(self, *arrays: Any) -> tuple[Any, ...]:
        """What several steps take, on the device where it is far, so that it goes there once."""
        if self._session.device.startswith("cpu"):
            return arrays
        return tuple(jax.device_put(arrays, find_device(self._session.device)))

    def step(
        self,
        state: State,
        ids: Any,
        start: Any,
        settings: Any,
        seed: Any,
        capacity: int,
        greedy: bool | None = None,
    ) -> State:
        """Run the model over some tokens and choose the next one; the old state is gone.

        Args:
            state: as `start` or a step returned it.
            ids: i32[batch, seq], on the device or not.
            start: i32[batch], the first position of each row that is not padding.
            settings: f32[SETTINGS], how to choose.
            seed: u32[], of the draws.
            capacity: of the caches.
            greedy: as `greedy` returns it.
        """
        batch, seq = ids.shape
        key = (batch, seq, capacity, greedy)
        run = self._ready.get(key) or self.get(*key)
        with jax_client.asked_for():
            made = run(ids, start, settings, seed, state.offset, state.seen, state.caches)
        return State(*made)

    def advance(
        self,
        state: State,
        taken: tuple[Any, Any, Any],
        capacity: int,
        greedy: bool | None,
        ids: np.ndarray[Any, Any] | None = None,
    ) -> State:
        """Choose ``burst`` tokens one after another; the old state is gone.

        Args:
            state: as `start` or a step returned it.
            taken: what `step` takes as start, settings and seed.
            capacity: of the caches.
            greedy: as `greedy` returns it.
            ids: i32[batch, up to burst], what the first steps take instead of what was chosen
                before them.
        """
        if not self._far:
            fed = state.token if ids is None else ids
            start, settings, seed = taken
            return self.step(state, fed, start, settings, seed, capacity, greedy)
        batch, given = state.seen.shape[0], 0 if ids is None else ids.shape[1]
        if ids is None:
            if batch not in self._none:
                none = (np.zeros((batch, self.burst), np.int32), np.int32(0))
                self._none[batch] = self.settled(*none)
            wide, number = self._none[batch]
        else:
            wide, number = np.zeros((batch, self.burst), np.int32), np.int32(given)
            wide[:, :given] = ids
        key = (batch, 1, capacity, greedy)
        run = self._ready.get(key) or self.get(*key)
        made = run(wide, number, *taken, state.token, state.offset, state.seen, state.caches)
        return State(*made, count=self.burst - max(given - 1, 0))

    def traced(self, batch: int, seq: int, capacity: int) -> TracedFunction:
        """The function of a program, its params without values: for `rlx_xla.preflight`."""
        from rlx.packing import repacked

        greedy = True if self._decides and seq == 1 else None
        found = self._traced(batch, seq, capacity, greedy)
        return repacked(found) if self._native else found

    def _traced(self, batch: int, seq: int, capacity: int, greedy: bool | None) -> TracedFunction:
        from rlx_xla.tracing.trace import trace  # what a program that is loaded needs none of

        config, forward = self._config, _FORWARD[self._form]
        abstract = jax.tree_util.tree_map(_type_of, self._params)
        shape = jax.ShapeDtypeStruct
        start, ids = shape((batch,), np.int32), shape((batch, seq), np.int32)
        how = (start, shape((sampling.SETTINGS,), np.float32), shape((), np.uint32))
        seen = shape((batch, config.vocabulary), np.bool_)
        state = (shape((), np.int32), seen, self.caches(batch, capacity))
        if self._far and seq == 1:
            model, ids = self._burst(forward, greedy), shape((batch, self.burst), np.int32)
            arguments = (ids, shape((), np.int32), *how, ids, *state)
        else:
            model, arguments = self._step(forward, greedy), (ids, *how, *state)
        model.__name__ = config.architecture
        # What a user asks of JAX for other functions is nothing to do with this one.
        with (
            jax.disable_jit(False),
            jax.numpy_dtype_promotion("standard"),
            jax.legacy_prng_key("allow"),
            jax.default_prng_impl("threefry2x32"),
            jax.threefry_partitionable(True),
        ):
            return trace(model, abstract, *arguments, params=0)

    def _step(self, forward: steps.Forward, greedy: bool | None) -> Callable[..., Any]:
        config, count = self._config, self.burst

        def model(
            params: Any, ids: Any, start: Any, settings: Any, seed: Any, offset: Any, seen: Any,
            caches: Any,
        ) -> Any:  # fmt: skip
            made = (ids, start, settings, seed, offset, seen, caches)
            token, logprob, *rest = steps.step(forward, config, greedy, params, *made)
            if count > 1:
                token, logprob = (jnp.tile(one, (1, count)) for one in (token, logprob))
            return (token, logprob, *rest)

        return model

    def _burst(self, forward: steps.Forward, greedy: bool | None) -> Callable[..., Any]:
        config = self._config

        def model(
            params: Any, ids: Any, given: Any, start: Any, settings: Any, seed: Any, token: Any,
            offset: Any, seen: Any, caches: Any,
        ) -> Any:  # fmt: skip
            made = (ids, given, start, settings, seed, token, offset, seen, caches)
            return steps.burst(forward, config, greedy, params, *made)

        return model

    def _compile(
        self, batch: int, seq: int, capacity: int, greedy: bool | None, *, bind: bool = True
    ) -> CompiledGraph:
        traced = self._traced(batch, seq, capacity, greedy)
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
        if not bind:
            return compiled
        if held is None and not self._native:
            held = dict(zip(traced.params, self._leaves(), strict=True))
        if held is not None:
            compiled.set_params(held)
            jax.block_until_ready(list(compiled.params().values()))
        return compiled


def _type_of(leaf: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype)


def _widened(cache: Any, wanted: Any) -> Any:
    """A cache with more positions."""
    if cache.shape == wanted.shape:
        return cache
    wide = np.zeros(wanted.shape, wanted.dtype)
    wide[tuple(map(slice, cache.shape))] = from_device(cache)
    return wide


def _donated(inputs: Sequence[str]) -> frozenset[str]:
    return frozenset(name for name in inputs if name.partition("/")[0] in STATE)
