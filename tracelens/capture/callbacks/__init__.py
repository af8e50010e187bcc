"""Step marks from trainers, for those who would rather add a callback than run ``tracelens capture``."""
