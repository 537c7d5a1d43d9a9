"""Packing: bf16 weights in three quarters of their bytes, with the same bits."""
