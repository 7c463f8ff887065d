"""RLX: an ML compiler's core. Graphs that people can read, transform, save and run.

This package needs numpy and ml_dtypes only; ``rlx_xla`` traces JAX functions into its graphs and
compiles them with XLA.
"""

from __future__ import annotations

from rlx import debug as debug
from rlx import devices as devices
from rlx import dims as dims
from rlx import errors as errors
from rlx import ops as ops
from rlx import passes as passes
from rlx import quant as quant
from rlx import rng as rng
from rlx import sharding as sharding
from rlx.backend import available_devices as available_devices
from rlx.backend import register_backend as register_backend
from rlx.backend import registered_devices as registered_devices
from rlx.compiled import CompiledGraph as CompiledGraph
from rlx.dims import DimBinding as DimBinding
from rlx.dtypes import DType as DType
from rlx.graph_devices import GraphDevices as GraphDevices
from rlx.ir.builder import GraphBuilder as GraphBuilder
from rlx.ir.graph import Graph as Graph
from rlx.ir.graph import Node as Node
from rlx.ir.graph import Value as Value
from rlx.ir.graph import same as same
from rlx.ir.interpret import interpret as interpret
from rlx.ir.location import scope as scope
from rlx.ir.module import FusionPolicy as FusionPolicy
from rlx.ir.module import Module as Module
from rlx.ir.operators import constant as constant
from rlx.ir.references import TensorRef as TensorRef
from rlx.ir.rewrite import rewrite as rewrite
from rlx.ir.serialize import load as load
from rlx.ir.serialize import load_params as load_params
from rlx.ir.serialize import save as save
from rlx.ir.text_parse import parse as parse
from rlx.ir.verify import verify as verify
from rlx.options.compile import CompileOptions as CompileOptions
from rlx.options.dispatch import KernelDispatch as KernelDispatch
from rlx.options.dispatch import KernelPolicy as KernelPolicy
from rlx.options.fusion import FusionOptions as FusionOptions
from rlx.options.fusion import FusionTarget as FusionTarget
from rlx.options.precision import Precision as Precision
from rlx.options.precision import PrecisionPolicy as PrecisionPolicy
from rlx.options.rng import RngBackend as RngBackend
from rlx.options.rng import RngOptions as RngOptions
from rlx.passes.bind_dims import bind as bind
from rlx.passes.bind_dims import infer_bindings as infer_bindings
from rlx.report import CompileReport as CompileReport
from rlx.session import Session as Session
from rlx.types import TensorType as TensorType
