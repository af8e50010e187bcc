"""What the prediction of a layer of experts says: what is not known, and what could change."""

BALANCED = "balanced load"
unmeasured = "nobody measured experts in {1} on {0} or another GPU of its architecture".format
off_the_grid = "grouped GEMMs take {1} in rows of a multiple of {2} elements, and not of {0}".format
datasheet_lacks = "the {1} peak, the number of SMs or the bandwidth of {0} is not known".format
taken_over = "{}; taken over from another GPU of the architecture".format
rows_padded_to = "rows of each expert padded to {}".format
power_law = "load as a power law of {}".format
capacity_factor = "capacity factor {}: rows above it dropped".format
ep_degree = "EP {}, as many tokens per GPU".format
top_k = "top-{}".format
