"""Linear algebra: factorisations, spectra, and systems of equations."""

from rlx.ops.solve.factors import Cholesky as Cholesky
from rlx.ops.solve.factors import Geqp3 as Geqp3
from rlx.ops.solve.factors import Geqrf as Geqrf
from rlx.ops.solve.factors import HouseholderProduct as HouseholderProduct
from rlx.ops.solve.factors import Lu as Lu
from rlx.ops.solve.factors import LuPivotsToPermutation as LuPivotsToPermutation
from rlx.ops.solve.factors import Qr as Qr
from rlx.ops.solve.packed import EighBatch as EighBatch
from rlx.ops.solve.spectra import Eig as Eig
from rlx.ops.solve.spectra import Eigh as Eigh
from rlx.ops.solve.spectra import EighMethod as EighMethod
from rlx.ops.solve.spectra import Svd as Svd
from rlx.ops.solve.spectra import SvdMethod as SvdMethod
from rlx.ops.solve.systems import DenseSolve as DenseSolve
from rlx.ops.solve.systems import Det as Det
from rlx.ops.solve.systems import LogDet as LogDet
from rlx.ops.solve.systems import TriangularSolve as TriangularSolve
from rlx.ops.solve.systems import TridiagonalSolve as TridiagonalSolve
