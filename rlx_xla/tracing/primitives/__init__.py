"""One module per op family: functions from JAX primitives to ops."""
