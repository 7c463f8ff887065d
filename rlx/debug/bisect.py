"""Shrinks a graph on which something fails to the nodes that matter, and writes them as text."""

from __future__ import annotations

import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast, final

import numpy as np

from rlx.call_checks import require_mapping
from rlx.dtypes import DType
from rlx.errors import PassError, RlxError, did_you_mean
from rlx.ir.container import written_whole
from rlx.ir.graph import Graph, Node, Value
from rlx.ir.interpret import evaluate_node, interpret
from rlx.ir.rewrite import substitute
from rlx.ops.io import Input
from rlx.options.compile import CompileOptions
from rlx.param_values import listing
from rlx.passes.base import AbstractPass, PassContext, Pipeline
from rlx.passes.bind_dims import bind_shapes
from rlx.passes.pipelines import mir_pipeline
from rlx.passes.validate import difference

if TYPE_CHECKING:
    from rlx.ir.attributes import Array
    from rlx.session import Session

Feeds = Mapping[str, Any]
Fails = Callable[[Graph, Feeds], "str | bool"]

_LEAVES = ("input", "param")


@final
@dataclass(frozen=True)
class Bisection:
    """A small graph that still fails.

    Attributes:
        graph: the graph; what it cut off are inputs named ``cut_0``, ``cut_1`` and so on.
        feeds: an array for each input and param of the graph, by name.
        reason: what fails.
        tests: how many graphs were tried.
        path: the file that holds the graph as text, if one was written; the arrays are beside it
            with the suffix ``.npz``.
    """

    graph: Graph
    feeds: Feeds = field(repr=False)
    reason: str
    tests: int
    path: Path | None = None

    @property
    def nodes(self) -> list[Node]:
        """The nodes that are left; inputs and params do not count."""
        return [n for n in self.graph.nodes() if n.op.op_name not in _LEAVES]

    def __str__(self) -> str:
        where = f", written to {self.path}" if self.path else ""
        return (
            f"{len(self.nodes)} nodes after {self.tests} tests{where}: {self.reason}\n{self.graph}"
        )


def bisect(
    graph: Graph,
    inputs: Feeds,
    params: Feeds | None = None,
    *,
    fails: Fails | None = None,
    passes: Sequence[AbstractPass] | None = None,
    session: Session | None = None,
    options: CompileOptions | None = None,
    path: str | Path | None = None,
) -> Bisection:
    """Shrink a graph on which something goes wrong, keeping the arrays that show it.

    Args:
        graph: the failing graph.
        inputs: arrays by name.
        params: arrays by name.
        fails: says of a graph and its arrays (inputs and params by name) whether it still fails;
            a text is the reason. Left out, it is that the result differs from ``rlx.interpret``:
            after ``passes``, or when ``session`` compiles and runs it, or else after the passes
            that ``options`` ask for. An error of ours counts as a failure.
        passes: what is tried, in order.
        session: compiles and runs each graph.
        options: of the compile, or of the passes.
        path: where the small graph is written as text.

    Raises:
        PassError: this is no graph, it does not fail, an array is missing, or more than one of
            fails, passes and session is given.
        RunError: the arrays are not given by name.
        FormatError: the system refuses to write.
    """
    if not isinstance(cast("object", graph), Graph):
        raise PassError(
            f"bisect: a Graph is required; got {type(graph).__name__}. For a traced function give "
            "traced.graph, and params=traced.params.",
            pass_name="bisect",
        )
    given = [n for n, v in (("fails", fails), ("passes", passes), ("session", session)) if v]
    if len(given) > 1:
        raise PassError(
            f"bisect: one of fails, passes and session is required; got {' and '.join(given)}. "
            "Leave the others out.",
            pass_name="bisect",
        )
    if fails is None:
        fails = _by_session(session, options) if session else _by_passes(passes, options)
    require_mapping("bisect", "input name → array", inputs)
    feeds = {**inputs, **(params or {})}
    leaves = (*graph.inputs, *graph.params)
    missing = [leaf.name for leaf in leaves if leaf.name not in feeds]
    if missing:
        raise PassError(
            f"bisect: an array for each input and param is required ({listing(leaves)}); missing "
            f"{', '.join(map(repr, missing))}.{did_you_mean(missing[0], feeds)}",
            pass_name="bisect",
        )
    graph = bind_shapes(graph, {name: np.shape(array) for name, array in feeds.items()})
    shrinking = _Shrinking(graph, feeds, fails)
    small, arrays, reason = shrinking.run()
    target = None if path is None else Path(path)
    if target is not None:
        with written_whole(target, "bisect") as text:
            text.write(f"{small}\n".encode())
        _write_arrays(target.with_suffix(".npz"), arrays)
    return Bisection(small, arrays, reason, shrinking.tests, target)


def _write_arrays(path: Path, arrays: Mapping[str, Array]) -> None:
    """What ``numpy.savez`` writes, for any names."""
    with written_whole(path, "bisect") as whole, zipfile.ZipFile(whole, "w") as archive:
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w") as file:
                np.lib.format.write_array(file, array, allow_pickle=False)


@final
class _Shrinking:
    """One search: which outputs are needed, which prefix can be cut off, which nodes between."""

    def __init__(self, graph: Graph, feeds: Feeds, fails: Fails) -> None:
        self._source = graph
        self._feeds = {k: np.asarray(v) for k, v in feeds.items()}
        self._fails = fails
        self.tests = 0
        self._reason = ""

    def run(self) -> tuple[Graph, dict[str, Array], str]:
        source = self._source
        if not self._test(source, {}):
            raise PassError(
                "bisect: a graph that fails is required; nothing is wrong with this one on these "
                "inputs. Pass the inputs, passes or session with which it fails.",
                pass_name="bisect",
            )
        self._values = _values(source, self._feeds)
        self._order = [n for n in source.nodes() if n.op.op_name not in _LEAVES]
        self._place = {n: i for i, n in enumerate(self._order)}
        output = self._first_output()
        if output is None:
            return source, dict(self._feeds), self._reason
        cuts = self._cut_prefix(output)
        cuts = self._cut_each(output, cuts)
        graph, made = self._build(output, cuts)
        self._test(graph, made)
        arrays = {v.name: self._array(v, made) for v in (*graph.inputs, *graph.params)}
        return graph, arrays, self._reason

    def _first_output(self) -> tuple[Value, ...] | None:
        """The results of the earliest node that shows the failure."""
        low, high = 0, len(self._order) - 1
        while low < high:  # a failure stays when more nodes are outputs
            middle = (low + high) // 2
            found = [v for n in self._order[: middle + 1] for v in _visible(n)]
            if found and self._test(*self._build(tuple(found), frozenset())):
                high = middle
            else:
                low = middle + 1
        for place in (low, *range(len(self._order))):
            found = tuple(_visible(self._order[place]))
            if found and self._test(*self._build(found, frozenset())):
                return found
        return None

    def _cut_prefix(self, output: tuple[Value, ...]) -> frozenset[Node]:
        """Cut off as many of the first nodes as can be spared."""
        last = self._place[output[0].node]
        low, high = 0, last
        best: frozenset[Node] = frozenset()
        while low < high:
            middle = (low + high + 1) // 2
            cuts = frozenset(self._order[:middle])
            if self._test(*self._build(output, cuts)):
                low, best = middle, cuts
            else:
                high = middle - 1
        return best

    def _cut_each(self, output: tuple[Value, ...], cuts: frozenset[Node]) -> frozenset[Node]:
        """Cut off single nodes until none can be spared."""
        changed = True
        while changed:
            changed = False
            graph, _ = self._build(output, cuts)
            kept = {self._place[n] for n in self._kept(output, cuts)}
            del graph
            for place in sorted(kept, reverse=True):
                node = self._order[place]
                if node is output[0].node or node in cuts:
                    continue
                more = cuts | {node}
                if self._test(*self._build(output, more)):
                    cuts, changed = more, True
        return cuts

    def _kept(self, output: tuple[Value, ...], cuts: frozenset[Node]) -> set[Node]:
        found: set[Node] = set()
        stack = [output[0].node]
        while stack:
            node = stack.pop()
            if node in found or node in cuts or node not in self._place:
                continue
            found.add(node)
            stack += [v.node for v in node.inputs]
        return found

    def _build(
        self, outputs: tuple[Value, ...], cuts: frozenset[Node]
    ) -> tuple[Graph, dict[str, Array]]:
        """The graph of some values in which cut nodes are inputs, and arrays for those."""
        source = self._source
        replaced: dict[Value, Value] = {}
        made: dict[str, Array] = {}
        wanted = {v for o in outputs for n in self._cone(o.node, cuts) for v in n.inputs}
        for node in cuts:
            for value in node.results:
                if value in wanted and value.type.dtype is not DType.TOKEN:
                    name = f"cut_{len(replaced)}"
                    leaf: Value = Input(name=name, dtype=value.type.dtype, shape=value.type.shape)()
                    replaced[value] = leaf
                    made[name] = self._values[value]
        whole = Graph((*source.inputs, *replaced.values()), source.params, outputs, (),
                      name=source.name)  # fmt: skip
        graph = substitute(whole, replaced)
        used = {v for n in graph.nodes() for v in n.inputs} | set(graph.outputs)
        return (
            Graph(
                [v for v in graph.inputs if v in used],
                [v for v in graph.params if v in used],
                graph.outputs,
                graph.effects,
                name=source.name,
            ),
            made,
        )

    def _cone(self, root: Node, cuts: frozenset[Node]) -> set[Node]:
        found: set[Node] = set()
        stack = [root]
        while stack:
            node = stack.pop()
            if node not in found and node not in cuts:
                found.add(node)
                stack += [v.node for v in node.inputs]
        return found

    def _test(self, graph: Graph, made: Mapping[str, Array]) -> bool:
        self.tests += 1
        leaves = (*graph.inputs, *graph.params)
        found = self._fails(graph, {v.name: self._array(v, made) for v in leaves})
        if found:
            self._reason = found if isinstance(found, str) else "the graph fails"
        return bool(found)

    def _array(self, leaf: Value, made: Mapping[str, Array]) -> Array:
        return made[leaf.name] if leaf.name in made else self._feeds[leaf.name]


def _visible(node: Node) -> list[Value]:
    return [v for v in node.results if v.type.dtype is not DType.TOKEN]


def _values(graph: Graph, feeds: Mapping[str, Array]) -> dict[Value, Array]:
    """Every value of the graph."""
    known = {v: feeds[v.name] for v in (*graph.inputs, *graph.params)}
    for node in graph.nodes():
        if node.op.op_name not in _LEAVES:
            results = evaluate_node(node, [known[v] for v in node.inputs])
            known.update(zip(node.results, results, strict=True))
    return known


def _split(graph: Graph, feeds: Feeds) -> tuple[dict[str, Any], dict[str, Any]]:
    return (
        {v.name: feeds[v.name] for v in graph.inputs},
        {v.name: feeds[v.name] for v in graph.params},
    )


def _compared(graph: Graph, found: Sequence[Any], wanted: Sequence[Any], who: str) -> str:
    for index, (got, want) in enumerate(zip(found, wanted, strict=True)):
        problem = difference(np.asarray(got), want, graph.outputs[index])
        if problem:
            return f"{who}: output {index} {problem}"
    return ""


def _by_passes(passes: Sequence[AbstractPass] | None, options: CompileOptions | None) -> Fails:
    chosen = CompileOptions() if options is None else options
    pipeline = mir_pipeline(chosen) if passes is None else Pipeline(tuple(passes))

    def fails(graph: Graph, feeds: Feeds) -> str:
        split = _split(graph, feeds)
        wanted = interpret(graph, *split)
        ctx = PassContext(chosen)
        for current in pipeline.passes:
            try:
                after = current.run(graph, ctx)
                found = wanted if after is graph else interpret(after, *split)
            except RlxError as error:
                return f"pass {str(current)!r}: {error}"
            problem = _compared(graph, found, wanted, f"pass {str(current)!r}")
            if problem and current.keeps_values:
                return problem
            graph, wanted = after, wanted if current.keeps_values else found
        return ""

    return fails


def _by_session(session: Session, options: CompileOptions | None) -> Fails:
    def fails(graph: Graph, feeds: Feeds) -> str:
        inputs, params = _split(graph, feeds)
        wanted = interpret(graph, inputs, params)
        try:
            compiled = session.compile(graph, options=options)
            compiled.set_params(params)
            found = compiled.run(inputs)
        except RlxError as error:
            return f"{session.device}: {error}"
        return _compared(graph, found, wanted, session.device)

    return fails
