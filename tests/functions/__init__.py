"""Models of a library whose layers are autograd functions around kernels, recorded with known truth."""
