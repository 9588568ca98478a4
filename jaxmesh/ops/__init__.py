"""What the compute and communication operations of TTIR mean, one row an op."""
