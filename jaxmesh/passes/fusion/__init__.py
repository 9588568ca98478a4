"""The pass that fuses groups of operations into one operation of TTIR."""
