"""Prints the packages that hold the compilers for the targets, as the installed jax asks for them.

They are installed beside an environment: ``pip install --no-deps --target FOLDER $(python -m …)``.
"""

from __future__ import annotations

import importlib.metadata


def needs() -> list[str]:
    """Requirements without further ones; libtpu's version is in those of jax."""
    wanted = [line.partition(";")[0].strip() for line in importlib.metadata.requires("jax") or ()]
    libtpu = next(line for line in wanted if line.startswith("libtpu"))
    version = importlib.metadata.version("jaxlib")
    plugins = [f"jax-cuda12-{part}=={version}" for part in ("plugin", "pjrt")]
    return [libtpu, *plugins, "nvidia-cuda-nvcc-cu12"]


if __name__ == "__main__":
    print(" ".join(needs()))
