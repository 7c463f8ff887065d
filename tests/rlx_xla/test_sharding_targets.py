"""Shardings for devices that are not there: what each holds, and what they send each other."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AbstractMesh, NamedSharding, PartitionSpec

import rlx
import rlx_xla
from rlx.errors import DeviceError
from rlx.sharding import P
from rlx_xla.aot import missing, parse_target
from rlx_xla.aot.transfers import Transfer, totals, transfers
from tests.rlx_xla import sharded_models

needs_compiler = pytest.mark.skipif(
    missing(parse_target("v5e-1")) is not None, reason="libtpu is not installed"
)

HLO = """
ENTRY %main.1 (p: f32[2,4]) -> f32[2,4] {
  %p = f32[2,4]{1,0:T(2,128)} parameter(0)
  %all-reduce.3 = f32[2,4]{1,0} all-reduce(%p), channel_id=1, replica_groups=[2,2]<=[4], to_apply=%add, metadata={op_name="x" source_file="model.py" source_line=7}
  %ag = (f32[2,4]{1,0}, bf16[8,4]{1,0}) all-gather-start(%p), channel_id=2, replica_groups={{0,1},{2,3}}, dimensions={0}
  %agd = bf16[8,4]{1,0} all-gather-done(%ag)
  %cp = (f32[2,4]{1,0}, f32[2,4]{1,0}, u32[]{:S(2)}, u32[]{:S(2)}) collective-permute-start(%p), source_target_pairs={{0,1},{1,0}}
  %many = (f32[2,4]{1,0}, s4[6]{0}) all-reduce(%p, %q), replica_groups={}, to_apply=%add
  ROOT %rs = pred[3]{0} reduce-scatter(%p), replica_groups=[1,4]<=[2,2]T(1,0), dimensions={0}
}
"""  # noqa: E501  one instruction is one line


def test_transfers_are_read_from_hlo() -> None:
    found = transfers(HLO)
    assert found[0] == Transfer(
        kind="all-reduce",
        name="all-reduce.3",
        result="f32[2,4]",
        nbytes=32,
        groups="[2,2]<=[4]",
        where="model.py:7",
    )
    assert [(t.kind, t.result, t.nbytes, t.groups) for t in found[1:]] == [
        ("all-gather", "bf16[8,4]", 64, "{{0,1},{2,3}}"),
        ("collective-permute", "f32[2,4]", 32, "{{0,1},{1,0}}"),
        ("all-reduce", "f32[2,4], s4[6]", 35, "{}"),
        ("reduce-scatter", "pred[3]", 3, "[1,4]<=[2,2]T(1,0)"),
    ]
    assert str(found[0]) == "all-reduce of f32[2,4], 32 B among [2,2]<=[4] at model.py:7"
    assert totals(found)["all-reduce"] == {"count": 2, "bytes": 67}


def test_a_target_with_fewer_devices_than_the_mesh_is_refused() -> None:
    b = rlx.GraphBuilder()
    x = b.input("x", "f32[8]")
    graph = b.build(x + x).with_shardings({"x": P("data")}, mesh={"data": 8})
    message = (
        r"^target 'tpu:v5e:2x2': 8 devices are required for Mesh\(data=8\); the target has 4\. "
        r"Take a larger topology or a smaller mesh\.$"
    )
    with pytest.raises(DeviceError, match=message):
        rlx_xla.preflight(graph, target="tpu:v5e:2x2")


@needs_compiler
def test_a_decoder_of_two_layers_over_four_chips() -> None:
    width, inner, words, batch, seq = 512, 1024, 2048, 4, 128
    graph = sharded_models.decoder_graph(
        batch, seq, width=width, heads=8, kv_heads=4, inner=inner, words=words
    )
    report = rlx_xla.preflight(sharded_models.divided(graph), target="tpu:v5e:2x2")
    assert report.ok, str(report)
    assert report.partitions == 4
    # Two sums over the model axis in each layer, of the rows that a device has.
    assert report.collectives == {"all-reduce": {"count": 4, "bytes": 4 * 2 * seq * width * 2}}
    assert {t.result for t in report.transfers} == {f"bf16[2,{seq},{width}]"}
    layer = 2 * width * width + width * width + 3 * width * inner
    held = 2 * (2 * layer // 2 + words * width + 5 * width) + 4 * batch // 2 * seq
    assert report.memory["argument"] == pytest.approx(held, rel=0.02)
    text = str(report)
    assert "  memory of each device: " in text
    assert "  largest values, before they are divided:" in text
    sent = f"      all-reduce of bf16[2,{seq},{width}], 262,144 B among "
    # Compilers write one set of groups in two ways.
    assert sent + "[2,2]<=[4]" in text or sent + "{{0,1},{2,3}}" in text
    assert report.to_dict()["transfers"][0]["kind"] == "all-reduce"


@needs_compiler
def test_minilm_over_four_chips() -> None:
    traced = sharded_models.minilm_graph(8, 32)
    whole = sum(v.type.nbytes for v in traced.graph.params)
    report = rlx_xla.preflight(sharded_models.divided(traced.graph), target="tpu:v5e:2x2")
    assert report.ok, str(report)
    # Two in each of six layers, and one for the rows of the embedding.
    assert report.collectives["all-reduce"]["count"] == 13
    assert list(report.collectives) == ["all-reduce"]
    assert 0.5 * whole < report.memory["argument"] < 0.6 * whole


@needs_compiler
def test_shardings_of_arguments_need_no_devices() -> None:
    mesh = AbstractMesh((2, 2), ("data", "model"))

    def spread(shape: tuple[int, ...], *entries: str | None) -> jax.ShapeDtypeStruct:
        placed = NamedSharding(mesh, PartitionSpec(*entries))
        return jax.ShapeDtypeStruct(shape, jnp.float32, sharding=placed)

    def mlp(x: jax.Array, w1: jax.Array, w2: jax.Array) -> jax.Array:
        return jnp.tanh(x @ w1) @ w2

    shapes = (
        spread((64, 256), "data"),
        spread((256, 512), None, "model"),
        spread((512, 256), "model"),
    )
    report = rlx_xla.preflight(mlp, *shapes, target="v5e-4")
    assert report.ok, str(report)
    assert report.memory["argument"] == 4 * (32 * 256 + 2 * 256 * 256)
    assert [t.nbytes for t in report.transfers] == [4 * 32 * 256]
    artifact = rlx_xla.aot(mlp, *shapes, target="v5e-4")
    assert "all-reduce" in artifact.hlo
