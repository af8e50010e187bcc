"""The measured record of one GPU: stages that measure, their result files, and what a person reads of them.

``python -m benchmarks.gpu.collect --plan`` says what is missing. Needs torch, numpy and this repository's
tree, nothing installed: a GPU machine may have no more.
"""
