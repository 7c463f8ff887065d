"""Sources of ``rlx_xla/kernels/cuda`` as C++ for the CPU: their arithmetic without a GPU.

Functions that are instructions written as text are replaced, and declarations of shared memory;
all else is compiled as it is (``cuda_on_cpu.h``). Threads run one after another from wait to wait,
so that a wait that is missing may go unseen.
"""

from __future__ import annotations

import ctypes
import itertools
import os
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rlx_xla.kernels import ptx
from rlx_xla.kernels.ptx import Launch

COMPILER = os.environ.get("CXX") or shutil.which("g++")

_BODIES: Mapping[str, str] = {
    "float half_at(const u8* p)": "return of_f16(p);",
    "u32 permute(u32 a, u32 b, u32 selector)": "return permuted(a, b, selector);",
    "u32 minus(u32 a, u32 b)": "return difference(a, b);",
    "void copy(void* to, const void* from)": "memcpy(to, from, LENGTH);",
    "void copy_first(void* to, const void* from, int bytes)": "memcpy(to, from, bytes);",
    "void read_transposed(u32 (&r)[4], const void* row)": "transposed_rows(r, row);",
    "void multiply(float (&d)[4], u32 a0, u32 a1, u32 a2, u32 a3, uint2 b)": (
        "matrix_product(d, {a0, a1, a2, a3, b.x, b.y});"
    ),
    "u32 take(float& low, float& high)": (
        "const u32 r = (u32)to_bf16(high) << 16 | to_bf16(low); "
        "low -= of_bf16(r, false); high -= of_bf16(r, true); return r;"
    ),
    "u32 times(u32 a, u32 b)": "return product(a, b);",
    "uint2 read8(const void* from)": "return *(const uint2*)from;",
    "uint4 read16(const void* from)": "return *(const uint4*)from;",
    "void arrive()": "",
    "void await()": "wait(everyone);",
    "void send(float* to, u32 block, float x)": "*beside(to, block) = x;",
}
"""Function → what it does here."""

_NUMBERS = {1: ("__uint_as_float((u32)x << 16)", "to_bf16(x)"), 2: ("of_f16(&x)", "to_f16(x)")}
"""KIND → bodies of ``widen`` and ``narrow``."""

_SHARED = (
    (r"extern __shared__ __align__\(16\) (\w+) (\w+)\[\];", r"\1* \2 = (\1*)aligned(dynamic);"),
    (
        r"__shared__ __align__\(16\) float hidden\[2\]\[ROWS\]\[WIDTH\];",
        "float (*hidden)[ROWS][WIDTH] = (float (*)[ROWS][WIDTH])aligned(fixed);",
    ),
    (
        r"__shared__ __align__\(16\) float inbox\[128 \* COLUMNS\];",
        "float* inbox = (float*)aligned(fixed);",
    ),
)


def run(
    source: str,
    launch: Launch,
    arrays: Sequence[np.ndarray[Any, Any]],
    folder: Path,
    *,
    cluster: int = 0,
    fixed: int = 0,
) -> None:
    """Run a launch; results are written into their arrays.

    Args:
        source: name of the file.
        launch: how it is started.
        arrays: what the kernel gets pointers to, in order.
        folder: where the program is built.
        cluster: blocks along x that meet; 0 for a kernel without clusters.
        fixed: bytes of shared memory of a fixed size.
    """
    text = _translated(ptx.source_text(source), launch.defines.get("KIND", 0))
    pointers = ", ".join(f"decltype(argument<{i}>(kernel))(given[{i}])" for i in range(len(arrays)))
    main = f"""
template <int I, class... A> auto argument(void (*)(A...)) {{
  return std::get<I>(std::tuple<A...>());
}}
static void** given;
static void go() {{ constexpr auto kernel = {launch.entry}; kernel({pointers}); }}
extern "C" void run(void** arrays, const Place* places, int count) {{
  given = arrays;
  launch({{places, places + count}}, {launch.block[0]}, {launch.shared_bytes}, {fixed}, go);
}}
"""
    program, library = folder / "kernel.cc", folder / "kernel.so"
    header = Path(__file__).with_name("cuda_on_cpu.h")
    program.write_text(f'#include <tuple>\n#include "{header}"\n{text}{main}', encoding="utf-8")
    assert COMPILER is not None
    defines = [f"-D{name}={value}" for name, value in launch.defines.items()]
    subprocess.run(
        [COMPILER, "-std=c++17", "-O1", "-w", "-shared", "-fPIC", *defines, program, "-o", library],
        check=True,
        timeout=120,
    )
    pointer = (ctypes.c_void_p * len(arrays))(*(a.ctypes.data for a in arrays))
    sizes = (*launch.grid, 1, 1)[:3]
    every = [(x, y, z) for z, y, x in itertools.product(*(range(n) for n in reversed(sizes)))]
    for first in range(0, len(every), cluster or len(every)):
        places = np.array(every[first : first + (cluster or len(every))], np.int32)
        ctypes.CDLL(str(library)).run(pointer, ctypes.c_void_p(places.ctypes.data), len(places))


def _translated(text: str, kind: int) -> str:
    for head, body in _BODIES.items():
        pattern = re.escape(f"__device__ __forceinline__ {head}") + r" \{.*?\n\}\n"
        text = re.sub(
            pattern, lambda _, h=head, b=body: f"static {h} {{ {b} }}\n", text, flags=re.S
        )
    if kind in _NUMBERS:
        for head, body in zip(
            ("float widen(stored x)", "stored narrow(float x)"), _NUMBERS[kind], strict=True
        ):
            pattern = re.escape(f"__device__ __forceinline__ {head}") + r" \{\n.*?\n\}\n"
            made = f"static {head} {{ return {body}; }}\n"
            text = re.sub(pattern, lambda _, made=made: made, text, flags=re.S)
    for pattern, made in _SHARED:
        text = re.sub(pattern, made, text)
    text = text.replace("aligned(dynamic)", "aligned(current->block->dynamic)")
    text = text.replace("aligned(fixed)", "aligned(current->block->fixed)")
    text = re.sub(r'asm volatile\("cp\.async[^\n]*\);', "", text)
    text = text.replace("__cluster_dims__(CLUSTER, 1, 1)", "")
    return text.replace('extern "C" __global__', "static")
