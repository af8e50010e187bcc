"""Training steps of vision models that nobody here wrote: `timm` and `torchvision`, on the meta device."""
