"""Files, packed and unpacked."""
