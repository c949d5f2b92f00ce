"""Matrix-product kernels: each makes a linear layer out of a weight."""
