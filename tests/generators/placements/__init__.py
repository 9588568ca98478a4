"""Every placement of small programs of one operation, against NumPy, in each way to run them."""
