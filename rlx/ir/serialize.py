"""Saving a graph with its params as one file, and loading it from anywhere.

A container (``.rlx``) is, all numbers little endian:

====================  ==========================================================================
bytes                 what
====================  ==========================================================================
0 to 7                magic: ``89 52 4C 58 0D 0A 1A 0A``
8 to 11               version of the container: 1
12 to 15              flags: 0
16 to 23              length of the header in bytes, at most 2^25
24 to 55              SHA-256 of the header
56 to 63              0
64 …                  header: JSON in UTF-8, then zeros to the next multiple of 64
sections              the graph's text, then each tensor; each starts at a multiple of 64 from the
                      first, follows the one before without a gap other than zeros, and the last
                      one ends the file
====================  ==========================================================================

The header is ``{"text": {"length": …, "sha256": "…"}, "tensors": [{"name": …, "dtype": "f32",
"shape": [64, 10], "crc32": …, "offset": …}, …]}``; offsets count from the first section. A tensor
is raw elements in C order; a dtype narrower than a byte takes a byte for each element. A tensor by
reference has ``"file"`` (relative to the container's folder, never outside it) and either
``"offset"`` (in that file) or ``"tensor"`` (a name in a safetensors file).

The text is what `rlx.ir.text` describes, with locations, after a line ``format 1``. Files hold no
code. Whatever a file claims is compared with its real size before memory is taken for it, and a
file that is cut or changed anywhere is refused.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from typing import Any, cast

import numpy as np

from rlx.dims import DimExpr
from rlx.dtypes import as_dtype
from rlx.errors import DTypeError, FormatError, did_you_mean
from rlx.ir import container
from rlx.ir.attributes import Array
from rlx.ir.container import Header, Tensor
from rlx.ir.graph import Graph, Node, Value, make_node
from rlx.ir.literals import check_elements
from rlx.ir.references import References, TensorRef
from rlx.ir.rewrite import rewrite, rule
from rlx.ir.text import TEXT_VERSION, parse, print_graph
from rlx.ops.external import External
from rlx.types import TensorType

PathLike = str | os.PathLike[str]


def save(
    graph: Graph,
    path: PathLike,
    params: Mapping[str, Any] | None = None,
    *,
    locations: bool = True,
) -> None:
    """Write a graph, and params if there are any, to a container file.

    The file appears in one step: readers see the old one or the new one, never a part.

    Args:
        graph: any graph without live-only nodes.
        path: where to write; by custom it ends in ``.rlx``.
        params: for each param an array of its dtype and shape, a `TensorRef`, or None to leave
            it out; without it the graph is saved alone.
        locations: whether the user's files and lines are kept.

    Raises:
        FormatError: no graph is given; a node exists in memory only (a callback, say); a param is
            unknown, missing or of another dtype or shape, with a line for each; the file cannot be
            written.
    """
    path = container.path_text("save", path)
    if not isinstance(cast("object", graph), Graph):
        raise FormatError(
            f"save: a Graph is required; got {type(graph).__name__}. For a traced function give "
            "traced.graph, and params=traced.params to keep its arrays."
        )
    text = portable_text("save", graph, locations=locations).encode()
    given = {} if params is None else _checked_params(graph, params)
    references = References("save", os.path.dirname(os.path.abspath(path)))
    tensors: list[Tensor] = []
    arrays: list[Array] = []
    end = len(text)
    for name, value in given.items():
        if isinstance(value, TensorRef):
            tensors.append(references.to_tensor(name, value))
            continue
        kind = _type_of(value)
        offset = container.aligned(end)
        end = offset + kind.nbytes
        tensors.append(Tensor(name, kind, container.checksum(value), offset))
        arrays.append(value)
    if len(tensors) > container.MAX_PARAMS:
        raise FormatError(
            f"save: at most {container.MAX_PARAMS} params are required; got {len(tensors)}. "
            "Stack params of one shape."
        )
    header = Header(len(text), hashlib.sha256(text).hexdigest(), tuple(tensors))
    container.write(path, header, text, arrays)


def portable_text(where: str, graph: Graph, *, locations: bool = True) -> str:
    """The text of a graph that another process reads.

    Raises:
        FormatError: a node exists in memory only (a callback, say).
    """
    graph = rewrite(graph, _portable)
    _refuse_live(where, graph)
    return f"format {TEXT_VERSION}\n\n{print_graph(graph, locations=locations)}\n"


def load(path: PathLike) -> Graph:
    """Return the graph of a container file; its params stay in the file.

    Raises:
        FormatError: the file is no container, is damaged, or its params are not the graph's.
        ParseError: the graph's text is wrong, or names ops that are not here.
    """
    path = container.path_text("load", path)
    header, text, _, _ = container.read("load", path)
    try:
        decoded = text.decode("utf-8")
    except UnicodeDecodeError as error:
        raise FormatError(f"load: {path!r}: the graph's text is no UTF-8: {error}.") from error
    graph = parse(decoded)
    types = {leaf.name: leaf.type for leaf in graph.params}
    wrong = [
        tensor
        for tensor in header.tensors
        if tensor.name not in types or not _fits(tensor.type, types[tensor.name])
    ]
    if wrong:
        findings = [_param_fault(tensor.name, tensor.type, types) for tensor in wrong[:20]]
        raise FormatError(f"load: {path!r}: {'; '.join(findings)}. The file is damaged.")
    return graph


def load_params(path: PathLike, *, check: bool = True) -> dict[str, Array]:
    """Return the params of a container file by name, as read-only views of the mapped file.

    Nothing is copied, and arrays inside the container start at multiples of 64 bytes in memory,
    so that a device on the host can use them in place. The file must not be changed in place as
    long as an array is in use; `save` over it is fine, as it makes a new file.

    Args:
        path: a container.
        check: whether checksums are compared, which reads every byte.

    Raises:
        FormatError: the file, or one that it refers to, is damaged or holds other tensors.
    """
    path = container.path_text("load_params", path)
    header, _, mapped, start = container.read("load_params", path)
    references = References("load_params", os.path.dirname(os.path.abspath(path)))
    arrays: dict[str, Array] = {}
    damaged: list[str] = []
    for tensor in header.tensors:
        if tensor.file:
            array = references.array(tensor)
        else:
            array = container.view(mapped, start + (tensor.offset or 0), tensor.type)
        if check and container.checksum(array) != tensor.crc32:
            damaged.append(tensor.name)
        check_elements(array, tensor.type.dtype)
        arrays[tensor.name] = array
    if damaged:
        raise FormatError(
            f"load_params: {path!r}: the checksum of {', '.join(map(repr, damaged[:20]))} is "
            "wrong. The file, or one it refers to, is damaged."
        )
    return arrays


@rule(External)
def _portable(node: Node) -> tuple[Value, ...] | None:
    """Put the StableHLO text of a live node beside it, where its frontend can give one."""
    op = node.op
    if not isinstance(op, External) or op.stablehlo or op.live is None or op.live.portable is None:
        return None
    text = op.live.portable()
    return make_node(op.replace(stablehlo=text), node.inputs).results if text else None


def _refuse_live(where: str, graph: Graph) -> None:
    findings = [
        f"  {node.op.name!r}{f' at {node.location}' if node.location else ''}"
        for inner in graph.all_graphs()
        for node in inner.nodes()
        if isinstance(node.op, External) and node.op.live is not None and not node.op.stablehlo
    ]
    if findings:
        raise FormatError(
            f"{where}: every opaque node is required to have StableHLO text; these exist in memory "
            "only (a callback, say). Take them out of the graph, or save what is around them.\n"
            + "\n".join(findings)
        )


def _checked_params(graph: Graph, params: Mapping[str, Any]) -> dict[str, Array | TensorRef]:
    types = {leaf.name: leaf.type for leaf in graph.params}
    findings = [
        f"param {name!r} is required: {kind}; pass None to leave it out"
        for name, kind in types.items()
        if name not in params
    ]
    checked: dict[str, Array | TensorRef] = {}
    for name, value in params.items():
        if value is None and name in types:
            continue
        array = value if isinstance(value, TensorRef) else np.asarray(value)
        try:
            kind = _type_of(array)
        except DTypeError as error:
            findings.append(f"param {name!r}: {error}")
            continue
        if name not in types or not _fits(kind, types[name]):
            findings.append(_param_fault(name, kind, types))
        checked[name] = array
    if findings:
        raise FormatError(
            "save: params are required to be those of the graph.\n  " + "\n  ".join(findings)
        )
    return checked


def _param_fault(name: str, found: TensorType, types: Mapping[str, TensorType]) -> str:
    if name in types:
        return f"param {name!r} is required to be {types[name]}; got {found}"
    known = ", ".join(list(types)[:20]) or "none"
    hint = did_you_mean(name[:80], list(types)[:1000])
    return f"param {name[:80]!r} is unknown; the graph has {known}.{hint}"


def _fits(found: TensorType, declared: TensorType) -> bool:
    """Whether an array's type is a declared one with numbers for symbolic dims."""
    return (
        found.dtype is declared.dtype
        and found.rank == declared.rank
        and all(
            isinstance(d, DimExpr) or f == d
            for f, d in zip(found.shape, declared.shape, strict=True)
        )
    )


def _type_of(value: Array | TensorRef) -> TensorType:
    if isinstance(value, TensorRef):
        return value.type
    return TensorType(as_dtype(value.dtype), tuple(int(n) for n in value.shape))
