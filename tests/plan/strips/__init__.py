"""Mirrors `tightfit.plan.strips`."""
