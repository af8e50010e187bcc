"""Training steps of models as frameworks write them: megatron-core and torchtitan, on the meta device."""
