"""The figures of arXiv 2401.14489 drawn again from measurements of the GPU at hand, and what differs."""
