"""Training steps of models as training frameworks write them: megatron-core and torchtitan, on the meta device."""
