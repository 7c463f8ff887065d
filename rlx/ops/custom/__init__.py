"""User code in a graph: functions with derivatives of their own, and ops by name."""

from rlx.ops.custom.custom_fn import CustomFn as CustomFn
from rlx.ops.custom.named import Custom as Custom
from rlx.ops.custom.named import CustomOp as CustomOp
from rlx.ops.custom.named import custom_op as custom_op
from rlx.ops.custom.named import register_custom as register_custom
from rlx.ops.custom.named import registered_custom as registered_custom
from rlx.ops.custom.named import unregister_custom as unregister_custom
